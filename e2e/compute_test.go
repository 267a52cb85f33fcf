package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// containerdSocket is the default path of containerd's socket.
const containerdSocket = "/run/containerd/containerd.sock"

// effectsOf returns the effects from the ledger in the sessions with this name, of any
// actor.
func effectsOf(t *testing.T, m *harness.Mesh, session string) []contract.Effect {
	t.Helper()
	var out []contract.Effect
	for _, e := range ledger(t, m) {
		if e.Name != "effect_recorded" || e.Session != contract.SessionID(e.Tenant, e.Actor, session) {
			continue
		}
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r.Effect)
	}
	return out
}

// TestComputeBudget shows that runs in the tiers process, wasi and container are charged to
// a compute budget, with two session-runners, and that the charges persist across restarts.
// For an egress budget, the reserved bytes are released for a sandbox without network.
func TestComputeBudget(t *testing.T) {
	for _, c := range []struct{ name, socket, packs string }{{"process and wasi", "", "cmd.escape,cmd.escape-wasi"}, {"container", containerdSocket, "cmd.escape-container"}} {
		t.Run(c.name, func(t *testing.T) { computeBudget(t, c.socket, strings.Split(c.packs, ",")) })
	}
}

func computeBudget(t *testing.T, socket string, packs []string) {
	m := harness.Processes(t, harness.Options{Packs: filepath.Join(harness.Root(), "bin/hostile-packs"), Containerd: socket})
	m.StartService("session-runner-b", "session-runner")
	limits := write(t, "limits.json", `{"limits":[{"id":"cpu","level":"agent","measure":"compute_ms","window":"total","max":10500},{"id":"out","level":"agent","measure":"egress_bytes","window":"total","max":1000}]}`)
	cli(t, m, "policy", "set-limits", limits)
	const body = `{"burn_ms":300}`
	tokens := map[string]string{}
	call := func(pack string) *harness.Response {
		t.Helper()
		r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/"+pack, body, map[string]string{"Authorization": "Bearer " + tokens[pack], "X-Binnacle-Session": "s-" + strings.TrimPrefix(pack, "cmd.")})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	committed := func(account string) (reserved, used int64) {
		var doc struct {
			Accounts []struct {
				Account             string
				Reserved, Committed int64
			}
		}
		if err := json.Unmarshal([]byte(cli(t, m, "policy", "limits", "--json")), &doc); err != nil {
			t.Fatal(err)
		}
		for _, a := range doc.Accounts {
			if strings.HasPrefix(a.Account, account) {
				reserved, used = reserved+a.Reserved, used+a.Committed
			}
		}
		return reserved, used
	}
	for _, pack := range packs {
		actor := "burner-" + strings.TrimPrefix(pack, "cmd.")
		tokens[pack] = strings.TrimSpace(cli(t, m, "token", "create", "--actor", actor, "--scope", "tools:call"))
		ran, denied := 0, false
		for range 6 {
			r := call(pack)
			if denied = r.Status == 429 && strings.Contains(string(r.Body), "BUDGET_EXCEEDED"); denied {
				break
			}
			if r.Status != 200 {
				t.Fatalf("%s: %d %s", pack, r.Status, r.Body)
			}
			ran++
			eventually(t, "the call is settled", 20*time.Second, func() bool { reserved, _ := committed("cpu/agent:" + actor); return reserved == 0 })
		}
		if !denied || ran < 1 {
			t.Fatalf("%s: %d ran, denied %v", pack, ran, denied)
		}
		var sum int64
		for _, eff := range effectsOf(t, m, "s-"+strings.TrimPrefix(pack, "cmd.")) {
			if eff.Status != contract.Succeeded {
				continue
			}
			u := eff.Usage
			if u.CPUMillis < 50 || u.CPUMillis > 10_000 || u.MemoryPeakBytes < 100<<10 || u.MemoryPeakBytes > 128<<20 || u.EgressBytes != 0 || len(u.Measured) != 3 {
				t.Errorf("%s: %+v", pack, u)
			}
			sum += u.CPUMillis
		}
		if _, used := committed("cpu/agent:" + actor); used != sum || used <= 500 {
			t.Errorf("%s: %d ms are committed, and the effects say %d", pack, used, sum)
		}
		if reserved, used := committed("out/agent:" + actor); reserved != 0 || used != 0 {
			t.Errorf("%s: egress: %d reserved, %d used", pack, reserved, used)
		}
	}
	for _, s := range []string{"policy", "session-runner", "session-runner-b"} {
		m.Kill(s)
		m.Restart(s)
	}
	m.WaitReady()
	for _, pack := range packs {
		if r := call(pack); r.Status != 429 || !strings.Contains(string(r.Body), "BUDGET_EXCEEDED") {
			t.Errorf("%s after a restart: %d %s", pack, r.Status, r.Body)
		}
	}
}

