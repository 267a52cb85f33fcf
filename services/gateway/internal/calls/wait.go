package calls

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// Runner proposes calls and waits for their outcomes. Its exported fields are set
// before its first use; it is safe for concurrent use.
type Runner struct {
	Queries  *queries.Services
	Proposer *propose.Proposer
	Past     *await.Past
	Tools    *catalog.Catalog
	Probe    *probe.Probe
	Metrics  Metrics
	Blobs    *blob.Store
	Ledger   eventlog.Log
	Log      *slog.Logger

	// Suspended returns an error (403) if a tenant, or the principal of it, is suspended;
	// see auth.Gate.Suspended.
	Suspended func(tenant, principal string) error

	schemas  toolschema.Checker
	followed followed
}

// down reports whether the ledger does not respond. If r has patience, down waits as long for the
// ledger to respond again, or until ctx ends.
func down(ctx context.Context, s *Runner, r propose.Request) bool {
	ctx, cancel := context.WithTimeout(ctx, r.Patience)
	defer cancel()
	for s.Probe.Down() {
		select {
		case <-ctx.Done():
			return true
		case <-time.After(probe.Every):
		}
	}
	return false
}

// Propose begins to record the proposal of a call. If the probes show that the ledger
// does not respond, Propose records nothing and returns an error at once. The proposal
// may not be durable yet when Propose returns, and may still fail to be recorded (see
// propose.Pending.Failed), but it is durable before an outcome is recorded. The error is
// an *apierr.Error with status 413 or 503. If the error is nil, the caller must close
// the pending call.
func (s *Runner) Propose(ctx context.Context, r propose.Request) (*propose.Pending, error) {
	if down(ctx, s, r) {
		return nil, Silent(r, "nothing was proposed")
	}
	p, err := s.Proposer.Propose(ctx, r)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: contract.CodeInvalidInput, Message: err.Error()}
	}
	if err != nil {
		return nil, apierr.Unavailable("the ledger does not accept proposals now: " + err.Error())
	}
	return p, nil
}

// Wait waits for a call that was just proposed. The ledger is probed during the wait.
func (s *Runner) Wait(ctx context.Context, p *propose.Pending, t await.Terms, sink await.Sink) await.Result {
	defer s.Probe.Watch()()
	w := await.Waiter{Probe: s.Probe, Progress: func(ctx context.Context) bool { return s.started(ctx, p) }}
	return w.Wait(ctx, p, t, sink)
}

// WaitDecision waits for the decision on a call that its caller executes. Unlike Wait,
// it continues to wait if no executor has started the call, because executors do not
// start such calls.
func (s *Runner) WaitDecision(ctx context.Context, p *propose.Pending, t await.Terms) await.Result {
	defer s.Probe.Watch()()
	return await.Waiter{Probe: s.Probe}.Wait(ctx, p, t, await.Whole{})
}

// WaitAgain waits, within the bounds t, for the call c, which the event e proposed
// earlier.
func (s *Runner) WaitAgain(ctx context.Context, e *contract.Event, c *contract.Call, known await.Known, t await.Terms) await.Result {
	defer s.Probe.Watch()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := s.Past.Follow(ctx, e, c, known)
	defer p.Close()
	return await.Waiter{Probe: s.Probe}.Wait(ctx, p, t, await.Whole{})
}

// Margin is added to the timeout of a call to bound the wait for it, because the outcome
// of a call that times out is recorded after its timeout.
const Margin = 5 * time.Second

// asyncWait is the time that an asynchronous request waits for the outcome of its call.
const asyncWait = time.Second

// Await proposes a call, waits for its outcome and reads its output. A returned outcome
// is durable; it is returned with an error if the call did not succeed or its output
// cannot be read. The wait lasts for at most r.Timeout + Margin; with async, for at most
// asyncWait, and it ends as soon as the call is escalated. If the wait ends without an
// outcome, the error is an *apierr.Escalation if the call was escalated, and otherwise
// an *apierr.Error or ctx.Err(). If the call was not escalated, Await cancels it if ctx
// is done before the outcome is received, and as GiveUp does if the ledger does not
// respond. If a call was proposed earlier under the same Idempotency-Key, Await instead waits for
// that call as Repeat does, with async for at most asyncWait; this wait never cancels the call.
func (s *Runner) Await(ctx context.Context, r propose.Request, async bool) (*propose.Outcome, []byte, error) {
	return s.AwaitWith(ctx, r, async, await.Whole{})
}

