package execute

import (
	"context"
	"crypto/ed25519"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// tenantsTest is an executor over a log in memory, with a signed call in each tenant.
type tenantsTest struct {
	*testing.T
	log *memlog.Log
	key *sign.Key
	x   *Executor

	budget *guard.BudgetFact // budget in the facts of every call
}

func newTenantsTest(t *testing.T) *tenantsTest {
	key, err := sign.NewKey(make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	log := &memlog.Log{}
	own := &emit.Emitter{Log: log, Tenant: "other", Source: "judge/judge-1", Now: time.Now}
	return &tenantsTest{T: t, log: log, key: key, x: &Executor{Service: "judge", Instance: "judge-1", Emit: own, Recorder: &outcome.Recorder{Emit: own, Key: func() *sign.Key { return key }, Service: "judge"}, Blobs: &blob.Store{},
		Keys: func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }, running: map[callKey]running{}}}
}

// deliver returns the work of the call in a tenant, in delivery number tries.
func (tt *tenantsTest) deliver(tenant string, tries uint64) (*consumer.Delivery, *logtest.Message) {
	tt.Helper()
	return tt.deliverBody(tenant, tries, nil)
}

// deliverBody is like deliver, for a call with a body, or without one if body is nil.
func (tt *tenantsTest) deliverBody(tenant string, tries uint64, body *contract.Content) (*consumer.Delivery, *logtest.Message) {
	tt.Helper()
	args, _ := blob.Refer([]byte("{}"), "application/json")
	now := contract.Time(time.Now())
	facts := guard.Facts{Actor: "alice", ArgsDigest: args.Commitment, CatalogDigest: "c", Client: "-", Deadline: contract.Time(time.Now().Add(time.Minute)), Kind: "judge.run",
		Now: now, Proposed: now, Proposer: "gateway", Scopes: []string{}, Session: "s-1", Tenant: tenant, Tool: "run", ToolDigest: "d", Budget: tt.budget}
	a := contract.Allowed{Call: contract.Call{ID: "c-" + tenant, Kind: "judge.run", Tool: "run", Args: args, Body: body}, Decision: guard.Decide(guard.Inputs{CallID: "c-" + tenant, Facts: facts,
		Tool: &contract.Tool{Executor: "judge", Kind: "judge.run", Tool: "run", InputSchema: contract.Raw("{}"), OutputSchema: contract.Raw("{}")},
		P1:   guard.Answer{Verdict: contract.Allow, Reason: "RULE"}, P0: &guard.Ceilings{StartWindowMS: 60000, MaxCents: 1}, Lamport: 1}, tt.key)}
	policy := &emit.Emitter{Log: tt.log, Tenant: tenant, Source: "policy/policy-1", Now: time.Now}
	e := policy.New(contract.EventAllowed, "s-1", contract.Bytes(&a), nil)
	e.Session, e.CallID, e.Actor, e.Client, e.Origin = "s-1", "c-"+tenant, "alice", "-", "gw1"
	raw, err := e.Encode()
	if err != nil {
		tt.Fatal(err)
	}
	m := &logtest.Message{To: e.Subject(), Body: raw, Seq: 1, Tries: tries}
	d, err := consumer.NewDelivery(m, []string{bus.EveryEvent})
	if err != nil {
		tt.Fatal(err)
	}
	return d, m
}

// outcome returns the status and the error code of the call in a tenant, or empty
// strings if it has no outcome.
func (tt *tenantsTest) outcome(tenant string) (status, code string) {
	tt.Helper()
	var rec contract.Recorded
	for en, err := range tt.log.Scan(tt.Context(), bus.ChainFilter(tenant, "s-1"), 1) {
		if err != nil {
			tt.Fatal(err)
		}
		e, err := eventlog.Open(en, bus.EveryEvent)
		if err == nil {
			err = contract.Decode(e.Data, &rec)
		}
		if err != nil {
			tt.Fatal(err)
		}
	}
	return rec.Effect.Status, rec.Effect.ErrorCode
}

// TestTenants shows that a call of a tenant that is not known is neither claimed nor run: it is
// returned for redelivery, even after more than maxDeliver deliveries, while the instance has
// not read the ledger up to the call, and refused for good afterwards; that it runs if the
// tenant's creation is read meanwhile; that a call of a suspended tenant is recorded as
// cancelled, and not run; that another tenant's call runs; and that the first maxDeliver
// deliveries of a call of a tenant that is not known take at least a minute, with at most 15 s
// of delay between two.
func TestTenants(t *testing.T) {
	for _, c := range []struct {
		tenant, settled, status, code string
		tries                         uint64
		lags                          bool // whether the reader of the cell is not up to date in time
		ran                           int
	}{
		{tenant: "none", tries: 1, lags: true, settled: "nak"},
		{tenant: "none", tries: maxDeliver + 1, lags: true, settled: "nak"},
		{tenant: "none", tries: 1, settled: "term"},
		{tenant: "new", tries: 1, settled: "ack", status: contract.Succeeded, ran: 1},
		{tenant: "stopped", tries: 1, settled: "ack", status: contract.Cancelled, code: contract.CodeTenantSuspended},
		{tenant: "works", tries: 1, lags: true, settled: "ack", status: contract.Succeeded, ran: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			tt := newTenantsTest(t)
			ran, read := 0, false
			tt.x.Handler = func(context.Context, *Work) Result { ran++; return Result{Status: contract.Succeeded} }
			tt.x.Tenants = func(id string) (exists, suspended bool) {
				return id != "none" && (id != "new" || read), id == "stopped"
			}
			tt.x.Cell = func(ctx context.Context) (handle.Cell, error) {
				if c.lags {
					<-ctx.Done()
					return handle.Cell{}, ctx.Err()
				}
				read = true
				return handle.Cell{}, nil
			}
			d, m := tt.deliver(c.tenant, c.tries)
			tt.x.Process(t.Context(), d)
			status, code := tt.outcome(c.tenant)
			if m.Settled != c.settled || ran != c.ran || status != c.status || code != c.code || c.status == "" && tt.log.Size() > 0 {
				t.Errorf("%s, delivery %d: settled by %q, run %d times, recorded %q %q, %d events", c.tenant, c.tries, m.Settled, ran, status, code, tt.log.Size())
			}
		})
	}
	all := time.Duration(0)
	for tries := uint64(1); tries <= maxDeliver; tries++ {
		all += lagDelay(tries) + tenantWait
	}
	if all < time.Minute || lagDelay(1<<40) > 15*time.Second {
		t.Errorf("work of a new tenant counts as delivered too often after %s", all)
	}
}

