package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// allottedCalls is the limit of each actor in a budgetTest.
const allottedCalls = 200

// budgetTest is a mesh with three gateways and three instances of policy, in which each
// actor may make allottedCalls calls.
type budgetTest struct {
	*testing.T
	mesh  *harness.Mesh
	addrs []string // of the gateways
}

func newBudgetTest(t *testing.T) *budgetTest {
	m := harness.Processes(t, harness.Options{Noop: true})
	for _, name := range []string{"policy-b", "policy-c"} {
		m.StartService(name, "policy")
	}
	bt := &budgetTest{t, m, []string{m.Addr, m.StartGateway("gateway-b"), m.StartGateway("gateway-c")}}
	cli(t, m, "policy", "set-limits", write(t, "limits.json", fmt.Sprintf(`{"limits":[{"id":"sum","level":"agent","measure":"calls","window":"total","max":%d}]}`, allottedCalls)))
	return bt
}

// use makes n calls of an actor by several clients, which use all gateways, and returns how many
// succeeded and how many the limit refused. Calls that fail with 5xx, or have no response, are in
// neither number. If then is not nil, use calls it once, when at calls have succeeded.
func (bt *budgetTest) use(actor string, clients, n int, at int64, then func()) (ok, refused int64) {
	bt.Helper()
	token := strings.TrimSpace(cli(bt.T, bt.mesh, "token", "create", "--actor", actor, "--scope", "tools:call"))
	var done, good, bad atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		as := bt.mesh.As(token)
		as.Addr = bt.addrs[i%len(bt.addrs)]
		wg.Go(func() {
			for done.Add(1) <= int64(n) {
				r, err := as.Do(bt.Context(), "POST", "/api/v1/packs/noop", fmt.Sprint("s-", i), "{}")
				switch {
				case err != nil || r.Status >= 500:
				case r.Status == 200:
					if good.Add(1) == at && then != nil {
						then()
					}
				case r.Status == 429 && strings.Contains(string(r.Body), contract.ReasonBudgetExceeded):
					bad.Add(1)
				default:
					bt.Errorf("%d %s", r.Status, r.Body)
				}
			}
		})
	}
	wg.Wait()
	return good.Load(), bad.Load()
}

// effects returns how many calls of an actor have an effect, and how many the budget fence
// cancelled.
func (bt *budgetTest) effects(actor string) (n, fenced int) {
	bt.Helper()
	for _, e := range ledger(bt.T, bt.mesh) {
		if e.Name != contract.EventEffectRecorded || e.Actor != actor || e.Service() != "session-runner" {
			continue
		}
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			bt.Fatal(err)
		}
		switch {
		case r.Effect.Status != contract.Cancelled:
			n++
		case r.Effect.ErrorCode == contract.CodeBudgetFenced:
			fenced++
		}
	}
	return n, fenced
}

// useUp makes calls of an actor until as many have an effect as the limit permits.
func (bt *budgetTest) useUp(actor string) {
	bt.Helper()
	for try := 0; ; try++ {
		if n, _ := bt.effects(actor); n == allottedCalls {
			return
		} else if n > allottedCalls || try == 10 {
			bt.Fatalf("%s: %d calls have an effect, want %d", actor, n, allottedCalls)
		}
		bt.use(actor, 12, allottedCalls, 0, nil)
	}
}

// spent checks that the limit refuses 64 further calls of an actor, or the budget fence cancels
// them.
func (bt *budgetTest) spent(actor string) {
	bt.Helper()
	_, before := bt.effects(actor)
	ok, refused := bt.use(actor, 64, 64, 0, nil)
	n, fenced := bt.effects(actor)
	if ok != 0 || refused+int64(fenced-before) != 64 {
		bt.Errorf("%s: of 64 further calls, %d succeeded, %d were refused and %d fenced", actor, ok, refused, fenced-before)
	}
	if n != allottedCalls {
		bt.Errorf("%s: %d calls have an effect, want %d", actor, n, allottedCalls)
	}
}

// closed returns how many allotments were closed by an instance with another name than
// their holder's, and how many by one with the same name.
func (bt *budgetTest) closed() (byOthers, byOwn int) {
	bt.Helper()
	holders := map[string]string{}
	for _, e := range ledger(bt.T, bt.mesh) {
		var ev struct {
			Allotment string `json:"allotment"`
			Holder    string `json:"holder"`
		}
		switch e.Name {
		case contract.EventAllotmentTaken:
			if err := json.Unmarshal(e.Data, &ev); err != nil {
				bt.Fatal(err)
			}
			holders[ev.Allotment] = ev.Holder
		case contract.EventAllotmentClosed:
			if err := json.Unmarshal(e.Data, &ev); err != nil {
				bt.Fatal(err)
			}
			if e.Source == "policy/"+holders[ev.Allotment] {
				byOwn++
			} else {
				byOthers++
			}
		}
	}
	return byOthers, byOwn
}

// verify checks that replay computes the same decisions.
func (bt *budgetTest) verify() {
	bt.Helper()
	if out, err := bt.mesh.CLI("replay"); err != nil {
		bt.Fatal(out, err)
	}
}

// TestBudgetClients shows that 64 clients at three gateways, with three instances of policy,
// use a limit to its last call and never exceed it.
func TestBudgetClients(t *testing.T) {
	bt := newBudgetTest(t)
	if ok, refused := bt.use("many", 64, 2*allottedCalls, 0, nil); ok != allottedCalls || refused != allottedCalls {
		t.Errorf("%d calls succeeded and %d were refused, want %d of each", ok, refused, allottedCalls)
	}
	bt.spent("many")
	bt.verify()
}

// TestBudgetStopped shows that a limit is used to its last call, and not exceeded, while an
// instance of policy that holds a part of it is stopped by SIGSTOP during calls; that the others
// close its allotment; and that nothing more is used after SIGCONT. It shows the same with a
// restart of NATS before SIGCONT.
func TestBudgetStopped(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart of NATS ", restart), func(t *testing.T) {
			t.Parallel()
			bt := newBudgetTest(t)
			before, _ := bt.closed()
			bt.use("stopped", 24, allottedCalls/2, allottedCalls/4, func() { bt.mesh.Signal("policy-b", syscall.SIGSTOP) })
			bt.useUp("stopped")
			if n, _ := bt.closed(); n == before {
				t.Error("no allotment was closed")
			}
			if restart {
				bt.mesh.Restart("nats")
			}
			bt.mesh.Signal("policy-b", syscall.SIGCONT)
			bt.mesh.WaitReady()
			bt.spent("stopped")
			_, fenced := bt.effects("stopped")
			t.Logf("%d calls were fenced", fenced)
			bt.verify()
		})
	}
}

// TestBudgetCrashLoop shows that an instance of policy that crashes again and again loses nothing
// of a limit: allotments are closed, and the limit is used to its last call.
func TestBudgetCrashLoop(t *testing.T) {
	bt := newBudgetTest(t)
	for range 5 {
		bt.use("crashed", 24, allottedCalls/10, allottedCalls/20, func() { bt.mesh.Kill("policy-c") })
		bt.mesh.Restart("policy-c")
		bt.mesh.WaitReady()
	}
	bt.useUp("crashed")
	if others, own := bt.closed(); others+own == 0 {
		t.Error("no allotment was closed")
	}
	bt.spent("crashed")
	bt.verify()
}
