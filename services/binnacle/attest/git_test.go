package attest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// workspace is a git repository with the file f, in which people and an agent change files.
type workspace struct {
	t     *testing.T
	dir   string
	edits []Edit
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	w := &workspace{t: t, dir: t.TempDir()}
	w.git("init", "-q", "-b", "main")
	w.git("config", "core.autocrlf", "false")
	w.write("f", "a\nb\nc\n")
	w.commit()
	w.git("switch", "-qc", "change")
	return w
}

func (w *workspace) git(args ...string) {
	w.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", w.dir, "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("git %q: %v %s", args, err, out)
	}
}

func (w *workspace) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workspace) commit() {
	w.t.Helper()
	w.git("add", "-A")
	w.git("commit", "-qm", "x", "--allow-empty")
}

// agent writes a file, like a tool whose hooks report the contents before and after.
func (w *workspace) agent(name, text string) {
	w.t.Helper()
	before, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	e := edit("agent", string(before), text, true)
	e.Path, e.Session, e.stated, e.linked = name, "s", true, false
	if err != nil {
		e.Before = ""
	}
	w.edits = append(w.edits, e)
	w.write(name, text)
}

// TestAttributeInGit shows which changes are attributed after a squash, a rebase or a rename,
// in binary contents and links, and if the edits are of another repository.
func TestAttributeInGit(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(w *workspace)
		want string // for each file path=a (attributed), path=u (unattributed) or path:hunks; see show
	}{
		"plain": {func(w *workspace) { w.agent("f", "a\nX\nc\n"); w.commit() }, "f=a"},
		"committed in steps and squashed": {func(w *workspace) {
			w.agent("f", "a\nX\nc\n")
			w.commit()
			w.agent("f", "a\nX\nc\nY\n")
			w.commit()
			w.git("switch", "-qc", "squashed", "main")
			w.git("merge", "-q", "--squash", "change")
			w.commit()
		}, "f=a"},
		"squashed with a person's line": {func(w *workspace) {
			w.agent("f", "a\nX\nc\n")
			w.commit()
			w.write("f", "a\nX\nc\nP\n")
			w.commit()
			w.git("switch", "-qc", "squashed", "main")
			w.git("merge", "-q", "--squash", "change")
			w.commit()
		}, "f:-2,1+2,1=agent +4,1=?"},
		"rebased onto another content": {func(w *workspace) {
			w.agent("f", "a\nb\nc\nX\n")
			w.commit()
			w.git("switch", "-q", "main")
			w.write("f", "N\na\nb\nc\n")
			w.commit()
			w.git("rebase", "-q", "main", "change")
		}, "f:+5,1=agent"},
		"renamed by a person": {func(w *workspace) {
			w.agent("f", "a\nX\nc\n")
			w.git("mv", "f", "g")
			w.commit()
		}, "f:-1,1=? -2,1=agent -3,1=? g:+1,3=?"},
		"edited, and the edit moved to another file by a person": {func(w *workspace) {
			w.agent("f", "a\nX\nc\n")
			w.git("checkout", "-q", "f")
			w.write("g", "X\n")
			w.commit()
		}, "g:+1,1=?"},
		"binary": {func(w *workspace) {
			w.agent("f", "a\x00\n")
			w.write("f", "a\x00\nP\n")
			w.commit()
		}, "f=u"},
		"made a link by a person": {func(w *workspace) {
			w.agent("f", "a\nX\nc\n")
			if err := os.Remove(filepath.Join(w.dir, "f")); err != nil {
				w.t.Fatal(err)
			}
			if err := os.Symlink("g", filepath.Join(w.dir, "f")); err != nil {
				w.t.Fatal(err)
			}
			w.commit()
		}, "f=u"},
		"another repository with the same path": {func(w *workspace) {
			w.write("f", "q\n")
			w.agent("f", "q\nX\n")
			w.write("f", "a\nb\nc\nX\n")
			w.commit()
		}, "f:+4,1=?"},
	} {
		w := newWorkspace(t)
		c.do(w)
		r, commit, files := changedFiles(t, w)
		ctx := t.Context()
		if err := r.Link(ctx, commit, files, w.edits); err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range files {
			f := &files[i]
			switch f.Attribute(w.edits); {
			case f.Attributed:
				got = append(got, f.Path+"=a")
			case len(f.Hunks) == 0:
				got = append(got, f.Path+"=u")
			default:
				got = append(got, f.Path+":"+show(f.Hunks))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestHostileConfiguration shows that the configuration in a repository runs no program, and that
// a file .gitmodules with ignore = all hides no changed submodule.
func TestHostileConfiguration(t *testing.T) {
	w := newWorkspace(t)
	w.write(".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = ./x\n\tignore = all\n")
	w.git("update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("1", 40)+",x")
	w.git("add", ".gitmodules")
	w.git("commit", "-qm", "x")
	w.git("branch", "-qf", "main")
	w.git("update-index", "--cacheinfo", "160000,"+strings.Repeat("2", 40)+",x")
	w.git("commit", "-qm", "x")

	ran := filepath.Join(t.TempDir(), "ran")
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n: >"+ran+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.agent("f", "a\nX\nc\n")
	w.git("add", "f")
	w.git("-c", "gpg.program="+signing(t), "commit", "-qS", "-m", "signed")
	for name, value := range map[string]string{"log.showSignature": "true", "gpg.program": program, "core.fsmonitor": program, "core.pager": program, "diff.external": program, "diff.ignoreSubmodules": "all", "submodule.x.ignore": "all"} {
		w.git("config", name, value)
	}
	r, commit, files := changedFiles(t, w)
	ctx := t.Context()
	if len(files) != 2 || files[0].Path != "f" || files[1].Path != "x" || files[1].Explained() {
		t.Errorf("files %+v", files)
	}
	if err := r.Link(ctx, commit, files, w.edits); err != nil || !w.edits[0].linked {
		t.Errorf("linked %t: %v", w.edits[0].linked, err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program of the configuration ran")
	}
}

// signing returns a program that signs as gpg does, with a signature that is not valid.
func signing(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpg")
	text := "#!/bin/sh\ncat >/dev/null\nprintf '\\n[GNUPG:] SIG_CREATED \\n' >&2\nprintf -- '-----BEGIN PGP SIGNATURE-----\\n\\nabc\\n-----END PGP SIGNATURE-----\\n'\n"
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// changedFiles returns the repository of a workspace, its current commit and the files that it
// changes since main.
func changedFiles(t *testing.T, w *workspace) (r *Repository, commit string, files []File) {
	t.Helper()
	r = &Repository{Dir: w.dir}
	commit, err := r.Commit(t.Context(), "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	base, err := r.MergeBase(t.Context(), "main", commit)
	if err != nil {
		t.Fatal(err)
	}
	if files, err = r.Changed(t.Context(), base, commit); err != nil {
		t.Fatal(err)
	}
	return r, commit, files
}
