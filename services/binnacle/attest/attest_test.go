package attest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestAttribute shows which edits form a chain from the base to the commit.
func TestAttribute(t *testing.T) {
	for _, c := range []struct {
		name, base, commit string
		edits              string // path:before>after …
		want               string // receipts of the chain, or none
	}{
		{"one edit", "A", "B", "f:A>B", "0"},
		{"several", "A", "D", "f:A>B f:B>C f:C>D", "0 1 2"},
		{"another file", "A", "B", "g:A>B", ""},
		{"no edit", "A", "B", "", ""},
		{"a person after the agent", "A", "C", "f:A>B", ""},
		{"a person between edits", "A", "D", "f:A>B f:C>D", ""},
		{"a person before the agent", "A", "C", "f:B>C", ""},
		{"wrong order", "A", "C", "f:B>C f:A>B", ""},
		{"undone by a person and edited again", "A", "C", "f:A>B f:A>C", "1"},
		{"undone by the agent and edited again", "A", "C", "f:A>B f:B>A f:A>C", "2"},
		{"created", "", "B", "f:>B", "0"},
		{"created and deleted by a person", "A", "", "f:A>B", ""},
		{"deleted", "A", "", "f:A>B f:B>", "0 1"},
		{"mode alone", "A", "A", "f:A>B f:B>A", ""},
		{"first of two chains", "A", "C", "f:A>C f:A>B f:B>C", "0"},
	} {
		var edits []Edit
		for i, e := range strings.Fields(c.edits) {
			path, rest, _ := strings.Cut(e, ":")
			before, after, _ := strings.Cut(rest, ">")
			edits = append(edits, Edit{Path: path, Before: before, After: after, Receipt: fmt.Sprint(i)})
		}
		f := File{Path: "f", Base: c.base, Commit: c.commit}
		f.Attribute(edits)
		var got []string
		for _, e := range f.Chain {
			got = append(got, e.Receipt)
		}
		if strings.Join(got, " ") != c.want || f.Attributed != (c.want != "") {
			t.Errorf("%s: attributed %t by %q, want %q", c.name, f.Attributed, got, c.want)
		}
	}
}

// outcome returns the events of a call whose hook reports an output. The status can be followed by a
// space and an error code.
func outcome(workspace, status, verdict, output string) []*contract.Event {
	args, _ := json.Marshal(map[string]string{"workspace": workspace})
	content := func(b string) contract.Content {
		return contract.NewContent(make([]byte, contract.SaltSize), []byte(b), "application/json")
	}
	call := contract.Call{ID: "c-1", Kind: "client.file.edit", Scopes: []string{}, Args: content(string(args))}
	out := content(output)
	status, code, _ := strings.Cut(status, " ")
	r := contract.Recorded{Effect: contract.Effect{CallID: "c-1", Status: status, ErrorCode: code, Tool: "client.file.edit"}, Receipt: contract.Receipt{ID: "r-c-1", Status: status, Verdict: verdict}, Output: &out}
	return []*contract.Event{
		{Name: contract.EventCallProposed, CallID: "c-1", Data: contract.Bytes(&call)},
		{Name: contract.EventEffectRecorded, CallID: "c-1", Tenant: "acme", Actor: "coder", Data: contract.Bytes(&r)},
	}
}

