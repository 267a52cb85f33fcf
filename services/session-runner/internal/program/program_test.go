package program

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func file(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(path, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) *Program {
	t.Helper()
	p, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestSealed checks that a program has the bytes that were hashed, even if its file
// changes, that the sealed memory cannot be changed, and that Bytes returns an error for
// a digest that is not the program's.
func TestSealed(t *testing.T) {
	path := file(t, "first")
	p := open(t, path)
	if p.Digest != Digest([]byte("first")) || p.Size != 5 || p.Problem() != nil || !slices.Equal(p.Argv(), []string{"/pack/main"}) {
		t.Fatalf("%+v", p)
	}
	if err := os.WriteFile(path, []byte("other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if b, err := p.Bytes(); err != nil || string(b) != "first" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := p.File().WriteAt([]byte("x"), 0); err == nil {
		t.Error("the sealed program can be written")
	}
	if err := unix.Ftruncate(int(p.File().Fd()), 1); err == nil {
		t.Error("the sealed program can be shortened")
	}
	seals, err := unix.FcntlInt(p.File().Fd(), unix.F_GET_SEALS, 0)
	if want := unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL; err != nil || seals&want != want {
		t.Errorf("seals %x %v", seals, err)
	}
	p.Digest = Digest([]byte("something else"))
	if _, err := p.Bytes(); err == nil {
		t.Error("a digest that is not the program's is taken")
	}
}

// TestOpenRefuses checks that Open opens only regular files, and no symbolic links.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file(t, "x"), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(link); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a symbolic link: %v", err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(fifo); err == nil {
		t.Error("a pipe is a program")
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

// TestOpenInImage checks that the interpreter of a program in an image is not looked for on
// this host, and that the error for a file that does not exist is fs.ErrNotExist.
func TestOpenInImage(t *testing.T) {
	for body, want := range map[string][2]string{"#!/no/such/sh -e\nx": {"/no/such/sh", "-e"}, "#!/bin/sh\n": {"/bin/sh", ""}, "\x7fELF": {}} {
		p, err := OpenInImage(file(t, body))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if p.Interpreter != nil || p.InterpreterPath != want[0] || p.InterpreterArg != want[1] || p.Problem() != nil {
			t.Errorf("%q: %+v", body, p)
		}
	}
	if p, err := OpenInImage(filepath.Join(t.TempDir(), "none")); p != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v %v", p, err)
	}
}

// TestInterpreter checks that a script is opened with its interpreter, and that Problem
// returns a MissingInterpreter with the reason if the interpreter is missing or cannot be
// used.
func TestInterpreter(t *testing.T) {
	static, err := os.Executable() // the test binary is linked statically (CGO_ENABLED=0)
	if err != nil {
		t.Fatal(err)
	}
	for first, want := range map[string][]string{
		"#!" + static + "\n":          {static, "/pack/main"},
		"#! " + static + "  -e  -x\n": {static, "-e  -x", "/pack/main"},
	} {
		p := open(t, file(t, first+"exit"))
		if p.Problem() != nil || p.Interpreter == nil || p.InterpreterPath != static || !slices.Equal(p.Argv(), want) {
			t.Errorf("%q: %v %q", first, p.Problem(), p.Argv())
		}
	}
	script := file(t, "#!"+static+"\n")
	for first, want := range map[string]string{
		"#!sh\n":                  "interpreter sh is not an absolute path",
		"#!/no/such/thing -x\n":   "interpreter /no/such/thing does not exist",
		"#!" + t.TempDir() + "\n": "cannot be read",
		"#!" + script + "\n":      "is a script itself",
		"#!\n":                    "interpreter  is not an absolute path",
	} {
		p := open(t, file(t, first))
		var missing *MissingInterpreter
		if !errors.As(p.Problem(), &missing) || !strings.Contains(missing.Error(), want) || p.Interpreter != nil {
			t.Errorf("%q: %v, want %s", first, p.Problem(), want)
		}
	}
}

// TestLoader checks that Problem returns an error for a dynamically linked program and
// for a script with such an interpreter, because a sandbox contains no loader.
func TestLoader(t *testing.T) {
	for _, path := range []string{"/bin/true", "/usr/bin/env", "/bin/sh"} {
		body, err := os.ReadFile(path)
		if err != nil || loader(body) == "" {
			continue
		}
		p := open(t, file(t, string(body)))
		if p.Problem() == nil || !strings.Contains(p.Problem().Error(), loader(body)) {
			t.Errorf("%s: %v", path, p.Problem())
		}
		if q := open(t, file(t, "#!"+path+"\n")); q.Problem() == nil || !strings.Contains(q.Problem().Error(), "which is not in the sandbox") {
			t.Errorf("a script for %s: %v", path, q.Problem())
		}
		return
	}
	t.Fatal("no program of this host is linked dynamically: install one, such as coreutils")
}
