package logtest

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Counter counts the reads of a ledger, so that a test can limit them. It is safe for
// concurrent use.
type Counter struct {
	eventlog.Log
	Reads   atomic.Int64 // calls of Last, Get and Scan
	Entries atomic.Int64 // entries and errors that Scan yielded, and one for each call of Last and Get
}

// Last implements eventlog.Log.
func (c *Counter) Last(ctx context.Context, filter string) (eventlog.Entry, error) {
	c.Reads.Add(1)
	c.Entries.Add(1)
	return c.Log.Last(ctx, filter)
}

// Get implements eventlog.Log.
func (c *Counter) Get(ctx context.Context, seq uint64) (eventlog.Entry, error) {
	c.Reads.Add(1)
	c.Entries.Add(1)
	return c.Log.Get(ctx, seq)
}

// Scan implements eventlog.Log.
func (c *Counter) Scan(ctx context.Context, filter string, from uint64) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		c.Reads.Add(1)
		for en, err := range c.Log.Scan(ctx, filter, from) {
			c.Entries.Add(1)
			if !yield(en, err) {
				return
			}
		}
	}
}

// Reset sets both counts to zero.
func (c *Counter) Reset() {
	c.Reads.Store(0)
	c.Entries.Store(0)
}
