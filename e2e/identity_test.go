package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestRevocationEverywhere shows that a revocation takes effect within a second on every
// gateway, and on a restarted gateway before the first request that it serves, even
// after a long history. Tokens of other principals stay valid.
func TestRevocationEverywhere(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	second := m.StartGateway("gateway-b")
	at := func(addr, token string) *harness.Mesh { x := m.As(token); x.Addr = addr; return x }
	status := func(addr, token string) int {
		r, err := at(addr, token).Do(t.Context(), "GET", "/api/v1/packs", "", "")
		if err != nil {
			return 0
		}
		return r.Status
	}
	var last string
	for round := range 5 {
		tok, other := m.TokenFor("mallory", "tools:call"), m.TokenFor("bob", "tools:call")
		for _, a := range []string{m.Addr, second} {
			if s := status(a, tok); s != 200 {
				t.Fatalf("round %d: a good token is answered %d", round, s)
			}
		}
		if round%2 == 0 {
			cli(t, m, "token", "revoke", tok, "--reason", "test")
		} else {
			cli(t, m, "token", "revoke", "--principal", "mallory", "--reason", "test")
		}
		since := time.Now()
		for _, a := range []string{m.Addr, second} {
			for status(a, tok) != 401 {
				if time.Since(since) > time.Second {
					t.Fatalf("round %d: the revoked token works at %s after %s", round, a, time.Since(since))
				}
				time.Sleep(5 * time.Millisecond)
			}
			if s := status(a, other); s != 200 {
				t.Errorf("another's token is answered %d", s)
			}
		}
		last = tok
	}
	// Make 3,200 calls between the revocation and the restart, as a long history.
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 200 {
				_, _ = m.Do(t.Context(), "POST", "/api/v1/packs/noop", fmt.Sprintf("s-long-%d-%d", w, i%20), "{}")
			}
		})
	}
	wg.Wait()
	m.Kill("gateway")
	m.Restart("gateway")
	seen := 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch s := status(m.Addr, last); s {
		case 0, 503: // the gateway is not listening, or not ready
		case 401:
			seen++
		default:
			t.Fatalf("a revoked token is answered %d after a restart", s)
		}
		if seen > 100 {
			break
		}
	}
	if seen == 0 {
		t.Error("the gateway did not come back")
	}
	proves(t, m)
}

// TestFirstCallsAtTwoGateways shows that if two gateways concurrently receive the first
// calls with the same session name, one session is created if the callers are the same,
// and two if they differ.
func TestFirstCallsAtTwoGateways(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	second := m.StartGateway("gateway-b")
	actors := map[string]string{"alice": m.TokenFor("alice", "tools:call"), "bob": m.TokenFor("bob", "tools:call")}
	for round := range 10 {
		name := fmt.Sprintf("s-once-%d", round)
		var wg sync.WaitGroup
		for actor, tok := range actors {
			for i := range 8 {
				wg.Go(func() {
					x := m.As(tok)
					if i%2 == 0 {
						x.Addr = second
					}
					r, err := x.Do(t.Context(), "POST", "/api/v1/packs/noop", name, "{}")
					if err != nil || r.Status != 200 || r.Header.Get("X-Binnacle-Session-Id") != harness.SessionID(actor, name) {
						t.Errorf("%v %+v", err, r)
					}
				})
			}
		}
		wg.Wait()
	}
	for _, e := range ledger(t, m) {
		if e.Session != "" && actors[e.Actor] != "" && !contract.OwnsSession("default", e.Actor, e.Session) {
			t.Errorf("%s of %s is in a session of another", e.Name, e.Actor)
		}
	}
	for actor := range actors {
		pack := filepath.Join(t.TempDir(), "p.tar")
		cli(t, m, "export", "--session", "s-once-0", "--owner", actor, "--out", pack)
		if out := cli(t, m, "verify", pack); !strings.Contains(out, "receipts  8, one unbroken chain") {
			t.Error(out)
		}
	}
	proves(t, m)
}

