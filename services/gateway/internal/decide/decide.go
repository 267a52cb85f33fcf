// Package decide is the decision-only API: callers that execute calls themselves
// get the signed decision and its intent, and report the outcome. The gateway
// executes nothing here; it records who holds the intent (execute.Lender).
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

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API hands permitted calls out to callers and takes their reports. Its fields are
// set before its first use.
type API struct {
	Gate     *auth.Gate
	Calls    *calls.API
	Queries  *queries.Client
	Proposer *propose.Proposer
	Probe    *probe.Probe
	Lender   *execute.Lender // nil without a signing key
	Tools    calls.Tools
	Metrics  calls.Metrics
	Blobs    *blob.Store
	Emit     *emit.Emitter
	Log      *slog.Logger

	schemas toolschema.Checker
}

// DecideRequest is the body of POST /api/v1/decide: a call, or the id of one that
// has been approved since it was proposed.
type DecideRequest struct {
	Kind         string          `json:"kind,omitempty"`
	Tool         string          `json:"tool,omitempty"`
	Args         json.RawMessage `json:"args,omitempty"`
	ReportWithin int64           `json:"report_within_ms,omitempty"` // when the outcome is due, counted from the decision
	CallID       string          `json:"call_id,omitempty"`
}

// DecideResponse is the permission to execute one call, once.
type DecideResponse struct {
	CallID     string          `json:"call_id"`
	Session    string          `json:"session_id"`
	Verdict    string          `json:"verdict"`
	ReasonCode string          `json:"reason_code"`
	IntentID   string          `json:"intent_id"`
	ArgsDigest string          `json:"args_digest"` // to be named in the report
	ReportBy   string          `json:"report_by"`
	Report     string          `json:"report"`            // where
	Repeated   bool            `json:"handed_out_before"` // the effect may have begun
	Decision   json.RawMessage `json:"decision"`          // signed by policy; it holds the intent
	ReceiptID  string          `json:"receipt_id"`        // of the outcome to come
}

// check fills in what the request leaves out, and bounds what it names.
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
		return apierr.BadRequest("/report_within_ms", "say when the outcome will be reported, in milliseconds from 1 to 86400000")
	}
	return nil
}

// Decide is POST /api/v1/decide.
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
		e := apierr.Unavailable("the gateway has no signing key; `binnacle trust rotate gateway` makes one, and the gateway takes it up when it starts")
		e.Code = "signing_key_missing"
		return e
	}
	async := strings.Contains(c.Request().Header.Get("Prefer"), "respond-async")
	if req.CallID != "" {
		return s.takeUp(c, who, &req, async)
	}
	r, err := s.Calls.Request(c, req.Kind, req.Tool, req.Args, who)
	if err != nil {
		return err
	}
	r.ReportWithin = time.Duration(req.ReportWithin) * time.Millisecond
	e, again, err := s.permission(c.Request().Context(), r, async)
	return s.handOut(c, r, e, again, body.InBody(c, err))
}

