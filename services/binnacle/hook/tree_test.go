package hook

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

// TestCommandLineChanges checks that the report of a command line has the files that changed between
// its hooks, also if it failed, unless it only reads; so has that of a tool of an MCP server or of an
// unknown tool, and not that of one that changes no file; and that no state of a workspace remains but
// the latest one.
func TestCommandLineChanges(t *testing.T) {
	changed := map[string]any{"files": []any{map[string]any{"path": "f", "before": action.Digest([]byte("one")), "after": action.Digest([]byte("two"))}}, "files_omitted": 1.0}
	for name, c := range map[string]struct {
		tool, command, event string
		lost                 bool // the state before the tool
		want                 map[string]any
		trees                int
	}{
		"changes": {"Bash", "make", "PostToolUse", false, changed, 1},
		"reads":   {"Bash", "cat f", "PostToolUse", false, map[string]any{}, 0},
		"lost":    {"Bash", "make", "PostToolUse", true, map[string]any{"files_error": "the state of the workspace before the tool cannot be read"}, 0},
		"failed":  {"Bash", "make", "PostToolUseFailure", false, changed, 1},
		"server":  {"mcp__files__write", "", "PostToolUse", false, changed, 1},
		"unknown": {"Delete", "", "PostToolUse", false, changed, 1},
		"idle":    {"AskUserQuestion", "", "PostToolUse", false, map[string]any{}, 0},
	} {
		r, g, work := newRunner(t)
		if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", work).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		for _, file := range []string{"f", "g"} {
			if err := os.WriteFile(filepath.Join(work, file), []byte("one"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		input := map[string]any{"tool_name": c.tool, "tool_input": map[string]any{"command": c.command}}
		if a := r.Handle(t.Context(), "claude-code", hookDocument(t, "PreToolUse", work, input)); a != (Answer{}) {
			t.Fatalf("%s: %+v", name, a)
		}
		if err := os.WriteFile(filepath.Join(work, "f"), []byte("two"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(work, "g"), 1<<30); err != nil { // too large for a digest
			t.Fatal(err)
		}
		if c.lost {
			if err := os.RemoveAll(filepath.Join(r.State, "trees")); err != nil {
				t.Fatal(err)
			}
		}
		if a := r.Handle(t.Context(), "claude-code", hookDocument(t, c.event, work, input)); a != (Answer{}) {
			t.Errorf("%s: %+v", name, a)
		}
		output, _ := g.requests[1].body["output"].(map[string]any)
		if list, ok := output["files"].([]any); ok && len(list) == 1 {
			f := list[0].(map[string]any)
			f["path"], _ = filepath.Rel(work, f["path"].(string))
		}
		for _, member := range []string{"input_digest", "output_digest", "bytes"} {
			delete(output, member)
		}
		if !reflect.DeepEqual(output, c.want) {
			t.Errorf("%s: %v, want %v", name, output, c.want)
		}
		if n := files(t, r, "trees"); n != c.trees {
			t.Errorf("%s: %d states, want %d", name, n, c.trees)
		}
	}
}
