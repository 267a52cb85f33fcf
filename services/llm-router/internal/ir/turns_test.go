package ir

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

func begin(n int) Event          { return Event{Kind: CallBegin, Index: n, Part: Part{ID: fmt.Sprint("c", n)}} }
func args(n int, s string) Event { return Event{Kind: CallArgs, Index: n, Part: Part{Args: s}} }
func text(s string) Event        { return Event{Kind: Delta, Part: Part{Type: Text, Text: s}} }
func put(t *Turns, in ...Event) (out [][]Event) {
	for _, e := range in {
		out = append(out, t.Put(e))
	}
	return out
}

// TestTurnsAtOnce shows that events that are already in order are returned at once.
func TestTurnsAtOnce(t *testing.T) {
	var turns Turns
	for _, e := range []Event{{Kind: Begin}, text("a"), begin(0), args(0, `{"a"`), args(0, `:"}\""}`), begin(1), args(1, `{}`), args(9, "{"), text("b"), begin(2), args(2, `{"x":[{}]}`), {Kind: Used}, {Kind: End}} {
		if got := turns.Put(e); len(got) != 1 || !reflect.DeepEqual(got[0], e) {
			t.Errorf("%+v became %+v", e, got)
		}
	}
}

func TestTurns(t *testing.T) {
	end := Event{Kind: End}
	custom := begin(0)
	custom.Part.Custom = true
	for name, c := range map[string]struct{ in, want []Event }{
		"braided":          {[]Event{begin(0), begin(1), args(0, `{"a"`), args(1, `{"b"`), args(0, `:1}`), args(1, `:2}`), end}, []Event{begin(0), args(0, `{"a"`), args(0, `:1}`), begin(1), args(1, `{"b"`), args(1, `:2}`), end}},
		"text between":     {[]Event{begin(0), text("x"), text("y"), args(0, `{}`), text("z"), end}, []Event{begin(0), args(0, `{}`), text("x"), text("y"), text("z"), end}},
		"no arguments":     {[]Event{begin(0), begin(1), args(1, `{}`), end}, []Event{begin(0), begin(1), args(1, `{}`), end}},
		"text of a tool":   {[]Event{custom, args(0, `{}`), begin(1), args(0, `x`), args(1, `{}`), end}, []Event{custom, args(0, `{}`), args(0, `x`), begin(1), args(1, `{}`), end}},
		"the second first": {[]Event{begin(1), begin(0), args(0, `{"a":1}`), text("x"), args(1, `{`), args(1, `}`), end}, []Event{begin(1), args(1, `{`), args(1, `}`), begin(0), args(0, `{"a":1}`), text("x"), end}},
		"text amid":        {[]Event{begin(1), begin(0), text("x"), args(0, `{}`), args(1, `{}`), end}, []Event{begin(1), args(1, `{}`), begin(0), args(0, `{}`), text("x"), end}},
		"text twice":       {[]Event{begin(0), text("x"), args(0, `{}`), begin(1), text("y"), args(1, `{}`), end}, []Event{begin(0), args(0, `{}`), text("x"), begin(1), args(1, `{}`), text("y"), end}},
		"a call unknown":   {[]Event{begin(0), args(7, `{`), text("x"), args(7, `}`), args(0, `{}`), end}, []Event{begin(0), args(0, `{}`), args(7, `{`), args(7, `}`), text("x"), end}},
		"a call again":     {[]Event{begin(0), begin(1), args(0, `{}`), args(1, `{}`), begin(2), args(1, `x`), args(2, `{}`), end}, []Event{begin(0), args(0, `{}`), begin(1), args(1, `{}`), begin(2), args(2, `{}`), args(1, `x`), end}},
		"a space before":   {[]Event{begin(0), begin(1), args(0, ` `), args(0, `{}`), args(1, `{}`), end}, []Event{begin(0), args(0, ` `), args(0, `{}`), begin(1), args(1, `{}`), end}},
	} {
		var turns Turns
		var got []Event
		for _, out := range put(&turns, c.in...) {
			got = append(got, out...)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
	}
}

// TestTurnsPass shows that the beginning, usage and other answers are returned at once,
// while text is queued.
func TestTurnsPass(t *testing.T) {
	var turns Turns
	if got := put(&turns, begin(0), text("x")); len(got[0]) != 1 || len(got[1]) != 0 {
		t.Fatalf("%+v", got)
	}
	other := text("y")
	other.Choice = 1
	for _, e := range []Event{{Kind: Begin}, {Kind: Used}, other} {
		if got := turns.Put(e); len(got) != 1 || !reflect.DeepEqual(got[0], e) {
			t.Errorf("%+v became %+v", e, got)
		}
	}
}

// TestTurnsLoseNothing interleaves calls at random and shows that the arguments of each
// call are complete and directly follow its beginning.
func TestTurnsLoseNothing(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.IntN(5)
		want, left := make([]string, n), make([][]string, n)
		var turns Turns
		var got []Event
		for i := range n {
			want[i] = fmt.Sprintf(`{"k":"v%d\"}{","n":[%d]}`, i, i)
			for rest := want[i]; rest != ""; {
				cut := 1 + r.IntN(len(rest))
				left[i] = append(left[i], rest[:cut])
				rest = rest[cut:]
			}
		}
		begun := make([]bool, n)
		for todo := n; todo > 0; {
			switch i := r.IntN(n); {
			case !begun[i]:
				begun[i] = true
				got = append(got, turns.Put(begin(i))...)
			case len(left[i]) > 0:
				got = append(got, turns.Put(args(i, left[i][0]))...)
				if left[i] = left[i][1:]; len(left[i]) == 0 {
					todo--
				}
			}
		}
		got = append(got, turns.Put(Event{Kind: End})...)
		have, open := make([]string, n), -1
		for _, e := range got {
			switch e.Kind {
			case CallBegin:
				open = e.Index
			case CallArgs:
				if e.Index != open {
					t.Fatalf("seed %d: out of turn: %+v", seed, got)
				}
				have[open] += e.Part.Args
			}
		}
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("seed %d: %q, want %q", seed, have, want)
		}
	}
}
