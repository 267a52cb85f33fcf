package await

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// Past follows calls that were proposed earlier, by this gateway or another one. Its
// fields are set before its first use; it is safe for concurrent use.
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

// Known is the state of a call before the ledger is read: Last is the call's newest
// event up to and including the ledger sequence At. The zero value means that neither is
// known.
type Known struct {
	Last *contract.Event
	At   uint64
}

// entry returns k.Last as an entry of the ledger with the sequence k.At, or the zero
// Entry if the event does not change the state of the pending call. If ok is false, k
// cannot be used, and the ledger must be read from the time of the proposal on.
func (k Known) entry(call *propose.Pending) (en eventlog.Entry, ok bool) {
	if k.At == 0 || k.Last == nil {
		return en, false
	}
	if !moves(k.Last) {
		return en, true
	}
	data, err := k.Last.Encode()
	if err != nil || !call.Expects(k.Last) {
		return en, false
	}
	return eventlog.Entry{Seq: k.At, Subject: k.Last.Subject(), Data: data}, true
}

// Follow returns a pending call for the call c, which the event e proposed. The pending
// call receives the call's current state from the ledger and then later changes of the
// state. No change is missed, because the pending call is registered before the state is
// read. If this gateway proposed the call, the gateway's reader delivers the later
// changes, even after a restart; otherwise the ledger is read periodically until ctx is
// done. The first read begins after the sequence known.At, or at the time of the
// proposal if known is zero or is not valid for the call. The caller must close the
// pending call.
func (p *Past) Follow(ctx context.Context, e *contract.Event, c *contract.Call, known Known) *propose.Pending {
	call := p.Proposer.Join(e, c)
	go p.read(ctx, e, call, known)
	return call
}

// read delivers the state of the call from the ledger: once if this instance proposed
// the call, and otherwise periodically until ctx is done. It repeats a failed read until
// ctx is done.
func (p *Past) read(ctx context.Context, e *contract.Event, call *propose.Pending, known Known) {
	from := uint64(0)
	for wait := readFirst; ; wait = min(2*wait, readMost) {
		next, err := p.deliver(ctx, e, call, from, known)
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

// deliver delivers the event that newest returns, unless it is the expiry of the call. It returns
// the sequence at which the next read begins.
func (p *Past) deliver(ctx context.Context, e *contract.Event, call *propose.Pending, from uint64, known Known) (next uint64, err error) {
	en, x, next, err := p.newest(ctx, e, call, from, known)
	if err != nil || x == nil || x.Name == contract.EventStartExpired { // the outcome of an expired call is recorded soon after its expiry
		return next, err
	}
	return next, p.Proposer.Deliver(en)
}

// newest reads the session's events from sequence from on. If from is 0, it begins with
// the event in known, or at the time of the proposal if known cannot be used. Of the
// events that change the state of the call and come from a service that may record them,
// it returns the newest one, or nil if there is none. next is the sequence at which the next
// read begins; it is 0 with an error.
func (p *Past) newest(ctx context.Context, e *contract.Event, call *propose.Pending, from uint64, known Known) (en eventlog.Entry, event *contract.Event, next uint64, err error) {
	if from == 0 {
		if k, ok := known.entry(call); ok {
			if from = known.At + 1; k.Seq > 0 {
				en, event = k, known.Last
			}
		}
	}
	if from == 0 {
		at, err := contract.ParseTime(e.Time)
		if err != nil {
			return en, nil, 0, err
		}
		if from, err = eventlog.Since(ctx, p.Ledger, at); err != nil {
			return en, nil, 0, err
		}
	}
	for found, err := range p.Ledger.Scan(ctx, bus.SessionFilter(e.Tenant, e.Session), from) {
		if err != nil {
			return en, nil, 0, err
		}
		from = found.Seq + 1
		if contract.PeekCallID(found.Data) != e.CallID {
			continue
		}
		if x, err := eventlog.Open(found, bus.SessionFilter(e.Tenant, e.Session)); err == nil && moves(x) && call.Expects(x) {
			en, event = found, x
		}
	}
	return en, event, from, nil
}

// Watch reports the changes of the state of a call that was proposed earlier. Past.Watch makes it.
// One goroutine at a time may use it.
type Watch struct {
	*propose.Pending
	past  *Past
	known Known
	from  uint64 // ledger sequence at which the next read begins; 0: not known yet
}

// Watch returns a Watch for the call c, which the event e proposed. known is as for Follow. If this
// gateway proposed the call, the gateway's reader delivers its escalation and its outcome to the
// channels of the Watch. Other changes, and all those of another gateway's call, are found by
// Next. The caller must close the Watch.
func (p *Past) Watch(e *contract.Event, c *contract.Call, known Known) *Watch {
	return &Watch{Pending: p.Proposer.Join(e, c), past: p, known: known}
}

// Next reads from the ledger what was recorded since the previous Next, or since known. It returns
// the newest event that has changed the state of the call, or nil if there is none. A failed read
// is repeated by the next Next.
func (w *Watch) Next(ctx context.Context) (*contract.Event, error) {
	_, e, next, err := w.past.newest(ctx, w.Event, w.Pending, w.from, w.known)
	if err == nil {
		w.from = next
	}
	return e, err
}

// moves reports whether an event changes the state of a pending call.
func moves(e *contract.Event) bool {
	switch e.Name {
	case contract.EventEscalated, contract.EventAllowed, contract.EventEffectStarted, contract.EventStartExpired, contract.EventEffectRecorded:
		return true
	}
	return false
}
