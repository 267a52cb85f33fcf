package judge

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/execute/executetest"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/rpc/rpctest"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
)

// thinking is the time that the judging model takes.
const thinking = 3 * time.Second

// mesh is a ledger with the services that the judge depends on: audit, which returns the
// transcript, and the llm-router, which executes the nested calls.
type mesh struct {
	*executetest.Stage
	t     *testing.T
	asked int  // number of nested calls
	mute  bool // the model does not respond
}

// judge returns the executor of a new instance, and the ledger to which it appends.
func (m *mesh) judge(name string) (*execute.Executor, *executetest.Ledger) {
	env, ledger := m.Env(scoreTool.Executor, name)
	env.Queries = &rpc.Client{
		Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "audit-1"}, nil },
		Send: func(_ context.Context, service, _, verb string, _ any) (rpc.Frames, error) {
			if service != "audit" || verb != audit.TranscriptQuery.Verb {
				m.t.Errorf("a query %s to %s", verb, service)
			}
			return rpctest.Response(json.RawMessage(`[{"event_id":"p-1"},{"event_id":"r-1"}]`), nil), nil
		},
	}
	s := &Service{env: env, prop: &propose.Proposer{Emit: env.Emit, Blobs: env.Blobs, Instance: name}}
	ledger.Stored = func(_ uint64, _ []byte, e *contract.Event) {
		if e.Name == contract.EventCallProposed {
			m.asked++
			go m.think(s.prop, e)
		}
	}
	return m.Executor(s.executor()), ledger
}

// think records the outcome of a nested call, and delivers it to the instance that proposed it,
// unless mute is set.
func (m *mesh) think(to *propose.Proposer, proposal *contract.Event) {
	if m.mute {
		return
	}
	time.Sleep(thinking)
	text, _ := json.Marshal(`{"score":7,"justification":"it answers","citations":["r-1"]}`)
	output, _ := blob.Refer([]byte(`{"choices":[{"message":{"content":`+string(text)+`}}]}`), "application/json")
	rec := contract.Recorded{Effect: contract.Effect{CallID: proposal.CallID, Status: contract.Succeeded}, Output: &output}
	e := m.By(llm.Executor, "llm-router-1").New(contract.EventEffectRecorded, proposal.Session, contract.Bytes(&rec), proposal)
	seq, data, err := eventlog.AppendEvent(context.Background(), m.Log, e)
	if err != nil {
		m.t.Error(err)
	}
	_ = to.Deliver(eventlog.Entry{Seq: seq, Subject: e.Subject(), Data: data})
}

// call appends the event that allows a judgement.
func (m *mesh) call() *executetest.Work {
	args, err := json.Marshal(map[string]string{"session": "s-2", "rubric": "name: helpful\nmodel: demo/echo\nmin: 0\nmax: 10\ncriteria:\n  - id: answers\n    description: the question is answered\n"})
	if err != nil {
		m.t.Fatal(err)
	}
	return m.Allow(scoreTool, "c-1", string(args), nil)
}

// bubble runs f in a bubble, with a new mesh.
func bubble(t *testing.T, f func(t *testing.T, m *mesh)) {
	synctest.Test(t, func(t *testing.T) { f(t, &mesh{Stage: executetest.New(t), t: t}) })
}

const judged = "effect_started effect_recorded:succeeded"

// TestJudged shows that a judgement with the score that the model gave is recorded once the nested
// call has ended, and that a second delivery of the same work makes no nested call and records
// nothing.
func TestJudged(t *testing.T) {
	bubble(t, func(t *testing.T, m *mesh) {
		x, _ := m.judge("judge-1")
		w, began := m.call(), time.Now()
		for range 2 {
			if settled := w.Finish(x.Process); settled != "ack" || m.History("c-1") != judged || m.asked != 1 || time.Since(began) != thinking {
				t.Errorf("settled by %q after %v, model asked %d times: %s", settled, time.Since(began), m.asked, m.History("c-1"))
			}
		}
		if output := m.Output("c-1"); !strings.Contains(output, `"score":7,"session":"s-2","valid":true`) {
			t.Error(output)
		}
	})
}

// TestRestarted shows that an instance which is started after one has ended between its claim of a
// judgement and the outcome records the outcome unknown, not before outcome.Redelivery has passed
// since the claim, and makes no nested call.
func TestRestarted(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(*executetest.Ledger)
		asked int
	}{
		"after the claim":    {func(l *executetest.Ledger) { l.EndAfter(contract.EventEffectStarted) }, 0},
		"before the outcome": {func(l *executetest.Ledger) { l.EndBefore(contract.EventEffectRecorded) }, 1},
	} {
		bubble(t, func(t *testing.T, m *mesh) {
			first, ledger := m.judge("judge-1")
			c.end(ledger)
			w, began := m.call(), time.Now()
			if settled := w.Finish(first.Process); settled != "" || m.History("c-1") != "effect_started" {
				t.Fatalf("%s: the instance has not ended: %q, %s", name, settled, m.History("c-1"))
			}
			second, _ := m.judge("judge-2")
			if settled := w.Finish(second.Process); settled != "ack" || time.Since(began) < outcome.Redelivery {
				t.Errorf("%s: settled by %q after %v", name, settled, time.Since(began))
			}
			if got := m.History("c-1"); got != "effect_started effect_recorded:unknown:executor_lost" || m.asked != c.asked {
				t.Errorf("%s: model asked %d times: %s", name, m.asked, got)
			}
		})
	}
}

// TestRefusedAppend shows what is recorded if the ledger refuses an append once: after a refused
// claim, the judgement is made when the work is delivered again; after a refused outcome, the
// claimed call is not repeated, and its outcome is unknown.
func TestRefusedAppend(t *testing.T) {
	for event, want := range map[string]string{
		contract.EventEffectStarted:  judged,
		contract.EventEffectRecorded: "effect_started effect_recorded:unknown:executor_lost",
	} {
		bubble(t, func(t *testing.T, m *mesh) {
			x, ledger := m.judge("judge-1")
			ledger.Refuse(event, 1)
			w := m.call()
			if settled, _ := w.Deliver(x.Process); settled != "nak" {
				t.Errorf("%s refused: settled by %q", event, settled)
			}
			if settled := w.Finish(x.Process); settled != "ack" || m.History("c-1") != want || m.asked != 1 {
				t.Errorf("%s refused: settled by %q, model asked %d times: %s", event, settled, m.asked, m.History("c-1"))
			}
		})
	}
}

// TestMute shows that a judgement whose model does not respond ends at the deadline of the call.
func TestMute(t *testing.T) {
	bubble(t, func(t *testing.T, m *mesh) {
		m.mute = true
		x, _ := m.judge("judge-1")
		w, began := m.call(), time.Now()
		if settled := w.Finish(x.Process); settled != "ack" || time.Since(began) != executetest.Timeout || m.History("c-1") != "effect_started effect_recorded:timed_out:timeout" {
			t.Errorf("settled by %q after %v: %s", settled, time.Since(began), m.History("c-1"))
		}
	})
}