// TestFirstPerson shows that several policy instances register the administrator as a
// person only once, and not again after an administrator has changed the registration.
func TestFirstPerson(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	m.StartService("policy-b", "policy")
	m.StartService("policy-c", "policy")
	m.WaitReady()
	count := func() (n int) {
		for _, e := range ledger(t, m) {
			if e.Name == "principal_registered" && strings.Contains(string(e.Data), `"admin"`) {
				n++
			}
		}
		return n
	}
	if n := count(); n != 1 {
		t.Errorf("the administrator is registered %d times", n)
	}
	cli(t, m, "principals", "register", "admin", "agent") // no other person is registered, so no approval is needed
	m.Kill("policy")
	m.Restart("policy")
	m.WaitReady()
	if out := cli(t, m, "principals", "list"); count() != 2 || !strings.Contains(out, "admin                agent") {
		t.Errorf("registered against people's word: %s", out)
	}
	proves(t, m)
}

// TestUpgradedAuthority shows that on the recorded ledgers of earlier releases the
// administrator is registered as a person, so that a second person can be registered and
// vote, and that sessions keep their ids and owners.
func TestUpgradedAuthority(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(harness.Root(), "e2e/testdata/releases/*.backup"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".backup"), func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			if out, err := exec.Command(harness.Bin(t, "binnacle"), "restore", "--in", f, "--data", data).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			m := harness.One(t, harness.Options{Dir: data, Noop: true})
			if out := cli(t, m, "principals", "list"); strings.Count(out, "admin ") != 1 || !strings.Contains(out, "person") {
				t.Error(out)
			}
			// The owner of a session of a release before 0.5 continues it by its name, which
			// was its id. If another caller uses this name, it is the name of a new session.
			owner, session := "", ""
			for _, e := range ledger(t, m) {
				if owner == "" && (e.Session == "s-release" || e.Session == harness.SessionID("admin", "s-release")) {
					owner, session = e.Actor, e.Session
				}
			}
			call := func(actor, session string) *harness.Response {
				r, err := m.As(m.TokenFor(actor, "tools:call")).Do(context.Background(), "POST", "/api/v1/packs/unknown", session, "{}")
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			if id := call(owner, "s-release").Header.Get("X-Binnacle-Session-Id"); id != session {
				t.Errorf("its owner %s is in %s", owner, id)
			}
			if id := call("stranger", "s-release").Header.Get("X-Binnacle-Session-Id"); id != harness.SessionID("stranger", "s-release") {
				t.Errorf("a stranger is in %s", id)
			}
			if id := call(owner, "s-new").Header.Get("X-Binnacle-Session-Id"); id != harness.SessionID(owner, "s-new") {
				t.Errorf("a new session is %s", id)
			}
			for _, e := range ledger(t, m) {
				if e.Session == session && e.Actor == "stranger" {
					t.Error("a stranger is in the chain of a released session")
				}
			}
			// The administrator is not locked out: a second person can be registered,
			// and that person can approve the registration of a third.
			cli(t, m, "principals", "register", "bob", "person")
			cli(t, m, "roles", "grant", "bob", "approver")
			doc := `{"kind":"policy.register_principal","tool":"policy.register_principal","args":{"principal":"carol","type":"person"}}`
			r, err := m.DoHeader(context.Background(), "POST", "/api/v1/calls", doc, map[string]string{"Prefer": "respond-async"})
			if err != nil || r.Status != 202 {
				t.Fatalf("%v %d %s", err, r.Status, r.Body)
			}
			var w struct {
				CallID string `json:"call_id"`
			}
			if err := json.Unmarshal(r.Body, &w); err != nil {
				t.Fatal(err)
			}
			if out, err := m.As(m.TokenFor("bob", "approvals:vote")).CLI("approvals", "grant", w.CallID, "--reason", "known"); err != nil {
				t.Fatal(out, err)
			}
			eventually(t, "carol is a person", 5*time.Second, func() bool { return strings.Contains(cli(t, m, "principals", "list"), "carol ") })
		})
	}
}
