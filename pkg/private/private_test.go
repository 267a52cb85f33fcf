package private

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestModes checks that files and folders are created with access for their owner alone
// under three umasks, and that an existing file with another mode gets the mode of a new
// one.
func TestModes(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077} {
		old := syscall.Umask(mask)
		dir := filepath.Join(t.TempDir(), "a/b")
		path := filepath.Join(dir, "f")
		err := Mkdir(dir)
		if err == nil {
			err = os.WriteFile(path, nil, 0o666)
		}
		if err == nil {
			err = Write(path, []byte("x"))
		}
		var f *os.File
		if err == nil {
			err = os.WriteFile(path+"2", nil, 0o666)
		}
		if err == nil {
			f, err = Create(path + "2")
		}
		syscall.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		for p, want := range map[string]os.FileMode{filepath.Dir(dir): 0o700, dir: 0o700, path: 0o600, path + "2": 0o600} {
			if i, err := os.Stat(p); err != nil || i.Mode().Perm() != want {
				t.Errorf("umask %o: %s has mode %o", mask, p, i.Mode().Perm())
			}
		}
	}
}

// TestCheck checks that Check repairs the modes of the user's own files and folders,
// also through a link, and skips missing files. If root runs the test, it also checks
// that an accessible file of another user is an error.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"open": 0o644, "group": 0o640, "closed": 0o600, "run": 0o755} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), nil, 0o600), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	sub, outside := filepath.Join(dir, "sub"), filepath.Join(t.TempDir(), "target")
	if err := errors.Join(os.Mkdir(sub, 0o755), os.WriteFile(outside, nil, 0o644), os.Symlink(outside, filepath.Join(sub, "link")), os.Chmod(sub, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := Check(dir, filepath.Join(dir, "nothing")); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{"open": 0o600, "group": 0o600, "closed": 0o600, "run": 0o700, "sub": 0o700, "sub/link": 0o600} {
		if i, err := os.Stat(filepath.Join(dir, p)); err != nil || i.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", p, i.Mode().Perm(), want)
		}
	}
	if os.Getuid() != 0 {
		return // only root can start a process as another user
	}
	theirs := filepath.Join("/tmp", filepath.Base(dir)+"-theirs")
	if err := errors.Join(os.WriteFile(theirs, nil, 0o644), os.Chmod(theirs, 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(theirs) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := theirs + ".test"
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(program) })
	cmd := exec.Command(program, "-test.run", "^TestTheirs$")
	cmd.Dir, cmd.Env = "/tmp", []string{"CHECK_PATH=" + theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestTheirs is the part of TestCheck that runs as another user.
func TestTheirs(t *testing.T) {
	path := os.Getenv("CHECK_PATH")
	if path == "" {
		return
	}
	if err := Check(path); !errors.Is(err, syscall.EPERM) {
		t.Fatalf("another user's open file passes: %v", err)
	}
}
