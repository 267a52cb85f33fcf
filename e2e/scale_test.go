package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// load sends calls and chat requests until it is stopped, each on a new connection, and
// counts those that fail. Each of its clients sends at most one per pace.
type load struct {
	m      *harness.Mesh
	stop   context.CancelFunc
	wg     sync.WaitGroup
	done   atomic.Int64
	failed atomic.Int64
	broken atomic.Bool // a response of a model that ends because a connection to NATS was lost does not count as failed
	mu     sync.Mutex
	errs   []string
}

// pace leaves most of the time of two processors for the containers that a test starts under load.
const pace = 250 * time.Millisecond

// startLoad starts a load of this number of concurrent clients. The load ends with the
// test.
func startLoad(t *testing.T, m *harness.Mesh, clients int) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{m: m, stop: cancel}
	t.Cleanup(l.end)
	for i := range clients {
		l.wg.Go(func() {
			c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
			next := time.NewTicker(pace)
			defer next.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				select {
				case <-next.C:
				case <-ctx.Done():
					return
				}
				path, body := "/api/v1/calls", `{"kind":"tool.noop","tool":"noop","args":{}}`
				if (n+i)%4 == 0 {
					path, body = "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"under way"}]}`
				}
				if err := propose(&c, m, path, body); err != nil && !(l.broken.Load() && strings.Contains(err.Error(), "stream_broken")) {
					l.failed.Add(1)
					l.mu.Lock()
					l.errs = append(l.errs, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), path, err))
					l.mu.Unlock()
				}
				l.done.Add(1)
			}
		})
	}
	return l
}

// end stops the load and waits for the calls in progress.
func (l *load) end() { l.stop(); l.wg.Wait() }

// check waits until more than 20 further calls have ended. It fails t if this takes more
// than a minute, or if a call failed since the last check. A proposal and its work are each
// delivered again 10 seconds after the instance that had them stopped, so that calls may take
// 20 seconds and the time for services to start.
func (l *load) check(t *testing.T, during string) {
	t.Helper()
	from := l.done.Load()
	eventually(t, "calls go on during "+during, time.Minute, func() bool { return l.done.Load() > from+20 })
	if n := l.failed.Swap(0); n > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		t.Errorf("%d calls failed during %s: %s", n, during, strings.Join(l.errs[:min(len(l.errs), 5)], "\n"))
		l.errs = nil
	}
}

func propose(c *http.Client, m *harness.Mesh, path, body string) error {
	req, err := http.NewRequest(http.MethodPost, "http://"+m.Addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+m.Token)
	req.Header.Set("Content-Type", "application/json")
	r, err := c.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		b := make([]byte, 300)
		n, _ := r.Body.Read(b)
		return fmt.Errorf("%d %s", r.StatusCode, b[:n])
	}
	return nil
}

// signing returns the key ids with which the live instances of a service sign.
func signing(t *testing.T, m *harness.Mesh, service string) []string {
	return detail(t, m, service, "signing-key")
}

// detail returns what the live instances of a service report of one of their parts.
func detail(t *testing.T, m *harness.Mesh, service, part string) []string {
	t.Helper()
	t.Helper()
	r, err := m.Operator().Do(t.Context(), "GET", "/readyz", "", "")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Services map[string][]struct {
			Parts []struct{ Name, Detail string } `json:"parts"`
		} `json:"services"`
	}
	if err := json.Unmarshal(r.Body, &doc); err != nil {
		t.Fatalf("%v: %s", err, r.Body)
	}
	var out []string
	for _, i := range doc.Services[service] {
		for _, p := range i.Parts {
			if p.Name == part {
				out = append(out, p.Detail)
			}
		}
	}
	return out
}

