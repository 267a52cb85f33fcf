package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/budgetfence"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// maxDeliver is the number of the last delivery of an allowed event at which its call
// may be claimed and run. At a later delivery, an unclaimed call with a valid intent is
// recorded as dead_lettered.
const maxDeliver = 8

// Errors of Executor.one that Process handles specially: it terminates work that failed
// with errPoison and delays work that failed with errRunning.
var (
	errPoison  = errors.New("not a work item")
	errRunning = errors.New("the call runs already")
)

// errAgain is the error of Executor.one for a call whose handler returned Result.Again.
var errAgain = errors.New("the handler returned the call")

// errNoTenant is the error of Executor.one for work of a tenant that is not known while
// this instance has not read the ledger up to the work: the event that creates the tenant
// may be among those that it has not read. The work is delivered again.
var errNoTenant = errors.New("tenant not found in the part of the ledger that was read")

// errLag is the error of Executor.one for work that draws from a budget while this
// instance has not read the ledger up to the work. The work is delivered again.
var errLag = errors.New("the ledger has not been read up to the work yet")

// tenantWait is how long Executor.one waits until this instance has read the ledger up to
// the work, before the work is returned for redelivery.
const tenantWait = 2 * time.Second

// Process handles one delivery and responds to the server: Ack if the work is done, Nak
// to have it delivered again, or Term if it can never be done. Run calls it; tests of a
// service without a server call it in place of Run. It is safe for concurrent use.
func (x *Executor) Process(ctx context.Context, d *consumer.Delivery) {
	err := x.one(ctx, d)
	switch {
	case err == nil:
		d.Ack()
	case errors.Is(err, errRunning):
		d.Nak(5 * time.Second) // another delivery runs the call; if its process dies, the work must be delivered again
	case errors.Is(err, errPoison):
		slog.Error("work refused for good", "subject", d.Subject, "err", err)
		d.Term()
	default:
		slog.Warn("work returned for redelivery", "subject", d.Subject, "err", err)
		delay := 250 * time.Millisecond
		if errors.Is(err, errNoTenant) || errors.Is(err, errLag) {
			delay = lagDelay(d.Tries)
		}
		d.Nak(delay)
	}
}

// lagDelay returns the time until the next delivery of work that failed with errNoTenant or
// errLag: it grows, so that maxDeliver deliveries, each of which may wait for tenantWait, take
// about a minute. Most intents expire before the work counts as delivered too often.
func lagDelay(tries uint64) time.Duration {
	return min(250*time.Millisecond<<min(tries, 6), 15*time.Second)
}

// item is the work in one delivery of an allowed event.
type item struct {
	event *contract.Event
	a     contract.Allowed
	call  outcome.Call
	seq   uint64 // ledger sequence of the allowed event; the call's history is stored after it
	tries uint64 // number of deliveries, including this one
	void  bool   // the amounts that the call draws from a budget are void, so the call must not run
	body  bodyReader
}

// dead reports whether the work was delivered more than maxDeliver times.
func (w *item) dead() bool { return w.tries > maxDeliver }

// open decodes a delivery. Its error wraps errPoison: the message is not a valid allowed
// event and so can never be processed.
func (x *Executor) open(d *consumer.Delivery) (*item, error) {
	w := &item{seq: d.Seq, tries: d.Tries}
	var err error
	if w.event, err = d.Open(); err == nil {
		err = contract.Decode(w.event.Data, &w.a)
	}
	if err != nil {
		return nil, errors.Join(errPoison, err)
	}
	w.call = outcome.CallOf(w.event, x.Service)
	x.Emit.See(w.event.Lamport)
	return w, nil
}

