package workspace

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repo returns a work tree with tracked, new, ignored and deleted files.
func repo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a.txt": "one\n", "sub/b.txt": "two\n", "gone.txt": "x\n", ".gitignore": ".env\n", "run.sh": "#!/bin/sh\n"} {
		put(t, filepath.Join(dir, name), text)
	}
	for _, argv := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-qm", "base"}} {
		cmd := exec.Command("git", argv...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatal(string(out), err)
		}
	}
	put(t, filepath.Join(dir, "new ü.txt"), "new\n")
	put(t, filepath.Join(dir, ".env"), "PASSWORD=hidden-value\n")
	for _, err := range []error{os.Remove(filepath.Join(dir, "gone.txt")), os.Chmod(filepath.Join(dir, "run.sh"), 0o755), os.Symlink("a.txt", filepath.Join(dir, "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// archive returns an archive of entries, in their order.
func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := ""
		if h.Typeflag == 0 {
			h.Typeflag, body = tar.TypeReg, "from the sandbox\n"
			h.Size, h.Mode = int64(len(body)), 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRoundTrip shows that an archive has the files that git does not ignore, and that the patch to
// a changed work tree turns a copy of the first one into the second.
func TestRoundTrip(t *testing.T) {
	dir := repo(t)
	root, err := Root(t.Context(), filepath.Join(dir, "sub"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := Pack(t.Context(), root)
	if err != nil || bytes.Contains(before, []byte("hidden-value")) || bytes.Contains(before, []byte("gone.txt")) {
		t.Fatalf("%v: %q", err, before)
	}
	if p, err := Patch(t.Context(), before, before); len(p) > 0 || err != nil {
		t.Errorf("without a change: %q %v", p, err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if err := unpack(before, copied); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "a.txt"), "1\n")
	put(t, filepath.Join(dir, "binary"), "\x00\x01\x02")
	put(t, filepath.Join(dir, "deep/er/c.txt"), "c\n")
	if err := os.Remove(filepath.Join(dir, "sub/b.txt")); err != nil {
		t.Fatal(err)
	}
	after, err := Pack(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := Patch(t.Context(), before, after)
	if err != nil || !strings.Contains(string(patch), "diff --git a/a.txt b/a.txt") {
		t.Fatalf("%s %v", patch, err)
	}
	file := filepath.Join(t.TempDir(), "run.patch")
	put(t, file, string(patch))
	if out, err := exec.Command("git", "-C", copied, "init", "-q").CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	if err := Apply(t.Context(), copied, file); err != nil {
		t.Fatal(err)
	}
	got, err := Pack(t.Context(), copied)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := Patch(t.Context(), got, after); len(left) > 0 || err != nil {
		t.Errorf("the copy with the patch differs: %s %v", left, err)
	}
	if err := Apply(t.Context(), copied, file); err == nil {
		t.Error("the patch was applied twice")
	}
}

// TestHostileArchive shows that an archive from a sandbox can neither write outside of its folder nor
// bring a repository, a device or more bytes than MaxBytes.
func TestHostileArchive(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, entries := range map[string][]tar.Header{
		"parent":      {{Name: "../x"}},
		"nested":      {{Name: "a/../../x"}},
		"absolute":    {{Name: outside + "/x"}},
		"by a link":   {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, {Name: "l/x"}},
		"over a link": {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside + "/x"}, {Name: "l"}},
		"hard link":   {{Typeflag: tar.TypeLink, Name: "l", Linkname: "../../../../../etc/passwd"}},
		"device":      {{Typeflag: tar.TypeChar, Name: "d"}},
		"twice":       {{Name: "x"}, {Name: "x"}},
	} {
		if p, err := Patch(t.Context(), archive(t), archive(t, entries...)); err == nil {
			t.Errorf("%s: %s", name, p)
		}
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Errorf("outside: %v %v", list, err)
	}
	huge := archive(t, tar.Header{Name: "x"})
	copy(huge[124:136], "77777777777\x00") // the size in the header, and then its checksum
	sum := 0
	copy(huge[148:156], "        ")
	for _, c := range huge[:512] {
		sum += int(c)
	}
	copy(huge[148:156], []byte{byte('0' + sum>>15&7), byte('0' + sum>>12&7), byte('0' + sum>>9&7), byte('0' + sum>>6&7), byte('0' + sum>>3&7), byte('0' + sum&7), 0, ' '})
	if _, err := Patch(t.Context(), archive(t), huge); err == nil || !strings.Contains(err.Error(), ErrTooLarge.Error()) {
		t.Errorf("huge: %v", err)
	}
	p, err := Patch(t.Context(), archive(t), archive(t, tar.Header{Name: "./.git/hooks/post-commit"}, tar.Header{Name: "sub/.GIT/config"}, tar.Header{Name: "./ok"}))
	if err != nil || strings.Count(string(p), "diff --git") != 1 || !strings.Contains(string(p), "+from the sandbox") {
		t.Errorf("with repositories: %s %v", p, err)
	}
	p, err = Patch(t.Context(), archive(t), archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc/passwd"}))
	if err != nil || !strings.Contains(string(p), "+/etc/passwd\n") || strings.Contains(string(p), "root:") {
		t.Errorf("a link: %s %v", p, err)
	}
}

// TestRootElsewhere shows that the configuration in a repository cannot make another folder the work
// tree, whose files would be copied into a sandbox and changed by patches.
func TestRootElsewhere(t *testing.T) {
	dir, other := repo(t), t.TempDir()
	put(t, filepath.Join(other, "id_ed25519"), "hidden\n")
	sub := filepath.Join(dir, "sub")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(sub, link); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{dir, sub, link} {
		if root, err := Root(t.Context(), from); err != nil || filepath.Base(root) != filepath.Base(dir) {
			t.Errorf("%s: root %q, %v", from, root, err)
		}
	}
	for _, tree := range []string{other, filepath.Dir(dir)} {
		cmd := exec.Command("git", "-C", dir, "config", "core.worktree", tree)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatal(string(out), err)
		}
		for _, from := range []string{dir, sub, filepath.Join(dir, ".git")} {
			if root, err := Root(t.Context(), from); err == nil {
				t.Errorf("%s: root %q", from, root)
			}
		}
	}
}
