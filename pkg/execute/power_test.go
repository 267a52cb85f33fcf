package execute

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestDurableFirst shows that a handler runs after a sync that began when the claim was
// stored, and that it does not run if that sync fails or gets no response: the call is
// then recorded as failed with the error code unavailable.
func TestDurableFirst(t *testing.T) {
	for name, c := range map[string]struct {
		response *bus.Synced // nil: no response
		status   string
		code     string
	}{
		"synced":     {&bus.Synced{Store: "s"}, contract.Succeeded, ""},
		"not synced": {&bus.Synced{Store: "s", Error: "no space"}, contract.Failed, contract.CodeUnavailable},
		"no syncer":  {nil, contract.Failed, contract.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			tt := newTenantsTest(t)
			syncs, ran := 0, 0
			respond := func() bus.Synced {
				if syncs++; tt.log.Size() != 1 {
					t.Errorf("%d events when the sync began, want the claim", tt.log.Size())
				}
				return *c.response
			}
			if c.response == nil {
				respond = nil
			}
			tt.x.Conn = meshtest.Grouped(t, respond)
			tt.x.Handler = func(context.Context, *Work) Result {
				if ran++; syncs != 1 {
					t.Errorf("the handler runs after %d syncs", syncs)
				}
				return Result{Status: contract.Succeeded}
			}
			d, m := tt.deliver("works", 1)
			tt.x.Process(t.Context(), d)
			status, code := tt.outcome("works")
			if m.Settled != "ack" || status != c.status || code != c.code || (ran == 1) != (c.code == "") {
				t.Errorf("settled by %q, run %d times, recorded %q %q", m.Settled, ran, status, code)
			}
		})
	}
}

// TestBodyBeforeSync shows that the sync before a handler runs begins only after the body
// was read. Reading a body waits while another service of the process stores it.
func TestBodyBeforeSync(t *testing.T) {
	var stored atomic.Bool
	w := &item{body: func(context.Context) ([]byte, error) {
		stored.Store(true)
		return nil, nil
	}}
	conn := meshtest.Grouped(t, func() bus.Synced {
		if !stored.Load() {
			t.Error("the sync begins before the body is stored")
		}
		return bus.Synced{Store: "s"}
	})
	if why := w.undurable(t.Context(), conn); why != nil {
		t.Errorf("%+v", why)
	}
}