// AwaitWith is Await for a call whose frames a sink processes. If the outcome was received but the
// sink does not complete, for example because frames were lost, AwaitWith returns the outcome
// anyway.
func (s *Runner) AwaitWith(ctx context.Context, r propose.Request, async bool, sink await.Sink) (*propose.Outcome, []byte, error) {
	if down(ctx, s, r) {
		return nil, nil, Silent(r, "nothing was proposed")
	}
	terms, again := await.Terms{Within: r.Timeout + Margin, Async: async, Patience: r.Patience}, r
	if async {
		terms.Within, again.Timeout = min(terms.Within, asyncWait), min(r.Timeout, asyncWait)
	}
	if before, err := s.Before(ctx, r, nil); err != nil || before != nil {
		return s.repeatOr(ctx, again, async, before, err)
	}
	p, err := s.Propose(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close()
	s.followed.begin(p, p.Event, await.Known{})
	began := time.Now()
	res := s.Wait(ctx, p, terms, sink)
	if async {
		deferred(ctx, s, p, &res)
	}
	switch {
	case res.State == await.Ended, res.State == await.Broken && res.Outcome != nil:
		s.Metrics.Observe(r.Kind, res.Outcome.Recorded.Effect.Status, time.Since(began))
		return s.result(ctx, r, res.Outcome)
	case res.Escalated != nil:
		s.Metrics.Count(r.Kind, contract.EventEscalated)
		return nil, nil, &apierr.Escalation{CallID: r.ID, Doc: res.Escalated}
	case res.State == await.Failed:
		if before, err := s.Before(ctx, r, res.Err); err != nil || before != nil {
			return s.repeatOr(ctx, again, async, before, err)
		}
	}
	s.Metrics.Count(r.Kind, "none")
	if res.State == await.Silent {
		s.GiveUp(ctx, p, r)
		return nil, nil, Silent(r, "GET /api/v1/calls/"+r.ID+" returns the state of the call; with an Idempotency-Key, the request can be repeated safely")
	}
	return nil, nil, s.Unended(ctx, p, r, &res)
}

// Unended returns the error for a wait that ended without an outcome: an
// *apierr.Escalation after await.Escalated, an error with status 503 after await.Failed,
// and otherwise that of Pending. After await.Left and await.Gone, Unended cancels the
// call and returns ctx.Err(), which is nil if ctx is not done. The caller of Unended
// handles await.Silent and await.Broken, because the response to them depends on the
// API.
func (s *Runner) Unended(ctx context.Context, p *propose.Pending, r propose.Request, res *await.Result) error {
	switch res.State {
	case await.Escalated:
		return &apierr.Escalation{CallID: r.ID, Doc: res.Escalated}
	case await.Failed:
		e := apierr.Unavailable("the proposal could not be recorded; nothing happened")
		e.CallID = r.ID
		return e
	case await.Left, await.Gone:
		s.cancel(context.WithoutCancel(ctx), p, r, cancelWithin)
		return ctx.Err()
	}
	return Pending(r)
}

// Pending returns the error (504) for a wait whose time has passed while the call
// continues.
func Pending(r propose.Request) *apierr.Error {
	return &apierr.Error{Status: http.StatusGatewayTimeout, Type: "server_error", Code: contract.CodeOutcomePending, CallID: r.ID, ReceiptID: receipt.ID(r.ID),
		Message: "no outcome yet; it will be on the ledger under the receipt id"}
}

// result returns the outcome and the output of a call that ended. If the call did not
// succeed or its output cannot be read, result returns the outcome and an error.
func (s *Runner) result(ctx context.Context, r propose.Request, out *propose.Outcome) (*propose.Outcome, []byte, error) {
	s.Reveal(ctx, r.Tenant, &out.Recorded)
	if e := apierr.OfOutcome(&out.Recorded); e != nil {
		s.Places().At(e, r)
		return out, nil, e
	}
	output, err := s.output(ctx, r.Tenant, out)
	return out, output, err
}

// Reveal replaces an encrypted error message of an outcome by the message, if it can be
// decrypted.
func (s *Runner) Reveal(ctx context.Context, tenant string, r *contract.Recorded) {
	r.Effect.ErrorMessage = outcome.Message(r, func(c *contract.Content) ([]byte, error) { return s.Blobs.In(tenant).Open(ctx, c) })
}

// mostLater is the maximum number of events of later calls that started reads under one filter.
const mostLater = 64

// started reports whether the ledger has an event that shows that a call which was just proposed
// has started or ended. It delivers an outcome that it finds to the waits for the call, because
// the consumer of this instance's reader may still elect a leader. It reads the claims and outcomes
// of the session after the proposal. If it has read those of mostLater other calls and none of the
// call, it returns true, because executors then receive the work of the session. It returns false
// if the ledger cannot be read within probe.Within, or the proposal is not stored.
func (s *Runner) started(ctx context.Context, p *propose.Pending) bool {
	from := p.Seq()
	if from == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probe.Within)
	defer cancel()
	e := p.Event
	claims, outcomes := bus.Filter{Tenant: e.Tenant, Event: contract.EventEffectStarted, Key: e.Session}.String(), bus.ChainFilter(e.Tenant, e.Session)
	own := eventlog.OfCall(e.CallID, nil)
	en, err := eventlog.FirstOf(ctx, s.Ledger, from, atMost(2*mostLater, own), outcomes, claims)
	if err != nil {
		return false
	}
	if bus.Match(claims, en.Subject) && own(en) {
		if en, err = eventlog.First(ctx, s.Ledger, outcomes, en.Seq, atMost(mostLater, own)); err != nil {
			return true
		}
	}
	if bus.Match(outcomes, en.Subject) && own(en) {
		_ = s.Proposer.Deliver(en) // its error is always nil
	}
	return true
}

