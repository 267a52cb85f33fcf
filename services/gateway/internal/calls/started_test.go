package calls

import (
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// TestStartedDelivers checks that started reports the claim and the outcome of a call
// but not its proposal, and that it delivers an outcome that it finds on the ledger, so
// that the wait for the call does not depend on the instance's reader.
func TestStartedDelivers(t *testing.T) {
	log := &memlog.Log{}
	by := func(source string) *emit.Emitter {
		return &emit.Emitter{Log: log, Tenant: "t", Source: source, Now: time.Now}
	}
	r := &Runner{Ledger: log, Proposer: &propose.Proposer{Emit: by("gateway/gw1"), Blobs: &blob.Store{}, Instance: "gw1"}}
	p, err := r.Proposer.Propose(t.Context(), propose.Request{ID: propose.NewCallID(), Kind: "tool.x", Session: "s-1", Args: []byte("{}"), Actor: "alice", Client: "-", Executor: "session-runner"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	<-p.Stored()
	if r.started(t.Context(), p) {
		t.Error("a proposal counts as a start")
	}
	runner := by("session-runner/se1")
	record := func(name string, doc []byte) {
		if _, err := runner.Append(t.Context(), runner.New(name, p.Event.Session, doc, p.Event)); err != nil {
			t.Fatal(err)
		}
	}
	record(contract.EventEffectStarted, []byte("{}"))
	if !r.started(t.Context(), p) || len(p.Outcome()) != 0 {
		t.Error("started:", len(p.Outcome()), "outcomes")
	}
	record(contract.EventEffectRecorded, contract.Bytes(&contract.Recorded{}))
	if !r.started(t.Context(), p) || len(p.Outcome()) != 1 {
		t.Error("ended:", len(p.Outcome()), "outcomes")
	}
}
