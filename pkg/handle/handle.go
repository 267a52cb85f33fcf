// Package handle runs a decision on an aggregate: load, decide, append with
// expectation, and again from the start when another writer was faster.
package handle

import (
	"context"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

const tries = 32

// Do loads the events matching filter in order, hands them to decide, and
// appends the event decide returns, expecting that nothing matching filter
// was stored since. decide may be called several times and must not have
// effects; nil means there is nothing to record. Do returns the stored event,
// or nil.
func Do(ctx context.Context, l eventlog.Log, filter string, decide func([]*contract.Event) (*contract.Event, error)) (*contract.Event, error) {
	for range tries {
		var history []*contract.Event
		var last uint64
		for en, err := range l.Scan(ctx, filter, 1) {
			if err != nil {
				return nil, err
			}
			last = en.Seq
			if e, err := eventlog.Open(en); err == nil {
				history = append(history, e)
			}
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
