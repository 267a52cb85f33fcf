package sessionrunner

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/execute/executetest"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// runTime is the time that a program runs in a sandbox.
const runTime = 4 * time.Second

// runners is a ledger with instances of the session-runner, which have one pack and one place for
// a sandbox. It is also their tier "process", whose programs return their input.
type runners struct {
	*executetest.Stage
	t    *testing.T
	tool contract.Tool // of the pack
	hang bool          // programs run until they are killed

	mu  sync.Mutex
	ran []string // ids of the calls whose programs were started, in order
}

// Tier implements sandbox.Runner.
func (*runners) Tier() string { return "process" }

// OwnUID implements sandbox.Runner.
func (*runners) OwnUID() bool { return true }

// Run implements sandbox.Runner.
func (rs *runners) Run(ctx context.Context, s sandbox.Spec) (sandbox.Outcome, error) {
	rs.mu.Lock()
	rs.ran = append(rs.ran, s.ID)
	rs.mu.Unlock()
	takes := runTime
	if rs.hang {
		takes = time.Hour
	}
	select {
	case <-time.After(min(takes, time.Duration(s.Limits.WallMS)*time.Millisecond)):
	case <-ctx.Done():
		return sandbox.Outcome{}, ctx.Err()
	}
	return sandbox.Outcome{Stdout: s.Stdin, TimedOut: rs.hang, Attest: contract.Attestation{Tier: "process"}}, nil
}

// started returns the number of programs that were started.
func (rs *runners) started() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.ran)
}

// runner returns the executor of a new instance, and the ledger to which it appends.
func (rs *runners) runner(name string) (*execute.Executor, *executetest.Ledger) {
	env, ledger := rs.Env("session-runner", name)
	s := &Service{env: env, runners: []sandbox.Runner{rs}, queue: newQueue(1, 4)}
	s.packs.set(map[string]pack.Pack{rs.tool.Tool: {Tool: rs.tool, Digest: contract.Digest(&rs.tool)}})
	return rs.Executor(executorOf(s)), ledger
}

// call appends the event that allows a call of the pack.
func (rs *runners) call(id string) *executetest.Work { return rs.Allow(rs.tool, id, `{"a":1}`, nil) }

