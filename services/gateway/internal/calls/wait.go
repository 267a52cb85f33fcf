package calls

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
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
	Queries  *queries.Client
	Proposer *propose.Proposer
	Past     *await.Past
	Tools    Tools
	Probe    *probe.Probe
	Metrics  Metrics
	Blobs    *blob.Store
	Ledger   eventlog.Log
	Log      *slog.Logger

	schemas toolschema.Checker
}

// Propose records the proposal of a call. While the ledger does not respond it records
// nothing and returns an error at once. On return the call can be waited for; its
// proposal is durable no later than its outcome. The caller closes the pending call.
func (s *Runner) Propose(ctx context.Context, r propose.Request) (*propose.Pending, error) {
	if s.Probe.Down() {
		return nil, Silent(r, "nothing was proposed")
	}
	p, err := s.Proposer.Propose(ctx, r)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "invalid_input", Message: err.Error()}
	}
	if err != nil {
		return nil, apierr.Unavailable("the ledger does not take proposals now: " + err.Error())
	}
	return p, nil
}

// Wait waits for a call that was proposed just now. The ledger is probed meanwhile.
func (s *Runner) Wait(ctx context.Context, p *propose.Pending, t await.Terms, sink await.Sink) await.Result {
	defer s.Probe.Watch()()
	from, _ := s.Proposer.Position()
	w := await.Waiter{Probe: s.Probe, Progress: func(ctx context.Context) bool { return s.started(ctx, p.Event, from) }}
	return w.Wait(ctx, p, t, sink)
}

// WaitDecision waits for the decision on a call that its caller executes: no executor
// is expected to start it.
func (s *Runner) WaitDecision(ctx context.Context, p *propose.Pending, t await.Terms) await.Result {
	defer s.Probe.Watch()()
	return await.Waiter{Probe: s.Probe}.Wait(ctx, p, t, await.Whole{})
}

// WaitAgain waits for the call c, which e proposed before; within bounds the wait.
func (s *Runner) WaitAgain(ctx context.Context, e *contract.Event, c *contract.Call, t await.Terms) await.Result {
	defer s.Probe.Watch()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := s.Past.Follow(ctx, e, c)
	defer p.Close()
	return await.Waiter{Probe: s.Probe}.Wait(ctx, p, t, await.Whole{})
}

// Margin is how much longer than its call a wait lasts: the outcome of a call that
// times out is recorded then.
const Margin = 5 * time.Second