// one processes one allowed event. It returns nil if the outcome is recorded, or if
// there is nothing left to do because the call had an outcome already or policy ends it.
// Otherwise it returns errRunning or errPoison for Process, or an error after which the
// work is to be delivered again.
func (x *Executor) one(ctx context.Context, d *consumer.Delivery) error {
	w, err := x.open(d)
	if err != nil {
		return err
	}
	ctx = contentkeys.ForCall(ctx, w.seq)
	// Cancelling runCtx stops the handler; ctx remains valid for recording the outcome.
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	key := callKey{w.event.Tenant, w.event.CallID}
	if !x.enter(key, running{stop, proposerOf(w.a.Decision.Facts)}) {
		return errRunning
	}
	defer x.leave(key)

	w.body = x.fetch(runCtx, w.event.Tenant, &w.a.Call)
	refused := guard.CheckIntent(&w.a, w.event.Tenant, w.event.Session, x.Service, x.Emit.Now(), x.Keys)
	if refused == nil {
		if err := x.known(ctx, w.event.Tenant); err != nil {
			return err
		}
	}
	var h outcome.History
	// An earlier delivery may have claimed the call. The history of the call is
	// therefore read if this delivery is not the first. It is also read if the intent
	// has expired, because the server may have lost the number of deliveries in a crash.
	if w.tries > 1 || errors.Is(refused, guard.ErrExpired) {
		if h, err = w.call.Look(ctx, x.Emit.Log, w.seq); err != nil {
			return err
		}
		if h.Over(x.Service) {
			return nil
		}
		if h.UnderWay(x.Service, x.Instance, x.Emit.Now()) {
			return errRunning
		}
	}
	if refused != nil && !excused(refused, h) {
		return w.refuse(refused)
	}
	if h.Claim == nil || x.ReRunable != nil && x.ReRunable(w.a.Call.Kind) {
		if err := w.ready(ctx, x, stop); err != nil {
			return err
		}
	}
	started, res, err := x.start(ctx, runCtx, w, h)
	if err != nil || started == nil {
		return err
	}
	if res.Again {
		return errAgain
	}
	return x.finish(ctx, started, &w.a, res)
}

// tenant returns the result of x.Tenants, or its default.
func (x *Executor) tenant(id string) (exists, suspended bool) {
	if x.Tenants == nil {
		return true, false
	}
	return x.Tenants(id)
}

// known returns nil if a tenant exists. Otherwise it waits until this instance has read
// every event that was stored when known was called, so also those before the work: if
// the tenant does not exist then, the error wraps errPoison. If that fails or takes
// longer than tenantWait, the error is errNoTenant, and the work is to be delivered
// again.
func (x *Executor) known(ctx context.Context, tenant string) error {
	if exists, _ := x.tenant(tenant); exists {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, tenantWait)
	defer stop()
	if _, err := x.Cell(ctx); err != nil {
		return errNoTenant
	}
	if exists, _ := x.tenant(tenant); exists {
		return nil
	}
	return fmt.Errorf("%w: tenant %s does not exist", errPoison, tenant)
}

// ready checks whether a call that may start must not run: it calls stop if
// the call was cancelled, and then fence. The error is that of reading the
// ledger or of fence.
func (w *item) ready(ctx context.Context, x *Executor, stop context.CancelCauseFunc) error {
	if err := x.cancels.obey(ctx, x.Emit.Log, w, stop); err != nil {
		return err
	}
	return w.fence(ctx, &x.fence)
}

// fence sets w.void if the amounts that the call draws from a budget are void. If the
// call draws from one, fence waits until this instance has read the ledger up to the
// work. If that takes longer than tenantWait, the error is errLag, and the work is to be
// delivered again.
func (w *item) fence(ctx context.Context, f *budgetfence.Fence) (err error) {
	ctx, stop := context.WithTimeout(ctx, tenantWait)
	defer stop()
	if w.void, err = f.Void(ctx, w.a.Decision.Facts, w.seq); err != nil {
		return errLag
	}
	return nil
}

