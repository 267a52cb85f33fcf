package run

import (
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// TestSeeLedger shows that the first event of an instance comes after the last event of
// the ledger and after the last one of its service, also if they are of other tenants.
func TestSeeLedger(t *testing.T) {
	for _, c := range []struct {
		name string
		last []string // sources of the last events, each with a lower lamport than the one before
	}{
		{"another service", []string{"gateway/gw1"}},
		{"the same service", []string{"judge/judge-1", "gateway/gw1"}},
	} {
		log := &memlog.Log{}
		for i, source := range c.last {
			m := &emit.Emitter{Log: log, Tenant: "other", Source: source, Now: time.Now}
			m.See(uint64(40 / (i + 1)))
			if _, err := m.Append(t.Context(), m.New(contract.EventCancelRequested, "s-1", []byte("{}"), nil)); err != nil {
				t.Fatal(err)
			}
		}
		v := &Env{Service: "judge", Emit: &emit.Emitter{Log: log, Tenant: "t", Source: "judge/judge-1", Now: time.Now}}
		if err := v.seeLedger(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l := v.Emit.Tick(); l <= 41 {
			t.Errorf("%s: lamport %d", c.name, l)
		}
	}
}
