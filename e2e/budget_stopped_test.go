package e2e

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestBudgetStopped shows that 64 clients at three gateways, with three instances of policy,
// use a limit to its last call and never exceed it; also if an instance of policy is
// stopped by SIGSTOP while the rest of the limit is used elsewhere, and NATS is restarted
// before SIGCONT; and that an instance of policy that crashes again and again loses nothing
// of the limit.
func TestBudgetStopped(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	policies := []string{"policy", "policy-b", "policy-c"}
	for _, name := range policies[1:] {
		m.StartService(name, "policy")
	}
	addrs := []string{m.Addr, m.StartGateway("gateway-b"), m.StartGateway("gateway-c")}
	const most = 200
	cli(t, m, "policy", "set-limits", write(t, "limits.json", fmt.Sprintf(`{"limits":[{"id":"sum","level":"agent","measure":"calls","window":"total","max":%d}]}`, most)))

	// use makes n calls of an actor by several clients, and returns how many succeeded and
	// how many the limit refused.
	use := func(actor string, clients, n int) (ok, refused int64) {
		t.Helper()
		token := strings.TrimSpace(cli(t, m, "token", "create", "--actor", actor, "--scope", "tools:call"))
		var done, good, bad atomic.Int64
		var wg sync.WaitGroup
		for i := range clients {
			at := m.As(token)
			at.Addr = addrs[i%len(addrs)]
			wg.Go(func() {
				for done.Add(1) <= int64(n) {
					r, err := at.Do(t.Context(), "POST", "/api/v1/packs/noop", fmt.Sprint("s-", i), "{}")
					switch {
					case err != nil || r.Status >= 500: // counted by its effect
					case r.Status == 200:
						good.Add(1)
					case r.Status == 429 && strings.Contains(string(r.Body), contract.ReasonBudgetExceeded):
						bad.Add(1)
					default:
						t.Errorf("%d %s", r.Status, r.Body)
					}
				}
			})
		}
		wg.Wait()
		return good.Load(), bad.Load()
	}
	// effects returns how many calls of an actor have an effect.
	effects := func(actor string) (n int) {
		for _, e := range ledger(t, m) {
			if e.Name == contract.EventEffectRecorded && e.Actor == actor && e.Service() == "session-runner" {
				var r contract.Recorded
				if err := contract.Decode(e.Data, &r); err != nil {
					t.Fatal(err)
				}
				if r.Effect.Status != contract.Cancelled {
					n++
				}
			}
		}
		return n
	}

	if ok, refused := use("many", 64, 2*most); ok != most || refused != most {
		t.Errorf("%d calls succeeded and %d were refused, want %d of each", ok, refused, most)
	}
	for _, restart := range []bool{false, true} {
		actor := fmt.Sprint("stopped-", restart)
		use(actor, 6, most/4)
		m.Signal("policy-b", syscall.SIGSTOP)
		use(actor, 12, most/2)
		if restart {
			m.Restart("nats")
			time.Sleep(time.Second)
		}
		m.Signal("policy-b", syscall.SIGCONT)
		m.WaitReady()
		for try := 0; try < 10 && effects(actor) < most; try++ {
			use(actor, 12, most)
		}
		if n := effects(actor); n != most {
			t.Errorf("%s: %d calls have an effect, want %d", actor, n, most)
		}
	}
	for range 5 { // a crash loop
		use("crashed", 6, most/10)
		m.Kill("policy-c")
		m.Restart("policy-c")
		m.WaitReady()
	}
	for try := 0; try < 10 && effects("crashed") < most; try++ {
		use("crashed", 12, most)
	}
	if n := effects("crashed"); n != most {
		t.Errorf("crashed: %d calls have an effect, want %d", n, most)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}
