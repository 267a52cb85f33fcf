package execute

import (
	"context"
	"crypto/ed25519"
	"testing"
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
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// TestTenants shows that a call of a tenant that is not known is neither claimed nor run,
// but delivered again and refused for good after maxDeliver deliveries; that a call of a
// suspended tenant is claimed and recorded as cancelled; and that another tenant's call
// runs.
func TestTenants(t *testing.T) {
	key, err := sign.NewKey(make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	args, _ := blob.Refer([]byte("{}"), "application/json")
	for _, c := range []struct {
		tenant, settled, status, code string
		tries                         uint64
		ran                           int
	}{
		{tenant: "none", tries: 1, settled: "nak"},
		{tenant: "none", tries: maxDeliver + 1, settled: "term"},
		{tenant: "stopped", tries: 1, settled: "ack", status: contract.Cancelled, code: contract.CodeTenantSuspended},
		{tenant: "works", tries: 1, settled: "ack", status: contract.Succeeded, ran: 1},
	} {
		log := &memlog.Log{}
		now := contract.Time(time.Now())
		facts := guard.Facts{Actor: "alice", ArgsDigest: args.Commitment, CatalogDigest: "c", Client: "-", Deadline: contract.Time(time.Now().Add(time.Minute)), Kind: "judge.run",
			Now: now, Proposed: now, Proposer: "gateway", Scopes: []string{}, Session: "s-1", Tenant: c.tenant, Tool: "run", ToolDigest: "d"}
		a := contract.Allowed{Call: contract.Call{ID: "c-1", Kind: "judge.run", Tool: "run", Args: args}, Decision: guard.Decide(guard.Inputs{CallID: "c-1", Facts: facts,
			Tool: &contract.Tool{Executor: "judge", Kind: "judge.run", Tool: "run", InputSchema: contract.Raw("{}"), OutputSchema: contract.Raw("{}")},
			P1:   guard.Answer{Verdict: contract.Allow, Reason: "RULE"}, P0: &guard.Ceilings{StartWindowMS: 60000, MaxCents: 1}, Lamport: 1}, key)}
		policy := &emit.Emitter{Log: log, Tenant: c.tenant, Source: "policy/policy-1", Now: time.Now}
		e := policy.New(contract.EventAllowed, "s-1", contract.Bytes(&a), nil)
		e.Session, e.CallID, e.Actor, e.Client, e.Origin = "s-1", "c-1", "alice", "-", "gw1"
		raw, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		m := &logtest.Message{To: e.Subject(), Body: raw, Seq: 1, Tries: c.tries}
		d, err := consumer.NewDelivery(m, []string{bus.EveryEvent})
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		own := &emit.Emitter{Log: log, Tenant: "other", Source: "judge/judge-1", Now: time.Now}
		x := &Executor{Service: "judge", Instance: "judge-1", Emit: own, Recorder: &outcome.Recorder{Emit: own, Key: func() *sign.Key { return key }, Service: "judge"}, Blobs: &blob.Store{},
			Keys:    func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil },
			Handler: func(context.Context, *Work) Result { ran++; return Result{Status: contract.Succeeded} },
			Tenants: func(id string) (exists, suspended bool) { return id != "none", id == "stopped" }, running: map[string]running{}}
		x.process(t.Context(), d)
		var rec contract.Recorded
		for en, err := range log.Scan(t.Context(), bus.ChainFilter(c.tenant, "s-1"), 1) {
			if err != nil {
				t.Fatal(err)
			}
			e, err := eventlog.Open(en, bus.EveryEvent)
			if err == nil {
				err = contract.Decode(e.Data, &rec)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if m.Settled != c.settled || ran != c.ran || rec.Effect.Status != c.status || rec.Effect.ErrorCode != c.code || c.status == "" && log.Size() > 0 {
			t.Errorf("%s, delivery %d: settled by %q, run %d times, recorded %q %q, %d events", c.tenant, c.tries, m.Settled, ran, rec.Effect.Status, rec.Effect.ErrorCode, log.Size())
		}
	}
}
