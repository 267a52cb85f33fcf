package execute

import (
	"context"
	"crypto/ed25519"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// TestFacts checks that a fact about a call is appended again while the ledger is
// unavailable, for a limited time, and that the outcome is recorded even if the fact is
// delayed or lost.
func TestFacts(t *testing.T) {
	key, err := sign.NewKey(make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		outage time.Duration
		stored bool
	}{{"no outage", 0, true}, {"an outage", time.Minute, true}, {"the ledger stays away", time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			m := &emit.Emitter{Log: &memlog.Log{}, Tenant: "t", Source: "judge/judge-1", Now: time.Now}
			x := &Executor{Service: "judge", Instance: "judge-1", Emit: m, Recorder: &outcome.Recorder{Emit: m, Key: func() *sign.Key { return key }, Service: "judge"}}
			a := &contract.Allowed{Call: contract.Call{ID: "c-1"}}
			a.Decision.CallID, a.Decision.Tenant, a.Decision.Intent = "c-1", "t", &contract.ExecutionIntent{Executor: "judge"}
			started := m.New(contract.EventEffectStarted, "s-1", []byte(`{}`), nil)
			started.Session, started.CallID, started.Time = "s-1", "c-1", m.Time()
			back, stored := time.Now().Add(c.outage), false
			fact := func(context.Context) (uint64, error) {
				if time.Now().Before(back) {
					return 0, eventlog.ErrUnavailable
				}
				stored = true
				return 1, nil
			}
			if err := x.finish(t.Context(), started, a, Result{facts: []func(context.Context) (uint64, error){fact}}); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if ended, _, err := (outcome.CallOf(started, "judge")).Ended(t.Context(), m.Log, 1); !ended || err != nil {
				t.Errorf("%s: no outcome is recorded: %v", c.name, err)
			}
			if stored != c.stored {
				t.Errorf("%s: stored %v, want %v", c.name, stored, c.stored)
			}
		})
	}
}
