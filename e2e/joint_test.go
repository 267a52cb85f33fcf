package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestSecondOverNetwork shows that a second session-runner can connect over the network to
// a mesh in one process, that calls are executed by both session-runners, also after the
// mesh's process was killed and started again, and that the ledger verifies.
func TestSecondOverNetwork(t *testing.T) {
	m := harness.One(t, harness.Options{Noop: true, Listen: true})
	m.StartService("session-runner-again", "session-runner")
	both := func(name string) {
		t.Helper()
		by := map[string]bool{}
		for end := time.Now().Add(30 * time.Second); len(by) < 2; {
			session := fmt.Sprintf("s-%s-%d", name, time.Now().UnixNano())
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", session, `{"n":1}`)
			if err != nil || r.Status != 200 {
				t.Fatal(err, r)
			}
			out, err := m.CLI("events", "list", "--session", session, "--type", "effect_recorded", "--json")
			if err != nil {
				t.Fatal(out, err)
			}
			for _, instance := range []string{"session-runner-1", "session-runner-2"} {
				if strings.Contains(out, `"session-runner/`+instance+`"`) {
					by[instance] = true
				}
			}
			if time.Now().After(end) {
				t.Fatalf("%s: calls were executed by %v only: %s", name, by, out)
			}
		}
	}
	both("first")
	m.Kill("binnacle")
	m.Restart("binnacle")
	m.WaitReady()
	both("restarted")
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-figures", `{"n":1}`); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	bothVerify(t, m, "s-figures")
}
