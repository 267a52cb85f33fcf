package eventlog

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// firstWindow is the size of the first window of Before, in sequences of the ledger.
// Each further window is windowGrowth times as large as the one before. Most callers
// search for an entry that is in the first window.
const (
	firstWindow  = 64
	windowGrowth = 4
)

// Before returns the newest entry that matches filter, has a sequence lower than before,
// and for which match returns true. If before is 0, the search begins with the newest
// entry. Before returns ErrNotFound if there is no such entry; it returns errors of l
// unchanged. A stream cannot be read backwards, so Before scans windows of growing size
// from the newest to the oldest; the number of entries that it reads depends on the
// distance to the entry that it finds, and not on the number of older entries.
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

// First returns the oldest entry that matches filter, has a sequence of at least from,
// and for which match returns true. It reads the entries under the filter in order, from
// sequence from up to the entry that it returns. If there is none up to the end, First
// returns ErrNotFound; it returns errors of l unchanged.
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

// OfCall returns a match function for Before and First that selects the events of a call
// for which match returns true; a nil match selects all of them. Entries that Open
// rejects are not selected. Events of other calls are not decoded if contract.PeekCallID
// finds their call.
func OfCall(call string, match func(*contract.Event) bool) func(Entry) bool {
	return func(en Entry) bool {
		if id := contract.PeekCallID(en.Data); id != "" && id != call {
			return false
		}
		e, err := Open(en, Every)
		return err == nil && e.CallID == call && (match == nil || match(e))
	}
}
