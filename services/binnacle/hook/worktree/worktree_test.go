package worktree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
)

// git runs git in a folder.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newRepository returns a work tree with two committed files, an untracked one and an ignored one.
func newRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	for name, content := range map[string]string{"a": "one", "sub/b": "one", ".gitignore": "*.log\n"} {
		write(t, dir, name, content)
	}
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "base")
	write(t, dir, "untracked", "one")
	write(t, dir, "x.log", "one")
	return dir
}

func read(t *testing.T, dir string, last *Tree) *Tree {
	t.Helper()
	tree, err := Read(t.Context(), dir, last)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// short returns changes with the contents in place of their digests.
func short(list []Change, omitted int, contents ...string) string {
	var out []string
	for _, c := range list {
		s := c.Path + ":" + c.Before + ">" + c.After
		for _, content := range contents {
			s = strings.ReplaceAll(s, action.Digest([]byte(content)), content)
		}
		out = append(out, s)
	}
	return strings.Join(append(out, fmt.Sprint(omitted)), " ")
}

// TestChanges checks which files differ after a change of a work tree, and that a file whose content
// before is not known is omitted.
func TestChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"nothing":   {func(*testing.T, string) {}, "0"},
		"tracked":   {func(t *testing.T, dir string) { write(t, dir, "a", "two") }, "a:one>two 0"},
		"untracked": {func(t *testing.T, dir string) { write(t, dir, "untracked", "two") }, "untracked:one>two 0"},
		"committed": {func(t *testing.T, dir string) { write(t, dir, "sub/b", "two"); git(t, dir, "commit", "-qam", "c") }, "sub/b:one>two 0"},
		"created":   {func(t *testing.T, dir string) { write(t, dir, "new/c", "two") }, "new/c:>two 0"},
		"deleted":   {func(t *testing.T, dir string) { git(t, dir, "rm", "-q", "a"); remove(t, dir, "untracked") }, "a:one> untracked:one> 0"},
		"renamed":   {func(t *testing.T, dir string) { git(t, dir, "mv", "a", "c") }, "a:one> c:>one 0"},
		"same content and times": {func(t *testing.T, dir string) {
			write(t, dir, "a", "two")
			if err := os.Chtimes(filepath.Join(dir, "a"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}, "a:one>two 0"},
		"written again":  {func(t *testing.T, dir string) { write(t, dir, "a", "one") }, "0"},
		"ignored":        {func(t *testing.T, dir string) { write(t, dir, "x.log", "two"); write(t, dir, "y.log", "two") }, "0"},
		"link":           {func(t *testing.T, dir string) { link(t, dir, "l") }, "0"},
		"link in place":  {func(t *testing.T, dir string) { remove(t, dir, "a"); link(t, dir, "a") }, "1"},
		"not ignored":    {func(t *testing.T, dir string) { write(t, dir, ".gitignore", "two") }, ".gitignore:*.log\n>two 0"},
		"written, shown": {func(t *testing.T, dir string) { write(t, dir, ".gitignore", "two"); write(t, dir, "x.log", "two") }, ".gitignore:*.log\n>two 1"},
		"exclude":        {func(t *testing.T, dir string) { write(t, dir, ".git/info/exclude", "y"); write(t, dir, "new", "two") }, "1"},
		"hidden":         {func(t *testing.T, dir string) { write(t, dir, ".gitignore", "untracked\n*.log\n") }, ".gitignore:*.log\n>untracked\n*.log\n 1"},
		"large":          {func(t *testing.T, dir string) { write(t, dir, "a", strings.Repeat("x", MaxSize+1)) }, "1"},
		"own repository": {func(t *testing.T, dir string) { git(t, dir, "init", "-q", "own"); write(t, dir, "own/f", "two") }, "0"},
		"sockets":        {func(t *testing.T, dir string) { fifo(t, dir, "p") }, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newRepository(t)
			time.Sleep(20 * time.Millisecond) // more than the resolution of the clock of files
			before := read(t, dir, nil)
			c.change(t, dir)
			list, omitted := before.Changes(dir, read(t, dir, before))
			if got := short(list, omitted, "two", "one", "*.log\n", "untracked\n*.log\n"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Symlink("sub/b", filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func fifo(t *testing.T, dir, name string) {
	t.Helper()
	if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRead checks that the digest of a settled file is not read again, that no digest is read after
// the end of the context, and the errors for a folder without a repository and for too many files.
func TestRead(t *testing.T) {
	dir := newRepository(t)
	first := read(t, dir, nil)
	if f := first.Files["a"]; f.Settled || f.Digest != action.Digest([]byte("one")) {
		t.Errorf("a new file: %+v", f)
	}
	f := first.Files["a"]
	f.Settled, f.Digest = true, "cached"
	first.Files["a"] = f
	if again := read(t, dir, first); again.Files["a"].Digest != "cached" || again.Files["sub/b"].Digest != action.Digest([]byte("one")) {
		t.Errorf("%+v", again.Files)
	}
	old := time.Now().Add(-time.Hour)
	f.CTime, f.MTime = old.UnixNano(), old.UnixNano()
	if digest(filepath.Join(dir, "a"), f).Digest != "cached" { // the file has another status
		t.Error("a file that changed meanwhile has a digest")
	}
	if _, err := Read(t.Context(), filepath.Join(dir, "sub"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub", ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), filepath.Join(dir, "sub"), nil); err == nil || !strings.Contains(err.Error(), "git ls-files") {
		t.Error("a repository around the folder:", err)
	}
	t.Setenv("GIT_DIR", filepath.Join(newRepository(t), ".git"))
	if tree := read(t, dir, nil); len(tree.Files) != 4 {
		t.Errorf("with GIT_DIR: %+v", tree.Files)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ended, dir, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var b limited
	if _, err := b.Write([]byte("x")); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
	var index strings.Builder
	for i := range MaxFiles {
		fmt.Fprintf(&index, "100644 e69de29bb2d1d6434b8b29ae775ad8c2e48c5391 0\tmany/%d\n", i) // an empty file, which does not exist
	}
	cmd := exec.CommandContext(t.Context(), "git", "-C", dir, "update-index", "--index-info")
	cmd.Env, cmd.Stdin = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_DIR=") }), strings.NewReader(index.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := Read(t.Context(), dir, nil); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
}

// TestMaxChanges checks that at most MaxChanges changes are returned and the others counted.
func TestMaxChanges(t *testing.T) {
	before, after := &Tree{Files: map[string]File{}}, &Tree{Files: map[string]File{}}
	for i := range MaxChanges + 3 {
		name := fmt.Sprintf("%04d", i)
		before.Files[name], after.Files[name] = File{Digest: "b"}, File{Digest: "a"}
	}
	if list, omitted := before.Changes(t.TempDir(), after); len(list) != MaxChanges || omitted != 3 || list[0].Path != "0000" {
		t.Errorf("%d changes, %d omitted", len(list), omitted)
	}
}
