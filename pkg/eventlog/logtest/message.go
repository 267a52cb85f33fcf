package logtest

import (
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is a message of a work consumer. It records how it was acknowledged.
type Message struct {
	jetstream.Msg
	To      string // subject
	Body    []byte
	Seq     uint64
	Tries   uint64
	Settled string        // "ack", "nak", "term", or "" before an acknowledgement
	Delay   time.Duration // delay that was passed with "nak"; 0 = none
}

// Data implements jetstream.Msg.
func (m *Message) Data() []byte { return m.Body }

// Subject implements jetstream.Msg.
func (m *Message) Subject() string { return m.To }

// Headers implements jetstream.Msg.
func (m *Message) Headers() nats.Header { return nil }

// Metadata implements jetstream.Msg. It returns an error if Seq is 0, as for a message
// that no consumer has delivered.
func (m *Message) Metadata() (*jetstream.MsgMetadata, error) {
	if m.Seq == 0 {
		return nil, jetstream.ErrNotJSMessage
	}
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: m.Seq}, NumDelivered: m.Tries}, nil
}

// Ack implements jetstream.Msg.
func (m *Message) Ack() error { m.Settled = "ack"; return nil }

// Term implements jetstream.Msg.
func (m *Message) Term() error { m.Settled = "term"; return nil }

// Nak implements jetstream.Msg.
func (m *Message) Nak() error { m.Settled = "nak"; return nil }

// NakWithDelay implements jetstream.Msg.
func (m *Message) NakWithDelay(d time.Duration) error { m.Settled, m.Delay = "nak", d; return nil }
