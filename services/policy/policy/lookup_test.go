package policy

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
)

// fill stores the events of n calls that ended in a session of alice.
func (l *ledger) fill(session string, n int) {
	l.t.Helper()
	for i := range n {
		call := fmt.Sprint("c-old-", i)
		for _, x := range []struct{ service, name, target string }{{"gateway", contract.EventCallProposed, ""}, {"policy", contract.EventAllowed, "session-runner"},
			{"session-runner", contract.EventEffectStarted, ""}, {"session-runner", contract.EventEffectRecorded, ""}} {
			e := l.other.New(x.name, session, []byte(`{}`), nil)
			e.Source, e.Target, e.Session, e.CallID, e.Actor = x.service+"/"+x.service+"-1", x.target, session, call, "alice"
			b, err := e.Encode()
			if err != nil {
				l.t.Fatal(err)
			}
			if _, _, err := l.log.Publish(e.Subject(), e.ID, b, nil); err != nil {
				l.t.Fatal(err)
			}
		}
	}
}

// TestLookups shows that the decision on a call makes as many reads in a session of
// 100,000 calls as in one of 10, and reads few entries: none for a plain call.
func TestLookups(t *testing.T) {
	read := map[string][]int64{}
	for _, n := range []int{10, 100_000} {
		bubble(t, func(t *testing.T, ctx context.Context) {
			l := founded(t, nil)
			a, b := l.join("policy-1"), l.join("policy-2")
			log := &logtest.Counter{Log: l.log}
			a.faults.Log = log
			l.fill(contract.SessionID("t", "alice", "s-mine"), n)
			l.fill("s-old", n)                                                                      // a session of a release before 0.5
			for _, session := range []string{contract.SessionID("t", "alice", "s-mine"), "s-old"} { // a receipt at the end of each chain
				if err := b.decider.take(ctx, l.propose("rm", func(e *contract.Event, _ *contract.Call) { e.Session = session })); err != nil {
					t.Fatal(err)
				}
			}
			take := func(what, tool string, most int64, change func(*contract.Event, *contract.Call)) delivery {
				t.Helper()
				d := l.propose(tool, change)
				d.stored = time.Time{}.Add(time.Hour)
				log.Reset()
				if err := a.decider.take(ctx, d); err != nil {
					t.Fatal(what, err)
				}
				if got := log.Entries.Load(); got > most {
					t.Errorf("%s after %d calls: %d entries read, want at most %d", what, n, got, most)
				}
				read[what] = append(read[what], log.Reads.Load())
				return d
			}
			take("first call", "echo", 0, nil)
			take("first denial", "rm", 2, nil) // reads the labels and the end of the chain
			take("second denial", "rm", 1, nil)
			take("label", "fetch", 1, nil)
			take("call with a label", "echo", 1, nil)
			take("call in another's session", "echo", 3, func(e *contract.Event, _ *contract.Call) { e.Session, e.Actor = "s-old", "bob" })
			take("second call in another's session", "echo", 1, func(e *contract.Event, _ *contract.Call) { e.Session, e.Actor = "s-old", "bob" })
			parent := take("parent", "echo", 1, nil)
			allowed := l.of(contract.EventAllowed)
			above := allowed[len(allowed)-1]
			l.put("session-runner", contract.EventEffectStarted, above.Session, &contract.Started{CallID: above.CallID}, above)
			nested := func(e *contract.Event, c *contract.Call) {
				c.Parent, c.ParentSession = l.callOf(parent), e.Session
				e.Source, e.Origin = "session-runner/session-runner-1", "session-runner-1"
			}
			take("first nested call", "echo", 8, nested)
			last := take("second nested call", "echo", 3, nested)
			if status, _ := l.outcome(l.callOf(last)); status != "" {
				t.Error("a nested call is", status)
			}
			last.tries = 1
			log.Reset()
			if err := a.decider.take(ctx, last); err != nil {
				t.Fatal(err)
			}
			read["delivered again"] = append(read["delivered again"], log.Reads.Load())
		})
	}
	for what, got := range read {
		if len(got) != 2 || got[0] != got[1] {
			t.Errorf("%s: %v reads after 10 and 100,000 calls", what, got)
		}
	}
}