// TestCollect shows which edits are in the outcomes of calls: those of calls that were
// allowed and whose tool succeeded or failed, in the workspace.
func TestCollect(t *testing.T) {
	const files = `{"files":[{"after":"B","before":"A","path":"/w/d/f"}]}`
	for _, c := range []struct{ name, workspace, status, verdict, output, want string }{
		{"edit", "/w", contract.Succeeded, contract.Allow, files, "d/f:A>B"},
		{"folder of a repository", "/w/d", contract.Succeeded, contract.Allow, files, "f:A>B"},
		{"outside", "/x", contract.Succeeded, contract.Allow, files, ""},
		{"failed tool", "/w", contract.Failed + " " + contract.CodeAgentToolFailed, contract.Allow, files, "d/f:A>B"},
		{"other input", "/w", contract.Failed + " " + contract.CodeExecutedOtherArgs, contract.Allow, files, ""},
		{"denied", "/w", contract.Succeeded, contract.Deny, files, ""},
		{"no workspace", "", contract.Succeeded, contract.Allow, files, ""},
		{"changed by something else as well", "/w", contract.Succeeded, contract.Allow, `{"files":[{"after":"B","before":"A","path":"/w/d/f","stated":false}]}`, ""},
		{"no files", "/w", contract.Succeeded, contract.Allow, `{"bytes":1}`, ""},
		{"malformed", "/w", contract.Succeeded, contract.Allow, `{`, ""},
	} {
		x := collector{workspaces: map[string]string{}}
		var paths []string
		for _, e := range outcome(c.workspace, c.status, c.verdict, c.output) {
			if err := x.add(e); err != nil {
				t.Fatal(err)
			}
			output, _ := Output(e)
			paths = append(paths, Paths(output)...)
		}
		var got []string
		for _, e := range x.edits {
			got = append(got, e.Path+":"+e.Before+">"+e.After)
			if e.Tenant != "acme" || e.Actor != "coder" {
				t.Errorf("%s: actor %s of tenant %s", c.name, e.Actor, e.Tenant)
			}
		}
		if strings.Join(got, " ") != c.want || c.output == files && strings.Join(paths, " ") != "/w/d/f" {
			t.Errorf("%s: %q, reported %q", c.name, got, paths)
		}
	}
}

// TestContents shows that the contents of an edit are used only if both have the reported
// digests. The output is too long for an event and is therefore a file of the pack.
func TestContents(t *testing.T) {
	old, changed := "old", strings.Repeat("new\n", contract.InlineMax)
	for _, c := range []struct {
		name, before, after string // contents that the hook reports
		want                bool
	}{
		{"both", old, changed, true},
		{"another content before", "forged", changed, false},
		{"another content after", old, "forged", false},
	} {
		doc, err := json.Marshal(map[string]any{"files": []any{map[string]any{"path": "/w/f", "before": digestOf([]byte(old)), "after": digestOf([]byte(changed)), "before_text": c.before, "after_text": c.after, "padding": changed}}})
		if err != nil {
			t.Fatal(err)
		}
		events := outcome("/w", contract.Succeeded, contract.Allow, string(doc))
		if output, found := Output(events[1]); output != nil || !found {
			t.Errorf("the output is in the event: %t %t", output != nil, found)
		}
		out := contract.NewContent(make([]byte, contract.SaltSize), doc, "application/json")
		x := collector{workspaces: map[string]string{}, objects: map[string][]byte{out.Commitment: contract.Object(make([]byte, contract.SaltSize), doc)}}
		for _, e := range events {
			if err := x.add(e); err != nil {
				t.Fatal(err)
			}
		}
		if len(x.edits) != 1 || (x.edits[0].before != nil) != c.want || (x.edits[0].after != nil) != c.want {
			t.Errorf("%s: %d edits, want contents %t", c.name, len(x.edits), c.want)
		}
	}
}

// TestConcurrent shows that an edit is not used if another session changed the same content, or if
// another call states the same change, unless the input of the edit's own tool states the result.
func TestConcurrent(t *testing.T) {
	all := []Edit{{Path: "f", Before: "A", After: "B", Session: "1"}, {Path: "f", Before: "A", After: "C", Session: "2"}, {Path: "f", Before: "A", After: "D", Session: "2", stated: true}, {Path: "g", Before: "A", Session: "3"}, {Path: "f", Before: "B", Session: "2"},
		{Path: "h", Before: "A", After: "B", Session: "1"}, {Path: "h", Before: "A", After: "B", Session: "1", stated: true}}
	drop := concurrent(all)
	for i, want := range []bool{true, true, false, false, false, true, false} {
		if drop(all[i]) != want {
			t.Errorf("edit %d: %t", i, !want)
		}
	}
}

// TestRead shows which documents are not attestations, and that a pack that does not verify
// is an error.
func TestRead(t *testing.T) {
	for _, doc := range []string{"", "{", `{}`, `{"format":"other"}`, `{"format":"` + Format + `","packs":["%"]}`} {
		if _, err := Read(strings.NewReader(doc)); err == nil {
			t.Errorf("%q is an attestation", doc)
		}
	}
	b, err := Read(strings.NewReader(`{"format":"` + Format + `","base":"a","commit":"b","packs":["eA=="]}`))
	if err != nil || b.Commit != "b" {
		t.Fatal(err)
	}
	if _, err := b.Edits("k-1"); err == nil || !strings.Contains(err.Error(), "evidence pack 1 of 1") {
		t.Errorf("a pack that is no pack: %v", err)
	}
}

