// Package handle runs a decision on an aggregate: it loads the aggregate's events,
// decides, and appends with an expected sequence; it starts again when another writer
// was faster.
package handle

import (
	"context"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// tries bounds how often a writer decides again after another was faster.
const tries = 32

// Do loads the events matching filter in order, passes them to decide, and appends the
// event that decide returns, expecting that no matching event was stored since. decide
// may be called several times and must have no effects; it returns nil if there is
// nothing to record. Do returns the stored event, or nil.
func Do(ctx context.Context, l eventlog.Log, filter string, decide func([]*contract.Event) (*contract.Event, error)) (*contract.Event, error) {
	return DoFrom(ctx, l, filter, 1, decide)
}

// DoFrom is Do for a decision that rests on the events from a sequence on alone, such
// as those of one call among the events of its session. The append still expects that
// no event matching filter was stored since.
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

// load returns the events matching filter from a sequence on, without entries that are
// no events, and the sequence of the last entry that matches, which may be before it.
func load(ctx context.Context, l eventlog.Log, filter string, from uint64) (history []*contract.Event, last uint64, err error) {
	for en, err := range l.Scan(ctx, filter, from) {
		if err != nil {
			return nil, 0, err
		}
		last = en.Seq
		if e, err := eventlog.Open(en); err == nil {
			history = append(history, e)
		}
	}
	if last > 0 || from <= 1 {
		return history, last, nil
	}
	en, err := l.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, 0, nil
	}
	if err == nil && en.Seq >= from { // stored since the scan
		return load(ctx, l, filter, from)
	}
	return nil, en.Seq, err
}
