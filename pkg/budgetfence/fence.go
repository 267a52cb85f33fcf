// Package budgetfence determines whether an allowed call may start, although the instance
// of policy that allowed it may have been stopped for so long that another instance has
// closed its allotment, and has granted the amounts that the call draws to other calls.
//
// Policy allows a call with amounts that it draws from an allotment, which the facts of
// the decision name. A draw is void if allotment_closed precedes the event that allows the
// call in the ledger. A Fence reads both kinds of events with one consumer, in the order of
// the ledger. When it has received the event that allows a call, it has therefore received
// every allotment_closed before it. A read of the newest event would not suffice: a
// replica of the stream that lags may answer it.
package budgetfence

import (
	"bytes"
	"context"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Fence is the set of closed allotments. The zero value is empty. Its methods are safe for
// concurrent use.
type Fence struct {
	mu     sync.Mutex
	at     uint64            // sequence up to which every event was applied
	closed map[string]uint64 // sequence of allotment_closed, by allotment
	moved  chan struct{}     // closed by the next call of pass; nil if no caller waits
}

// Load applies the events that close allotments up to a sequence, which the log must
// contain. If the log cannot be read, it returns the error of the log.
func (f *Fence) Load(ctx context.Context, l eventlog.Log, to uint64) error {
	for en, err := range l.Scan(ctx, bus.AllotmentsClosed, 1) {
		if err != nil {
			return err
		}
		if en.Seq > to {
			break
		}
		f.add(en)
	}
	f.pass(to)
	return nil
}

// Apply applies the next entry. Entries other than those that close allotments only change
// the position.
func (f *Fence) Apply(en eventlog.Entry) {
	if bus.Match(bus.AllotmentsClosed, en.Subject) {
		f.add(en)
	}
	f.pass(en.Seq)
}

// add adds the allotment that an entry closes. An entry that is not a valid event closes
// nothing.
func (f *Fence) add(en eventlog.Entry) {
	e, err := eventlog.Open(en, bus.AllotmentsClosed)
	if err != nil {
		return
	}
	id := allotmentOf(e.Data)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed == nil {
		f.closed = map[string]uint64{}
	}
	if f.closed[id] == 0 {
		f.closed[id] = en.Seq
	}
}

// pass records that every entry up to a sequence was applied.
func (f *Fence) pass(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = max(f.at, seq)
	if f.moved != nil {
		close(f.moved)
		f.moved = nil
	}
}

// Void waits until the entry at sequence seq, which allows a call, was applied, and
// reports whether the allotment that the call draws from, according to the facts of its
// decision, was closed before. It returns false at once if the call draws from none, and
// the error of ctx if ctx ends first.
func (f *Fence) Void(ctx context.Context, facts contract.Raw, seq uint64) (bool, error) {
	id := allotmentOf(facts)
	if id == "" {
		return false, nil
	}
	for {
		f.mu.Lock()
		at, moved, closed := f.at, f.moved, f.closed[id]
		if at < seq && moved == nil {
			moved = make(chan struct{})
			f.moved = moved
		}
		f.mu.Unlock()
		if at >= seq {
			return closed != 0 && closed < seq, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// Draws reports whether the facts of a decision name an allotment, from which the call
// draws amounts.
func Draws(facts contract.Raw) bool { return allotmentOf(facts) != "" }

// allotmentOf returns the value of the member allotment in the data of allotment_closed or
// in the facts of a decision, or "" if there is no such member. Both are canonical JSON, in
// which quotes within strings are escaped, so the search finds no part of a string.
func allotmentOf(facts contract.Raw) string {
	_, rest, ok := bytes.Cut(facts, []byte(`"allotment":"`))
	if !ok {
		return ""
	}
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(id)
}
