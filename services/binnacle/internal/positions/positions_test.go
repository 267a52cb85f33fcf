package positions

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// TestFold checks the sequence from which two work consumers continue, after each event
// of a ledger.
func TestFold(t *testing.T) {
	f := New([]bus.Work{
		{Filters: bus.Filters("", contract.EventCallProposed), Ends: append(bus.Decisions(), bus.Filters("policy", contract.EventEscalated)...)},
		bus.ExecutorWork("judge"),
	})
	for i, c := range []struct {
		event, call string // service and event of the entry, and the id of its call
		want        [2]uint64
	}{
		{"gateway.call_proposed", "a", [2]uint64{1, 2}},
		{"gateway.call_proposed", "b", [2]uint64{1, 3}},
		{"policy.allowed_judge", "a", [2]uint64{2, 3}},
		{"judge.effect_started", "a", [2]uint64{2, 3}},
		{"policy.escalated", "b", [2]uint64{6, 3}},
		{"vault-broker.effect_recorded", "a", [2]uint64{7, 3}}, // another executor cannot complete judge's work
		{"judge.effect_recorded", "a", [2]uint64{8, 8}},
		{"judge.call_proposed", "b", [2]uint64{9, 9}}, // policy decided the call before, so this is no item
		{"policy.allowed_judge", "b", [2]uint64{10, 9}},
		{"policy.allowed_judge", "b", [2]uint64{11, 9}},
		{"gateway.call_proposed", "c", [2]uint64{11, 9}},
		{"policy.effect_recorded", "c", [2]uint64{13, 9}},
		{"policy.effect_recorded", "b", [2]uint64{14, 14}},
		{"policy.allowed_session-runner", "d", [2]uint64{15, 15}},
		{"judge.allowed_judge", "e", [2]uint64{16, 16}}, // only policy can allow a call, so this is no item
	} {
		service, event, _ := strings.Cut(c.event, ".")
		f.Apply(eventlog.Entry{Seq: uint64(i + 1), Subject: bus.Filter{Tenant: "t", Service: service, Origin: "-", Event: event, Key: "s-1"}.String(), Data: []byte(`{"actor":"x","callid":"` + c.call + `"}`)})
		if got := [2]uint64{f.From(0), f.From(1)}; got != c.want {
			t.Errorf("after %d, %s of %s: %v, want %v", i+1, c.event, c.call, got, c.want)
		}
	}
}
