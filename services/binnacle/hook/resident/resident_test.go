package resident

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain runs a helper in place of the tests if Start has started this process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && strings.HasPrefix(os.Args[1], "--resident=") {
		l, err := Listener()
		if err == nil {
			err = Serve(context.Background(), l, strings.TrimPrefix(os.Args[1], "--resident="), time.Minute, echo)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// echo answers a document with itself.
func echo(_ context.Context, doc []byte) Answer {
	return Answer{Stdout: string(doc), Stderr: "e", Exit: len(doc) % 3}
}

// own returns a new folder of this user alone.
func own(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listen serves at a new socket until the test ends or the helper is idle. It returns the
// socket's path and a channel that receives the error of Serve.
func listen(t *testing.T, idle time.Duration, handle Handler) (string, <-chan error) {
	t.Helper()
	path := filepath.Join(own(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), l, path, idle, handle) }()
	return path, ended
}

// TestStart starts a helper as a process and checks its answers, the modes of the socket
// and its folder, and that the helper ends when its socket is gone.
func TestStart(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "run", "s")
	if _, err := Ask(path, nil, time.Second); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("without a helper:", err)
	}
	if err := Start(path, self, []string{"--resident=" + path}); err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"", "x", strings.Repeat("y", MaxDocument)} {
		a, err := Ask(path, []byte(doc), 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if a.Stdout != doc || a.Stderr != "e" || a.Exit != len(doc)%3 {
			t.Errorf("an answer of %d bytes, status %d, to a document of %d", len(a.Stdout), a.Exit, len(doc))
		}
	}
	helper := helperOf(t, path)
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if err := os.Rename(path, path+"x"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); syscall.Kill(helper, 0) == nil; time.Sleep(50 * time.Millisecond) {
		if _, err := syscall.Wait4(helper, nil, syscall.WNOHANG, nil); err == nil && time.Now().After(end) {
			t.Fatal("the helper runs without its socket")
		}
	}
}

// helperOf returns the process of the helper at a path.
func helperOf(t *testing.T, path string) int {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if b, err := os.ReadFile(f); err == nil && strings.HasSuffix(string(b), "\x00--resident="+path+"\x00") {
			var pid int
			if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil {
				return pid
			}
		}
	}
	t.Fatal("no process has the socket", path)
	return 0
}

// TestIdle checks that a helper ends when it is idle, and removes its socket.
func TestIdle(t *testing.T) {
	path, ended := listen(t, 50*time.Millisecond, echo)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket remains:", err)
	}
}

// TestGone checks that a handler's context is canceled when the client closes its connection.
func TestGone(t *testing.T) {
	canceled, running := make(chan bool), make(chan bool)
	path, _ := listen(t, 10*time.Millisecond, func(ctx context.Context, _ []byte) Answer {
		close(running)
		<-ctx.Done()
		close(canceled)
		return Answer{}
	})
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeBlock(c, []byte("x")); err != nil {
		t.Fatal(err)
	}
	<-running
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-canceled
}

// TestSilent checks that Ask waits for a helper that decides slowly, and that it returns
// os.ErrDeadlineExceeded if nothing is received from the helper.
func TestSilent(t *testing.T) {
	path, _ := listen(t, time.Minute, func(context.Context, []byte) Answer {
		time.Sleep(3 * interval / 2)
		return Answer{Stdout: "late"}
	})
	if a, err := Ask(path, nil, 5*interval); err != nil || a.Stdout != "late" {
		t.Error(a, err)
	}
	path = filepath.Join(own(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err := Ask(path, nil, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(a, err)
	}
}

// TestFolder checks that a socket in a folder that others may enter, or behind a symbolic
// link, is not used.
func TestFolder(t *testing.T) {
	path, _ := listen(t, time.Minute, echo)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		t.Fatal(err)
	}
	if a, err := Ask(filepath.Join(link, "s"), nil, time.Second); err == nil {
		t.Error("behind a link:", a)
	}
	if err := os.Chmod(filepath.Dir(path), 0o711); err != nil {
		t.Fatal(err)
	}
	if a, err := Ask(path, nil, time.Second); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Error("in an open folder:", a, err)
	}
	if err := Start(path, "/bin/false", nil); err == nil {
		t.Error("a helper was started in an open folder")
	}
}

// TestPeer checks that a process of another user gets no answer, and that checkPeer rejects the
// helper of another user.
func TestPeer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run the tests as root: only root can act as another user")
	}
	// Names of abstract sockets are not files, so that every user may connect.
	name := fmt.Sprintf("@binnacle-test-%d", os.Getpid())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan bool, 1)
	go func() {
		_ = Serve(t.Context(), l, t.TempDir(), time.Minute, func(context.Context, []byte) Answer { asked <- true; return Answer{} })
	}()
	addr := &syscall.SockaddrUnix{Name: name}
	other := &syscall.SockaddrUnix{Name: name + "-other"}
	fds, failed := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, whose user changes, ends with the goroutine
		failed <- func() error {
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				return errno
			}
			theirs, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := errors.Join(syscall.Bind(theirs, other), syscall.Listen(theirs, 1)); err != nil {
				return err
			}
			fds <- theirs
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer syscall.Close(fd)
			if err := syscall.Connect(fd, addr); err != nil {
				return err
			}
			_, _ = syscall.Write(fd, []byte{0, 0, 0, 1, 'x'})
			if n, _ := syscall.Read(fd, make([]byte, 1)); n > 0 {
				return errors.New("the helper answers another user")
			}
			return nil
		}()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	theirs := <-fds
	defer syscall.Close(theirs)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: other.Name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := checkPeer(c); err == nil || !strings.Contains(err.Error(), "65534") {
		t.Error("the helper of another user:", err)
	}
	select {
	case <-asked:
		t.Error("the document of another user was read")
	default:
	}
}

// TestPath checks that the socket's path depends on the arguments, on the variables
// BINNACLE_TOKEN and HOME, and on the current folder, also if another folder had its name
// before, and that it does not depend on an unrelated variable.
func TestPath(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	path := func(args ...string) string {
		p, err := Path(self, args)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	seen := map[string]string{path("a"): "the same"}
	t.Setenv("UNRELATED", "x")
	if seen[path("a")] == "" {
		t.Error("the path depends on another variable")
	}
	other := func(what string, p string) {
		if seen[p] != "" {
			t.Errorf("%s: the path is that of %s", what, seen[p])
		}
		seen[p] = what
	}
	other("another argument", path("b"))
	other("two arguments", path("a", "b"))
	other("one argument with a space", path("a b"))
	t.Setenv("BINNACLE_TOKEN", "x")
	other("a token", path("a"))
	t.Setenv("HOME", "/nowhere")
	other("another home", path("a"))
	t.Chdir(t.TempDir())
	other("another folder", path("a"))
	dir := t.TempDir()
	for i, what := range []string{"a new folder", "a folder in the place of another one"} {
		if err := os.Mkdir(filepath.Join(dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Chdir(filepath.Join(dir, "x"))
		other(what, path("a"))
		if err := os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}
