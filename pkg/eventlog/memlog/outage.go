package memlog

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Outage is a ledger that cannot be read before the time Until: until then, Get and Last
// return eventlog.ErrUnavailable. The other methods are those of the embedded Log; the
// outage does not affect them.
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
