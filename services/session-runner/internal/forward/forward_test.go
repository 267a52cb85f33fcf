package forward

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain runs the tests in new user and network namespaces if this process is not root,
// because they create network namespaces and return from them.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}}
	if err := cmd.Run(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// namespace creates a network namespace, whose loopback device is down.
func namespace(t *testing.T) *os.File {
	t.Helper()
	type result struct {
		ns  *os.File
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- result{err: err}
			return
		}
		defer own.Close()
		err = unix.Unshare(unix.CLONE_NEWNET)
		var ns *os.File
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- result{ns, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.ns.Close() })
	return r.ns
}

// server returns a listener on a unix socket, and the socket's path.
func server(t *testing.T) (*net.UnixListener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

// dial connects to the forwarder from within its namespace.
func dial(t *testing.T, ns *os.File) *net.TCPConn {
	t.Helper()
	var c net.Conn
	if err := within(ns, func() (err error) {
		c, err = net.DialTimeout("tcp4", Address, 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// TestHalfClose checks that each direction is copied until its own end, and that all
// bytes are counted.
func TestHalfClose(t *testing.T) {
	ns := namespace(t)
	l, path := server(t)
	f, err := Start(ns, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, first := range []string{"client", "server"} {
		before := f.Bytes()
		client := dial(t, ns)
		accepted, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		var a, b interface {
			io.ReadWriter
			CloseWrite() error
		} = client, accepted
		if first == "server" {
			a, b = accepted, client
		}
		body := make([]byte, 3<<20)
		_, _ = rand.Read(body)
		go func() {
			_, _ = a.Write(body)
			_ = a.CloseWrite()
		}()
		got, err := io.ReadAll(b)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%s first: %d of %d bytes, %v", first, len(got), len(body), err)
		}
		if _, err := b.Write([]byte("answer")); err != nil { // after the end of the other direction
			t.Fatal(err)
		}
		_ = b.CloseWrite()
		if got, err := io.ReadAll(a); err != nil || string(got) != "answer" {
			t.Fatalf("%s first: %q, %v", first, got, err)
		}
		if n := f.Bytes() - before; n != int64(len(body)+len("answer")) {
			t.Errorf("%s first: %d bytes were counted", first, n)
		}
	}
}

// TestAbort checks that the reset of a connection closes the other side.
func TestAbort(t *testing.T) {
	ns := namespace(t)
	l, path := server(t)
	f, err := Start(ns, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	client := dial(t, ns)
	accepted, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	_ = client.SetLinger(0)
	_ = client.Close()
	_ = accepted.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := accepted.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read: %v", err)
	}
	for err = nil; err == nil; { // a half-closed connection would accept data until the deadline
		_, err = accepted.Write(make([]byte, 64<<10))
	}
	if !errors.Is(err, unix.EPIPE) {
		t.Errorf("write: %v", err)
	}
}

// TestEarlyAnswer checks that an answer arrives even if the server no longer reads, and
// the client still writes.
func TestEarlyAnswer(t *testing.T) {
	ns := namespace(t)
	l, path := server(t)
	f, err := Start(ns, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	client := dial(t, ns)
	accepted, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if err := accepted.CloseRead(); err != nil {
		t.Fatal(err)
	}
	for range 64 { // more than the buffers of the sockets hold
		if _, err := client.Write(make([]byte, 256<<10)); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = accepted.Write([]byte("answer"))
	_ = accepted.CloseWrite()
	if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
		t.Errorf("%q, %v", got, err)
	}
	if n := f.Bytes(); n != int64(len("answer")) {
		t.Errorf("%d bytes were counted", n)
	}
}

// TestMaxConns checks that a connection above the maximum waits for the end of another
// one.
func TestMaxConns(t *testing.T) {
	ns := namespace(t)
	l, path := server(t)
	f, err := Start(ns, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	accept := func() net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var last *net.TCPConn
	for range MaxConns {
		last = dial(t, ns)
		accept()
	}
	dial(t, ns)
	_ = l.SetDeadline(time.Now().Add(200 * time.Millisecond))
	if c, err := l.Accept(); err == nil {
		_ = c.Close()
		t.Fatal("more connections than the maximum were copied")
	}
	_ = l.SetDeadline(time.Now().Add(10 * time.Second))
	_ = last.SetLinger(0)
	_ = last.Close()
	accept()
}

// TestClose checks that a connection ends if the unix socket cannot be reached, that Close ends
// connections that transfer data and connections that do not, and that afterwards no goroutine or
// descriptor is left, and no thread in another network namespace.
func TestClose(t *testing.T) {
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	for range 20 {
		func() {
			ns := namespace(t)
			l, path := server(t)
			f, err := Start(ns, path)
			if err != nil {
				t.Fatal(err)
			}
			idle, busy := dial(t, ns), dial(t, ns)
			for range 2 {
				c, err := l.AcceptUnix()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			}
			_ = l.Close()
			refused := dial(t, ns)
			wrote := make(chan struct{})
			go func() {
				defer close(wrote)
				for {
					if _, err := busy.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
			}()
			ended := func(c net.Conn) {
				if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the connection is open: %v", err)
				}
				_ = c.Close()
			}
			ended(refused)
			open := descriptors(t)
			f.Close()
			if n := open - descriptors(t); n != 5 { // the listener, and both sides of two connections
				t.Errorf("%d descriptors were closed", n)
			}
			<-wrote
			ended(idle)
			_ = busy.Close()
			if err := within(ns, func() error {
				c, err := net.Dial("tcp4", Address)
				if err == nil {
					_ = c.Close()
					return errors.New("connected")
				}
				return nil
			}); err != nil {
				t.Errorf("the listener after Close: %v", err)
			}
			_ = ns.Close()
		}()
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		g, fd := runtime.NumGoroutine(), descriptors(t)
		if g <= goroutines && fd <= files {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines and %d descriptors, before %d and %d", g, fd, goroutines, files)
		}
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	threads, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, thread := range threads {
		if ns, err := os.Readlink(thread); err == nil && ns != own {
			t.Errorf("%s is in %s, not in %s", thread, ns, own)
		}
	}
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestStart checks the errors of Start: the namespace of this process, a path without a
// socket, and a second listener.
func TestStart(t *testing.T) {
	ns := namespace(t)
	_, path := server(t)
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for want, c := range map[string]struct {
		ns     *os.File
		socket string
	}{
		"no network namespace of its own": {own, path},
		"no such file":                    {ns, path + "2"},
		"is not a unix socket":            {ns, filepath.Dir(path)},
	} {
		if f, err := Start(c.ns, c.socket); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v", want, f, err)
		}
	}
	f, err := Start(ns, path)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Start(ns, path); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second listener: %v %v", second, err)
	}
	f.Close()
	f.Close() // has no effect
}
