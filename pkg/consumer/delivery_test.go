package consumer_test

import (
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
)

// TestDelivery shows that a delivery gives access to an event only if the event was
// delivered under its own subject and the consumer's filters select it, that a message
// without the metadata of a delivery is rejected, and that Ack, Nak and Term each send
// their own response.
func TestDelivery(t *testing.T) {
	e := &contract.Event{ID: "x-1", Name: contract.EventEscalated, Version: 1, Source: "policy/policy-1", Tenant: "t", Origin: "gw1", Key: "s-1",
		Actor: "alice", Client: "-", Lamport: 1, Time: "2026-01-01T00:00:00.000Z", Data: []byte(`{}`)}
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, subject string
		filters       []string
		ok            bool
	}{
		{"selected", e.Subject(), bus.Filters("policy", contract.EventEscalated), true},
		{"not selected", e.Subject(), bus.Filters("judge", contract.EventEscalated), false},
		{"without filters", e.Subject(), nil, false},
		{"under another subject", "evt.t.policy.gw1.escalated.s-2", bus.Filters("policy", contract.EventEscalated), false},
	} {
		d, err := consumer.NewDelivery(&logtest.Message{To: c.subject, Body: raw, Seq: 5, Tries: 2}, c.filters)
		if err != nil || d.Seq != 5 || d.Tries != 2 || d.Subject != c.subject {
			t.Fatalf("%s: %+v, %v", c.name, d, err)
		}
		if got, err := d.Open(); (err == nil) != c.ok || (got != nil) != c.ok {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
	if _, err := consumer.NewDelivery(&logtest.Message{To: e.Subject(), Body: raw}, []string{bus.EveryEvent}); err == nil {
		t.Error("a message that no consumer delivered is accepted")
	}
	for want, settle := range map[string]func(*consumer.Delivery){
		"ack": (*consumer.Delivery).Ack, "term": (*consumer.Delivery).Term,
		"nak": func(d *consumer.Delivery) { d.Nak(time.Second) },
	} {
		m := &logtest.Message{To: e.Subject(), Body: raw, Seq: 1}
		d, err := consumer.NewDelivery(m, nil)
		if err != nil {
			t.Fatal(err)
		}
		if settle(d); m.Settled != want || want == "nak" && m.Delay != time.Second {
			t.Errorf("%s: settled by %q after %v", want, m.Settled, m.Delay)
		}
	}
}
