package eventlog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// TestBefore checks that Before finds the newest match at several positions of a ledger
// with 20,000 entries, and that the distance to the match limits the number of entries
// that it reads. It returns ErrNotFound if there is no match.
func TestBefore(t *testing.T) {
	const n = 20_000
	mem := &memlog.Log{}
	for i := range n { // entry i has sequence i+1; every second entry matches the filter
		if _, err := mem.Append(t.Context(), fmt.Sprintf("evt.t.a.-.x.k%d", i%2), fmt.Sprint(i), fmt.Append(nil, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	const filter = "evt.t.a.-.x.k0" // matches the entries with odd sequences
	for _, c := range []struct {
		name   string
		before uint64
		want   []uint64 // sequences for which match returns true
		found  uint64   // expected sequence; 0: ErrNotFound
		most   int64    // maximum number of entries read
	}{
		{"the newest of all", 0, []uint64{1, n - 1}, n - 1, 1},
		{"just before", 1000, []uint64{999}, 999, 130},
		{"before itself", 999, []uint64{997, 999}, 997, 130},
		{"the newest of several", 1000, []uint64{901, 951, 1001}, 951, 130},
		{"beyond three windows", 1001, []uint64{745}, 745, 170},
		{"beyond the first window", 10_001, []uint64{9001}, 9001, 700},
		{"the first of all", 301, []uint64{1}, 1, 160},
		{"from the end", 0, []uint64{n - 201}, n - 201, 170},
		{"not under the filter", 1000, []uint64{998}, 0, 510},
		{"later", 1000, []uint64{1001}, 0, 510},
		{"before the first", 1, []uint64{1}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := &logtest.Counter{Log: mem}
			en, err := eventlog.Before(t.Context(), log, filter, c.before, func(en eventlog.Entry) bool {
				for _, seq := range c.want {
					if en.Seq == seq {
						return true
					}
				}
				return false
			})
			if c.found == 0 {
				if !errors.Is(err, eventlog.ErrNotFound) {
					t.Errorf("found %d: %v", en.Seq, err)
				}
			} else if err != nil || en.Seq != c.found {
				t.Errorf("found %d, want %d: %v", en.Seq, c.found, err)
			}
			if got := log.Entries.Load(); got > c.most {
				t.Errorf("%d entries read, want at most %d", got, c.most)
			}
		})
	}
	if _, err := eventlog.Before(t.Context(), mem, "evt.u.>", 0, func(eventlog.Entry) bool { return true }); !errors.Is(err, eventlog.ErrNotFound) {
		t.Error(err)
	}
}
