package harness

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo-terminal of a person, on which a command of the command line runs.
type Terminal struct {
	t     testing.TB
	cmd   *exec.Cmd
	main  *os.File
	ended chan error

	mu   sync.Mutex
	seen bytes.Buffer
}

// OnTerminal starts a command of the command line on a new terminal of 100 columns and 30 rows. The
// command is killed at the end of the test.
func (m *Mesh) OnTerminal(args ...string) *Terminal {
	m.T.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		m.T.Fatal(err)
	}
	m.T.Cleanup(func() { main.Close() })
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0)); err != nil {
		m.T.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		m.T.Fatal(err)
	}
	defer tty.Close()
	x := &Terminal{t: m.T, main: main, ended: make(chan error, 1), cmd: exec.CommandContext(m.T.Context(), m.bin("binnacle"), args...)}
	x.Resize(100, 30)
	x.cmd.Env = append(append(os.Environ(), m.Env()...), "TERM=xterm-256color")
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = tty, tty, tty
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		m.T.Fatal(err)
	}
	go func() {
		b := make([]byte, 32<<10)
		for {
			n, err := main.Read(b)
			x.mu.Lock()
			x.seen.Write(b[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() { x.ended <- x.cmd.Wait() }()
	return x
}

// Resize changes the size of the terminal.
func (x *Terminal) Resize(columns, rows uint16) {
	x.t.Helper()
	if err := unix.IoctlSetWinsize(int(x.main.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		x.t.Fatal(err)
	}
}

// Type writes keys to the terminal.
func (x *Terminal) Type(keys string) {
	x.t.Helper()
	if _, err := x.main.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// Signal sends a signal to the command.
func (x *Terminal) Signal(s syscall.Signal) {
	x.t.Helper()
	if err := x.cmd.Process.Signal(s); err != nil {
		x.t.Fatal(err)
	}
}

// movement matches the sequences that move the cursor to a column, which programs send instead of
// spaces; sequence matches every other control sequence, also one that has not arrived as a whole.
var (
	movement = regexp.MustCompile(`\x1b\[[0-9]*[CG]`)
	sequence = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*([@-~]|$)|\][^\a\x1b]*(\a|\x1b\\|\x1b?$)|[()].|[^\[\]()]|$)`)
)

// Text returns all output so far as text, without control sequences.
func (x *Terminal) Text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return sequence.ReplaceAllString(movement.ReplaceAllString(x.seen.String(), " "), "")
}

// Shows waits until the output after the position from contains a text, and returns the position
// after it.
func (x *Terminal) Shows(from int, want string) int {
	x.t.Helper()
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text := x.Text()
		if at := strings.Index(text[from:], want); at >= 0 {
			return from + at + len(want)
		}
		if time.Now().After(end) {
			x.t.Fatalf("no %q on the terminal: %q", want, text[from:])
		}
	}
}

// Exit waits for the end of the command and returns its exit code.
func (x *Terminal) Exit() int {
	x.t.Helper()
	select {
	case <-x.ended:
		return x.cmd.ProcessState.ExitCode()
	case <-time.After(90 * time.Second):
		x.t.Fatalf("the command has not ended: %q", x.Text())
		return 0
	}
}