// bubble runs f in a bubble, with a new ledger and a pack whose calls may run again if rerunnable
// is set.
func bubble(t *testing.T, rerunnable bool, f func(t *testing.T, rs *runners)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, &runners{Stage: executetest.New(t), t: t, tool: contract.Tool{Class: "E1", Executor: "session-runner", InputSchema: contract.Raw(`{"type":"object"}`), Kind: "tool.copy",
			OutputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`), Pack: "sha256:p", Rerunnable: rerunnable, Sandbox: &contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 100, Pids: 8, Tier: "process", WallMS: 20_000}, Tool: "copy", Version: "v1"}})
	})
}

const (
	claimed = contract.EventEffectStarted
	copied  = claimed + " effect_recorded:succeeded"
)

// TestRan shows that the output of the program and the attestation of its sandbox are recorded,
// and that a second delivery of the same work runs and records nothing.
func TestRan(t *testing.T) {
	bubble(t, false, func(t *testing.T, rs *runners) {
		x, _ := rs.runner("session-runner-1")
		w, began := rs.call("c-1"), time.Now()
		for range 2 {
			if settled := w.Finish(x.Process); settled != "ack" || rs.History("c-1") != copied || rs.started() != 1 || time.Since(began) != runTime {
				t.Errorf("settled by %q after %v, %d programs: %s", settled, time.Since(began), rs.started(), rs.History("c-1"))
			}
		}
		if output, attested := rs.Output("c-1"), rs.Outcome("c-1").Effect.Attestation; output != `{"a":1}` || attested == nil || attested.Tier != "process" {
			t.Errorf("%s %+v %s", output, attested, rs.Outcome("c-1").Effect.ErrorMessage)
		}
	})
}

// TestRestarted shows what an instance records that is started after one has ended between its
// claim of a call and the outcome: the outcome of its own run if the pack may run again, and
// otherwise the outcome unknown, without a run. Neither happens before outcome.Redelivery has
// passed since the claim.
func TestRestarted(t *testing.T) {
	for name, c := range map[string]struct {
		end        func(*executetest.Ledger)
		rerunnable bool
		ran        int // number of programs that the two instances start
		want       string
	}{
		"after the claim":                   {func(l *executetest.Ledger) { l.EndAfter(claimed) }, false, 0, claimed + " effect_recorded:unknown:executor_lost"},
		"before the outcome":                {func(l *executetest.Ledger) { l.EndBefore(contract.EventEffectRecorded) }, false, 1, claimed + " effect_recorded:unknown:executor_lost"},
		"after the claim, may run again":    {func(l *executetest.Ledger) { l.EndAfter(claimed) }, true, 1, copied},
		"before the outcome, may run again": {func(l *executetest.Ledger) { l.EndBefore(contract.EventEffectRecorded) }, true, 2, copied},
	} {
		bubble(t, c.rerunnable, func(t *testing.T, rs *runners) {
			first, ledger := rs.runner("session-runner-1")
			c.end(ledger)
			w, began := rs.call("c-1"), time.Now()
			if settled := w.Finish(first.Process); settled != "" || rs.History("c-1") != claimed {
				t.Fatalf("%s: the instance has not ended: %q, %s", name, settled, rs.History("c-1"))
			}
			second, _ := rs.runner("session-runner-2")
			if settled := w.Finish(second.Process); settled != "ack" || time.Since(began) < outcome.Redelivery {
				t.Errorf("%s: settled by %q after %v", name, settled, time.Since(began))
			}
			if got := rs.History("c-1"); got != c.want || rs.started() != c.ran {
				t.Errorf("%s: %d programs: %s", name, rs.started(), got)
			}
		})
	}
}

// TestRefusedAppend shows what is recorded if the ledger refuses an append once: after a refused
// claim the program runs when the work is delivered again; after a refused outcome it runs again
// if the pack may, and otherwise the outcome is unknown.
func TestRefusedAppend(t *testing.T) {
	for name, c := range map[string]struct {
		event      string
		rerunnable bool
		ran        int
		want       string
	}{
		"claim":                  {claimed, false, 1, copied},
		"outcome":                {contract.EventEffectRecorded, false, 1, claimed + " effect_recorded:unknown:executor_lost"},
		"outcome, may run again": {contract.EventEffectRecorded, true, 2, copied},
	} {
		bubble(t, c.rerunnable, func(t *testing.T, rs *runners) {
			x, ledger := rs.runner("session-runner-1")
			ledger.Refuse(c.event, 1)
			w := rs.call("c-1")
			if settled, _ := w.Deliver(x.Process); settled != "nak" {
				t.Errorf("%s: settled by %q", name, settled)
			}
			if settled := w.Finish(x.Process); settled != "ack" || rs.History("c-1") != c.want || rs.started() != c.ran {
				t.Errorf("%s: settled by %q, %d programs: %s", name, settled, rs.started(), rs.History("c-1"))
			}
		})
	}
}

// TestWaits shows that a call waits while another one has the only place for a sandbox, that its
// position and the end of its wait are recorded, and that a program that does not end is stopped
// after the wall time that the decision permits, so that the next call runs.
func TestWaits(t *testing.T) {
	bubble(t, false, func(t *testing.T, rs *runners) {
		rs.hang = true
		x, _ := rs.runner("session-runner-1")
		began := time.Now()
		var all sync.WaitGroup
		for _, id := range []string{"c-1", "c-2"} {
			w := rs.call(id)
			all.Go(func() {
				if settled := w.Finish(x.Process); settled != "ack" {
					t.Errorf("%s is settled by %q", id, settled)
				}
			})
			synctest.Wait() // c-1 has the place before c-2 is delivered
		}
		if rs.started() != 1 {
			t.Errorf("%d programs at a time", rs.started())
		}
		all.Wait()
		wall := time.Duration(rs.tool.Sandbox.WallMS) * time.Millisecond
		if took := time.Since(began); took != 2*wall {
			t.Errorf("both calls have ended after %v, want %v", took, 2*wall)
		}
		for id, want := range map[string]string{"c-1": claimed + " effect_recorded:timed_out:timeout", "c-2": claimed + " sandbox_queued sandbox_queued effect_recorded:timed_out:timeout"} {
			if got := rs.History(id); got != want {
				t.Errorf("%s: %s", id, got)
			}
		}
	})
}
