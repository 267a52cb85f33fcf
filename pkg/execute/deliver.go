package execute

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// maxDeliver is how often an allowed event may be delivered before its call is
// recorded as dead_lettered.
const maxDeliver = 8

var (
	errPoison  = errors.New("not a work item")
	errRunning = errors.New("a second delivery of what runs already")
)

// process takes one delivery as far as it goes, and says to the server what becomes
// of it: acknowledged, delivered again later, or never again.
func (x *Executor) process(ctx context.Context, m jetstream.Msg) {
	err := x.one(ctx, m)
	switch {
	case err == nil:
		_ = m.Ack()
	case errors.Is(err, errRunning):
		_ = m.NakWithDelay(5 * time.Second) // not acked: if this process dies, it must be delivered again
	case errors.Is(err, errPoison):
		slog.Error("work refused for good", "subject", m.Subject(), "err", err)
		_ = m.Term()
	default:
		slog.Warn("work handed back", "subject", m.Subject(), "err", err)
		_ = m.NakWithDelay(250 * time.Millisecond)
	}
}

// item is one delivery of an allowed event.
type item struct {
	event *contract.Event
	a     contract.Allowed
	call  outcome.Call
	seq   uint64 // of the allowed event; the call's history begins after it
	tries uint64 // deliveries, this one included
	body  bodyReader
}

// dead reports whether the work was delivered too often to be run.
func (w *item) dead() bool { return w.tries > maxDeliver }

// open reads a delivery. errPoison: it will never be a work item.
func (x *Executor) open(m jetstream.Msg) (*item, error) {
	md, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	w := &item{seq: md.Sequence.Stream, tries: md.NumDelivered}
	if w.event, err = eventlog.Open(eventlog.Entry{Seq: w.seq, Subject: m.Subject(), Data: m.Data()}); err != nil {
		return nil, errors.Join(errPoison, err)
	}
	if err := contract.Decode(w.event.Data, &w.a); err != nil || w.event.Service() != "policy" {
		return nil, errors.Join(errPoison, err)
	}
	w.call = outcome.CallOf(w.event, x.Service)
	x.Emit.See(w.event.Lamport)
	return w, nil
}

// one takes one allowed event to its outcome. nil: nothing is left to do.
func (x *Executor) one(ctx context.Context, m jetstream.Msg) error {
	w, err := x.open(m)
	if err != nil {
		return err
	}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if !x.enter(w.event.CallID, running{stop, proposerOf(w.a.Decision.Facts)}) {
		return errRunning
	}
	defer x.leave(w.event.CallID)

	w.body = x.fetch(runCtx, &w.a.Call)
	refused := guard.CheckIntent(&w.a, w.event.Tenant, w.event.Session, x.Service, x.Emit.Now(), x.Keys)
	var h outcome.History
	// A server that died may have lost that it delivered this before, so what has
	// expired is looked up too: it may have been claimed in time.
	if w.tries > 1 || errors.Is(refused, guard.ErrExpired) {
		if h, err = w.call.Look(ctx, x.Emit.Log, w.seq); err != nil {
			return err
		}
		if h.Recorded {
			return nil
		}
		if h.UnderWay(x.Service, x.Instance, x.Emit.Now()) {
			return errRunning
		}
	}
	if refused != nil && !excused(refused, h) {
		return w.refuse(refused)
	}
	started, res, err := x.start(runCtx, w, h)
	if err != nil || started == nil {
		return err
	}
	return x.finish(ctx, started, &w.a, res)
}

// excused reports whether work may go on although its intent is refused: it was
// claimed in time, and the intent is invalid in nothing but that its window is over by
// now. A decision that does not verify is not the one that was claimed, even if it names
// the same call.
func excused(refused error, h outcome.History) bool {
	return h.Claim != nil && errors.Is(refused, guard.ErrExpired)
}

// enter notes that a call runs here; it is false where it does already.
func (x *Executor) enter(call string, r running) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.running[call]; ok {
		return false
	}
	x.running[call] = r
	return true
}

// leave undoes enter.
func (x *Executor) leave(call string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.running, call)
}

// refuse returns what becomes of unclaimed work whose intent does not hold.
func (w *item) refuse(err error) error {
	switch {
	case errors.Is(err, guard.ErrExpired):
		return nil // policy records the expiry
	case w.dead(): // not a key that has yet to arrive: it will never verify
		return errors.Join(errPoison, err)
	}
	return err
}

// start claims the call, unless h has its claim, and runs it. A nil event means that
// another party ends the call.
func (x *Executor) start(ctx context.Context, w *item, h outcome.History) (*contract.Event, Result, error) {
	claim := outcome.ClaimOf(x.Emit, w.event, &w.a, "")
	rerun := h.Claim != nil && x.ReRunable != nil && x.ReRunable(w.a.Call.Kind)
	if h.Claim == nil {
		began := time.Now()
		err := outcome.Claim(ctx, x.Emit.Log, claim, x.Service)
		if err == nil && time.Since(began) > outcome.Redelivery/2 {
			// Another delivery may have found the claim and recorded the outcome as unknown.
			var known outcome.History
			if known, err = w.call.Look(ctx, x.Emit.Log, w.seq); err != nil || known.Recorded {
				return nil, Result{}, err
			}
		}
		if errors.Is(err, eventlog.ErrIDConflict) {
			// It may have been claimed by the delivery before this one.
			if h, err = x.claimed(ctx, w, err); err != nil || h.Claim == nil {
				return nil, Result{}, err
			}
		} else if err != nil {
			return nil, Result{}, err
		} else if w.dead() {
			return claim, Result{Status: contract.DeadLettered, ErrorCode: "dead_lettered", ErrorMessage: "handed back too often"}, nil
		} else {
			return claim, x.run(ctx, claim, &w.a, w.body), nil
		}
	}
	if h.Service() != x.Service {
		return nil, Result{}, nil // policy expired it and records that
	}
	x.Emit.See(h.Claim.Lamport) // the claim on the ledger may be another instance's
	if rerun {
		return claim, x.run(ctx, claim, &w.a, w.body), nil
	}
	return claim, Result{Status: contract.Unknown, ErrorCode: "executor_lost",
		ErrorMessage: "the executor that started this call (" + h.ClaimedBy() + ") did not record how it ended"}, nil
}

// claimed returns the history of a call whose claim failed with an ErrIDConflict.
// No claim in it means that nothing is left to do here; errRunning, that the work
// must be delivered again.
func (x *Executor) claimed(ctx context.Context, w *item, conflict error) (outcome.History, error) {
	from := w.seq
	var taken *eventlog.TakenError
	if errors.As(conflict, &taken) {
		from = taken.Seq
	}
	h, err := w.call.Look(ctx, x.Emit.Log, from)
	switch {
	case err != nil:
		return h, err
	case h.Recorded:
		return outcome.History{}, nil
	case h.UnderWay(x.Service, x.Instance, x.Emit.Now()):
		return h, errRunning
	}
	return h, nil
}

// proposerOf is the member proposer of a decision's facts. They are canonical,
// and no string in canonical JSON holds an unescaped quote.
func proposerOf(facts contract.Raw) string {
	_, rest, _ := bytes.Cut(facts, []byte(`"proposer":"`))
	service, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(service)
}
