package e2e

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestBackup shows that a mesh can be backed up and restored elsewhere, and then
// continues: a session has the same events and receipts, a call can use a stored secret,
// and the ledger verifies. A mesh in one process is backed up while stopped, one in
// several processes while running. A backup of a running mesh in one process, and a
// restore into the folder of a mesh, fail.
func TestBackup(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Noop: true})
			call := func(m *harness.Mesh, tool, session, body string) *harness.Response {
				t.Helper()
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+tool, session, body)
				if err != nil || r.Status != 200 {
					t.Fatal(tool, err, r)
				}
				return r
			}
			big := strings.Repeat("heave ", 5000) // too large for an event, so it is stored as an object
			for range 20 {
				call(m, "noop", "s-kept", `{"n":1}`)
			}
			call(m, "cmd.upper", "s-kept", fmt.Sprintf(`{"text":%q}`, big))
			if out, err := m.CLIStdin("hunter22", "secret", "put", "demo-api-key"); err != nil {
				t.Fatal(out, err)
			}
			call(m, "cmd.secretlen", "s-kept", `{}`)
			stored := call(m, "artifact.put", "s-kept", `{"content":"flotsam","labels":["case=17"]}`)
			var put struct{ Output struct{ Artifact string } }
			stored.JSON(t, &put)
			pack := filepath.Join(t.TempDir(), "p.tar")
			if out, err := m.CLI("export", "--session", "s-kept", "--out", pack); err != nil {
				t.Fatal(out, err)
			}
			file := filepath.Join(t.TempDir(), "mesh.backup")
			args := []string{"backup", "--out", file}
			if name == "one" {
				if out, err := m.CLI(args...); err == nil || !strings.Contains(out+err.Error(), "a mesh runs on this folder") {
					t.Fatal("a running mesh's store was opened a second time", out, err)
				}
				m.StopAll()
			} else {
				args = append(args, "--nats", m.NATS, "--vault", filepath.Join(m.Dir, "vault-broker"))
			}
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			if name != "one" {
				for i := range 4 {
					wg.Go(func() {
						for ctx.Err() == nil {
							_, _ = m.Do(t.Context(), "POST", "/api/v1/packs/noop", fmt.Sprint("s-busy-", i), "{}")
							time.Sleep(20 * time.Millisecond)
						}
					})
				}
			}
			out, err := m.CLI(args...)
			stop()
			wg.Wait()
			if err != nil {
				t.Fatal(out, err)
			}
			t.Log(out)
			m.StopAll()

			dir := filepath.Join(t.TempDir(), "again")
			out, err = m.CLI("restore", "--in", file, "--data", dir)
			if err != nil {
				t.Fatal(out, err)
			}
			t.Log(out)
			if out, err := m.CLI("restore", "--in", file, "--data", dir); err == nil || !strings.Contains(out+err.Error(), "exists") {
				t.Fatal("restored over a mesh", out, err)
			}
			again := harness.One(t, harness.Options{Noop: true, Dir: dir})
			fresh := filepath.Join(t.TempDir(), "q.tar")
			if out, err := again.CLI("export", "--session", "s-kept", "--out", fresh); err != nil {
				t.Fatal(out, err)
			}
			for _, part := range []string{"events.jsonl", "decisions.jsonl", "receipts.jsonl", "system.jsonl"} { // not the checkpoint, which may be newer in the new pack
				if a, b := entry(t, pack, part), entry(t, fresh, part); len(a) == 0 || !bytes.HasPrefix(b, a) {
					t.Errorf("%s in the pack of the restored mesh has other bytes", part)
				}
			}
			r := call(again, "cmd.secretlen", "s-kept", `{}`) // the session can be continued and can use its secret
			if !strings.Contains(string(r.Body), `"length":8`) {
				t.Errorf("%s", r.Body)
			}
			if r := call(again, "artifact.get", "s-kept", fmt.Sprintf(`{"artifact":%q}`, put.Output.Artifact)); !strings.Contains(string(r.Body), "flotsam") {
				t.Errorf("the artifact: %s", r.Body)
			}
			if out, err := again.CLI("artifact", "list", "--label", "case=17"); err != nil || !strings.Contains(out, put.Output.Artifact) {
				t.Error(out, err)
			}
			if out, err := again.CLI("replay"); err != nil {
				t.Error(out, err)
			}
			ledger := filepath.Join(t.TempDir(), "l.jsonl")
			if out, err := again.CLI("export", "--ledger", "--out", ledger); err != nil {
				t.Fatal(out, err)
			}
			if out, err := again.CLI("verify", ledger); err != nil {
				t.Error(out, err)
			}
		})
	}
}
