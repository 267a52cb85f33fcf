package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TestRecover shows that recover rejects a healthy ledger; that after an actual loss a new epoch
// can be opened with the root key, and a witness of the lost history accepts it; and that a witness
// rejects an epoch without the root key's signature as a fork.
func TestRecover(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) { recoverOn(t, lossyProcesses(t, start)) })
	}
}

// TestComposeRecover runs the checks of TestRecover on compose, with the compose service
// recover. After that the mesh's volumes get the ledger of release 0.3, on which it makes the
// checks of TestUpgrades.
func TestComposeRecover(t *testing.T) {
	l := lossyCompose(t)
	recoverOn(t, l)
	t.Run("upgrade", func(t *testing.T) {
		upgrade(t, filepath.Join(harness.Root(), "e2e/testdata/releases/rooted/0.3.0.backup"), composeUpgrade(l))
	})
}

// lossy is a mesh whose ledger the test can delete. The functions that control the mesh
// depend on its topology.
type lossy struct {
	m       *harness.Mesh
	start   func() // starts the stopped mesh and waits until it is ready
	begin   func() // starts the stopped mesh, which is not expected to become ready
	stop    func()
	recover func(args ...string) (string, error)
	resume  func()        // continues after an epoch has been opened, and waits until the mesh is ready
	store   func() string // returns the folder with the store of the stopped NATS server
}

// lossyProcesses returns a lossy mesh that start starts: in one process, or in one
// process per service.
func lossyProcesses(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh) *lossy {
	o := harness.Options{Noop: true, Dir: t.TempDir()}
	l := &lossy{m: start(t, o)}
	l.start = func() { l.m = start(t, o) }
	l.begin = func() {
		if l.m.NATS == "" {
			l.m = harness.OneUnready(t, o)
		} else {
			l.m = harness.ProcessesUnready(t, o)
		}
	}
	l.stop = func() { l.m.StopAll() }
	l.store = func() string { return filepath.Join(o.Dir, "nats") }
	l.recover = func(args ...string) (string, error) {
		if l.m.NATS != "" {
			args = append(args, "--nats", l.m.NATS)
		} else {
			l.m.StopAll() // with an embedded NATS server, no process may run during the command
		}
		return l.m.CLI(append([]string{"recover"}, args...)...)
	}
	l.resume = func() {
		if l.m.NATS == "" {
			l.start()
			return
		}
		l.m.Kill("audit")
		l.m.Restart("audit")
		l.m.WaitReady()
	}
	return l
}

