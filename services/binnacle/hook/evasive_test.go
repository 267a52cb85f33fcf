package hook

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/coding"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
)

var update = flag.Bool("update", false, "rewrite the lists in testdata")

// workplace returns a place of work with secrets, links and a home folder.
func workplace(t *testing.T) *action.Place {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	work, home := filepath.Join(root, "work"), filepath.Join(root, "home")
	for _, dir := range []string{work + "/.git/hooks", work + "/sub", work + "/.claude", home + "/.ssh", home + "/.aws", root + "/elsewhere"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{work + "/.env", work + "/README.md", work + "/x", work + "/script.sh", work + "/main.go", home + "/.ssh/id_rsa", home + "/.aws/credentials", root + "/elsewhere/secret"} {
		if err := os.WriteFile(f, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(root+"/elsewhere", work+"/link"); err != nil {
		t.Fatal(err)
	}
	return &action.Place{Agent: "test", Workspace: work, CWD: work, Home: home, World: machine{}}
}

// verdicts returns, for each action, the reason code of the bundle in a mode, or "none" if
// no rule matches.
func verdicts(t *testing.T, mode string, acts []*action.Action) []string {
	t.Helper()
	s, err := coding.Default(mode)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "coding")
	if err := coding.Write(dir, s); err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(filepath.Join(dir, "coding.rego"))
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for line := range strings.Lines(string(src)) {
		if _, rest, ok := strings.Cut(line, `"reason_code": "`); ok {
			code, _, _ := strings.Cut(rest, `"`)
			reasons = append(reasons, code)
		}
	}
	var rego strings.Builder
	rego.WriteString("package binnacle.p1\n\nimport rego.v1\n")
	for i, a := range acts {
		doc, err := json.Marshal(map[string]any{"kind": a.Kind, "args": a.Args})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reasons { // a test that passes names the reason
			fmt.Fprintf(&rego, "\ntest_%d_%s if answer.reason_code == %q with input as %s\n", i, r, r, doc)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "coding_test.rego"), []byte(rego.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	results, err := draft.Test(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	out := slices.Repeat([]string{"none"}, len(acts))
	for _, r := range results {
		var i int
		var code string
		name := r.Name[strings.LastIndex(r.Name, "test_"):]
		if _, err := fmt.Sscanf(name, "test_%d_%s", &i, &code); err != nil {
			t.Fatal(r.Name, err)
		}
		if r.Passed {
			out[i] = code
		}
	}
	return out
}

// TestEvasiveCommands checks that the mode strict allows none of the evasive commands in
// testdata/evasive.json without the approval of a person, and that those which the mode
// guard does not stop are the ones in testdata/guard-misses.txt.
func TestEvasiveCommands(t *testing.T) {
	b, err := os.ReadFile("testdata/evasive.json")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	if err := json.Unmarshal(b, &commands); err != nil || len(commands) < 60 {
		t.Fatal(len(commands), err)
	}
	p := workplace(t)
	var acts []*action.Action
	for _, c := range commands {
		in, _ := json.Marshal(map[string]string{"command": c})
		acts = append(acts, p.Normalise("Bash", in))
	}
	var misses []string
	for i, r := range verdicts(t, coding.Guard, acts) {
		if r == "none" {
			misses = append(misses, commands[i])
		}
	}
	for i, r := range verdicts(t, coding.Strict, acts) {
		if r == "none" {
			t.Errorf("strict allows %q: %v", commands[i], acts[i].Args)
		}
	}
	const file = "testdata/guard-misses.txt"
	got := strings.Join(misses, "\n") + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != got {
		t.Errorf("guard allows\n%s\nwant %v\n%s", got, err, want)
	}
}

// TestHarmlessCommands checks that the mode strict allows commands that only read in the
// workspace, and that the mode guard allows those of everyday work.
func TestHarmlessCommands(t *testing.T) {
	p := workplace(t)
	for mode, commands := range map[string][]string{
		coding.Strict: {"ls -la", "cat README.md", "grep -rn func . | head -20", "git status && git diff --stat", "wc -l main.go; pwd", "sed -n 1,20p main.go", "cat README.md 2>/dev/null", "find . -name '*.go'", "cd sub && ls", "sort x | uniq -c"},
		coding.Guard:  {"go test ./...", "CGO_ENABLED=0 go build -o out ./cmd", "make", "mkdir -p sub/new && mv x sub/new", "rm -rf sub", "git add -A && git commit -m 'x y'", "sed -i 's/a/b/' main.go", "echo x > sub/y", "python3 script.py", "npm run build", "cat /etc/hostname", "bash -c 'go vet ./...'"},
	} {
		var acts []*action.Action
		for _, c := range commands {
			in, _ := json.Marshal(map[string]string{"command": c})
			acts = append(acts, p.Normalise("Bash", in))
		}
		for i, r := range verdicts(t, mode, acts) {
			if r != "none" {
				t.Errorf("%s: %q is stopped by %s: %v", mode, commands[i], r, acts[i].Args)
			}
		}
	}
}