// atMost returns a match function that selects what match does, and any entry after it has not
// selected n.
func atMost(n int, match func(eventlog.Entry) bool) func(eventlog.Entry) bool {
	return func(en eventlog.Entry) bool {
		n--
		return n < 0 || match(en)
	}
}

// Silent returns the error (503) for a request while the ledger does not respond. The
// parameter what is appended to the error's message.
func Silent(r propose.Request, what string) *apierr.Error {
	e := apierr.Unavailable("the ledger does not respond now; " + what)
	e.Code, e.CallID, e.RetryAfter = contract.CodeLedgerUnavailable, r.ID, "5"
	return e
}

// Bounds on the time to record a cancellation: cancelWithin while the ledger responds,
// giveUpWithin after it has stopped responding.
const (
	cancelWithin = 5 * time.Second
	giveUpWithin = time.Minute
)

// GiveUp cancels, in the background, a call whose caller received an error because the
// ledger does not respond. A call with an Idempotency-Key is not cancelled, because its
// caller can send the request again.
func (s *Runner) GiveUp(ctx context.Context, p *propose.Pending, r propose.Request) {
	if r.IdemKey == "" {
		go s.cancel(context.WithoutCancel(ctx), p, r, giveUpWithin)
	}
}

// cancel records the cancellation of a call within the given time. A failure is logged.
func (s *Runner) cancel(ctx context.Context, p *propose.Pending, r propose.Request, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := p.Cancel(ctx); err != nil {
		s.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
	}
}

// output returns the output of an outcome in a tenant, or {} if the outcome has none.
// The error is that of notStored if the output was withheld, and that of
// apierr.Unreadable if it cannot be read.
func (s *Runner) output(ctx context.Context, tenant string, out *propose.Outcome) ([]byte, error) {
	if out.Recorded.Output == nil {
		return []byte("{}"), nil
	}
	if out.Recorded.Output.Store == contract.StoreWithheld {
		return nil, notStored(out.Recorded.Receipt.CallID)
	}
	body, err := s.Blobs.In(tenant).Open(ctx, out.Recorded.Output)
	if err != nil {
		return nil, apierr.Unreadable(out.Recorded.Receipt.CallID, err)
	}
	return body, nil
}
