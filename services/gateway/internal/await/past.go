package await

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// Past follows calls that this gateway or another one proposed earlier, for example for
// a repeated Idempotency-Key, for a caller that requests the intent of its call by the
// call's id, and for a stored response. Its fields are set before its first use; it is
// safe for concurrent use.
type Past struct {
	Ledger   eventlog.Log
	Instance string // instance name of this gateway
	Proposer *propose.Proposer
}

// First and longest interval between reads of the ledger for a call that another gateway
// proposed: this gateway's reader does not receive the events of that call. A failed
// read is repeated after the same intervals.
const (
	readFirst = 20 * time.Millisecond
	readMost  = 250 * time.Millisecond
)

// Follow returns a pending call for the call c, which the event e proposed. The pending
// call receives the call's current state from the ledger and then later changes of the
// state. Follow registers the pending call before it reads the state, so that no change
// is missed in between. If this gateway proposed the call, the gateway's reader delivers
// the later changes, even after a restart; otherwise the ledger is read periodically
// until ctx is done. No other service is queried. The caller must close the pending
// call.
func (p *Past) Follow(ctx context.Context, e *contract.Event, c *contract.Call) *propose.Pending {
	call := p.Proposer.Join(e, c)
	go p.read(ctx, e, call)
	return call
}

// read delivers the state of the call from the ledger: once if this instance proposed
// the call, and otherwise periodically until ctx is done. It repeats a failed read until
// ctx is done.
func (p *Past) read(ctx context.Context, e *contract.Event, call *propose.Pending) {
	from := uint64(0)
	for wait := readFirst; ; wait = min(2*wait, readMost) {
		next, err := p.deliver(ctx, e, call, from)
		if err == nil && e.Origin == p.Instance {
			return
		}
		if err == nil {
			from = next
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// deliver reads the session's events from sequence from on, or from the time of the
// proposal if from is 0. Of the events that change the state of the call and that their
// producers may record, it delivers the newest one, unless that one is the expiry of the
// call. It returns the sequence at which the next read begins.
func (p *Past) deliver(ctx context.Context, e *contract.Event, call *propose.Pending, from uint64) (next uint64, err error) {
	if from == 0 {
		at, err := contract.ParseTime(e.Time)
		if err != nil {
			return 0, err
		}
		if from, err = eventlog.Since(ctx, p.Ledger, at); err != nil {
			return 0, err
		}
	}
	var newest eventlog.Entry
	expired := false
	for en, err := range p.Ledger.Scan(ctx, bus.SessionFilter(e.Tenant, e.Session), from) {
		if err != nil {
			return 0, err
		}
		from = en.Seq + 1
		if contract.PeekCallID(en.Data) != e.CallID {
			continue
		}
		if x, err := eventlog.Open(en, bus.SessionFilter(e.Tenant, e.Session)); err == nil && moves(x) && call.Expects(x) {
			newest, expired = en, x.Name == contract.EventStartExpired
		}
	}
	if newest.Seq > 0 && !expired { // the outcome of an expired call is recorded soon after
		return from, p.Proposer.Deliver(newest)
	}
	return from, nil
}

// moves reports whether an event changes the state of a pending call.
func moves(e *contract.Event) bool {
	switch e.Name {
	case contract.EventEscalated, contract.EventAllowed, contract.EventEffectStarted, contract.EventStartExpired, contract.EventEffectRecorded:
		return true
	}
	return false
}
