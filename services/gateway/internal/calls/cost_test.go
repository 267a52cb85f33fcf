package calls

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/rpc/rpctest"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// ledger is a session on an in-memory ledger whose reads are counted, with the queries of the
// gateway and their responses.
type ledger struct {
	*testing.T
	log     *logtest.Counter
	mem     *memlog.Log
	s       *Runner
	queried int
	answers map[string]any // by "service verb"; a query without one fails with not_found
}

func newLedger(t *testing.T) *ledger {
	mem := &memlog.Log{}
	l := &ledger{T: t, log: &logtest.Counter{Log: mem}, mem: mem, answers: map[string]any{}}
	client := &rpc.Client{Live: func(_ context.Context, service string) (rpc.Instance, error) {
		return rpc.Instance{Name: service + "-1"}, nil
	}, Send: l.send}
	l.s = &Runner{Queries: queries.New(client), Ledger: l.log, Proposer: &propose.Proposer{Emit: l.by("gateway/gw1"), Blobs: &blob.Store{}, Instance: "gw1"}}
	return l
}

func (l *ledger) send(_ context.Context, service, _, verb string, _ any) (rpc.Frames, error) {
	l.queried++
	doc, ok := l.answers[service+" "+verb]
	if !ok {
		return nil, rpc.Errorf(contract.CodeNotFound, "not found")
	}
	return rpctest.Response(doc, nil), nil
}

func (l *ledger) by(source string) *emit.Emitter {
	return &emit.Emitter{Log: l.log, Tenant: "t", Source: source, Now: time.Now}
}

// proposed proposes a call, and returns it once its proposal is stored.
func (l *ledger) proposed() *propose.Pending {
	l.Helper()
	p, err := l.s.Proposer.Propose(l.Context(), propose.Request{ID: propose.NewCallID(), Kind: "tool.x", Session: "s-1", Args: []byte("{}"), Actor: "alice", Client: "-", Executor: "session-runner"})
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(p.Close)
	<-p.Stored()
	return p
}

// record appends an event of a call.
func (l *ledger) record(source string, p *propose.Pending, name string) *contract.Event {
	l.Helper()
	doc := []byte("{}")
	if name == contract.EventEffectRecorded {
		doc = contract.Bytes(&contract.Recorded{})
	}
	by := l.by(source)
	e := by.New(name, "s-1", doc, p.Event)
	if _, err := by.Append(l.Context(), e); err != nil {
		l.Fatal(err)
	}
	return e
}

const runner = "session-runner/se1"

// others appends events of another call of the session, which stand for n calls: they wait for a
// sandbox, start, become jobs, are cancelled and end.
func (l *ledger) others(n int) {
	l.Helper()
	for name, source := range map[string]string{contract.EventSandboxQueued: runner, contract.EventEffectStarted: runner, contract.EventCallDeferred: "gateway/gw1",
		contract.EventCancelRequested: "gateway/gw1", contract.EventEffectRecorded: runner} {
		e := l.by(source).New(name, "s-1", []byte("{}"), nil)
		e.Session, e.CallID = "s-1", "c-other"
		b, err := e.Encode()
		if err != nil {
			l.Fatal(err)
		}
		for i := range n {
			if _, _, err := l.mem.Publish(e.Subject(), fmt.Sprint(name, i), b, nil); err != nil {
				l.Fatal(err)
			}
		}
	}
}

// encoded returns an event as audit's index returns it.
func (l *ledger) encoded(e *contract.Event) json.RawMessage {
	l.Helper()
	b, err := e.Encode()
	if err != nil {
		l.Fatal(err)
	}
	return b
}

