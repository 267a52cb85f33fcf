package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// TestFirstOf checks that FirstOf finds an entry under either filter, from a
// sequence on, and that the distance to the entry limits the number of entries
// that it reads. Without filters it returns ErrNotFound, and if the ledger
// cannot be read ErrUnavailable.
func TestFirstOf(t *testing.T) {
	mem := &memlog.Log{}
	for i := range 20_000 { // entry i has sequence i+1; a quarter of the entries match each filter
		if _, err := mem.Append(t.Context(), fmt.Sprintf("evt.t.a.-.x.k%d", i%4), fmt.Sprint(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name        string
		from        uint64
		want, found uint64 // found 0: ErrNotFound
		most        int64  // maximum number of entries read
	}{
		{"at once, under the first filter", 9, 9, 9, 1},
		{"near, under the first filter", 9, 49, 49, 11},
		{"far, under the first filter", 1, 1001, 1001, 440},
		{"at once, under the second filter", 9, 10, 10, 66},
		{"far, under the second filter", 1, 1002, 1002, 570},
		{"before", 100, 97, 0, 10_000},
		{"under no filter", 1, 3, 0, 10_000},
	} {
		log := &logtest.Counter{Log: mem}
		en, err := eventlog.FirstOf(t.Context(), log, c.from, func(en eventlog.Entry) bool { return en.Seq == c.want }, "evt.t.a.-.x.k0", "evt.t.a.-.x.k1")
		if en.Seq != c.found || c.found > 0 && err != nil || c.found == 0 && !errors.Is(err, eventlog.ErrNotFound) {
			t.Errorf("%s: found %d, want %d: %v", c.name, en.Seq, c.found, err)
		}
		if got := log.Entries.Load(); got > c.most {
			t.Errorf("%s: %d entries read, want at most %d", c.name, got, c.most)
		}
	}
	if _, err := eventlog.FirstOf(t.Context(), mem, 1, func(eventlog.Entry) bool { return true }); !errors.Is(err, eventlog.ErrNotFound) {
		t.Error("without filters:", err)
	}
	failing := unreadable{mem}
	if _, err := eventlog.FirstOf(t.Context(), failing, 1, func(eventlog.Entry) bool { return true }, "a", "b"); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Error("a ledger that cannot be read:", err)
	}
}

// unreadable is a ledger whose scans fail.
type unreadable struct{ eventlog.Log }

func (unreadable) Scan(context.Context, string, uint64) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) { yield(eventlog.Entry{}, eventlog.ErrUnavailable) }
}
