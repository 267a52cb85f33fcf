package action

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestResult shows which contents the input of a tool states, for tools that change files, and for
// which inputs none are known.
func TestResult(t *testing.T) {
	const codex = "*** Begin Patch\n*** Update File: f\n@@\n a\n-b\n+X\n c\n@@ d\n-e\n+Y\n*** Add File: new\n+n1\n+n2\n*** Delete File: gone\n*** End Patch"
	for _, c := range []struct {
		tool, input, path string
		before            string // "-" for no file
		want              string // contents, separated by |, "-" for no file, "?" if unknown
	}{
		{"Write", `{"file_path":"/w/f","content":"x\n"}`, "/w/f", "-", "x\n"},
		{"Write", `{"file_path":"/w/f","content":""}`, "/w/f", "a", ""},
		{"Write", `{"file_path":"/w/f","content":"x\n"}`, "/w/f", "a\r\n", "x\n|x\r\n"},
		{"Edit", `{"file_path":"/w/f","old_string":"b","new_string":"X"}`, "/w/f", "a b b", "a X b"},
		{"Edit", `{"file_path":"/w/f","old_string":"b","new_string":"X","replace_all":true}`, "/w/f", "a b b", "a X X"},
		{"Edit", `{"file_path":"/w/f","old_string":"b","new_string":""}`, "/w/f", "a\nb\nc\n", "a\nc\n"},
		{"Edit", `{"file_path":"/w/f","old_string":"a\nb","new_string":"X"}`, "/w/f", "a\r\nb\r\n", "X\r\n|X\n"},
		{"Edit", `{"file_path":"/w/f","old_string":"","new_string":"X"}`, "/w/f", "-", "X"},
		{"Edit", `{"file_path":"/w/f","old_string":"","new_string":"X"}`, "/w/f", "a", "?"},
		{"Edit", `{"file_path":"/w/f","old_string":"q","new_string":"X"}`, "/w/f", "a", "?"},
		{"Edit", `{"file_path":"/w/f","old_string":"a","new_string":"X"}`, "/w/f", "a\xff", "?"},
		{"edit", `{"filePath":"/w/f","oldString":"b","newString":"X","replaceAll":true}`, "/w/f", "b b", "X X"},
		{"MultiEdit", `{"file_path":"/w/f","edits":[{"old_string":"a","new_string":"b"},{"old_string":"b","new_string":"c"}]}`, "/w/f", "a", "c"},
		{"MultiEdit", `{"file_path":"/w/f","edits":[{"old_string":"a","new_string":"b"},{"old_string":"q","new_string":"c"}]}`, "/w/f", "a", "?"},
		{"NotebookEdit", `{"notebook_path":"/w/f","new_source":"b"}`, "/w/f", "a", "?"},
		{"Read", `{"file_path":"/w/f"}`, "/w/f", "a", "?"},
		{"apply_patch", patchInput(codex), "/w/f", "0\na\nb\nc\nd\ne\n", "0\na\nX\nc\nd\nY\n"},
		{"apply_patch", patchInput(codex), "/w/f", "0\na\nB\nc\nd\ne\n", "?"},
		{"apply_patch", patchInput(codex), "/w/f", "0\na\nb\nc\ne\n", "?"},
		{"apply_patch", patchInput(codex), "/w/new", "-", "n1\nn2\n"},
		{"apply_patch", patchInput(codex), "/w/gone", "a", "-"},
		{"apply_patch", patchInput(codex), "/w/other", "a", "?"},
		{"apply_patch", patchInput("*** Update File: f\n*** Move to: g\n-a\n+b\n"), "/w/f", "a\n", "?"},
		{"apply_patch", patchInput("*** Update File: f\n-a\n+b\n*** Update File: f\n-b\n+c\n"), "/w/f", "a\n", "?"},
		{"apply_patch", patchInput("*** Update File: f\n+only\n"), "/w/f", "a\n", "?"},
	} {
		p := &Place{Agent: "a", Workspace: "/w", CWD: "/w", World: disk{}}
		var before []byte
		if c.before != "-" {
			before = []byte(c.before)
		}
		after, known := p.Normalise(c.tool, json.RawMessage(c.input)).Result(c.path, before)
		var got []string
		for _, b := range after {
			if b == nil {
				b = []byte("-")
			}
			got = append(got, string(b))
		}
		if c.want == "?" && (known || len(got) > 0) || c.want != "?" && (!known || strings.Join(got, "|") != c.want) {
			t.Errorf("%s %s of %q: %q known %t, want %q", c.tool, c.input, c.before, got, known, c.want)
		}
	}
}

func patchInput(patch string) string { return fmt.Sprintf(`{"input":%q}`, patch) }

// TestResultOfHostileInput shows that the content after a tool is unknown if its computation would
// take much memory or time, as a model can make it by a few changes that each replace all
// occurrences, by many changes of a long file, or by a patch with many equal lines.
func TestResultOfHostileInput(t *testing.T) {
	edit := func(from, to string, n int) string {
		e := fmt.Sprintf(`{"old_string":%q,"new_string":%q,"replace_all":true}`, from, to)
		return `{"file_path":"/w/f","edits":[` + strings.Repeat(e+",", n-1) + e + `]}`
	}
	long := strings.Repeat("a", 100)
	lines := strings.Repeat("a\n", 200_000)
	for name, c := range map[string]struct{ tool, input, before string }{
		"growth":      {"MultiEdit", edit("a", long, 4), long},
		"many edits":  {"MultiEdit", edit("b", "b", 1000), lines + "b"},
		"equal lines": {"apply_patch", patchInput("*** Update File: f\n" + strings.Repeat(" a\n", 100_000) + "-b\n"), lines},
	} {
		p := &Place{Agent: "a", Workspace: "/w", CWD: "/w", World: disk{}}
		act := p.Normalise(c.tool, json.RawMessage(c.input))
		began := time.Now()
		after, known := act.Result("/w/f", []byte(c.before))
		if known || len(after) > 0 || time.Since(began) > 30*time.Second {
			t.Errorf("%s: known %t, %d contents after %v", name, known, len(after), time.Since(began))
		}
	}
	p := &Place{Agent: "a", Workspace: "/w", CWD: "/w", World: disk{}}
	if act := p.Normalise("apply_patch", json.RawMessage(patchInput(strings.Repeat("*** Update File: f\n-a\n", 3)))); len(act.Files) != 1 {
		t.Errorf("a file that the patch names three times is read %d times", len(act.Files))
	}
}