// TestSwappedPacks shows that a pack that is replaced on disk, between calls and during them,
// runs as it was registered, or is denied as drift once the session-runner has read the
// folder again, and that the effects of all calls that ran name the same digest. With one
// process per service, it also shows that calls of the replaced pack are denied as drift
// after a restart of the session-runner.
func TestSwappedPacks(t *testing.T) {
	for _, c := range []struct {
		name, socket, file, other string
		start                     func(testing.TB, harness.Options) *harness.Mesh
	}{
		{"process", "", "upper", "escape", harness.One}, {"process per service", "", "upper", "escape", harness.Processes},
		{"container", containerdSocket, "upper", "escape", harness.Processes}, {"wasi", "", "escape-wasi.wasm", "spin-wasi.wasm", harness.One},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, dir := filepath.Join(harness.Root(), "bin/hostile-packs"), t.TempDir()
			if err := os.Chmod(dir, 0o777); err != nil { // writable for every user
				t.Fatal(err)
			}
			read := func(name string) []byte {
				b, err := os.ReadFile(filepath.Join(from, name))
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			put := func(name string, b []byte) {
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			base := strings.TrimSuffix(c.file, ".wasm")
			put(c.file, read(c.file))
			put(base+".pack.yaml", read(base+".pack.yaml"))
			path := filepath.Join(dir, c.file)
			m := c.start(t, harness.Options{Packs: dir, Containerd: c.socket})
			body, want := `{"text":"a"}`, `"text":"A"`
			if base != "upper" {
				body, want = `{}`, `"attempts":`
			}
			call := func() {
				t.Helper()
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd."+base, "s-swap", body)
				if err != nil {
					t.Error(err)
					return
				}
				drift := r.Status == 403 && strings.Contains(string(r.Body), "TOOL_DRIFT") // once the session-runner has read the folder again
				if !drift && (r.Status != 200 || !strings.Contains(string(r.Body), want)) {
					t.Errorf("%d %s", r.Status, r.Body)
				}
			}
			call()
			other := read(c.other)
			swaps := map[string]func() error{
				"write in place": func() error { return os.WriteFile(path, other, 0o777) },
				"cut":            func() error { return os.Truncate(path, 10) },
				"rename over":    func() error { put("new", other); return os.Rename(filepath.Join(dir, "new"), path) },
				"remove":         func() error { return os.Remove(path) },
				"symbolic link":  func() error { return os.Symlink(filepath.Join(from, c.other), path) },
				"link to a script": func() error {
					put("s", []byte("#!/bin/sh\necho '{}'\n"))
					os.Remove(path)
					return os.Link(filepath.Join(dir, "s"), path)
				},
			}
			for _, how := range []string{"write in place", "cut", "rename over", "remove", "symbolic link", "link to a script"} {
				done := make(chan struct{})
				go func() { defer close(done); call() }() // replace the pack while it runs
				if err := swaps[how](); err != nil {
					t.Fatal(how, err)
				}
				<-done
				call()
			}
			digests := map[string]bool{}
			for _, eff := range effectsOf(t, m, "s-swap") {
				if eff.Attestation != nil { // the call was not denied
					digests[eff.Attestation.ImageDigest] = true
				}
			}
			if len(digests) != 1 {
				t.Errorf("digests %v", digests)
			}
			if c.name == "process per service" { // the new content has a new digest, so calls are denied as drift
				os.Remove(path)
				put(c.file, other)
				m.Kill("session-runner")
				m.Restart("session-runner")
				m.WaitReady()
				eventually(t, "drift", 20*time.Second, func() bool {
					r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd."+base, "s-swap-2", body)
					if err != nil || r.Status == 200 {
						t.Fatalf("%v %s", err, r.Body)
					}
					return strings.Contains(string(r.Body), "TOOL_DRIFT")
				})
			}
		})
	}
}
