package eventlog

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// firstWindow and windowGrowth size the windows of Before, in sequences of the
// ledger. What a caller looks for is nearly always within the first one.
const (
	firstWindow  = 64
	windowGrowth = 4
)

// Before returns the newest entry under filter for which match returns true, among
// those with a sequence lower than before; 0 means that the newest entry under the
// filter is the first to be tried. ErrNotFound: there is none.
//
// A stream cannot be read backwards, so Before scans disjoint windows that end where
// the one before began and grow by a constant factor. It reads in proportion to what
// was stored under the filter since the entry that it finds, however much there is
// before. Only where nothing matches is everything under the filter read.
func Before(ctx context.Context, l Log, filter string, before uint64, match func(Entry) bool) (Entry, error) {
	if before == 0 {
		last, err := l.Last(ctx, filter)
		if err != nil || match(last) {
			return last, err
		}
		before = last.Seq
	}
	for size := uint64(firstWindow); before > 1; size *= windowGrowth {
		from := before - min(size, before-1)
		var found Entry
		for en, err := range l.Scan(ctx, filter, from) {
			if err != nil {
				return Entry{}, err
			}
			if en.Seq >= before {
				break
			}
			if match(en) {
				found = en
			}
		}
		if found.Seq > 0 {
			return found, nil
		}
		before = from
	}
	return Entry{}, ErrNotFound
}

// First returns the oldest entry under filter, with a sequence of at least from, for
// which match returns true, or ErrNotFound. It reads what is stored under the filter
// from there up to the entry that it finds.
func First(ctx context.Context, l Log, filter string, from uint64, match func(Entry) bool) (Entry, error) {
	for en, err := range l.Scan(ctx, filter, from) {
		if err != nil {
			return Entry{}, err
		}
		if match(en) {
			return en, nil
		}
	}
	return Entry{}, ErrNotFound
}

// OfCall returns a match for Before and First that selects the events of a call,
// without decoding the others; see Open.
func OfCall(call string, match func(*contract.Event) bool) func(Entry) bool {
	return func(en Entry) bool {
		if id := contract.PeekCallID(en.Data); id != "" && id != call {
			return false
		}
		e, err := Open(en)
		return err == nil && e.CallID == call && (match == nil || match(e))
	}
}