// handOut answers with the permission in e, or with why there is none.
func (s *API) handOut(c echo.Context, r propose.Request, e *contract.Event, again bool, err error) error {
	var esc *apierr.Escalation
	switch {
	case errors.As(err, &esc):
		calls.Headers(c, r, contract.Escalate)
		return calls.Accepted(c, r, esc)
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

// permission proposes a call, waits for its decision and claims it for the caller.
// again reports that the intent was handed out before.
func (s *API) permission(ctx context.Context, r propose.Request, async bool) (e *contract.Event, again bool, err error) {
	if s.Probe.Down() {
		return nil, false, calls.Silent(r, "nothing was proposed")
	}
	defer s.Probe.Watch()()
	if r.IdemKey != "" {
		if last, err := s.Queries.Last(ctx, r.ID); err != nil {
			return nil, false, err
		} else if last != nil {
			return s.sameAgain(ctx, r, async)
		}
	}
	p, err := s.Proposer.Propose(ctx, r)
	if err != nil {
		return nil, false, calls.ProposeError(err)
	}
	defer p.Close()
	wait, cancel := context.WithTimeout(ctx, r.Timeout+5*time.Second)
	defer cancel()
	e, err = s.decided(wait, p, r, async)
	switch {
	case r.IdemKey != "" && errors.Is(err, eventlog.ErrIDConflict): // the same key, at the same moment
		return s.sameAgain(ctx, r, async)
	case err != nil && ctx.Err() != nil: // the client left; what is not handed out expires
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := p.Cancel(bye); err != nil {
			s.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
		}
		return nil, false, ctx.Err()
	case err != nil:
		return nil, false, err
	}
	return s.claim(ctx, r, e, async)
}

// decided waits for the decision on a proposal.
func (s *API) decided(ctx context.Context, p *propose.Pending, r propose.Request, async bool) (*contract.Event, error) {
	var esc *apierr.Escalation
	lost := s.Probe.Lost()
	for {
		select {
		case e := <-p.Allowed():
			return e, nil
		case out := <-p.Outcome():
			return nil, s.endedError(r, &out.Recorded)
		case x := <-p.Escalated():
			if esc = (&apierr.Escalation{CallID: r.ID, Doc: &x}); async {
				return nil, esc
			}
		case err := <-p.Failed():
			return nil, errors.Join(calls.WaitError(r, err), err)
		case <-lost:
			return nil, calls.Silent(r, "send the request again with its Idempotency-Key, or POST its call_id")
		case <-ctx.Done():
			if esc != nil {
				return nil, esc
			}
			return nil, calls.WaitError(r, propose.ErrUnknownOutcome)
		}
	}
}

// claim hands the intent in e out, once.
func (s *API) claim(ctx context.Context, r propose.Request, e *contract.Event, async bool) (*contract.Event, bool, error) {
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return nil, false, err
	}
	switch err := s.Lender.HandOut(ctx, e, &a); {
	case err == nil:
		return e, false, nil
	case errors.Is(err, execute.ErrClaimed):
		return s.resume(ctx, r, async)
	case errors.Is(err, execute.ErrFrozen):
		return nil, false, frozen(r)
	case errors.Is(err, guard.ErrExpired):
		x := apierr.Unavailable("the intent expired before it was handed out; propose the call again")
		x.Code, x.CallID = "intent_expired", r.ID
		return nil, false, x
	default:
		s.Log.Warn("intent not handed out", "call", r.ID, "err", err)
		return nil, false, apierr.Unavailable("the intent could not be handed out now: " + err.Error())
	}
}

// sameAgain answers a request whose Idempotency-Key names a call that was made
// before: if it is the same call, with the same intent.
func (s *API) sameAgain(ctx context.Context, r propose.Request, async bool) (*contract.Event, bool, error) {
	first, err := s.Queries.Event(ctx, "proposal", r.ID)
	if err != nil {
		return nil, false, err
	}
	var c contract.Call
	if first == nil || contract.Decode(first.Data, &c) != nil {
		return nil, false, apierr.Unavailable("the first call under this Idempotency-Key cannot be read now")
	}
	if same, err := s.Calls.Same(ctx, &c, r); err != nil || !same {
		return nil, false, calls.Conflict(r, "this key was used for another call; use a new one")
	}
	return s.resume(ctx, r, async)
}

// resume waits until a proposed call may be handed out, and hands it out.
func (s *API) resume(ctx context.Context, r propose.Request, async bool) (*contract.Event, bool, error) {
	for until := time.Now().Add(r.Timeout); ; {
		e, err := s.Queries.Last(ctx, r.ID)
		if err != nil {
			return nil, false, err
		}
		name := ""
		if e != nil {
			name = e.Name
		}
		switch name {
		case "allowed":
			return s.claim(ctx, r, e, async)
		case "effect_started":
			// What was handed out may have begun, or its answer was lost: while the
			// mesh is frozen it is not given again.
			if err := s.Lender.Withholds(); errors.Is(err, execute.ErrFrozen) {
				return nil, false, frozen(r)
			} else if err != nil {
				return nil, false, apierr.Unavailable("the intent could not be handed out now: " + err.Error())
			}
			if e, err = s.Queries.Event(ctx, "decision", r.ID); err == nil && e == nil {
				err = apierr.Unavailable("the decision cannot be read now")
			}
			return e, true, err
		case "effect_recorded":
			var rec contract.Recorded
			if err := contract.Decode(e.Data, &rec); err != nil {
				return nil, false, err
			}
			return nil, false, s.endedError(r, &rec)
		}
		if async && name == "escalated" || time.Now().After(until) {
			return nil, false, stillWaits(r, e)
		}
		select {
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// frozen is the response to who wants an intent of a frozen mesh.
func frozen(r propose.Request) *apierr.Error {
	x := apierr.Unavailable("the mesh is frozen: no intent is handed out until it is unfrozen")
	x.Code, x.CallID = "system_frozen", r.ID
	return x
}

func stillWaits(r propose.Request, e *contract.Event) error {
	var x contract.Escalated
	if e != nil && e.Name == "escalated" && contract.Decode(e.Data, &x) == nil {
		return &apierr.Escalation{CallID: r.ID, Doc: &x}
	}
	return calls.WaitError(r, propose.ErrUnknownOutcome)
}

// endedError is why a call that has an outcome is not handed out.
func (s *API) endedError(r propose.Request, rec *contract.Recorded) error {
	if e := apierr.OfOutcome(rec); e != nil && rec.Effect.AttestedBy == "" {
		s.Calls.PointAt(e, r)
		return e
	}
	return &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: "intent_used", CallID: r.ID, ReceiptID: receipt.ID(r.ID),
		Message: "the outcome of this call was reported; its intent permits nothing more"}
}

// takeUp hands out a call of the caller's that was proposed before.
func (s *API) takeUp(c echo.Context, who *auth.Caller, req *DecideRequest, async bool) error {
	ctx := c.Request().Context()
	first, err := s.Queries.Event(ctx, "proposal", req.CallID)
	if err != nil {
		return err
	}
	var call contract.Call
	if first == nil || !who.Made(first) || contract.Decode(first.Data, &call) != nil || call.ReportWithin == 0 {
		return apierr.NotFound("not found: no call " + req.CallID + " of yours that you execute yourself")
	}
	timeout, err := s.Calls.TimeoutOf(c.Request().Header)
	if err != nil {
		return err
	}
	r := propose.Request{ID: call.ID, Kind: call.Kind, Tool: call.Tool, Session: first.Session, Timeout: timeout}
	e, again, err := s.resume(ctx, r, async)
	return s.handOut(c, r, e, again, err)
}
