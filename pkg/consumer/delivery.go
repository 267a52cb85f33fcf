package consumer

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Delivery is one delivery of an event by a work consumer. Its content is available
// through Open only, so that nothing uses a message that was not checked.
type Delivery struct {
	Seq     uint64    // sequence of the event on the ledger
	Tries   uint64    // number of deliveries, including this one
	Stored  time.Time // when the server stored the event, by its clock
	Subject string    // for logs

	m       jetstream.Msg
	filters []string
}

// NewDelivery returns the delivery of a message by a consumer with the given filters. It
// returns an error if the message does not come from a consumer.
func NewDelivery(m jetstream.Msg, filters []string) (*Delivery, error) {
	md, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	return &Delivery{Seq: md.Sequence.Stream, Tries: md.NumDelivered, Stored: md.Timestamp, Subject: m.Subject(), m: m, filters: filters}, nil
}

// Open decodes the event as eventlog.Open does, with the filters of the consumer. After
// an error the delivery can never be processed: log it and call Term.
func (d *Delivery) Open() (*contract.Event, error) {
	return eventlog.Open(eventlog.Entry{Seq: d.Seq, Subject: d.Subject, Data: d.m.Data()}, d.filters...)
}

// Ack acknowledges that the event was processed. If an acknowledgement is lost, the
// event is delivered again; the same holds for Nak and Term.
func (d *Delivery) Ack() { _ = d.m.Ack() }

// Nak returns the event to the server, which delivers it again after at least delay.
func (d *Delivery) Nak(delay time.Duration) {
	if delay == 0 {
		_ = d.m.Nak()
		return
	}
	_ = d.m.NakWithDelay(delay)
}

// Term ends the delivery of an event that can never be processed.
func (d *Delivery) Term() { _ = d.m.Term() }