// TestSuspendedMeanwhile shows that a suspension cancels the running calls of the tenant,
// and neither a call of another tenant nor one that has succeeded.
func TestSuspendedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tt := newTenantsTest(t)
		var suspended atomic.Bool
		changed := make(chan struct{})
		tt.x.Changed = func() <-chan struct{} {
			if suspended.Load() {
				return nil
			}
			return changed
		}
		tt.x.Tenants = func(id string) (exists, stopped bool) { return true, suspended.Load() && id != "works" }
		release := make(chan struct{})
		tt.x.Handler = func(ctx context.Context, w *Work) Result {
			select {
			case <-ctx.Done():
				if w.Event.Tenant == "done" { // the effect was complete when the handler received the cancellation
					return Result{Status: contract.Succeeded}
				}
				return Result{}
			case <-release:
				return Result{Status: contract.Succeeded}
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		go tt.x.watchSuspensions(ctx)
		for _, tenant := range []string{"stopped", "done", "works"} {
			d, _ := tt.deliver(tenant, 1)
			go tt.x.Process(ctx, d)
		}
		synctest.Wait()
		suspended.Store(true)
		close(changed)
		synctest.Wait()
		for tenant, want := range map[string][2]string{"stopped": {contract.Cancelled, contract.CodeTenantSuspended}, "done": {contract.Succeeded, ""}, "works": {"", ""}} {
			if status, code := tt.outcome(tenant); status != want[0] || code != want[1] {
				t.Errorf("the call of %s: %q %q, want %q", tenant, status, code, want)
			}
		}
		close(release)
		synctest.Wait()
		if status, _ := tt.outcome("works"); status != contract.Succeeded {
			t.Errorf("the other tenant's call: %q", status)
		}
		stop()
	})
}

// claiming is a log whose Append calls hook after it has appended the event, and then, as a
// server does, returns the error of the context if it has ended meanwhile.
type claiming struct {
	*memlog.Log
	hook func()
}

func (l claiming) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	seq, err := l.Log.Append(ctx, subject, id, data)
	l.hook()
	return seq, errors.Join(err, ctx.Err())
}

// TestSuspendedWhileClaiming shows that a suspension that arrives while a call is claimed
// does not leave a claim without an outcome.
func TestSuspendedWhileClaiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tt := newTenantsTest(t)
		var suspended atomic.Bool
		tt.x.Tenants = func(string) (exists, stopped bool) { return true, suspended.Load() }
		tt.x.Handler = func(context.Context, *Work) Result { return Result{Status: contract.Succeeded} }
		tt.x.Emit.Log = claiming{tt.log, func() {
			if !suspended.Swap(true) {
				tt.x.stop(errSuspended, func(string) bool { return true })
			}
		}}
		d, m := tt.deliver("stopped", 1)
		tt.x.Process(t.Context(), d)
		if status, code := tt.outcome("stopped"); m.Settled != "ack" || status != contract.Cancelled || code != contract.CodeTenantSuspended {
			t.Errorf("settled by %q, recorded %q %q", m.Settled, status, code)
		}
	})
}
