// Package decide serves the decision-only API: callers that execute calls themselves
// receive the signed decision with its intent, and report the outcome. The gateway
// executes nothing here; it records that an intent was handed out to its caller, and the
// outcome that the caller reports (handout.Lender).
package decide

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/handout"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/reported"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API hands out the intents of allowed calls, and records the reports of their outcomes.
// Its fields are set before its first use.
type API struct {
	Gate    *auth.Gate
	Calls   *calls.API
	Queries *queries.Services
	Probe   *probe.Probe
	Lender  Lender // nil if the instance has no signing key
	Tools   *catalog.Catalog
	Metrics calls.Metrics
	Reports *reported.Store
	Emit    *emit.Emitter
	Log     *slog.Logger

	schemas toolschema.Checker
}

// Lender claims calls for their callers and records their reports; handout.Lender
// implements it.
type Lender interface {
	// HandOut claims the call that e allows. If the error is nil, the claim is on the
	// ledger. The error is handout.ErrClaimed if the call was claimed before,
	// guard.ErrExpired if the intent has expired, and handout.ErrFrozen while the mesh
	// is frozen. After ErrFrozen, or an error that is not named here, the claim may or
	// may not be on the ledger.
	HandOut(ctx context.Context, e *contract.Event, a *contract.Allowed) error
	// Withholds returns the reason why no intent can be handed out now, such as
	// handout.ErrFrozen, or nil.
	Withholds() error
	// Close records the outcome that a caller reports, and returns the reported effect.
	// late reports that the deadline has passed: Close then records the outcome unknown,
	// unless the call has an outcome, and the caller of Close must record the report as
	// a separate event. The error is outcome.ErrSuperseded if the call already has an
	// outcome and late is false.
	Close(ctx context.Context, started *contract.Event, a *contract.Allowed, r *handout.Report) (eff contract.Effect, late bool, err error)
}

// Facts is the document from which policy decided. Its members depend on the kind of the
// call and on the policy bundle. The decision's signature covers the digest of the
// facts.
type Facts map[string]json.RawMessage

// DecideRequest is the body of POST /api/v1/decide: a call to propose, or the id of a
// call that was proposed earlier.
type DecideRequest struct {
	Kind         string          `json:"kind,omitempty"`
	Tool         string          `json:"tool,omitempty"`
	Args         json.RawMessage `json:"args,omitempty"`
	ReportWithin int64           `json:"report_within_ms,omitempty"` // milliseconds from the decision within which the outcome must be reported
	CallID       string          `json:"call_id,omitempty"`
}

// DecideResponse contains the permission to execute one call once.
type DecideResponse struct {
	CallID     string          `json:"call_id"`
	Session    string          `json:"session_id"`
	Verdict    string          `json:"verdict"`
	ReasonCode string          `json:"reason_code"`
	IntentID   string          `json:"intent_id"`
	ArgsDigest string          `json:"args_digest"` // digest of the args; the report of the outcome must contain it
	ReportBy   string          `json:"report_by"`
	Report     string          `json:"report"`            // path under which the outcome is reported
	Repeated   bool            `json:"handed_out_before"` // the intent was handed out before, so the effect may have begun
	Decision   json.RawMessage `json:"decision"`          // the decision as signed by policy; contains the intent
	ReceiptID  string          `json:"receipt_id"`        // id that the receipt of the outcome will have
}

// check sets the defaults of the request, and returns an error (400) if the request is
// invalid.
func (q *DecideRequest) check(c echo.Context) error {
	if q.CallID != "" {
		if q.Kind != "" || q.Tool != "" || len(q.Args) > 0 || q.ReportWithin != 0 {
			return apierr.BadRequest("/call_id", "send it alone: the call has the other members already")
		}
		return nil
	}
	call := calls.CallRequest{Kind: q.Kind, Tool: q.Tool, Args: q.Args}
	if err := call.Check(c); err != nil {
		return err
	}
	q.Tool, q.Args = call.Tool, call.Args
	if q.ReportWithin < 1 || q.ReportWithin > guard.MaxReportWithin.Milliseconds() {
		return apierr.BadRequest("/report_within_ms", "set the time until the outcome is reported, in milliseconds from 1 to 86400000")
	}
	return nil
}

// Decide handles POST /api/v1/decide. It responds with the signed decision and its
// intent after the claim of the call is on the ledger. If the wait ends while the call
// waits for approval, the response is 202; after the approval, the caller requests the
// intent by the call's id or its Idempotency-Key. While the mesh is frozen, or if the
// instance has no signing key, no intent is handed out (503).
func (s *API) Decide(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Decide)
	if err != nil {
		return err
	}
	var req DecideRequest
	if _, err := body.Into(c, &req); err != nil {
		return err
	}
	if err := req.check(c); err != nil {
		return err
	}
	if s.Lender == nil {
		e := apierr.Unavailable("the gateway has no signing key; `binnacle trust rotate gateway` makes one, which the gateway uses from its next start")
		e.Code = contract.CodeSigningKeyMissing
		return e
	}
	async := strings.Contains(c.Request().Header.Get("Prefer"), "respond-async")
	if req.CallID != "" {
		return s.takeUp(c, who, &req, async)
	}
	r, err := s.Calls.Own(c, req.Kind, req.Tool, req.Args, who, time.Duration(req.ReportWithin)*time.Millisecond)
	if err != nil {
		return err
	}
	e, again, err := s.permission(c.Request().Context(), r, async)
	return s.handOut(c, r, e, again, body.InBody(c, err))
}

