//go:build containers

package containerd

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// screen is the output of a terminal so far. It is safe for concurrent use.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

// shows waits until the output contains a text.
func (s *screen) shows(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		text := s.buf.String()
		s.mu.Unlock()
		if strings.Contains(text, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %q in %q", want, text)
		}
	}
}

// TestHeldTerminal shows that a command has a terminal: it reads what is typed, has the size that
// it was started with and then the new one, is interrupted by Ctrl-C, receives a signal, and its
// exit code is returned.
func TestHeldTerminal(t *testing.T) {
	d := startDaemon(t)
	r, holder := d.holder(t)
	defer r.Close()
	h := hold(t, holder, shellImage(t), "terminal", time.Minute)
	defer h.Remove()
	typed, input := io.Pipe()
	defer input.Close()
	out, started := &screen{}, make(chan *Controls, 1)
	type end struct {
		exit int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		exit, _, err := h.Exec(t.Context(), Command{ID: "tty", Argv: []string{"/bin/sh"}, Env: []string{"PATH=/bin", "TERM=dumb", "PS1=> "}, Input: typed, Wall: time.Minute, Stdout: out,
			Terminal: &Terminal{Columns: 91, Rows: 33, Started: func(c *Controls) { started <- c }}})
		ended <- end{exit, err}
	}()
	c := <-started
	enter := func(text string) {
		t.Helper()
		if _, err := io.WriteString(input, text); err != nil {
			t.Fatal(err)
		}
	}
	enter("busybox tty; busybox stty size\n")
	out.shows(t, "/dev/pts/")
	out.shows(t, "33 91")
	if err := c.Resize(72, 19); err != nil {
		t.Fatal(err)
	}
	enter("busybox stty size\n")
	out.shows(t, "19 72")
	enter("echo be''gun; sleep 1000\n")
	out.shows(t, "begun")
	enter("\x03")
	enter("echo status $?\n")
	out.shows(t, "status 130")
	enter("trap 'echo go''t it; exit 7' TERM; echo rea''dy; while :; do sleep 0.1; done\n")
	out.shows(t, "ready")
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.err != nil || e.exit != 7 {
		t.Errorf("%+v", e)
	}
	out.shows(t, "got it")
}
