package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// TestExpiry shows that an allowed call that no executor starts in time ends as expired,
// with a receipt, that an executor that starts later does not execute it, and that
// policy denies a proposal that it reads after the call's deadline.
func TestExpiry(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	m.Kill("session-runner")
	began := time.Now()
	r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/noop", "{}", map[string]string{"X-Binnacle-Session": "s-late", "X-Binnacle-Timeout": "2"})
	if err != nil || r.Status != 503 || !strings.Contains(string(r.Body), "intent_expired") || !strings.Contains(string(r.Body), `"receipt_id":"r-c-`) {
		t.Fatalf("%v %+v %s", err, r, r.Body)
	}
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("took %s", d)
	}
	m.Restart("session-runner")
	m.WaitReady()
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-late", "{}"); err != nil || r.Status != 200 {
		t.Fatalf("%v %+v", err, r)
	}
	out, err := m.CLI("events", "list", "--session", "s-late")
	if err != nil || strings.Count(out, "effect_started") != 1 || strings.Count(out, "start_expired") != 1 || strings.Count(out, "effect_recorded") != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	pack := filepath.Join(t.TempDir(), "p.tar")
	if out, err := m.CLI("export", "--session", "s-late", "--out", pack); err != nil {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("verify", pack); err != nil {
		t.Fatal(out, err)
	}
	// A proposal that policy reads only after its deadline is denied.
	m.Kill("policy")
	done := make(chan *harness.Response, 1)
	go func() {
		r, _ := m.DoHeader(t.Context(), "POST", "/api/v1/packs/noop", "{}", map[string]string{"X-Binnacle-Session": "s-later", "X-Binnacle-Timeout": "1"})
		done <- r
	}()
	time.Sleep(1500 * time.Millisecond)
	m.Restart("policy")
	if r := <-done; r == nil || r.Status != 503 && r.Status != 504 {
		t.Fatalf("%+v", r)
	}
	m.WaitReady()
	eventually(t, "the proposal has expired", 20*time.Second, func() bool {
		out, err := m.CLI("events", "list", "--session", "s-later", "--json")
		return err == nil && strings.Contains(out, "PROPOSAL_EXPIRED")
	})
}

// TestTierDemanded shows that if policy requires tier container and no containerd is
// configured, the call fails with an error that names the missing setting, and that with
// containerd the call runs in a container.
func TestTierDemanded(t *testing.T) {
	rego := filepath.Join(t.TempDir(), "strict.rego")
	if err := os.WriteFile(rego, []byte(`package binnacle.p1
import rego.v1
default answer := {"verdict": "DENY", "reason_code": "DENY_DEFAULT"}
answer := {"verdict": "ALLOW", "reason_code": "RULE_CONTAINERS_ONLY", "sandbox": {"tier": "container", "memory_mib": 32}} if startswith(input.kind, "tool.")
`), 0o644); err != nil {
		t.Fatal(err)
	}
	state := func(m *harness.Mesh) string {
		t.Helper()
		r, err := m.Do(t.Context(), "GET", "/readyz", "", "")
		if err != nil || r.Status != 200 {
			t.Fatalf("readyz: %v %+v", err, r)
		}
		return string(r.Body)
	}
	m := harness.One(t, harness.Options{Policies: []string{rego}})
	if s := state(m); !strings.Contains(s, "tier container is missing: no containerd socket is configured") {
		t.Error(s)
	}
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.upper", "s-tier", `{"text":"x"}`)
	if err != nil || r.Status != 503 || !strings.Contains(string(r.Body), "sandbox_unavailable") || !strings.Contains(string(r.Body), "BINNACLE_CONTAINERD") {
		t.Fatalf("%v %+v %s", err, r, r.Body)
	}
	if r, err = m.Do(t.Context(), "POST", "/v1/chat/completions", "s-tier", `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`); err != nil || r.Status != 403 || !strings.Contains(string(r.Body), "DENY_DEFAULT") {
		t.Fatalf("%v %+v %s", err, r, r.Body)
	}
	m.StopAll()
	m = harness.One(t, harness.Options{Policies: []string{rego}, Containerd: "/run/containerd/containerd.sock"})
	if s := state(m); !strings.Contains(s, "tiers wasi and container") {
		t.Error(s)
	}
	r, err = m.Do(t.Context(), "POST", "/api/v1/packs/cmd.upper", "s-tier", `{"text":"x"}`)
	if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), `"tier":"container"`) || !strings.Contains(string(r.Body), `"memory_mib":32`) {
		t.Fatalf("%v %+v %s", err, r, r.Body)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}