// TestComposeScale shows that services start from snapshots with two instances each
// (composeSnapshots), that two instances each of six services work behind one port, that
// keys, NATS identities and the sealing key can be rotated and revoked under load without a failed call,
// that new connections do not fail after a gateway was killed, that the scripts for pipelines and
// artifacts pass, that hooks of a coding agent work (composeHooks, composeClient) and wait for a vote that
// a receiver of the approval webhook casts, and that a second instance of audit,
// and one of the vault-broker with its files, is rejected.
func TestComposeScale(t *testing.T) {
	a, url := newApprover(t, "waiting-coder")
	m := harness.Compose(t, harness.Options{Noop: true, Webhook: url, Env: []string{"BINNACLE_EGRESS_NETWORKS=" + harness.ComposeHost(t) + "/32", "BINNACLE_APPROVAL_PAGE=https://console.example/{call}"}})
	t.Run("snapshots", func(t *testing.T) { composeSnapshots(t, m) })
	m.Scale("gateway=2", "policy=2", "llm-router=2", "session-runner=2", "judge=2", "work=2")
	l := startLoad(t, m, 4)
	l.check(t, "a run with two of everything")
	t.Run("rotate", func(t *testing.T) { rotateAll(t, m, l) })
	t.Run("identities and tokens", func(t *testing.T) {
		r := ring{t, m, func(args ...string) string { return m.Keys(append([]string{"trust"}, args...)...) }, nil, func(during string) { l.check(t, during) }}
		l.broken.Store(true)
		r.identities()
		l.broken.Store(false)
		r.sealing()
		l.end()
		r.tokens(m.ContainerAddr("gateway", 1)+":8080", m.ContainerAddr("gateway", 2)+":8080")
		m.ReadTokens()
	})
	l = startLoad(t, m, 4)
	t.Run("root and approvers", func(t *testing.T) { rotateRoot(t, m, l) })
	t.Run("keys are private", func(t *testing.T) { keysArePrivate(t, m) })
	t.Run("modes", func(t *testing.T) { composeModes(t, m) })
	t.Run("restart", func(t *testing.T) {
		if _, err := m.ComposeCLI("restart", "policy", "session-runner"); err != nil {
			t.Fatal(err)
		}
		l.check(t, "a restart of what has rotated")
	})
	t.Run("a gateway dies", func(t *testing.T) { gatewayDies(t, m, l) })
	l.end()
	namedScripts(t, m, "pipeline", "artifact")
	t.Run("governed everywhere", func(t *testing.T) { governedEverywhere(t, m) })
	t.Run("hooks", func(t *testing.T) { composeHooks(t, m) })
	t.Run("webhook", func(t *testing.T) { a.t = t; a.vote(m, filepath.Join(m.Volume("keys-gateway"), "webhook.seed")) })
	t.Run("client", func(t *testing.T) { composeClient(t, m) })
	t.Run("once", func(t *testing.T) { runsOnceOnCompose(t, m) })
	ledger := filepath.Join(t.TempDir(), "ledger.jsonl")
	if out, err := m.CLI("export", "--ledger", "--out", ledger); err != nil {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("verify", ledger); err != nil {
		t.Errorf("the ledger does not verify: %v\n%s", err, out)
	}
}

// rotateAll rotates the keys of four services with the command that a user of compose
// types, and revokes each old key once every instance of the service signs with the
// new key.
func rotateAll(t *testing.T, m *harness.Mesh, l *load) {
	for _, s := range []string{"policy", "session-runner", "llm-router", "audit"} {
		old := signing(t, m, s)
		kid := m.Keys("trust", "rotate", s)
		eventually(t, s+" signs with its new key", 30*time.Second, func() bool {
			now := signing(t, m, s)
			return len(now) == len(old) && !slices.ContainsFunc(now, func(k string) bool { return k != kid })
		})
		l.check(t, "the rotation of "+s)
		m.Keys("trust", "revoke", old[0])
		eventually(t, "the old key of "+s+" is revoked", 20*time.Second, func() bool { return revoked(t, m, old[0]) })
		l.check(t, "the revocation of the old key of "+s)
	}
}

// governedEverywhere creates and revokes virtual keys. It checks, with calls on new connections,
// that each key is accepted directly after its creation and refused directly after its
// revocation.
func governedEverywhere(t *testing.T, m *harness.Mesh) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	const body = `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`
	for i := range 6 {
		id := fmt.Sprint("short-", i)
		out, err := m.CLI("key", "create", id, "--actor", "admin")
		if err != nil {
			t.Fatal(out, err)
		}
		with := m.As(strings.TrimSpace(out))
		for range 4 {
			if err := propose(&c, with, "/v1/chat/completions", body); err != nil {
				t.Error("a new key is refused:", err)
			}
		}
		if out, err := m.CLI("key", "revoke", id, "--reason", "tested"); err != nil {
			t.Fatal(out, err)
		}
		for range 4 {
			if err := propose(&c, with, "/v1/chat/completions", body); err == nil {
				t.Error("a revoked key is used")
			}
		}
	}
}

func revoked(t *testing.T, m *harness.Mesh, kid string) bool {
	t.Helper()
	out, err := m.CLI("trust", "list")
	if err != nil {
		return false
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, kid) {
			return strings.Contains(line, "not valid")
		}
	}
	return false
}

