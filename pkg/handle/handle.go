// Package handle appends events to an aggregate with optimistic concurrency: it loads
// the aggregate's events, passes them to a function, and appends the event that the
// function returns, with an expected sequence. If another writer has appended in the
// meantime, it loads the events and calls the function again.
package handle

import (
	"context"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// tries is the maximum number of attempts. Another attempt follows a conflict with another
// writer and, in DoCell, an append that was stored after the cell was opened.
const tries = 32

// Do loads the events that match filter, in order and without invalid ones, passes them
// to decide, and appends the event that decide returns, on condition that no matching
// entry has been stored since. After a conflict Do starts again, so decide may be called
// several times and must have no side effects; decide returns nil if there is nothing to
// record. Do returns the appended event, or nil. Its error is that of decide, of
// Event.Encode or of the ledger; it wraps eventlog.ErrConflict after too many conflicts.
func Do(ctx context.Context, l eventlog.Log, filter string, decide func([]*contract.Event) (*contract.Event, error)) (*contract.Event, error) {
	return DoFrom(ctx, l, filter, 1, decide)
}

// DoFrom is Do for a function decide that needs only the events at and after sequence
// from, such as the events of one call in its session. The condition of the append is
// that of Do: no entry that matches filter, at any sequence, has been stored since the
// events were loaded.
func DoFrom(ctx context.Context, l eventlog.Log, filter string, from uint64, decide func([]*contract.Event) (*contract.Event, error)) (*contract.Event, error) {
	for range tries {
		history, last, err := load(ctx, l, filter, from)
		if err != nil {
			return nil, err
		}
		e, err := decide(history)
		if err != nil || e == nil {
			return nil, err
		}
		b, err := e.Encode()
		if err != nil {
			return nil, err
		}
		_, err = l.AppendExpect(ctx, e.Subject(), e.ID, b, filter, last)
		if err == nil {
			return e, nil
		}
		if !errors.Is(err, eventlog.ErrConflict) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: too many writers: %w", filter, eventlog.ErrConflict)
}

// load returns the events at and after sequence from that match filter, and the sequence
// of the last matching entry, which may be before from, or 0 if there is none. Entries
// that are not valid events are left out of history but counted in last.
func load(ctx context.Context, l eventlog.Log, filter string, from uint64) (history []*contract.Event, last uint64, err error) {
	if from > 1 {
		// The server finds the newest match in its index of subjects. If no entry at or
		// after from matches, a scan would make it search the stream to its end.
		en, err := l.Last(ctx, filter)
		if errors.Is(err, eventlog.ErrNotFound) {
			return nil, 0, nil
		}
		if err != nil || en.Seq < from {
			return nil, en.Seq, err
		}
	}
	for en, err := range l.Scan(ctx, filter, from) {
		if err != nil {
			return nil, 0, err
		}
		last = en.Seq
		if e, err := eventlog.Open(en, filter); err == nil {
			history = append(history, e)
		}
	}
	return history, last, nil
}
