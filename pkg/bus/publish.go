package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Ack is the server's acknowledgement that a stream has a message.
type Ack struct {
	Seq       uint64
	Duplicate bool // the message under Seq was stored earlier, with the same message id
}

// Publish publishes a message once and waits for the acknowledgement. An error of the
// server is a *jetstream.APIError; after any other error, the message may have been
// stored. Without a deadline in ctx, Publish fails after requestTimeout.
//
// It is for the hot path, because the PublishMsg of nats.go decodes each acknowledgement
// with encoding/json.
func (c *Conn) Publish(ctx context.Context, m *nats.Msg) (Ack, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	resp, err := c.NC.RequestMsgWithContext(ctx, m)
	if err != nil {
		return Ack{}, err
	}
	return ackOf(resp.Data)
}

// errAck is returned for a response that is neither an acknowledgement nor an error.
var errAck = errors.New("the response is not an acknowledgement of a stream")

// ackOf reads the server's response to a published message. It decodes the usual form
// itself, {"stream":"<name>","seq":<n>}, and every other response as JSON.
func ackOf(b []byte) (Ack, error) {
	if rest, ok := bytes.CutPrefix(b, []byte(`{"stream":"`)); ok {
		_, rest, _ = bytes.Cut(rest, []byte(`","seq":`))
		digits, ok := bytes.CutSuffix(rest, []byte(`}`))
		if seq, err := strconv.ParseUint(string(digits), 10, 64); ok && err == nil {
			return Ack{Seq: seq}, nil
		}
	}
	var ack struct {
		Error     *jetstream.APIError `json:"error"`
		Stream    string              `json:"stream"`
		Seq       uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
	}
	switch err := json.Unmarshal(b, &ack); {
	case err != nil:
		return Ack{}, errors.Join(errAck, err)
	case ack.Error != nil:
		return Ack{}, ack.Error
	case ack.Stream == "":
		return Ack{}, errAck
	}
	return Ack{ack.Seq, ack.Duplicate}, nil
}
