package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

// TestInOrder shows, with 1, 2 and 8 processors, that lines are used in order with their own
// results, that the last line is marked, and that only a bounded number of lines is read ahead
// of the line in use.
func TestInOrder(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	const lines = 40 * batchLines
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "%d %s\n", i, strings.Repeat("x", i%7))
	}
	for _, procs := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(procs)
		var checked atomic.Int64
		check := func(n uint64, b []byte) string {
			checked.Add(1)
			return fmt.Sprintf("%d: %s", n, b)
		}
		next := 0
		err := inOrder(opener([]byte(text.String())), true, check, func(l *line[string]) error {
			if want := fmt.Sprintf("%d: %d %s", next, next, strings.Repeat("x", next%7)); l.n != uint64(next) || l.result != want || l.last != (next == lines-1) {
				t.Fatalf("line %d: %d %q %v", next, l.n, l.result, l.last)
			}
			if ahead := checked.Load() - int64(next); ahead > int64(2*procs+2)*batchLines {
				t.Fatalf("%d processors: %d lines are read ahead", procs, ahead)
			}
			next++
			return nil
		})
		if err != nil || next != lines {
			t.Errorf("%d processors: %d lines, %v", procs, next, err)
		}
	}
}

// TestInOrderErrors shows that the lines before an error of the reader are
// used, that the error names the line, and that the first error of use, or of
// open, ends the reading.
func TestInOrderErrors(t *testing.T) {
	broken := errors.New("broken")
	good := strings.Repeat("a\n", 3*batchLines)
	from := func(r io.Reader) Opener { return func() (io.ReadCloser, error) { return io.NopCloser(r), nil } }
	check := func(n uint64, _ []byte) uint64 { return n }
	used := 0
	count := func(*line[uint64]) error { used++; return nil }
	err := inOrder(from(io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken))), false, check, count)
	if want := fmt.Sprintf("line %d: broken", used+1); used != 3*batchLines || !errors.Is(err, broken) || err.Error() != want {
		t.Errorf("%d lines, then %v, want %s", used, err, want)
	}
	used = 0
	if err := inOrder(from(&endless{line: []byte("a\n")}), false, check, func(l *line[uint64]) error {
		if used++; l.n == 1000 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) || used != 1001 {
		t.Errorf("%d lines, %v", used, err)
	}
	if err := inOrder(func() (io.ReadCloser, error) { return nil, broken }, false, check, count); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestFirstOfMany changes signatures of receipts in a ledger of one session, and shows that the
// error is about the first receipt that was changed, with 1, 2 and 5 processors.
func TestFirstOfMany(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	w := newWorld(t)
	for e := range w.ledgerOfSystem() {
		w.store(e)
	}
	const calls = 2 * batchLines
	for i := range calls {
		w.call("s-a", fmt.Sprint("c-", i), true, false)
	}
	first := len(w.ledger) - 4*calls + 3 // index of the first call's outcome
	for _, bad := range []int{0, 7, 40, calls - 2} {
		ledger := slices.Clone(w.ledger)
		for i := calls - 1; i >= bad; i-- {
			at := first + 4*i
			ledger[at] = bytes.Replace(ledger[at], []byte(`"sig":"`), []byte(`"sig":"x`), 1)
		}
		forged := *w
		forged.ledger = ledger
		src := forged.source("s-a") // a checkpoint over the changed lines
		export := append(joinLines(ledger), LedgerTrailer(string(src.Checkpoint))...)
		want := fmt.Sprintf("line %d: session s-a: event r-c-%d (effect_recorded): receipt r-c-%d: signature does not verify", first+4*bad+1, bad, bad)
		for _, procs := range []int{1, 2, 5} {
			runtime.GOMAXPROCS(procs)
			if _, err := VerifyLedger(export, w.root.KID); err == nil || err.Error() != want {
				t.Errorf("%d processors: %v\nwant %s", procs, err, want)
			}
		}
	}
}