// excused reports whether processing continues although the intent was rejected: the
// call was claimed in time, and the only fault of the intent is that it has expired
// since. A decision with an invalid signature is never excused, even if it names a
// claimed call, because it is not the decision that was claimed.
func excused(refused error, h outcome.History) bool {
	return h.Claim != nil && errors.Is(refused, guard.ErrExpired)
}

// enter registers a call as running in this process. It returns false if the call is
// running already.
func (x *Executor) enter(call callKey, r running) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.running[call]; ok {
		return false
	}
	if x.running == nil {
		x.running = map[callKey]running{}
	}
	x.running[call] = r
	return true
}

// leave removes a call that enter registered.
func (x *Executor) leave(call callKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.running, call)
}

// refuse returns the error with which Executor.one ends work whose intent was rejected
// with err: nil if the intent has expired, an error that wraps errPoison after more than
// maxDeliver deliveries, and otherwise err, after which the work is delivered again.
func (w *item) refuse(err error) error {
	switch {
	case errors.Is(err, guard.ErrExpired):
		return nil // policy records the expiry
	case w.dead(): // a new key would have arrived by now, so the intent will never be accepted
		return errors.Join(errPoison, err)
	}
	return err
}

// start claims the call and runs it, and returns the claim and the result. Work that was
// delivered too often is claimed but not run. If an earlier delivery claimed the call,
// the returned claim has the id of the stored one but is not stored itself, and the
// result is unknown, except that a call that ReRunable permits is run again. A nil event
// without an error means that there is nothing to record: the call has an outcome, or
// policy ends it. The handler's context is runCtx: a cancellation while the call is claimed
// must not leave a claim without an outcome.
func (x *Executor) start(ctx, runCtx context.Context, w *item, h outcome.History) (*contract.Event, Result, error) {
	claim := outcome.ClaimOf(x.Emit, w.event, &w.a, "")
	if h.Claim == nil {
		began := time.Now()
		err := outcome.Claim(ctx, x.Emit.Log, claim, x.Service)
		if err == nil && time.Since(began) > outcome.Redelivery/2 {
			// The claim took so long that another delivery may have found it and
			// recorded the outcome unknown. The call must then not run.
			var known outcome.History
			if known, err = w.call.Look(ctx, x.Emit.Log, w.seq); err != nil || known.Recorded {
				return nil, Result{}, err
			}
		}
		if errors.Is(err, eventlog.ErrIDConflict) {
			// An earlier delivery of this work may have claimed the call.
			if h, err = x.claimed(ctx, w, err); err != nil || h.Claim == nil {
				return nil, Result{}, err
			}
		} else if err != nil {
			return nil, Result{}, err
		} else if w.dead() {
			return claim, Result{Status: contract.DeadLettered, ErrorCode: contract.CodeDeadLettered, ErrorMessage: "delivered too often"}, nil
		} else {
			return claim, x.run(runCtx, claim, w), nil
		}
	}
	x.Emit.See(h.Claim.Lamport) // another instance may have recorded the claim, and the outcome's lamport must be greater
	if x.ReRunable != nil && x.ReRunable(w.a.Call.Kind) {
		return claim, x.run(runCtx, claim, w), nil
	}
	return claim, Result{Status: contract.Unknown, ErrorCode: contract.CodeExecutorLost,
		ErrorMessage: "the executor that started this call (" + h.ClaimedBy() + ") did not record how it ended"}, nil
}

// claimed returns the history of a call whose claim failed with conflict, an
// ErrIDConflict. If the history has no claim, there is nothing left to do. It returns
// errRunning if another delivery runs the call, and otherwise the error of the ledger.
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
	case h.Over(x.Service):
		return outcome.History{}, nil
	case h.UnderWay(x.Service, x.Instance, x.Emit.Now()):
		return h, errRunning
	}
	return h, nil
}

// proposerOf returns the member proposer of a decision's facts, or "" if they have none.
func proposerOf(facts contract.Raw) string { return factOf(facts, "proposer") }
