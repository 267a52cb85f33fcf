package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// disorder bounds how far the times of two entries may be out of the order of their
// sequences: producers' clocks differ, and an append may be repeated for a while.
// An intent starts within two minutes or not at all, so clocks that differ by more
// than this stop the mesh in other ways.
const disorder = 5 * time.Minute

// Since returns a sequence from which on every event of time t and later is stored;
// some earlier ones may follow it too. It is for reads that know when something
// happened but not where: it costs a logarithm of the ledger's length in reads,
// whatever the history of the session that is read then. Entries that are no events
// are passed over.
func Since(ctx context.Context, l Log, t time.Time) (uint64, error) {
	newest, err := l.Last(ctx, bus.Filter{}.String())
	if errors.Is(err, ErrNotFound) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	t = t.Add(-disorder)
	// Every event below lo is older than t; high is not known to be.
	lo, high := uint64(1), newest.Seq+1
	for lo < high {
		mid := lo + (high-lo)/2
		at, seq, err := timeAt(ctx, l, mid, high)
		switch {
		case err != nil:
			return 0, err
		case seq < high && at.Before(t):
			lo = seq + 1
		default:
			high = mid
		}
	}
	return lo, nil
}

// timeAt is the time of the first event at sequence from or after, and its own
// sequence; to where there is none before to.
func timeAt(ctx context.Context, l Log, from, to uint64) (time.Time, uint64, error) {
	for ; from < to; from++ {
		en, err := l.Get(ctx, from)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return time.Time{}, 0, err
		}
		if e, err := Open(en); err == nil {
			if at, err := contract.ParseTime(e.Time); err == nil {
				return at, from, nil
			}
		}
	}
	return time.Time{}, to, nil
}
