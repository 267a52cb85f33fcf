package attack

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// A service that received another's request for a sync could respond before the NATS server has
// synced anything. Each identity subscribes to the subject of the requests, and to wildcards that
// match it, while calls are made. In TestOneProcessListener the server is in durability mode power,
// in which each call sends requests.
var _ = register("forged syncs", func(t *testing.T, m *harness.Mesh) {
	if m.NATS == "" {
		return // TestForgedSync of package mesh covers it
	}
	var received atomic.Int64
	for _, as := range harness.Services {
		c := m.Connect(t, as)
		for _, subject := range []string{bus.SyncSubject, "sync.*", ">"} {
			_, err := c.NC.Subscribe(subject, func(r *nats.Msg) {
				if r.Subject == bus.SyncSubject {
					received.Add(1)
					_ = r.Respond([]byte(`{"store":"forged"}`))
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := c.NC.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "", `{"n":1}`); err != nil || r.Status != http.StatusOK {
			t.Errorf("a call: %v %+v", err, r)
		}
	}
	if n := received.Load(); n > 0 {
		t.Errorf("%d requests for a sync were received by services", n)
	}
})