// Await proposes a call, waits for its outcome and reads its output. The outcome is
// durable on return. The error is an *apierr.Error wherever the ledger has an outcome
// that is no success, and an *apierr.Escalation where the call waits for people and
// the caller's time is over, or, if async, at once. A call that was made before under
// its Idempotency-Key is not made again: its outcome is returned.
func (s *Runner) Await(ctx context.Context, r propose.Request, async bool) (*propose.Outcome, []byte, error) {
	if s.Probe.Down() {
		return nil, nil, Silent(r, "nothing was proposed")
	}
	if before, err := s.Before(ctx, r, nil); err != nil || before != nil {
		return s.repeatOr(ctx, r, before, err)
	}
	p, err := s.Propose(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close()
	began := time.Now()
	res := s.Wait(ctx, p, await.Terms{Within: r.Timeout + Margin, Async: async}, await.Whole{})
	switch {
	case res.State == await.Ended:
		s.Metrics.Observe(r.Kind, res.Outcome.Recorded.Effect.Status, time.Since(began))
		return s.result(ctx, r, res.Outcome)
	case res.Escalated != nil:
		s.Metrics.Count(r.Kind, contract.EventEscalated)
		return nil, nil, &apierr.Escalation{CallID: r.ID, Doc: res.Escalated}
	case res.State == await.Failed:
		if before, err := s.Before(ctx, r, res.Err); err != nil || before != nil {
			return s.repeatOr(ctx, r, before, err)
		}
	}
	s.Metrics.Count(r.Kind, "none")
	if res.State == await.Silent {
		s.GiveUp(ctx, p, r)
		return nil, nil, Silent(r, "GET /api/v1/calls/"+r.ID+" will tell what became of the call; an Idempotency-Key makes it safe to send again")
	}
	return nil, nil, s.Unended(ctx, p, r, &res)
}

// Unended is the response to a wait that ended without the outcome of r, but for a
// silent ledger, whose response depends on the API. A call whose caller left is
// cancelled.
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

// Pending is the response to a caller whose time is over while its call goes on.
func Pending(r propose.Request) *apierr.Error {
	return &apierr.Error{Status: http.StatusGatewayTimeout, Type: "server_error", Code: "outcome_pending", CallID: r.ID, ReceiptID: receipt.ID(r.ID),
		Message: "no outcome yet; it will be on the ledger under the receipt id"}
}

// result is the response to a call that ended: its output, or the error that its
// outcome is.
func (s *Runner) result(ctx context.Context, r propose.Request, out *propose.Outcome) (*propose.Outcome, []byte, error) {
	if e := apierr.OfOutcome(&out.Recorded); e != nil {
		s.PointAt(e, r)
		return out, nil, e
	}
	output, err := s.output(ctx, out)
	return out, output, err
}

// PointAt names the argument that was wrong: the one that broke the tool's schema,
// as the schema is now (the record holds the reason alone), or the one that the
// executor's error names.
func (s *Runner) PointAt(e *apierr.Error, r propose.Request) {
	if e.Code == "invalid_input" {
		e.PointBy(e.Message, r.Kind, r.Args)
		return
	}
	if e.ReasonCode != contract.ReasonSchemaViolation && e.ReasonCode != contract.ReasonArgsUnknownField {
		return
	}
	t, _ := s.Tools.Lookup(r.Kind)
	if t == nil || s.Tools.Drifted(t, contract.Digest(t)) {
		return
	}
	if at, keyword := s.schemas.Where(t, r.Args); keyword != "" {
		e.Pointer = "/args" + at
		e.Message += " " + e.Pointer + " breaks " + keyword + "."
	}
}

// started reports whether the ledger holds, after from, more of a call than that
// it was proposed and allowed.
func (s *Runner) started(ctx context.Context, e *contract.Event, from uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, probe.Within)
	defer cancel()
	for _, name := range []string{contract.EventEffectStarted, contract.EventEffectRecorded} {
		for en, err := range s.Ledger.Scan(ctx, bus.Filter{Tenant: e.Tenant, Event: name, Key: e.Session}.String(), from) {
			if err != nil {
				return false
			}
			if contract.PeekCallID(en.Data) == e.CallID {
				return true
			}
		}
	}
	return false
}

// Silent is the error for callers while the ledger has no leader.
func Silent(r propose.Request, what string) *apierr.Error {
	e := apierr.Unavailable("the ledger does not answer now; " + what)
	e.Code, e.CallID, e.RetryAfter = "ledger_unavailable", r.ID, "5"
	return e
}

// How long a cancellation may take to be recorded: while the ledger responds, and
// after it stopped to.
const (
	cancelWithin = 5 * time.Second
	giveUpWithin = time.Minute
)

// GiveUp cancels, as soon as the ledger responds, a call whose caller was sent away,
// unless the caller has an Idempotency-Key to return to it by. It does not wait.
func (s *Runner) GiveUp(ctx context.Context, p *propose.Pending, r propose.Request) {
	if r.IdemKey == "" {
		go s.cancel(context.WithoutCancel(ctx), p, r, giveUpWithin)
	}
}

func (s *Runner) cancel(ctx context.Context, p *propose.Pending, r propose.Request, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := p.Cancel(ctx); err != nil {
		s.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
	}
}

func (s *Runner) output(ctx context.Context, out *propose.Outcome) ([]byte, error) {
	if out.Recorded.Output == nil || out.Recorded.Output.Store == contract.StoreWithheld {
		return []byte("{}"), nil
	}
	body, err := s.Blobs.Open(ctx, out.Recorded.Output)
	if err != nil {
		return nil, apierr.Unavailable("the output cannot be read now: " + err.Error())
	}
	return body, nil
}
