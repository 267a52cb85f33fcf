package handout

import (
	"context"
	"crypto/ed25519"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/freeze"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// TestWithholds shows that Withholds returns ErrStarting before the instance has read
// the ledger, ErrFrozen while a freeze is in force, and nil otherwise.
func TestWithholds(t *testing.T) {
	m := &emit.Emitter{Log: &memlog.Log{}, Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	l := Lender{frozen: freeze.State{Emit: m, Instance: "gw1", Cell: func(context.Context) (handle.Cell, error) { return handle.Cell{Tenant: "t"}, nil }}}
	if err := l.Withholds(); !errors.Is(err, ErrStarting) {
		t.Errorf("before the ledger was read: %v", err)
	}
	if err := l.frozen.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Withholds(); err != nil {
		t.Errorf("not frozen: %v", err)
	}
	l.frozen.Apply(t.Context(), 1, &contract.Event{ID: "e-1", Tenant: "t", Name: contract.EventMeshFrozen, Data: []byte(`{}`)})
	if err := l.Withholds(); !errors.Is(err, ErrFrozen) {
		t.Errorf("frozen: %v", err)
	}
}

// TestSuspended shows that the call of a suspended tenant is claimed and recorded as
// cancelled instead of being handed out, and that another tenant's call is handed out.
func TestSuspended(t *testing.T) {
	key, err := sign.NewKey(make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]struct {
		err  error
		code string
	}{"stopped": {errSuspended, contract.CodeTenantSuspended}, "works": {}} {
		log := &memlog.Log{}
		m := &emit.Emitter{Log: log, Tenant: "other", Source: "gateway/gw1", Now: time.Now}
		l := Lender{Emit: m, Recorder: &outcome.Recorder{Emit: m, Key: func() *sign.Key { return key }, Service: "gateway"}, Instance: "gw1",
			Tenants: func(id string) (exists, suspended bool) { return true, id == "stopped" }}
		a := &contract.Allowed{Call: contract.Call{ID: "c-1"}}
		a.Decision.CallID, a.Decision.Tenant, a.Decision.Intent = "c-1", tenant, &contract.ExecutionIntent{Executor: contract.CallerExecutor}
		e := &contract.Event{ID: "e-1", Tenant: tenant, Session: "s-1", Key: "s-1", CallID: "c-1", Actor: "alice", Client: "-", Origin: "gw1"}
		if err := l.claim(t.Context(), e, a); !errors.Is(err, want.err) || (err == nil) != (want.err == nil) {
			t.Errorf("%s: %v", tenant, err)
		}
		code, claims := "", 0
		for en, err := range log.Scan(t.Context(), bus.SessionFilter(tenant, "s-1"), 1) {
			e, err2 := eventlog.Open(en, bus.EveryEvent)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			var rec contract.Recorded
			switch e.Name {
			case contract.EventEffectStarted:
				claims++
			case contract.EventEffectRecorded:
				if err := contract.Decode(e.Data, &rec); err != nil || rec.Effect.Status != contract.Cancelled {
					t.Errorf("%s: %+v %v", tenant, rec.Effect, err)
				}
				code = rec.Effect.ErrorCode
			}
		}
		if code != want.code || claims != 1 {
			t.Errorf("%s: %d claims, recorded %q, want %q", tenant, claims, code, want.code)
		}
	}
}
