package terminal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/held"
)

// controls notes what a terminal does to its command.
type controls struct {
	sizes   [][2]uint32
	signals []syscall.Signal
}

func (c *controls) Resize(columns, rows uint32) error {
	c.sizes = append(c.sizes, [2]uint32{columns, rows})
	return nil
}

func (c *controls) Signal(s syscall.Signal) error {
	c.signals = append(c.signals, s)
	return nil
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// TestAttachment shows which requests of clients a terminal accepts, in which order, and what it
// reports of them.
func TestAttachment(t *testing.T) {
	out := &held.Ring{Max: 100}
	x := New(out)
	a := x.Attach("c-1", "ann", digest("key"))
	do := func(q Request) State {
		t.Helper()
		s, err := a.Do(t.Context(), &q)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, who := range [][3]string{{"c-2", "ann", "key"}, {"c-1", "bob", "key"}, {"c-1", "ann", digest("key")}, {"c-1", "ann", ""}} {
		if x.Of(who[0], who[1], who[2]) != nil {
			t.Errorf("%v has the attachment", who)
		}
	}
	if x.Of("c-1", "ann", "key") != a {
		t.Error("the client does not have its attachment")
	}

	// Before the start, sizes are noted and signals wait.
	if s := do(Request{N: 1, Columns: 80, Rows: 24}); s.N != 1 {
		t.Errorf("%+v", s)
	}
	if s := do(Request{N: 2, Signal: "HUP"}); s.N != 1 {
		t.Errorf("a signal before the start: %+v", s)
	}
	c := &controls{}
	x.Started(c)
	do(Request{N: 2, Signal: "HUP"})
	do(Request{N: 2, Signal: "HUP"}) // a repetition
	do(Request{N: 3, Columns: 90, Rows: 30})
	if len(c.signals) != 1 || c.signals[0] != syscall.SIGHUP || len(c.sizes) != 2 || c.sizes[0] != [2]uint32{80, 24} || c.sizes[1] != [2]uint32{90, 30} {
		t.Errorf("%+v", c)
	}

	// Input is taken once, in order, and not more than there is room for.
	do(Request{N: 4, Data: []byte("one ")})
	do(Request{N: 4, Data: []byte("one ")})
	do(Request{N: 5, Data: []byte("two")})
	got := make([]byte, 99)
	if n, err := x.Read(got); string(got[:n]) != "one two" || err != nil {
		t.Errorf("%q %v", got[:n], err)
	}
	long := []byte(strings.Repeat("x", MaxInput))
	do(Request{N: 6, Data: long})
	if s := do(Request{N: 7, Data: []byte("y")}); s.N != 6 {
		t.Errorf("a full queue: %+v", s)
	}
	for _, q := range []struct {
		Request
		want error
	}{{Request{N: 8}, ErrOrder}, {Request{N: -1}, ErrOrder}, {Request{N: 7, Signal: "KILL"}, ErrSignal}, {Request{N: 7, Data: append(long, 'x')}, ErrLong}} {
		if _, err := a.Do(t.Context(), &q.Request); !errors.Is(err, q.want) {
			t.Errorf("%v, want %v", err, q.want)
		}
	}

	// Output is read by position; what is read again counts once.
	_, _ = io.WriteString(out, strings.Repeat("a", 60)+strings.Repeat("b", 60))
	if s := do(Request{Limit: 50}); string(s.Data) != strings.Repeat("a", 40)+strings.Repeat("b", 10) || s.Skipped != 20 || s.Cursor != 70 {
		t.Errorf("%+v", s)
	}
	do(Request{Cursor: 60, Limit: 20})
	if a.Complete() {
		t.Error("complete before all was read")
	}
	began := time.Now()
	go func() {
		time.Sleep(20 * time.Millisecond)
		x.End("exited", 3)
	}()
	if s := do(Request{Cursor: 120, Limit: 9, Wait: 10 * time.Second}); s.Status != "exited" || s.ExitCode != 3 || len(s.Data) > 0 || time.Since(began) > 5*time.Second {
		t.Errorf("%+v after %v", s, time.Since(began))
	}
	if s := do(Request{N: 7, Data: []byte("y")}); s.N != 6 {
		t.Errorf("input after the end: %+v", s)
	}
	if n, err := x.Read(got); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d %v", n, err)
	}
	read := strings.Repeat("a", 40) + strings.Repeat("b", 20)
	if r := a.Report(); r.In != int64(7+MaxInput) || r.Out != 60 || string(r.Kept) != read || r.Sum != digest(read) {
		t.Errorf("%+v", r)
	}
}

// TestDisplaced shows that a later attachment ends the one before, which then only reads, and that
// the end of one is recorded once.
func TestDisplaced(t *testing.T) {
	x := New(&held.Ring{Max: 100})
	first := x.Attach("c-1", "ann", digest("1"))
	waited := make(chan State)
	go func() {
		s, _ := first.Do(context.Background(), &Request{Limit: 9, Wait: 10 * time.Second})
		waited <- s
	}()
	second := x.Attach("c-2", "ann", digest("2"))
	if s := <-waited; s.Attached || s.Ended != Displaced {
		t.Errorf("%+v", s)
	}
	<-first.Gone()
	if s, err := first.Do(t.Context(), &Request{N: 1, Data: []byte("x")}); err != nil || s.N != 0 {
		t.Errorf("%+v %v", s, err)
	}
	if s, err := second.Do(t.Context(), &Request{N: 1, Data: []byte("x"), Close: true}); err != nil || s.N != 1 || s.Ended != Left {
		t.Errorf("%+v %v", s, err)
	}
	second.End(Time)
	if r := second.Report(); r.Ended != Left || r.In != 1 || second.Idle() > time.Minute {
		t.Errorf("%+v", r)
	}
	for range 2 * maxOld {
		x.Attach("c-3", "ann", digest("3"))
	}
	if x.Of("c-1", "ann", "1") != nil || x.Of("c-3", "ann", "3") == nil {
		t.Error("the wrong attachments are remembered")
	}
}