// TestCostOfReads shows that what is read of a call costs the same after 10 and after 100,000
// later calls of its session: as many reads of the ledger, with at most 200 entries, and as many
// queries.
func TestCostOfReads(t *testing.T) {
	read := map[string][][2]int64{}
	for _, n := range []int{10, 100_000} {
		l := newLedger(t)
		running, ended, waiting := l.proposed(), l.proposed(), l.proposed()
		claim := l.record(runner, running, contract.EventEffectStarted)
		l.record(runner, ended, contract.EventEffectStarted)
		l.record(runner, ended, contract.EventEffectRecorded)
		l.others(n)
		measure := func(name string, f func() bool) {
			l.log.Reset()
			l.queried = 0
			if !f() {
				t.Errorf("%s after %d calls: another result", name, n)
			}
			if got := l.log.Entries.Load(); got > 200 {
				t.Errorf("%s after %d calls: %d entries read", name, n, got)
			}
			read[name] = append(read[name], [2]int64{l.log.Reads.Load(), int64(l.queried)})
		}
		claimed := func(name string, p *propose.Pending, known await.Known) {
			f := &follower{ledger: l.log}
			f.begin(p, running.Event, known)
			is := func() bool { e := f.claimed(t.Context()); return e != nil && e.ID == claim.ID }
			measure(name, is)
			measure(name+", again", is)
		}
		claimed("the claim of a call that was proposed", running, await.Known{})
		claimed("the claim of a call whose proposal is known", nil, await.Known{Last: running.Event, At: running.Seq()})
		claimed("the claim of a call that is known", nil, await.Known{Last: claim, At: running.Seq() + 1})
		measure("whether a running call has started", func() bool { return l.s.started(t.Context(), running) && len(running.Outcome()) == 0 })
		measure("whether an ended call has started", func() bool { return l.s.started(t.Context(), ended) && len(ended.Outcome()) == 1 })
		measure("whether a waiting call has started", func() bool { return l.s.started(t.Context(), waiting) == (n > mostLater) })
		has := func(name string, q queries.EventQuery, is func(context.Context, *contract.Event) (bool, error), event string) {
			result := func(want bool) func() bool {
				return func() bool { got, err := is(t.Context(), running.Event); return err == nil && got == want }
			}
			measure("whether a call is not "+name, result(false))
			l.answers["audit "+q.Verb] = l.encoded(l.record("judge/j1", running, event))
			measure("whether a call is not "+name+", but another service says so", result(false))
			l.answers["audit "+q.Verb] = l.encoded(l.record("gateway/gw1", running, event))
			measure("whether a call is "+name, result(true))
		}
		has("cancelled", audit.CancellationQuery, l.s.Cancelled, contract.EventCancelRequested)
		has("a job", audit.DeferralQuery, func(ctx context.Context, e *contract.Event) (bool, error) {
			return l.s.has(ctx, audit.DeferralQuery, e)
		}, contract.EventCallDeferred)
		l.answers["session-runner call_progress"] = map[string]any{"queued": 3}
		measure("the position of a call in the queue", func() bool {
			x, ok := NoticeOf(t.Context(), l.s.Queries, claim)
			return ok && x.Queued == 3
		})
	}
	for name, got := range read {
		if len(got) != 2 || got[0] != got[1] {
			t.Errorf("%s: %v reads and queries", name, got)
		}
	}
}

// TestFollower shows that the claim of a call is found when it is recorded, and not that of
// another call or service, that each entry is read once, and that a second begin replaces what
// the first one stated.
func TestFollower(t *testing.T) {
	l := newLedger(t)
	p, f := l.proposed(), &follower{ledger: l.log}
	if f.claimed(t.Context()) != nil {
		t.Error("a claim before begin")
	}
	f.begin(p, p.Event, await.Known{})
	l.record("judge/j1", p, contract.EventEffectStarted)
	l.others(50)
	l.log.Reset()
	for range 3 {
		if e := f.claimed(t.Context()); e != nil {
			t.Error("the claim of another call or service:", e)
		}
	}
	if n := l.log.Entries.Load(); n != 50 {
		t.Errorf("%d entries read, want each claim of the session-runner once", n)
	}
	claim := l.record(runner, p, contract.EventEffectStarted)
	if e := f.claimed(t.Context()); e == nil || e.ID != claim.ID {
		t.Error(e)
	}

	f = &follower{ledger: l.log}
	f.begin(l.proposed(), p.Event, await.Known{}) // its place is after the claim
	if e := f.claimed(t.Context()); e != nil {
		t.Error(e)
	}
	f.begin(nil, p.Event, await.Known{}) // the place is found by the time of the proposal
	if e := f.claimed(t.Context()); e == nil || e.ID != claim.ID {
		t.Error(e)
	}
}