// handOut responds with the decision in e or, if err is not nil, with 202 for an
// escalation and otherwise with err. again reports that the intent was handed out
// before.
func (s *API) handOut(c echo.Context, r propose.Request, e *contract.Event, again bool, err error) error {
	var esc *apierr.Escalation
	switch {
	case errors.As(err, &esc):
		calls.Headers(c, r, contract.Escalate)
		return s.Calls.Accepted(c, r, esc)
	case err != nil:
		calls.Headers(c, r, "")
		return err
	}
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	calls.Headers(c, r, contract.Allow)
	d := &a.Decision
	return c.JSON(http.StatusOK, DecideResponse{CallID: d.CallID, Session: d.Session, Verdict: d.Verdict, ReasonCode: d.ReasonCode, IntentID: d.Intent.ID,
		ArgsDigest: d.ArgsDigest, ReportBy: d.Intent.Deadline, Report: "/api/v1/intents/" + d.Intent.ID + "/outcome", Repeated: again,
		Decision: contract.Bytes(d), ReceiptID: receipt.ID(d.CallID)})
}

// permission proposes a call, waits for its decision and claims the call for its caller.
// It returns the event that allows the call. again reports that the intent was handed
// out before. If the call was proposed earlier under the same Idempotency-Key, the
// results are those of resume. If the wait ends without an ALLOW, the error is that of
// refused.
func (s *API) permission(ctx context.Context, r propose.Request, async bool) (e *contract.Event, again bool, err error) {
	if s.Probe.Down() {
		return nil, false, calls.Silent(r, "nothing was proposed")
	}
	if before, err := s.Calls.Before(ctx, r, nil); err != nil || before != nil {
		return s.resumeOr(ctx, r, before, err, async)
	}
	p, err := s.Calls.Propose(ctx, r)
	if err != nil {
		return nil, false, err
	}
	defer p.Close()
	res := s.Calls.WaitDecision(ctx, p, await.Terms{Within: r.Timeout + calls.Margin, Async: async})
	if res.State == await.Failed {
		if before, err := s.Calls.Before(ctx, r, res.Err); err != nil || before != nil {
			return s.resumeOr(ctx, r, before, err, async)
		}
	}
	if res.State == await.Allowed {
		return s.claim(ctx, r, p.Event, &res, async)
	}
	return nil, false, s.refused(ctx, p, r, &res)
}

// refused returns the error for a wait that ended without an ALLOW. If the wait ended
// because ctx is done, refused also cancels the call (see calls.Runner.Unended).
func (s *API) refused(ctx context.Context, p *propose.Pending, r propose.Request, res *await.Result) error {
	switch res.State {
	case await.Ended:
		return s.endedError(r, &res.Outcome.Recorded)
	case await.Silent:
		return calls.Silent(r, "send the request again with its Idempotency-Key, or POST its call_id")
	}
	return s.Calls.Unended(ctx, p, r, res)
}

// claim hands the call that e proposed out to the caller that executes it: it records
// the claim, and returns the event that allows the call. The bool is false, unless the
// call was claimed before: then the results are those of resume, which returns true if
// the intent was handed out before. If the error is nil, the claim is on the ledger. If
// the mesh is frozen, the intent has expired or the claim cannot be recorded, the error
// has status 503.
func (s *API) claim(ctx context.Context, r propose.Request, e *contract.Event, res *await.Result, async bool) (*contract.Event, bool, error) {
	var a contract.Allowed
	if err := contract.Decode(res.Event.Data, &a); err != nil {
		return nil, false, err
	}
	switch err := s.Lender.HandOut(ctx, res.Event, &a); {
	case err == nil:
		return res.Event, false, nil
	case errors.Is(err, handout.ErrClaimed):
		return s.resume(ctx, r, &calls.Prior{Proposal: e, Call: a.Call}, async)
	case errors.Is(err, handout.ErrFrozen):
		return nil, false, frozen(r)
	case errors.Is(err, guard.ErrExpired):
		x := apierr.Unavailable("the intent expired before it was handed out; propose the call again")
		x.Code, x.CallID = contract.CodeIntentExpired, r.ID
		return nil, false, x
	default:
		s.Log.Warn("intent not handed out", "call", r.ID, "err", err)
		return nil, false, apierr.Unavailable("the intent could not be handed out now: " + err.Error())
	}
}

