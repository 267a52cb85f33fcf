package timetable

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// dumpOf returns the canonical form of a board.
func dumpOf(t *testing.T, b *Board) string {
	t.Helper()
	var out bytes.Buffer
	if err := b.Dump(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestDump shows that the events of schedules change the canonical form of a board; that the
// form has a line for each schedule, sorted by tenant, and is the same again; and that Dump
// returns the error of its writer.
func TestDump(t *testing.T) {
	var b boardTest
	for i, f := range []func(){
		func() { b.start("u", "alice", "c-9") },
		func() { b.start("t", "alice", "c-2") },
		func() { b.start("t", "bob", "c-1") },
		func() { b.fire("t", "c-2", "c-run", "", 2, begin.Add(30*time.Second)) },
		func() { b.fire("t", "c-2", "", Overlap, 0, begin.Add(40*time.Second)) },
		func() { b.end("t", "alice", "c-2", contract.Cancelled, contract.CodeCancelled) },
	} {
		before := dumpOf(t, &b.Board)
		if f(); dumpOf(t, &b.Board) == before {
			t.Errorf("event %d does not change the dump", i+1)
		}
	}
	got := dumpOf(t, &b.Board)
	lines := strings.Split(got, "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], `"schedule":"c-2"`) || !strings.Contains(lines[1], `"schedule":"c-1"`) || !strings.Contains(lines[2], `"tenant":"u"`) {
		t.Errorf("dumped as\n%s", got)
	}
	if again := dumpOf(t, &b.Board); again != got {
		t.Errorf("dumped as\n%s\nand then as\n%s", got, again)
	}
	if err := b.Dump(full{}); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

var errFull = errors.New("full")

// full is a writer that always fails.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
