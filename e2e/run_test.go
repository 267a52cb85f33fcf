package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// agentRuns checks that `binnacle run` runs a command in a sandbox with the files of a work
// tree that git does not ignore, with access to the network only with --egress; that the
// changes of the command are written as a patch although the command failed; and that the
// sandbox is removed. The image, the hosts and site are those of heldEgress.
func agentRuns(t *testing.T, m *harness.Mesh, site string) {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if out, err := exec.Command("git", "init", "-q", filepath.Join(dir, "shop")).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	edited := put("shop/sub/a.txt", "one\n")
	put("shop/gone.txt", "x\n")
	put("shop/.gitignore", ".env\n")
	put("shop/.env", "PASSWORD=hidden-value\n")
	asked, err := json.Marshal(map[string]any{"url": site + "/held/a"})
	if err != nil {
		t.Fatal(err)
	}
	request := put("shop/request.json", string(asked))
	script := `cat .env; cat sub/a.txt; echo two > sub/a.txt; rm gone.txt; /bin/fetch < request.json > page.json; echo "in $HOME" >&2; exit 3`
	run := func(patch string, more ...string) (out, changes string, err error) {
		t.Helper()
		patch = filepath.Join(dir, patch)
		args := append([]string{"run", "--image", "shell", "--memory", "64", "--session", "s-run", "--workspace", filepath.Dir(edited), "--patch", patch}, more...)
		out, err = m.CLI(append(args, "--", "sh", "-c", script)...)
		b, readErr := os.ReadFile(patch)
		if readErr != nil {
			t.Fatal(out, err, readErr)
		}
		return out, string(b), err
	}
	out, changes, err := run("a.patch", "--egress")
	if err == nil || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "in /work\n") || !strings.Contains(out, "one\n") || strings.Contains(out, "hidden-value") {
		t.Errorf("with egress: %q %v", out, err)
	}
	for _, want := range []string{"--- a/sub/a.txt\n+++ b/sub/a.txt\n", "+two\n", "deleted file mode 100644\n", "page of /held/a"} {
		if !strings.Contains(changes, want) {
			t.Errorf("the patch has no %q: %s", want, changes)
		}
	}
	if b, err := os.ReadFile(edited); err != nil || string(b) != "one\n" {
		t.Errorf("the work tree without --apply: %q %v", b, err)
	}
	if _, changes, err = run("b.patch", "--apply"); err == nil || strings.Contains(changes, "page of /held/a") {
		t.Errorf("without egress: %s %v", changes, err)
	}
	if b, err := os.ReadFile(edited); err != nil || string(b) != "two\n" {
		t.Errorf("the work tree with --apply: %q %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "shop/gone.txt")); !os.IsNotExist(err) {
		t.Error("the work tree with --apply has the removed file", err)
	}
	if _, err := os.Stat(request); err != nil {
		t.Error(err)
	}
	if out, err := m.CLI("run", "--image", "shell", "--workspace", filepath.Dir(edited), "--patch", filepath.Join(dir, "a.patch"), "--", "true"); err == nil || !strings.Contains(err.Error(), "a.patch exists") {
		t.Errorf("a patch that exists: %s %v", out, err)
	}
	if out := cli(t, m, "sandbox", "list"); strings.Contains(out, harness.SessionID("admin", "s-run")) {
		t.Errorf("sandboxes remain: %s", out)
	}
}