// resumeOr returns err if it is not nil, or else the results of resume.
func (s *API) resumeOr(ctx context.Context, r propose.Request, before *calls.Prior, err error, async bool) (*contract.Event, bool, error) {
	if err != nil {
		return nil, false, err
	}
	return s.resume(ctx, r, before, async)
}

// resume waits, for at most r.Timeout, until the intent of a call that was proposed earlier may be
// handed out; the results are then those of claim. If the intent was handed out before, the results
// are those of again. If the call has an outcome, the error is that of endedError. If the wait ends
// while the call waits for approval, the error is an *apierr.Escalation; if the ledger does not
// respond, it is that of calls.Silent; if there is no decision in time, that of calls.Pending; and
// if ctx is done, that of ctx.
func (s *API) resume(ctx context.Context, r propose.Request, before *calls.Prior, async bool) (*contract.Event, bool, error) {
	res := s.Calls.WaitAgain(ctx, before.Proposal, &before.Call, before.Known(), await.Terms{Within: r.Timeout, Async: async})
	switch res.State {
	case await.Allowed:
		return s.claim(ctx, r, before.Proposal, &res, async)
	case await.Started:
		return s.again(ctx, r)
	case await.Ended:
		return nil, false, s.endedError(r, &res.Outcome.Recorded)
	case await.Escalated:
		return nil, false, &apierr.Escalation{CallID: r.ID, Doc: res.Escalated}
	case await.Silent:
		return nil, false, calls.Silent(r, "send the request again")
	case await.Left:
		return nil, false, ctx.Err()
	}
	return nil, false, calls.Pending(r)
}

// again returns the event that allowed a call whose intent was handed out before, and
// true. The effect may have begun, or the first response may have been lost. While the
// lender withholds intents, for example because the mesh is frozen, again returns an
// error (503) instead.
func (s *API) again(ctx context.Context, r propose.Request) (*contract.Event, bool, error) {
	if err := s.Lender.Withholds(); errors.Is(err, handout.ErrFrozen) {
		return nil, false, frozen(r)
	} else if err != nil {
		return nil, false, apierr.Unavailable("the intent could not be handed out now: " + err.Error())
	}
	e, err := s.Queries.In(r.Tenant).Event(ctx, audit.DecisionQuery, r.ID)
	if err == nil && e == nil {
		err = apierr.Unavailable("the decision cannot be read now")
	}
	return e, true, err
}

// frozen returns the error (503) for a request for an intent while the mesh is frozen.
func frozen(r propose.Request) *apierr.Error {
	x := apierr.Unavailable("the mesh is frozen: no intent is handed out until it is unfrozen")
	x.Code, x.CallID = contract.CodeSystemFrozen, r.ID
	return x
}

// endedError returns the error for a request for the intent of a call that has an
// outcome: the error of the outcome, or intent_used (409) if the outcome is a success or
// a report of the caller.
func (s *API) endedError(r propose.Request, rec *contract.Recorded) error {
	if e := apierr.OfOutcome(rec); e != nil && rec.Effect.AttestedBy == "" {
		s.Calls.Places().At(e, r)
		return e
	}
	return &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: contract.CodeIntentUsed, CallID: r.ID, ReceiptID: receipt.ID(r.ID),
		Message: "the outcome of this call was reported; its intent permits nothing more"}
}

// takeUp hands out the intent of the call req.CallID, which the caller proposed earlier
// in order to execute it. The error is 404 if the call does not exist or is not such a
// call, and 403 if the caller or its tenant is suspended.
func (s *API) takeUp(c echo.Context, who *auth.Caller, req *DecideRequest, async bool) error {
	if err := s.Gate.Suspended(who.Tenant, who.Actor); err != nil { // the decision may be older than the suspension
		return err
	}
	ctx := c.Request().Context()
	first, err := s.Queries.In(who.Tenant).Event(ctx, audit.ProposalQuery, req.CallID)
	if err != nil {
		return err
	}
	var call contract.Call
	if first == nil || !who.Made(first) || contract.Decode(first.Data, &call) != nil || call.ReportWithin == 0 {
		return apierr.NotFound("no call " + req.CallID + " of yours that you execute yourself")
	}
	timeout, err := s.Calls.TimeoutOf(c.Request().Header, call.Kind)
	if err != nil {
		return err
	}
	r := propose.Request{ID: call.ID, Tenant: who.Tenant, Kind: call.Kind, Tool: call.Tool, Session: first.Session, Timeout: timeout}
	before := &calls.Prior{Proposal: first, Call: call}
	if before.Last, before.At, err = s.Queries.In(who.Tenant).LastAt(ctx, req.CallID); err != nil {
		return err
	}
	e, again, err := s.resume(ctx, r, before, async)
	return s.handOut(c, r, e, again, err)
}
