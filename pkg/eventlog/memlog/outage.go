package memlog

import (
	"context"
	"iter"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Outage is a ledger whose methods Get, Last and Scan fail with eventlog.ErrUnavailable
// until the time Until. The other methods are those of the embedded Log; the outage does
// not affect them.
type Outage struct {
	eventlog.Log
	Until time.Time
}

// Get implements eventlog.Log.
func (o Outage) Get(ctx context.Context, seq uint64) (eventlog.Entry, error) {
	if time.Now().Before(o.Until) {
		return eventlog.Entry{}, eventlog.ErrUnavailable
	}
	return o.Log.Get(ctx, seq)
}

// Last implements eventlog.Log.
func (o Outage) Last(ctx context.Context, filter string) (eventlog.Entry, error) {
	if time.Now().Before(o.Until) {
		return eventlog.Entry{}, eventlog.ErrUnavailable
	}
	return o.Log.Last(ctx, filter)
}

// Scan implements eventlog.Log.
func (o Outage) Scan(ctx context.Context, filter string, from uint64) iter.Seq2[eventlog.Entry, error] {
	if time.Now().Before(o.Until) {
		return func(yield func(eventlog.Entry, error) bool) { yield(eventlog.Entry{}, eventlog.ErrUnavailable) }
	}
	return o.Log.Scan(ctx, filter, from)
}
