package execute

import (
	"context"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// TestRunAgain shows that a call that an earlier delivery claimed is run again if
// ReRunable permits it, and that otherwise its result is unknown, also if only the
// append of the second claim shows that there is a first one.
func TestRunAgain(t *testing.T) {
	for _, rerunable := range []bool{true, false} {
		for _, known := range []bool{true, false} {
			log := &memlog.Log{}
			emitter := func(instance string, now func() time.Time) *emit.Emitter {
				return &emit.Emitter{Log: log, Tenant: "t", Source: "judge/" + instance, Now: now}
			}
			args, _ := blob.Refer([]byte("{}"), "application/json")
			w := &item{seq: 1, tries: 1, event: &contract.Event{ID: "e-1", Tenant: "t", Session: "s-1", CallID: "c-1", Actor: "alice", Client: "-", Origin: "gw1"}}
			w.a.Call = contract.Call{ID: "c-1", Kind: "judge.run", Args: args}
			w.a.Decision.Intent = new(contract.ExecutionIntent)
			w.call = outcome.CallOf(w.event, "judge")
			earlier := emitter("judge-1", func() time.Time { return time.Now().Add(-time.Minute) })
			if err := outcome.Claim(t.Context(), log, outcome.ClaimOf(earlier, w.event, &w.a, ""), "judge"); err != nil {
				t.Fatal(err)
			}
			ran := 0
			x := &Executor{Service: "judge", Instance: "judge-2", Emit: emitter("judge-2", time.Now), Blobs: &blob.Store{}, ReRunable: func(string) bool { return rerunable },
				Handler: func(context.Context, *Work) Result { ran++; return Result{Status: contract.Succeeded} }}
			var h outcome.History
			if known {
				var err error
				if h, err = w.call.Look(t.Context(), log, 1); err != nil || h.Claim == nil {
					t.Fatal(h, err)
				}
			}
			claim, res, err := x.start(t.Context(), t.Context(), w, h)
			want := Result{Status: contract.Unknown, ErrorCode: contract.CodeExecutorLost}
			if rerunable {
				want = Result{Status: contract.Succeeded}
			}
			if err != nil || claim == nil || res.Status != want.Status || res.ErrorCode != want.ErrorCode || (ran == 1) != rerunable {
				t.Errorf("re-runable %v, claim known %v: run %d times, %s %s, %v", rerunable, known, ran, res.Status, res.ErrorCode, err)
			}
		}
	}
}
