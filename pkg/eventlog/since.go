package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Disorder is the maximum time by which Since expects an event to be older than one with
// a lower sequence. Such events exist because the clocks of producers differ, and because
// a repeated append may be stored late. With clocks that differ by more, calls fail in
// any case: an intent may start for at most guard.MaxStartWindow, two minutes.
const Disorder = 5 * time.Minute

// Since returns a sequence from which a reader finds every event of time t or later, and
// possibly some earlier ones, provided that no event is older by more than Disorder than one
// with a lower sequence. On an empty ledger it returns 1. It is for reads for which the time of
// an event is known, but not its sequence. It reads a number of events that is logarithmic in
// the length of the ledger, and skips entries that are not events. It returns the errors of l
// except ErrNotFound.
func Since(ctx context.Context, l Log, t time.Time) (uint64, error) {
	newest, err := l.Last(ctx, Every)
	if errors.Is(err, ErrNotFound) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	t = t.Add(-Disorder)
	// Every event with a sequence below lo is older than the time that the caller
	// passed, t + Disorder. An event from high on may be newer.
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

// timeAt returns the time and sequence of the first event whose sequence is at least
// from and less than to. If there is none, it returns the zero time and to.
func timeAt(ctx context.Context, l Log, from, to uint64) (time.Time, uint64, error) {
	for ; from < to; from++ {
		en, err := l.Get(ctx, from)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return time.Time{}, 0, err
		}
		if e, err := Open(en, Every); err == nil {
			if at, err := contract.ParseTime(e.Time); err == nil {
				return at, from, nil
			}
		}
	}
	return time.Time{}, to, nil
}
