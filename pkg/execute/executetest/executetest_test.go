package executetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

var noop = contract.Tool{Executor: "judge", Kind: "judge.noop", Tool: "judge.noop", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}

// TestStage shows what the ledger contains after a call whose executor runs it, ends before or
// after an append, or has an append refused, and how the delivery ends. After the refusal, the
// call succeeds when it is delivered again.
func TestStage(t *testing.T) {
	for name, c := range map[string]struct {
		fault         func(l *Ledger)
		settled, want string
		ran           int
	}{
		"no fault":           {func(*Ledger) {}, "ack", "effect_started effect_recorded:succeeded", 1},
		"before the claim":   {func(l *Ledger) { l.EndBefore(contract.EventEffectStarted) }, "", "", 0},
		"after the claim":    {func(l *Ledger) { l.EndAfter(contract.EventEffectStarted) }, "", "effect_started", 0},
		"before the outcome": {func(l *Ledger) { l.EndBefore(contract.EventEffectRecorded) }, "", "effect_started", 1},
		"after the outcome":  {func(l *Ledger) { l.EndAfter(contract.EventEffectRecorded) }, "", "effect_started effect_recorded:succeeded", 1},
		"a refused claim":    {func(l *Ledger) { l.Refuse(contract.EventEffectStarted, 1) }, "nak", "", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(t)
			env, l := s.Env("judge", "judge-1")
			ran := 0
			x := s.Executor(execute.New(env, 1, []contract.Tool{noop}, func(context.Context, *execute.Work) execute.Result {
				ran++
				return execute.Result{Output: []byte(`{}`)}
			}))
			c.fault(l)
			w := s.Allow(noop, "c-1", `{}`, nil)
			if settled, delay := w.Deliver(x.Process); settled != c.settled || (delay > 0) != (settled == "nak") {
				t.Errorf("%s: settled by %q, delay %v", name, settled, delay)
			}
			if got := s.History("c-1"); got != c.want || ran != c.ran {
				t.Errorf("%s: %s, run %d times", name, got, ran)
			}
			if c.settled != "nak" {
				return
			}
			if settled := w.Finish(x.Process); settled != "ack" || s.Outcome("c-1").Effect.Status != contract.Succeeded {
				t.Errorf("%s: delivered again, settled by %q: %s", name, settled, s.History("c-1"))
			}
		})
	}
}

// TestRestarted shows that, if an instance has ended after the claim of a call, another instance
// records the call's outcome as unknown when outcome.Redelivery has passed.
func TestRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t)
		instance := func(name string) (*execute.Executor, *Ledger) {
			env, l := s.Env("judge", name)
			return s.Executor(execute.New(env, 1, []contract.Tool{noop}, func(context.Context, *execute.Work) execute.Result { return execute.Result{} })), l
		}
		first, l := instance("judge-1")
		second, _ := instance("judge-2")
		l.EndAfter(contract.EventEffectStarted)
		w := s.Allow(noop, "c-1", `{}`, nil)
		began := time.Now()
		if settled := w.Finish(first.Process); settled != "" {
			t.Error("the first instance responded", settled)
		}
		if settled := w.Finish(second.Process); settled != "ack" || time.Since(began) != outcome.Redelivery {
			t.Errorf("settled by %q after %v", settled, time.Since(began))
		}
		if got := s.History("c-1"); got != "effect_started effect_recorded:unknown:executor_lost" {
			t.Error(got)
		}
	})
}