// TestRepository shows which files differ between two commits, with the digests of their
// contents, which edits Link assigns to the repository, which names Commit rejects, and that
// Note returns the note that AddNote stored last.
func TestRepository(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	for _, v := range []string{"GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"} {
		t.Setenv(v, "a")
	}
	for _, v := range []string{"GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"} {
		t.Setenv(v, "a@example.com")
	}
	git("init", "-q", "-b", "main")
	write("changed", "abc")
	write("deleted", "abc")
	write("same", "abc")
	write("mode", "abc")
	git("add", ".")
	git("commit", "-qm", "base")
	write("changed", "abcd")
	write("new \"\n name", "abc")
	if err := os.Remove(filepath.Join(dir, "deleted")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "mode"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("same", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "-qm", "change")

	r := &Repository{Dir: dir}
	ctx := t.Context()
	commit, err := r.Commit(ctx, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	base, err := r.Commit(ctx, "main~1")
	if err != nil {
		t.Fatal(err)
	}
	if from, err := r.MergeBase(ctx, base, commit); err != nil || from != base {
		t.Errorf("%s %v", from, err)
	}
	files, err := r.Changed(ctx, base, commit)
	if err != nil {
		t.Fatal(err)
	}
	const abc, abcd = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "sha256:88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589"
	want := map[string][2]string{"changed": {abc, abcd}, "deleted": {abc, ""}, "mode": {abc, abc}, "new \"\n name": {"", abc}}
	for _, f := range files {
		if f.Path == "link" {
			if f.Base != "" || !strings.HasPrefix(f.Commit, "120000 ") {
				t.Errorf("%+v", f)
			}
			continue
		}
		if w, ok := want[f.Path]; !ok || f.Base != w[0] || f.Commit != w[1] {
			t.Errorf("%q: %q %q", f.Path, f.Base, f.Commit)
		}
		delete(want, f.Path)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	linked := []Edit{edit("0", "abc", "x", true), edit("1", "y", "z", true), edit("2", "abc", "x", true)}
	linked[0].Path, linked[0].Session, linked[1].Session, linked[2].Session = "changed", "one", "one", "two"
	linked[2].Path, linked[1].linked = "other", false
	if err := r.Link(ctx, commit, files, linked); err != nil || !linked[0].linked || !linked[1].linked || linked[2].linked {
		t.Errorf("edits of this repository: %t %t %t %v", linked[0].linked, linked[1].linked, linked[2].linked, err)
	}
	if same, err := r.Changed(ctx, commit, commit); err != nil || len(same) != 0 {
		t.Errorf("%v %v", same, err)
	}
	for _, bad := range []string{"", "absent", "--help", "-c", "HEAD:changed"} {
		if id, err := r.Commit(ctx, bad); err == nil {
			t.Errorf("%q is the commit %s", bad, id)
		}
	}
	if _, err := r.Note(ctx, commit); err == nil || !strings.Contains(err.Error(), "git fetch") {
		t.Errorf("a commit without a note: %v", err)
	}
	for _, text := range []string{"first", "second"} {
		if err := r.AddNote(ctx, commit, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := r.Note(ctx, commit); err != nil || strings.TrimSpace(string(b)) != text {
			t.Errorf("%q %v", b, err)
		}
	}
}

// TestAttributeLongChain shows that the memory for a chain grows with its length, and not with the
// square of it.
func TestAttributeLongChain(t *testing.T) {
	const n = 4000
	edits := make([]Edit, n)
	for i := range edits {
		edits[i] = Edit{Path: "f", Before: fmt.Sprint(i), After: fmt.Sprint(i + 1)}
	}
	f := File{Path: "f", Base: "0", Commit: fmt.Sprint(n)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f.Attribute(edits)
	runtime.ReadMemStats(&after)
	if len(f.Chain) != n || f.Chain[n-1].After != f.Commit {
		t.Fatalf("%d edits", len(f.Chain))
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 4000*n {
		t.Errorf("%d bytes for %d edits", used, n)
	}
}
