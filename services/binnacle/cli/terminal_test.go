package cli

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal, with all output to it so far.
type terminal struct {
	tty, person *os.File
	mu          sync.Mutex
	seen        bytes.Buffer
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	x := &terminal{tty: tty, person: person}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := person.Read(b)
			x.mu.Lock()
			x.seen.Write(b[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return x
}

// sees waits until a text is on the terminal, for at most 5 s, and returns all output so
// far.
func (x *terminal) sees(t *testing.T, want string) string {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		x.mu.Lock()
		text := x.seen.String()
		x.mu.Unlock()
		if strings.Contains(text, want) {
			return text
		}
		if time.Now().After(end) {
			t.Fatalf("no %q in %q", want, text)
		}
	}
}

// TestTerminal checks that tables on a terminal have bold headings, even if they are
// empty, unless NO_COLOR or TERM disables colour, and that documents have no colour.
func TestTerminal(t *testing.T) {
	alone(t)
	empty, _ := answers(t, map[string]string{"GET /api/v1/packs": "[]", "GET /api/v1/events": ""})
	full, _ := answers(t, map[string]string{"GET /api/v1/packs": packs})
	const bold, plain = "\x1b[1m", "\x1b[0m"
	for _, x := range []struct{ line, addr, noColor, term, want string }{
		{"tools", empty, "", "xterm", bold + "NAME                     VERSION  DESCRIPTION" + plain + "\r\n"},
		{"tools", full, "", "xterm", plain + "\r\ncmd.upper                v1       Upper case.\r\n"},
		{"tools", empty, "1", "xterm", "NAME                     VERSION  DESCRIPTION\r\n"},
		{"tools", empty, "", "dumb", "NAME                     VERSION  DESCRIPTION\r\n"},
		{"events list", empty, "", "xterm", bold + "   SEQ  TIME "},
		{"tools --json", empty, "", "xterm", "[]\r\n"},
	} {
		t.Setenv("NO_COLOR", x.noColor)
		t.Setenv("TERM", x.term)
		tty := newTerminal(t)
		code := execute(t.Context(), append(strings.Fields(x.line), "--addr", x.addr, "--token", "good"), strings.NewReader(""), tty.tty, io.Discard)
		seen := tty.sees(t, x.want)
		if code != exitOK || !strings.HasPrefix(x.want, bold) && strings.Contains(seen, bold) && !strings.HasPrefix(x.want, plain) {
			t.Errorf("%s: %d %q", x.line, code, seen)
		}
	}
}

// TestBar checks that replay draws a progress bar on a terminal only.
func TestBar(t *testing.T) {
	var pipe bytes.Buffer
	(&replayer{c: &env{errOut: &pipe}}).progress(1, 2, time.Now())
	if pipe.Len() > 0 {
		t.Errorf("a pipe received %q", pipe.String())
	}
	tty := newTerminal(t)
	(&replayer{c: &env{errOut: tty.tty}}).progress(1, 2, time.Now())
	tty.sees(t, "[====================                    ] 1/2")
}

// TestLoginPrompt checks that login prompts for the token on a terminal, does not echo
// it, and stores it.
func TestLoginPrompt(t *testing.T) {
	alone(t)
	addr, _ := answers(t, map[string]string{"GET /api/v1/packs": packs})
	tty := newTerminal(t)
	done := make(chan int)
	go func() { done <- execute(t.Context(), []string{"login", "--addr", addr}, tty.tty, tty.tty, tty.tty) }()
	tty.sees(t, "token for "+addr+": ")
	for { // wait until echo is disabled, which happens after the prompt is written
		state, err := unix.IoctlGetTermios(int(tty.tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		if state.Lflag&unix.ECHO == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := tty.person.WriteString("good\n"); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if seen := tty.sees(t, "context default is in use"); strings.Contains(seen, "good") {
		t.Errorf("the terminal shows the token: %q", seen)
	}
	if code, out, errOut := invoke(t, "tools"); code != exitOK || !strings.Contains(out, "cmd.upper") {
		t.Error(code, out, errOut)
	}
}
