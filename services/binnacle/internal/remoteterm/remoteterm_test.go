package remoteterm

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestEscape checks where ~. leaves the terminal, also when the bytes arrive one by one.
func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"ls\r": "ls\r", "~.": "|", "a~.": "a~.", "a\r~.b": "a\r|", "a\n~~.\r": "a\n~.\r", "~x\r": "~x\r", "\r~\r~.": "\r~\r|", "~": "", "a\r~~~.": "a\r~~.",
	} {
		var whole, single Escape
		show := func(b []byte, leave bool) string {
			return string(b) + strings.Repeat("|", map[bool]int{true: 1}[leave])
		}
		if got := show(whole.Filter([]byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		got := ""
		for _, b := range []byte(in) {
			out, leave := single.Filter([]byte{b})
			if got += show(out, leave); leave {
				break
			}
		}
		if got != want {
			t.Errorf("%q, single bytes: %q, want %q", in, got, want)
		}
	}
}

var errLost = errors.New("lost")

// echo is a terminal that prints its input, loses the response to every second request, and does
// not take an input when it is sent first.
type echo struct {
	mu       sync.Mutex
	n        int64
	requests int
	refused  map[int64]bool
	output   []byte
	size     [2]int
	ended    bool
}

func (e *echo) do(_ context.Context, q *Request) (*State, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests++
	if q.N == e.n+1 && !e.refused[q.N] {
		e.refused[q.N] = true
	} else if q.N == e.n+1 {
		e.n = q.N
		e.output = append(e.output, q.Data...)
		if q.Columns > 0 {
			e.size = [2]int{q.Columns, q.Rows}
		}
		e.ended = e.ended || q.Signal == "TERM"
	}
	if e.requests%2 == 0 {
		return nil, errLost
	}
	s := &State{Attached: true, N: e.n, Cursor: q.Cursor, Status: Running}
	if q.Limit > 0 {
		s.Data, s.Cursor = e.output[q.Cursor:min(int64(len(e.output)), q.Cursor+3)], min(int64(len(e.output)), q.Cursor+3)
	}
	if e.ended {
		s.Attached, s.Status, s.ExitCode = false, "exited", 143
	}
	return s, nil
}

// TestRun shows that each input arrives once and in order, and each byte of output is printed once,
// although responses are lost and inputs are not taken at once; and that a failure that lasts, or one
// that cannot be repeated, ends Run.
func TestRun(t *testing.T) {
	e, out := &echo{refused: map[int64]bool{}}, &bytes.Buffer{}
	c := &Client{Do: e.do, Retry: func(err error) bool { return errors.Is(err, errLost) }, Patience: 5 * time.Second, Out: out}
	inputs := make(chan Input, 9)
	for _, in := range []Input{{Data: []byte("fair ")}, {Columns: 80, Rows: 24}, {Data: []byte("winds")}, {Signal: "TERM"}} {
		inputs <- in
	}
	s, err := c.Run(t.Context(), inputs)
	if err != nil || s.ExitCode != 143 || out.String() != "fair winds" || e.size != [2]int{80, 24} {
		t.Errorf("%+v %v %q %v", s, err, out, e.size)
	}
	for _, x := range []struct {
		err  error
		want string
	}{{errLost, "could not be reached for 50ms"}, {errors.New("denied"), "denied"}} {
		c := &Client{Do: func(context.Context, *Request) (*State, error) { return nil, x.err }, Retry: c.Retry, Patience: 50 * time.Millisecond, Out: out}
		if _, err := c.Run(t.Context(), make(chan Input)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v: %v", x.err, err)
		}
	}
}
