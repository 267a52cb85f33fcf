package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestAttest shows which hunks a verifier attributes to the edits of an agent in two sessions: none
// that a person changed, and none of an edit between whose hooks a person or the other session
// changed the file too. The contents are too long for an event. Files that a command line changed,
// created and deleted are attributed to its call, also if it failed, and those that a tool of an
// MCP server changed to that call, unless a person changed them afterwards or they are ignored. A
// bundle with changed content is rejected.
func TestAttest(t *testing.T) {
	t.Run("one process", func(t *testing.T) { attested(t, harness.One(t, harness.Options{})) })
	t.Run("one process per service", func(t *testing.T) { attested(t, harness.Processes(t, harness.Options{})) })
}

// attested runs the checks of TestAttest on a mesh.
func attested(t *testing.T, m *harness.Mesh) {
	t.Helper()
	a := newAgent(t, m, "coder")
	bin := harness.Bin(t, "binnacle")
	git := func(args ...string) {
		a.run(t, []string{"GIT_CONFIG_GLOBAL=/dev/null"}, append([]string{"git", "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	}
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "line %d\n", i+1)
	}
	file := func(name string) string { return filepath.Join(a.work, name) }
	replace := func(name, from, to string) {
		t.Helper()
		b, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		a.write(t, filepath.Join("work", name), strings.Replace(string(b), from, to, 1))
	}
	tool := func(event, session, name, tool string, input map[string]any) {
		t.Helper()
		doc := strings.Replace(hookDocument(event, name+session, tool, input, a.work), `"one"`, `"`+session+`"`, 1)
		cmd := exec.CommandContext(t.Context(), bin, "hook", "run", "claude-code", "--content")
		cmd.Dir, cmd.Env, cmd.Stdin = a.work, a.env, strings.NewReader(doc)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%s %s: %v %s", event, name, err, out)
		}
	}
	hook := func(event, session, name, from, to string) {
		t.Helper()
		tool(event, session, name, "Edit", map[string]any{"file_path": file(name), "old_string": from, "new_string": to})
	}
	if err := os.Remove(file(".git")); err != nil {
		t.Fatal(err)
	}
	git("init", "-q", "-b", "main")
	for _, name := range []string{"a", "b", "c"} {
		a.write(t, filepath.Join("work", name), text.String())
	}
	for _, name := range []string{"changed", "deleted", "person"} {
		a.write(t, filepath.Join("work", name), "one\n")
	}
	a.write(t, "work/.gitignore", "*.log\n")
	a.write(t, "work/run.log", "one\n")
	git("add", ".")
	git("commit", "-qm", "base")
	git("switch", "-qc", "change")

	hook("PreToolUse", "s1", "a", "line 9\n", "AGENT\n")
	replace("a", "line 9\n", "AGENT\n")
	hook("PostToolUse", "s1", "a", "line 9\n", "AGENT\n")
	replace("a", "line 5000\n", "line 5000\nPERSON\n") // after the hooks of the edit
	hook("PreToolUse", "s1", "b", "line 9\n", "AGENT\n")
	replace("b", "line 9\n", "AGENT\n")
	replace("b", "line 99\n", "PERSON\n") // between the hooks of the edit
	hook("PostToolUse", "s1", "b", "line 9\n", "AGENT\n")
	hook("PreToolUse", "s1", "c", "line 9\n", "AGENT\n")
	hook("PreToolUse", "s2", "c", "line 99\n", "OTHER\n")
	replace("c", "line 99\n", "OTHER\n")
	hook("PostToolUse", "s2", "c", "line 99\n", "OTHER\n")
	replace("c", "line 9\n", "AGENT\n")
	hook("PostToolUse", "s1", "c", "line 9\n", "AGENT\n")
	script := map[string]any{"command": "echo two | tee changed created person run.log other >out.log; rm deleted; mkdir -p sub/dir; echo new > sub/dir/file"}
	tool("PreToolUse", "s3", "sh", "Bash", script)
	a.run(t, nil, "sh", "-c", script["command"].(string))
	tool("PostToolUse", "s3", "sh", "Bash", script)
	failing := map[string]any{"command": "echo two > failed; false"}
	tool("PreToolUse", "s3", "fail", "Bash", failing)
	a.write(t, "work/failed", "two\n")
	tool("PostToolUseFailure", "s3", "fail", "Bash", failing)
	tool("PreToolUse", "s3", "mcp", "mcp__files__write", map[string]any{"name": "served"})
	a.write(t, "work/served", "two\n")
	tool("PostToolUse", "s3", "mcp", "mcp__files__write", map[string]any{"name": "served"})
	a.write(t, "work/person", "three\n") // after the hooks of the command line
	a.write(t, "work/hand", "by hand\n")
	git("add", ".")
	git("commit", "-qm", "change")

	bundle := filepath.Join(t.TempDir(), "pr.json")
	cli(t, m, "attest", "pr", "--dir", a.work, "--base", "main", "--out", bundle)
	verify := []string{"attest", "verify", bundle, "--dir", a.work, "--base", "main", "--root", filepath.Join(m.Dir, "root.kid"), "-o", "json"}
	var out struct {
		Unattributed int
		Files        []struct {
			Path       string
			Attributed bool
			Chain      []struct{ Kind string }
			Hunks      []struct {
				Line int
				Edit *struct{ Session string }
			}
		}
	}
	if err := json.Unmarshal([]byte(cli(t, m, verify...)), &out); err != nil {
		t.Fatal(err)
	}
	var got, whole []string
	sessions := map[string]string{} // in the order in which they occur
	for _, f := range out.Files {
		if f.Attributed && len(f.Chain) == 1 {
			whole = append(whole, f.Path+"="+strings.TrimPrefix(f.Chain[0].Kind, "client."))
		}
		for _, h := range f.Hunks {
			by := "none"
			if h.Edit != nil {
				if by = sessions[h.Edit.Session]; by == "" {
					by = fmt.Sprint("s", len(sessions)+1)
					sessions[h.Edit.Session] = by
				}
			}
			got = append(got, fmt.Sprintf("%s:%d=%s", f.Path, h.Line, by))
		}
	}
	if want := "a:9=s1 a:5001=none b:9=none b:99=none c:9=none c:99=s2 hand:1=none person:1=none"; strings.Join(got, " ") != want || out.Unattributed != 5 {
		t.Errorf("%q, %d unattributed, want %q", got, out.Unattributed, want)
	}
	if want := "changed=shell created=shell deleted=shell failed=shell other=shell served=mcp.files.write sub/dir/file=shell"; strings.Join(whole, " ") != want {
		t.Errorf("attributed as a whole: %q, want %q", whole, want)
	}

	var doc struct {
		Format, Base, Commit string
		Packs                [][]byte
	}
	raw, err := os.ReadFile(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	doc.Packs[0] = bytes.Replace(doc.Packs[0], []byte("AGENT"), []byte("OTHER"), 1)
	forged, err := json.Marshal(map[string]any{"format": doc.Format, "base": doc.Base, "commit": doc.Commit, "packs": doc.Packs})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bundle, forged, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := m.CLI(verify...); err == nil || !strings.Contains(err.Error()+out, "FAILED") {
		t.Errorf("a bundle with another content: %v %s", err, out)
	}
}
