package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// exposed returns the files and folders, among the given ones and everything below them,
// that users other than the owner may read, write or enter, with their modes. It omits
// files inside the folder of the NATS server, which is private.
func exposed(t *testing.T, paths ...string) (out []string) {
	t.Helper()
	n := 0
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			i, err := d.Info()
			if err != nil {
				return nil // the file was removed after its folder was read
			}
			n++
			if i.Mode().Perm()&0o077 != 0 {
				out = append(out, path+" "+i.Mode().Perm().String())
			}
			if d.IsDir() && d.Name() == "nats" {
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < len(paths) {
		t.Fatalf("only %d files looked at", n)
	}
	return out
}

// TestModes shows that a mesh works under a permissive and under a restrictive umask, and
// that other users cannot read the files that it or its commands write: keys, tokens, the
// vault, views, exports, backups and, on one process, restored files. On one process it
// also shows that file modes that were made more permissive are repaired at the next start.
func TestModes(t *testing.T) {
	for _, mask := range []int{0, 0o077} {
		for name, start := range harness.Topologies {
			t.Run(name+map[int]string{0: " lax", 0o077: " strict"}[mask], func(t *testing.T) {
				old := syscall.Umask(mask)
				t.Cleanup(func() { syscall.Umask(old) })
				m := start(t, harness.Options{})
				out := t.TempDir()
				run := func(m *harness.Mesh, args ...string) {
					t.Helper()
					if text, err := m.CLI(args...); err != nil {
						t.Fatal(text, err)
					}
				}
				if text, err := m.CLIStdin("hunter2-and-more", "secret", "put", "demo-api-key"); err != nil {
					t.Fatal(text, err)
				}
				run(m, "call", "cmd.secretlen", "--session", "s-modes")
				run(m, "call", "cmd.upper", `{"text":"x"}`, "--session", "s-modes")
				run(m, "export", "--session", "s-modes", "--out", filepath.Join(out, "p.tar"))
				run(m, "export", "--ledger", "--out", filepath.Join(out, "ledger.jsonl"))
				vault, audit := filepath.Join(m.Dir, "vault"), filepath.Join(m.Dir, "audit")
				args := []string{"backup", "--out", filepath.Join(out, "mesh.backup")}
				written := []string{filepath.Join(m.Dir, "keys"), filepath.Join(m.Dir, "admin.token"), filepath.Join(m.Dir, "root.kid"), audit}
				if name == "one" {
					written = append(written, filepath.Join(m.Dir, "nats"), filepath.Join(m.Dir, "lock"))
					m.StopAll()
				} else {
					vault = filepath.Join(m.Dir, "vault-broker")
					args = append(args, "--nats", m.NATS, "--vault", vault)
				}
				run(m, args...)
				written = append(written, vault, filepath.Join(out, "p.tar"), filepath.Join(out, "ledger.jsonl"), filepath.Join(out, "mesh.backup"))
				if bad := exposed(t, written...); len(bad) > 0 {
					t.Errorf("others can use:\n%s", strings.Join(bad, "\n"))
				}
				if name != "one" {
					return
				}
				again := filepath.Join(t.TempDir(), "restored")
				if text, err := m.CLI("restore", "--data", again, "--in", filepath.Join(out, "mesh.backup")); err != nil {
					t.Fatal(text, err)
				}
				if bad := exposed(t, again); len(bad) > 0 {
					t.Errorf("after restore others can use:\n%s", strings.Join(bad, "\n"))
				}
				for _, d := range []string{"keys", "vault", "audit"} { // the modes with which release 0.4 restored these folders, or more permissive ones
					err := filepath.WalkDir(filepath.Join(again, d), func(path string, d fs.DirEntry, err error) error {
						if err != nil {
							return err
						}
						if d.IsDir() {
							return os.Chmod(path, 0o777)
						}
						return os.Chmod(path, 0o644)
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				r := harness.One(t, harness.Options{Dir: again})
				run(r, "call", "cmd.secretlen", "--session", "s-modes")
				if bad := exposed(t, filepath.Join(again, "keys"), filepath.Join(again, "vault"), filepath.Join(again, "audit"), filepath.Join(again, "admin.token")); len(bad) > 0 {
					t.Errorf("after a start others can use:\n%s", strings.Join(bad, "\n"))
				}
			})
		}
	}
}