// lossyCompose returns a lossy mesh on compose, which is recovered by the commands that
// a user of compose types.
func lossyCompose(t *testing.T) *lossy {
	l := &lossy{m: harness.Compose(t, harness.Options{Noop: true})}
	compose := func(args ...string) {
		t.Helper()
		if out, err := l.m.ComposeCLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	l.start = func() { compose("up", "-d", "--wait"); l.m.WaitReady() }
	l.begin = func() { _, _ = l.m.ComposeCLI("up", "-d") } // without --wait, because the mesh does not become healthy
	l.stop = func() { compose("stop") }
	l.store = func() string { return l.m.Volume("ledger") }
	l.recover = func(args ...string) (string, error) {
		return l.m.ComposeCLI(append([]string{"run", "--rm", "-T", "recover"}, args...)...)
	}
	l.resume = func() { compose("restart", "audit"); l.start() }
	return l
}

func recoverOn(t *testing.T, l *lossy) {
	own := t.TempDir()
	reason := []string{"--reason", "a disk came back from yesterday"}
	calls := func(n int) {
		t.Helper()
		for range n {
			if r, err := l.m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-recover", "{}"); err != nil || r.Status != 200 {
				t.Fatal(err, r)
			}
		}
		time.Sleep(1200 * time.Millisecond) // wait until a checkpoint has been signed
	}
	calls(2)
	out, err := l.recover(reason...)
	if err == nil || !strings.Contains(err.Error(), "nothing to recover from") {
		t.Fatalf("a healthy ledger was recovered: %s %v", out, err)
	}
	if out, err := l.recover(); err == nil || !strings.Contains(err.Error(), "--reason") {
		t.Fatal("recovered without a reason:", out, err)
	}
	if l.m.NATS == "" {
		l.start()
		if out, err := l.m.CLI("recover", "--reason", "beside a running mesh"); err == nil || !strings.Contains(err.Error(), "stop it first") {
			t.Fatal("recovered beside a running mesh:", out, err)
		}
	}
	w1 := filepath.Join(own, "w1.seed")
	if err := os.WriteFile(w1, []byte(strings.Repeat("7", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	public := strings.TrimSpace(cli(t, l.m, "trust", "public", w1))
	kid := strings.TrimSpace(cli(t, l.m, "trust", "add", "witness", "w1", "--public", public))
	for range 100 {
		if strings.Contains(cli(t, l.m, "trust", "list"), kid) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	state := filepath.Join(own, "w1.head")
	look := func(addr string) (string, error) {
		return l.m.CLI("witness", "--addr", addr, "--name", "w1", "--key", w1, "--state", state, "--every", "0")
	}
	calls(1)
	l.stop()
	backup := filepath.Join(own, "nats")
	copyTree(t, l.store(), backup)
	l.start()
	calls(5)
	if out, err := look(l.m.Addr); err != nil || !strings.Contains(out, "cosigned") {
		t.Fatal(out, err)
	}
	seen, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	calls(5) // extend the log, so that the last checkpoint of the epoch is later than the one that the witness has stored
	l.stop()
	refill(t, l.store(), backup)
	l.begin()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		r, err := l.m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-recover", "{}")
		if err == nil && r.Status == 503 && strings.Contains(string(r.Body), "LEDGER_TRUNCATED") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("calls are still taken: %v %+v", err, r)
		}
	}
	if out, err = l.recover(reason...); err != nil || !strings.Contains(out, "epoch 2") || !strings.Contains(out, "the ledger") {
		t.Fatal(out, err)
	}
	if l.m.NATS != "" { // the other services are still running; only audit is restarted, once the epoch is on the ledger
		for end := time.Now().Add(30 * time.Second); !strings.Contains(cli(t, l.m.Operator(), "events", "list", "--type", "log_epoch_opened"), "log_epoch_opened"); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the epoch is not on the ledger")
			}
		}
	}
	l.resume()
	calls(2)
	forgedEpoch(t, l.m, look)
	if now, err := os.ReadFile(state); err != nil || string(now) != string(seen) {
		t.Fatalf("the witness took a forged epoch (%v)", err)
	}
	if out, err = look(l.m.Addr); err != nil || !strings.Contains(out, "cosigned") {
		t.Fatalf("the witness does not follow the epoch: %s %v", out, err)
	}
	if now, err := os.ReadFile(state); err != nil || !strings.Contains(string(now), "/epoch-2\n") {
		t.Fatalf("%v %s", err, now)
	}
	if old, err := os.ReadFile(state + ".epoch-1"); err != nil || string(old) != string(seen) {
		t.Fatalf("the head of the closed epoch is not stored: %v %s", err, old)
	}
	pack, ledger := filepath.Join(own, "p.tar"), filepath.Join(own, "l.jsonl")
	cli(t, l.m, "export", "--session", "s-recover", "--out", pack)
	cli(t, l.m, "export", "--ledger", "--out", ledger)
	for _, file := range []string{pack, ledger} {
		if out, err := l.m.CLI("verify", file); err != nil {
			t.Errorf("evidence of the recovered mesh does not verify: %s %v", out, err)
		}
	}
	// After the recovery the ledger is healthy, so recover rejects it.
	if out, err = l.recover(reason...); err == nil || !strings.Contains(err.Error(), "nothing to recover from") {
		t.Fatalf("recovered twice: %s %v", out, err)
	}
}

// forgedEpoch presents checkpoints of new epochs to the witness, signed with audit's own
// key but without the root key's signature, and checks that the witness rejects them.
func forgedEpoch(t *testing.T, m *harness.Mesh, look func(addr string) (string, error)) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.Dir, "keys/audit.sign"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	audit, err := sign.NewKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	head, err := m.Do(t.Context(), "GET", "/log/checkpoint", "", "")
	if err != nil || head.Status != 200 {
		t.Fatal(err, head)
	}
	text, _, _ := strings.Cut(string(head.Body), "\n\n")
	rows := strings.Split(text, "\n")
	base, _, _ := strings.Cut(rows[0], "/epoch-")
	target, err := url.Parse("http://" + m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	lie := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/log/checkpoint" && r.URL.Query().Get("epoch") == "" {
			_, _ = io.WriteString(w, lie)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer srv.Close()
	for _, origin := range []string{base + "/epoch-3", base + "/epoch-02", base + "/epoch-2/epoch-3", base + "-b/epoch-2"} {
		body := strings.Join(append([]string{origin}, rows[1:]...), "\n") + "\n"
		id := sha256.Sum256(append([]byte(origin+"\n\x01"), audit.Public()...))
		sig := append(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(id[:4])), audit.Raw([]byte(body))...)
		lie = fmt.Sprintf("%s\n— %s %s\n", body, origin, base64.StdEncoding.EncodeToString(sig))
		if out, err := look(strings.TrimPrefix(srv.URL, "http://")); err == nil || !strings.Contains(err.Error(), "FORK") {
			t.Errorf("%s: %s %v", origin, out, err)
		}
	}
}

// refill replaces the content of the folder to by that of the folder from.
func refill(t *testing.T, to, from string) {
	t.Helper()
	empty(t, to)
	copyTree(t, from+"/.", to)
}

// empty removes the content of a folder.
func empty(t *testing.T, dir string) {
	t.Helper()
	content, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range content {
		if err := os.RemoveAll(filepath.Join(dir, c.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
}