// rotateRoot rotates the root key, and then publishes and revokes an approver's key with
// the new root key.
func rotateRoot(t *testing.T, m *harness.Mesh, l *load) {
	m.Keys("trust", "rotate", "root")
	kid := m.Keys("trust", "add", "approval", "bob")
	eventually(t, "the approver's key is published", 20*time.Second, func() bool {
		out, _ := m.CLI("trust", "list")
		return strings.Contains(out, kid)
	})
	if revoked(t, m, kid) {
		t.Error("the approver's key is not valid")
	}
	m.Keys("trust", "revoke", kid)
	eventually(t, "the approver's key is revoked", 20*time.Second, func() bool { return revoked(t, m, kid) })
	l.check(t, "the rotation of the root")
}

// keysArePrivate shows that the volume of keys of a service holds neither the identity of another
// service, except that of the mirror, nor a root key or the token key, and that only the owner can
// read its files.
func keysArePrivate(t *testing.T, m *harness.Mesh) {
	for _, s := range append([]string{"nats", "provision"}, harness.Services...) {
		dir, err := filepath.EvalSymlinks(filepath.Join(m.Dir, "volumes", s))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			i, err := d.Info()
			if err != nil {
				return err
			}
			name := d.Name()
			if i.Mode() != 0o600 {
				t.Errorf("%s of %s has mode %v", name, s, i.Mode())
			}
			if owner, _, ok := strings.Cut(name, ".nkey"); ok && owner != s && owner != "mirror" {
				t.Errorf("%s can read the identity of %s", s, owner)
			}
			if strings.HasPrefix(name, "root.seed") || name == "token.seed" {
				t.Errorf("%s can read %s", s, name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// crashContainer kills the first process of each container from the host, at once, so that the
// container engine applies its restart policy.
func crashContainer(t *testing.T, containers ...string) {
	t.Helper()
	out, err := exec.Command("docker", append([]string{"inspect", "-f", "{{.State.Pid}}"}, containers...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	ids := strings.Fields(string(out))
	if out, err := exec.Command("kill", append([]string{"-9"}, ids...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Until a process has ended, its sockets accept connections.
	for _, id := range ids {
		eventually(t, "process "+id+" ends", 5*time.Second, func() bool {
			stat, err := os.ReadFile("/proc/" + id + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
}

// gatewayDies shows that new connections reach the other gateway after a gateway was
// killed and before it has restarted.
func gatewayDies(t *testing.T, m *harness.Mesh, l *load) {
	crashContainer(t, m.Container("gateway", 1))
	time.Sleep(50 * time.Millisecond)
	l.mu.Lock()
	l.errs = nil
	l.mu.Unlock()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	for i := range 100 {
		if err := propose(&c, m, "/api/v1/calls", `{"kind":"tool.noop","tool":"noop","args":{}}`); err != nil {
			t.Fatalf("call %d after the death of a gateway: %v", i, err)
		}
	}
	l.failed.Store(0) // ignore failures of calls that were in progress at the dead gateway
	l.check(t, "the return of a gateway")
}

// runsOnceOnCompose shows that second instances of audit and of the vault-broker log that only one may run,
// and that instances that restart after a crash are not rejected as second ones.
func runsOnceOnCompose(t *testing.T, m *harness.Mesh) {
	for _, s := range []string{"audit", "vault-broker", "provision"} {
		crashContainer(t, m.Container(s, 1))
	}
	eventually(t, "what crashed is back", 60*time.Second, func() bool {
		for _, s := range []string{"audit", "vault-broker", "provision"} {
			out, err := exec.Command("docker", "inspect", "-f", "{{.State.Health.Status}} {{.RestartCount}}", m.Container(s, 1)).Output()
			if err != nil || strings.TrimSpace(string(out)) != "healthy 1" {
				return false
			}
		}
		return true
	})
	if out, err := m.ComposeCLI("up", "-d", "--no-recreate", "--scale", "audit=2", "--scale", "vault-broker=2", "--scale", "gateway=2", "--scale", "policy=2", "--scale", "llm-router=2", "--scale", "session-runner=2", "--scale", "judge=2"); err != nil {
		t.Fatal(out, err)
	}
	for _, service := range []string{"audit", "vault-broker"} {
		eventually(t, "the second "+service+" ends and says why", 30*time.Second, func() bool {
			out, err := m.ComposeCLI("logs", "--no-log-prefix", service)
			return err == nil && strings.Contains(out, service+" may run once, and runs already: "+service+"-1 on ")
		})
	}
}