// TestErased shows that erased content is reported as erased, that the session's pack
// still verifies, and that replay still finds the views equal.
func TestErased(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-erase", `{"big":"`+strings.Repeat("x", 40000)+`"}`); err != nil || r.Status != 200 {
		t.Fatal(err, r)
	}
	pack := filepath.Join(t.TempDir(), "p.tar")
	check := func(verify, replay string) {
		t.Helper()
		if out, err := m.CLI("export", "--session", "s-erase", "--out", pack); err != nil {
			t.Fatal(out, err)
		}
		if out, err := m.CLI("verify", "--json", pack); err != nil || !strings.Contains(out, verify) {
			t.Fatalf("%v %s", err, out)
		}
		if out, err := m.CLI("replay", "--json"); err != nil || !strings.Contains(out, replay) || !strings.Contains(out, `"equal":true`) {
			t.Fatalf("%v %s", err, out)
		}
	}
	check(`"erased":0`, `"not_redecidable":0`)
	c := m.Connect(t, "provision")
	s, err := c.JS.Stream(t.Context(), bus.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSubject("blob.>")); err != nil {
		t.Fatal(err)
	}
	check(`"erased":3`, `"not_redecidable":1`)
}

// TestTruncated shows that the loss of the ledger's last events is detected, that calls are then
// refused, and that the mesh continues in a new log epoch after the loss has been accepted with a
// document that the root key signed.
func TestTruncated(t *testing.T) {
	dir := t.TempDir()
	m := harness.One(t, harness.Options{Noop: true, Dir: dir})
	call := func(m *harness.Mesh) *harness.Response {
		t.Helper()
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-trunc", "{}")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	call(m)
	m.StopAll()
	backup := filepath.Join(t.TempDir(), "nats")
	if out, err := exec.Command("cp", "-a", filepath.Join(dir, "nats"), backup).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	m = harness.One(t, harness.Options{Noop: true, Dir: dir})
	for range 20 {
		if r := call(m); r.Status != 200 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
	}
	time.Sleep(1500 * time.Millisecond) // wait until a checkpoint over these events has been signed
	m.StopAll()
	if err := os.RemoveAll(filepath.Join(dir, "nats")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", backup, filepath.Join(dir, "nats")).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	m = harness.OneUnready(t, harness.Options{Noop: true, Dir: dir})
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-trunc", "{}")
		if err == nil && r.Status == 503 && strings.Contains(string(r.Body), "LEDGER_TRUNCATED") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("calls are still taken: %v %+v", err, r)
		}
	}
	r, err := m.Do(t.Context(), "GET", "/readyz", "", "")
	if err != nil || r.Status != 503 || !strings.Contains(string(r.Body), "ledger_truncated") {
		t.Fatalf("%v %+v %s", err, r, r.Body)
	}
	// After the root key has signed a document that accepts the loss, the mesh continues
	// with a new log epoch.
	m.StopAll()
	if out, err := m.CLI("recover"); err == nil {
		t.Fatalf("recovered without a reason: %s", out)
	}
	if out, err := m.CLI("recover", "--reason", "the disk of yesterday came back"); err != nil || !strings.Contains(out, "epoch 2") {
		t.Fatal(out, err)
	}
	m = harness.One(t, harness.Options{Noop: true, Dir: dir})
	if r := call(m); r.Status != 200 {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	proves(t, m)
	if r, err := m.Do(t.Context(), "GET", "/log/checkpoint", "", ""); err != nil || !strings.Contains(string(r.Body), "/epoch-2\n") || !strings.Contains(string(r.Body), "epoch 2\n") {
		t.Fatalf("%v %s", err, r.Body)
	}
	// After another restart, calls succeed without a further signed document.
	m.StopAll()
	m = harness.One(t, harness.Options{Noop: true, Dir: dir})
	if r := call(m); r.Status != 200 {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
}

// TestDamagedTree shows that audit rebuilds its tree from the ledger and raises no alarm
// if the end of the stored tree is missing, as after a power loss.
func TestDamagedTree(t *testing.T) {
	dir := t.TempDir()
	m := harness.One(t, harness.Options{Noop: true, Dir: dir})
	for range 20 {
		if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-tree", "{}"); err != nil || r.Status != 200 {
			t.Fatalf("%v %+v", err, r)
		}
	}
	m.StopAll()
	leaves, err := filepath.Glob(filepath.Join(dir, "*", "tree", "level-00"))
	if err != nil || len(leaves) != 1 {
		t.Fatal(leaves, err)
	}
	if err := os.Truncate(leaves[0], 32*10); err != nil {
		t.Fatal(err)
	}
	m = harness.One(t, harness.Options{Noop: true, Dir: dir})
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-tree", "{}"); err != nil || r.Status != 200 {
		t.Fatalf("%v %+v", err, r)
	}
	proves(t, m)
}
