package e2e

import (
	"context"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TestFork shows that a witness detects a log with two histories, a log that shrinks, and
// another log in place of the first, and that it stores both signed checkpoints as proof.
// The checkpoints have audit's own signature: audit is the attacker. A checkpoint with an
// invalid signature is rejected, but not as a fork.
func TestFork(t *testing.T) {
	m := harness.One(t, harness.Options{Noop: true})
	for range 3 {
		if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-fork", "{}"); err != nil || r.Status != 200 {
			t.Fatal(err, r)
		}
	}
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
	// The witness connects to the mesh through this proxy. If lie is set, the proxy
	// returns lie instead of the checkpoint.
	target, err := url.Parse("http://" + m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	lie := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lie != "" && r.URL.Path == "/log/checkpoint" {
			_, _ = io.WriteString(w, lie)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer srv.Close()
	addr := strings.TrimPrefix(srv.URL, "http://")
	dir := t.TempDir()
	w1 := filepath.Join(dir, "w1.seed")
	if err := os.WriteFile(w1, []byte(strings.Repeat("7", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	public := strings.TrimSpace(cli(t, m, "trust", "public", w1))
	kid := strings.TrimSpace(cli(t, m, "trust", "add", "witness", "w1", "--public", public))
	for range 60 {
		if strings.Contains(cli(t, m, "trust", "list"), kid) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(1500 * time.Millisecond)
	look := func(state string) (string, error) {
		return m.CLI("witness", "--addr", addr, "--name", "w1", "--key", w1, "--state", filepath.Join(dir, state), "--every", "0")
	}
	head, err := m.Do(t.Context(), "GET", "/log/checkpoint", "", "")
	if err != nil || head.Status != 200 {
		t.Fatal(err, head)
	}
	text, _, _ := strings.Cut(string(head.Body), "\n\n")
	rows := strings.Split(text, "\n")
	forge := func(origin, size string, root []byte) string {
		body := strings.Join(append([]string{origin, size, base64.StdEncoding.EncodeToString(root)}, rows[3:]...), "\n") + "\n"
		id := sha256.Sum256(append([]byte(origin+"\n\x01"), audit.Public()...))
		sig := append(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(id[:4])), audit.Raw([]byte(body))...)
		return fmt.Sprintf("%s\n— %s %s\n", body, origin, base64.StdEncoding.EncodeToString(sig))
	}
	other := sha256.Sum256([]byte("another history"))
	for name, c := range map[string]struct{ lie, word string }{
		"another history of the same size": {forge(rows[0], rows[1], other[:]), "does not begin"},
		"a shorter log":                    {forge(rows[0], "2", other[:]), "shrank"},
		"another log":                      {forge(rows[0]+"-b", rows[1], other[:]), "another log"},
	} {
		state := strings.ReplaceAll(name, " ", "-")
		lie = string(head.Body)
		if out, err := look(state); err != nil {
			t.Fatal(name, out, err)
		}
		lie = c.lie
		_, err := look(state)
		if err == nil || !strings.Contains(err.Error(), "FORK") || !strings.Contains(err.Error(), c.word) || !strings.Contains(err.Error(), "exit status 8") {
			t.Errorf("%s: %v", name, err)
		}
		proofs, _ := filepath.Glob(filepath.Join(dir, state+".fork-*"))
		if len(proofs) != 1 {
			t.Errorf("%s: no proof is kept", name)
			continue
		}
		b, err := os.ReadFile(proofs[0])
		if err != nil || !strings.Contains(string(b), c.lie) || !strings.Contains(string(b), string(head.Body)) {
			t.Errorf("%s: the proof does not hold both heads (%v)", name, err)
		}
		// The witness still accepts the checkpoint that it accepted first.
		lie = ""
		if out, err := look(state); err != nil {
			t.Errorf("%s: %s %v", name, out, err)
		}
	}
	// The witness rejects a checkpoint whose signature is not valid.
	lie = strings.Replace(string(head.Body), "\n"+rows[1]+"\n", "\n9999\n", 1)
	if _, err := look("unsigned"); err == nil || strings.Contains(err.Error(), "FORK") {
		t.Error("an unsigned head is taken:", err)
	}
}

// TestWitnessRetries shows that a cosignature is sent again if the mesh has not accepted
// it, and that the witness logs why it waits.
func TestWitnessRetries(t *testing.T) {
	m := harness.One(t, harness.Options{Noop: true})
	target, err := url.Parse("http://" + m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	var posts, taken atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if posts.Add(1) <= 2 {
				http.Error(w, `{"error":{"code":"ledger_unavailable","message":"not now"}}`, http.StatusServiceUnavailable)
				return
			}
			taken.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	defer srv.Close()
	dir := t.TempDir()
	seed := filepath.Join(dir, "w1.seed")
	if err := os.WriteFile(seed, []byte(strings.Repeat("7", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	public := strings.TrimSpace(cli(t, m, "trust", "public", seed))
	cli(t, m, "trust", "add", "witness", "w1", "--public", public)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Bin(t, "binnacle"), "witness", "--addr", strings.TrimPrefix(srv.URL, "http://"),
		"--name", "w1", "--key", seed, "--state", filepath.Join(dir, "head"), "--every", "100ms")
	cmd.Env = append(os.Environ(), m.Env()...)
	log := filepath.Join(dir, "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says := func() (text string, all bool) {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
		return text, strings.Contains(text, "cosigned") && strings.Contains(text, "waiting, next try in 100ms: the cosignature of") && strings.Contains(text, "responds again")
	}
	for _, all := says(); (!all || taken.Load() == 0) && ctx.Err() == nil; _, all = says() {
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	_ = cmd.Wait()
	if text, all := says(); !all {
		t.Fatal(text)
	}
}
