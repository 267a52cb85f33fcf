package eventlog

import (
	"context"
	"iter"
	"slices"
)

// FirstOf is First for several filters: it returns an entry that matches one of them and
// for which match returns true. It reads one entry of each filter in turn, and begins
// with the next filter after every firstWindow turns, or when the filters that it has
// begun with have no more entries. The number of entries that it reads therefore depends
// on the distance from sequence from to the nearest entry, and not on how many other
// entries follow under any filter. If entries of several filters match, any of them may
// be returned.
func FirstOf(ctx context.Context, l Log, from uint64, match func(Entry) bool, filters ...string) (Entry, error) {
	type next = func() (Entry, error, bool)
	var scans []next
	for n := 0; len(scans)+len(filters) > 0; n++ {
		if len(filters) > 0 && (len(scans) == 0 || n%firstWindow == 0) {
			scan, stop := iter.Pull2(l.Scan(ctx, filters[0], from))
			defer stop()
			scans, filters = append(scans, scan), filters[1:]
		}
		for i := len(scans) - 1; i >= 0; i-- { // latest scan first, because an earlier one may have to request more entries
			en, err, ok := scans[i]()
			switch {
			case !ok:
				scans = slices.Delete(scans, i, i+1)
			case err != nil:
				return Entry{}, err
			case match(en):
				return en, nil
			}
		}
	}
	return Entry{}, ErrNotFound
}
