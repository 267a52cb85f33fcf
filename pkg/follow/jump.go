package follow

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// distant is the minimum number of entries between a follower's position and the end of
// the ledger for which jump reads entries one by one.
const distant = 20_000

// few is the maximum number of entries that jump reads.
const few = 512

// jumpTimeout limits each request of jump. The server may search every block of the
// stream between two entries.
const jumpTimeout = 30 * time.Second

// jump applies the entries that the filters select between the Follower's position and the end
// of the ledger, and moves the position to that end. It does nothing if the end is less than
// distant after the position, if the filters select more than few entries or every entry, if
// the reader has a Cover, or if it does not read the ledger. After the last match, a consumer
// with filters makes the server search every block of a stream with many subjects, and keep
// the subjects of each block in memory for two minutes. jump instead reads the newest match of
// each filter first, which the server finds in its index of subjects, and does not search
// beyond it. The error is that of a request, errVanished, or an *applyError.
func (f *Follower) jump(ctx context.Context) error {
	if f.covered || f.Stream != f.Conn.Ledger.Open().Stream || slices.Contains(f.filters, bus.EveryEvent) {
		return nil
	}
	// Entries that are stored after this request are left to the consumer.
	end, err := f.Conn.LastSeq(ctx, f.Stream)
	if err != nil || end < f.Position()+distant {
		return err
	}
	found, ok, err := f.sparse(ctx, end)
	if err != nil || !ok {
		return err
	}
	for _, seq := range found {
		en, err := (eventlog.JetStream{Conn: f.Conn}).Get(ctx, seq)
		if err != nil {
			return err
		}
		if err := f.Apply(en); err != nil {
			return &applyError{err}
		}
		f.position.Store(seq)
	}
	f.position.Store(end)
	return nil
}

// sparse returns the sorted sequences of the entries that the filters select after the
// Follower's position and up to end. ok is false if there are more than few.
func (f *Follower) sparse(ctx context.Context, end uint64) (found []uint64, ok bool, err error) {
	for _, filter := range f.filters {
		last, err := f.sequence(ctx, func(ctx context.Context) (uint64, error) { return f.Conn.Last(ctx, f.Stream, filter) })
		if err != nil {
			return nil, false, err
		}
		for seq, last := f.Position(), min(last, end); seq < last; {
			if len(found) == few {
				return nil, false, nil
			}
			if seq, err = f.sequence(ctx, func(ctx context.Context) (uint64, error) { return f.Conn.First(ctx, f.Stream, filter, seq+1) }); err != nil {
				return nil, false, err
			}
			if seq == 0 {
				return nil, false, errVanished
			}
			if seq <= end {
				found = append(found, seq)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), true, nil
}

// errVanished is the error if the server does not find an entry again that it has found
// before.
var errVanished = errors.New("an entry of the ledger is not found again")

// sequence calls read with a context that ends after jumpTimeout.
func (f *Follower) sequence(ctx context.Context, read func(context.Context) (uint64, error)) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, jumpTimeout)
	defer cancel()
	return read(ctx)
}
