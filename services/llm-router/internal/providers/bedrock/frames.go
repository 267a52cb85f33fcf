package bedrock

import (
	"errors"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/sse"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// frames reads Amazon's event stream encoding (application/vnd.amazon.eventstream).
// An exception in the stream is returned as an error of type *ir.Fault.
type frames struct {
	r    io.Reader
	d    *eventstream.Decoder
	buf  []byte
	data []byte
}

func newFrames(r io.Reader) dialect.Source {
	return &frames{r: r, d: eventstream.NewDecoder(), buf: make([]byte, 0, 4<<10)}
}

// Next implements dialect.Source. The decoder verifies checksums. Next returns
// provider.ErrDeep for JSON that is nested too deep, an *ir.Fault for an exception or an
// error that the provider sent, and io.ErrUnexpectedEOF at the end of the stream.
func (f *frames) Next() (sse.Event, error) {
	m, err := f.d.Decode(f.r, f.buf)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // a complete stream ends with the event metadata, so an end before it is unexpected
		}
		return sse.Event{}, err
	}
	header := func(name string) string {
		if v := m.Headers.Get(name); v != nil {
			return v.String()
		}
		return ""
	}
	if f.data = append(f.data[:0], m.Payload...); canon.CheckDepth(f.data) != nil {
		return sse.Event{}, provider.ErrDeep
	}
	if header(":message-type") == "event" {
		return sse.Event{Name: header(":event-type"), Data: f.data}, nil
	}
	kind := header(":exception-type")
	if kind == "" {
		kind = header(":error-code")
	}
	return sse.Event{}, parseFault(0, kind, f.data)
}
