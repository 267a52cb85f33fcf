package llmrouter

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/sse"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// stream forwards a provider's stream to the caller. It sends nothing before the first
// content or, if there is none, before the end of the stream, so that another candidate
// can be used if the stream fails before that.
type stream struct {
	*attempt
	head  *llm.Head
	dec   dialect.Decoder
	enc   dialect.Encoder // encodes events for the caller; nil if events are forwarded as received
	guard *filter         // nil if no guard applies; otherwise enc is not nil
	turns ir.Turns
	sum   ir.Collect
	held  []byte // bytes for the caller that precede the first content
	size  int    // size of the decoded events so far, as counted for maxStreamed
	shown bool   // this attempt is the one whose response is sent
	ended bool   // the provider sent a finish reason
}

// stream forwards a stream. If the stream breaks, the recorded output is the content
// that was forwarded until then.
func (a *attempt) stream(ctx context.Context, res *provider.Answer, head *llm.Head) error {
	head.Headers[headerType] = typeStream
	s, err := a.newStream(head)
	if err != nil {
		return err
	}
	defer s.keep()
	for !s.dec.Done() || s.enc != nil && a.api.Trails {
		b, err := s.next(ctx, res)
		if errors.Is(err, errEnd) {
			break
		}
		if err != nil {
			return err
		}
		if s.dec.Done() && s.enc == nil {
			return s.finish(b)
		}
		if err := s.pass(b); err != nil {
			return err
		}
	}
	return s.end()
}

// newStream returns the state of a stream. It returns a failure with fault.Unsupported
// if output guards apply but the caller's API has no encoder, because guards work on
// decoded events, which must be encoded again.
func (a *attempt) newStream(head *llm.Head) (*stream, error) {
	s := &stream{attempt: a, head: head, dec: a.api.Decoder(a.c.name())}
	if len(a.c.reply) > 0 {
		if a.c.api.Encoder == nil {
			return nil, &provider.Failure{Code: fault.Unsupported, Taken: true, Status: http.StatusBadRequest, Message: "stream: output guards cannot be applied to a stream of " + a.c.w.Call.Kind + "; request a response that is not a stream"}
		}
		s.guard = &filter{g: a.c.reply, seen: a.seen, joined: a.c.api.Joined}
	}
	if s.guard != nil || !a.native() {
		s.enc = a.ans.encoder()
	}
	return s, nil
}

// pass sends bytes to the caller, or buffers them until this attempt is selected as the
// one whose response is sent.
func (s *stream) pass(b []byte) error {
	if s.shown {
		return s.c.out.write(b)
	}
	s.held = append(s.held, b...)
	return nil
}

// end ends a stream that the router encodes itself. It adds an end event if the provider
// sent none.
func (s *stream) end() error {
	var end []byte
	if !s.ended {
		var err error
		if _, end, err = s.take([]ir.Event{{Kind: ir.End}}); err != nil {
			return err
		}
	}
	return s.finish(append(end, s.enc.Finish()...))
}

// maxStreamed limits the memory for a stream, in bytes: the text and arguments,
// eventSize for each event, and the bytes that are buffered before the first content.
const (
	maxStreamed = 24 << 20
	eventSize   = 32
)

// errEnd is returned by next and read at the end of the stream.
var errEnd = errors.New("end")

// next reads one event and returns the bytes for the caller, which may be none. On the
// first event with content, it selects this attempt as the one whose response is sent;
// it returns errLost if another attempt was selected before. It returns errEnd at the
// end of the stream, and a failure if the stream exceeds maxStreamed. Its other errors
// are those of read and take.
func (s *stream) next(ctx context.Context, res *provider.Answer) ([]byte, error) {
	e, said, err := s.read(ctx, res)
	if err != nil {
		return nil, err
	}
	for i := range said {
		s.size += eventSize + len(said[i].Part.Text) + len(said[i].Part.Args)
	}
	if s.size+len(s.held) > maxStreamed {
		return nil, s.up.Malformed("sent a response above 24 MiB")
	}
	content, b, err := s.take(said)
	if err != nil {
		return nil, err
	}
	if s.enc == nil {
		b = s.raw(&e, said)
	}
	if content && !s.shown {
		if err := s.c.out.claim(s.attempt, s.head); err != nil {
			return nil, err
		}
		s.shown = true
		b, s.held = append(s.held, b...), nil
	}
	return b, nil
}

