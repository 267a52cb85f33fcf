package hook

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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
	for _, dir := range []string{work + "/.git/hooks", work + "/sub", work + "/bare/objects", work + "/bare/refs", work + "/.claude", home + "/.ssh", home + "/.aws", root + "/elsewhere"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{work + "/.env", work + "/README.md", work + "/x", work + "/script.sh", work + "/main.go", work + "/bare/HEAD", home + "/.ssh/id_rsa", home + "/.aws/credentials", root + "/elsewhere/secret"} {
		if err := os.WriteFile(f, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"link": root + "/elsewhere", "dangling": "link/new", "chain": "dangling", "sub/up": work} {
		if err := os.Symlink(target, filepath.Join(work, link)); err != nil {
			t.Fatal(err)
		}
	}
	return &action.Place{Agent: "test", Workspace: work, CWD: work, Home: home, World: machine{}}
}

// allowed reports, for each action, whether no rule of the bundle matches in a mode.
func allowed(t *testing.T, mode string, acts []*action.Action) []bool {
	t.Helper()
	s, err := coding.Default(mode)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "coding")
	if err := coding.Write(dir, s); err != nil {
		t.Fatal(err)
	}
	var rego strings.Builder
	rego.WriteString("package binnacle.p1\n\nimport rego.v1\n")
	for i, a := range acts {
		doc, err := json.Marshal(map[string]any{"kind": a.Kind, "args": a.Args})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&rego, "\ntest_%d if not answer with input as %s\n", i, doc)
	}
	if err := os.WriteFile(filepath.Join(dir, "coding_test.rego"), []byte(rego.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	results, err := draft.Test(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(acts) {
		t.Fatalf("%d results for %d actions", len(results), len(acts))
	}
	out := make([]bool, len(acts))
	for _, r := range results {
		i, err := strconv.Atoi(r.Name[strings.LastIndex(r.Name, "_")+1:])
		if err != nil {
			t.Fatal(r.Name, err)
		}
		out[i] = r.Passed
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
	for i, r := range allowed(t, coding.Guard, acts) {
		if r {
			misses = append(misses, commands[i])
		}
	}
	for i, r := range allowed(t, coding.Strict, acts) {
		if r {
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
		coding.Strict: {"ls -la", "cat README.md", "grep -rn func . | head -20", "git status && git diff --stat", "wc -l main.go; pwd", "sed -n 1,20p main.go", "cat README.md 2>/dev/null", "find . -name '*.go'", "cd sub && ls", "sort x | uniq -c", "sort -k1,1n -t, -u x", "sed -n -e 1p -e '$p' main.go", "sed -nE 5q main.go", "date +%s", "date -u -Iseconds", "date -d yesterday +%F", "file -bi x", "rg -n --type go func", "tree -L 2", "xxd -l 16 x", "hostname",
			"timeout -k 1 5 ls", "nice -n 5 ls", "env LANG=C ls", "time ls", "command -v ls", "watch -n 1 ls", "printf '%s %d%%\\n' a 1", "[ -f x ] && echo yes", "[[ -n x ]]", "echo $((1 + 2))", "git log --oneline -5 --text", "git -C sub --no-pager diff --exit-code", "git show --stat HEAD", "git rev-parse --show-toplevel", "find . -type f -newer x"},
		coding.Guard: {"go test ./...", "CGO_ENABLED=0 go build -o out ./cmd", "make", "mkdir -p sub/new && mv x sub/new", "rm -rf sub", "git add -A && git commit -m 'x y'", "sed -i 's/a/b/' main.go", "echo x > sub/y", "python3 script.py", "npm run build", "cat /etc/hostname", "bash -c 'go vet ./...'", "bash -eo pipefail script.sh", "bash -euxc 'go vet ./...'", "sed -i.bak -e 's/a/b/g' main.go", "tar -xzf x", "nohup make", "git rebase main", "git add --update", "git commit -qm 'x: y'", "git stash push -m x", "install -m 755 x sub/x", "git grep -n func", "date > sub/now", "echo x > /dev/stderr", "(cd sub && touch new)"},
	} {
		var acts []*action.Action
		for _, c := range commands {
			in, _ := json.Marshal(map[string]string{"command": c})
			acts = append(acts, p.Normalise("Bash", in))
		}
		for i, r := range allowed(t, mode, acts) {
			if !r {
				t.Errorf("%s: %q is stopped: %v", mode, commands[i], acts[i].Args)
			}
		}
	}
}