// read reads and decodes one event. An error that the provider reports, and an event
// that cannot be decoded, are failures of the provider. If the stream ends or cannot be
// read, read returns errEnd if the answer is already complete, since nothing is missing
// then, the error of ctx if ctx is done, or else a failure of the provider.
func (s *stream) read(ctx context.Context, res *provider.Answer) (e sse.Event, said []ir.Event, err error) {
	var fault *ir.Fault
	if e, err = res.Next(); err == nil {
		if said, err = s.dec.Event(e.Name, e.Data); err == nil {
			return e, said, nil
		}
		if !errors.As(err, &fault) {
			return e, nil, s.up.Malformed("sent an event that cannot be read")
		}
	}
	switch {
	case errors.As(err, &fault):
		return e, nil, s.up.Said(fault)
	case s.dec.Done():
		return e, nil, errEnd
	case ctx.Err() != nil:
		return e, nil, ctx.Err()
	}
	return e, nil, res.Cut(err)
}

// raw returns the bytes of an event after edit, and records the response's id. In some
// APIs the last event contains the whole response; raw stores that response as the
// document to record.
func (s *stream) raw(e *sse.Event, said []ir.Event) []byte {
	if s.ev.ResponseID == "" {
		s.ev.ResponseID = responseID(e.Data)
	}
	if done, ok := whole(s.api.Final, e.Data); ok {
		s.output = done
	}
	return s.edit(e.Raw, said)
}

// take records the usage, the end and the content of decoded events. It reports whether
// there was content, and returns the encoded events if the router encodes the stream
// itself. Its error is that of ordered.
func (s *stream) take(said []ir.Event) (content bool, b []byte, err error) {
	if s.enc != nil {
		if said, err = s.ordered(said); err != nil {
			return false, nil, err
		}
	}
	for i := range said {
		e := &said[i]
		switch {
		case e.Kind == ir.Used:
			s.usage.Merge(e.Usage)
		case e.Kind == ir.End:
			s.ended = true
		case e.Content():
			content = true
			s.said += len(e.Part.Text) + len(e.Part.Args)
		}
		s.sum.Add(e)
		if s.enc != nil {
			b = append(b, s.enc.Encode(e)...)
		}
	}
	return content, b, nil
}

// ordered puts events in the order of their turns and applies the guards. It returns a
// failure if a guard blocks content.
func (s *stream) ordered(said []ir.Event) (out []ir.Event, err error) {
	for _, e := range said {
		for _, e := range s.turns.Put(e) {
			if s.guard == nil {
				out = append(out, e)
				continue
			}
			more, blocked := s.guard.step(e)
			if blocked != "" {
				return nil, contentBlocked("answer", blocked)
			}
			out = append(out, more...)
		}
	}
	return out, nil
}

// finish sends the end of a complete stream and sets the document to record. If the
// stream had no content, finish selects this attempt as the one whose response is sent;
// it returns errLost if another attempt was selected before.
func (s *stream) finish(end []byte) error {
	if !s.shown { // the stream is complete but had no content
		if err := s.c.out.claim(s.attempt, s.head); err != nil {
			return err
		}
		s.shown = true
		end = append(s.held, end...)
	}
	if s.enc != nil {
		s.ev.ResponseID = s.ans.ID
	}
	s.keep()
	return s.c.out.finish(end)
}

// keep builds the document to record from the content that was forwarded, unless the
// provider sent one or nothing was forwarded. It is also used for a stream that broke.
func (s *stream) keep() {
	if s.output == nil && s.shown {
		r := s.sum.Response()
		r.Usage = s.usage
		s.output, _ = s.ans.build(r)
	}
}

// whole returns the member response of an event that has one of the types, and whether
// it is an object.
func whole(types []string, data []byte) ([]byte, bool) {
	for _, t := range types {
		if bytes.Contains(data, []byte(t)) && gjson.GetBytes(data, "type").Str == t {
			d := gjson.GetBytes(data, "response")
			return []byte(d.Raw), d.IsObject()
		}
	}
	return nil, false
}

// usageNull is the member that OpenAI adds to the chunks before the last if usage is
// requested.
var usageNull = []byte(`,"usage":null`)

// edit removes members "usage":null from an event, and returns nil for an event that
// contains only usage, if the router requested usage and the caller did not. Otherwise
// it returns raw unchanged.
func (s *stream) edit(raw []byte, steps []ir.Event) []byte {
	if !s.inject {
		return raw
	}
	if len(steps) > 0 && steps[len(steps)-1].Kind == ir.Used {
		only := true
		for i := range steps[:len(steps)-1] {
			only = only && steps[i].Kind == ir.Begin
		}
		if only {
			return nil
		}
	}
	// Within a string, quotes are escaped, so this matches only a member.
	return bytes.ReplaceAll(raw, usageNull, nil)
}
