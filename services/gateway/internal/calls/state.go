package calls

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// CallState describes the state of a call. It is the body of responses to requests for
// the state, and of responses with status 202.
type CallState struct {
	CallID     string          `json:"call_id"`
	Session    string          `json:"session_id"`
	Called     string          `json:"session,omitempty"` // the caller's name for the session; only in responses to the request that proposes the call
	Status     string          `json:"status"`            // proposed, pending_approval, allowed, running, or the status of the effect
	Verdict    string          `json:"verdict,omitempty"`
	ReasonCode string          `json:"reason_code,omitempty"`
	Expires    string          `json:"expires,omitempty"`        // end of the time to vote; only while the call waits for approval
	Page       string          `json:"approval_page,omitempty"`  // URL of the page on which a person votes; only in responses to the request that waited for the call
	Queued     int64           `json:"queue_position,omitempty"` // number of calls that waited for a sandbox when this one began to wait, itself included; only while it waits
	Progress   *Progress       `json:"progress,omitempty"`       // last report of the program; only while it runs
	ReceiptID  string          `json:"receipt_id,omitempty"`
	ErrorCode  string          `json:"error_code,omitempty"`
	Error      string          `json:"error,omitempty"`
	Hint       string          `json:"hint,omitempty"`         // advice for the caller; only if the arguments violate the schema of the tool
	Pointer    string          `json:"pointer,omitempty"`      // JSON pointer of the argument that violates the schema of the tool, /args/…
	DidYouMean []string        `json:"did_you_mean,omitempty"` // names that are similar to a wrong one
	Output     json.RawMessage `json:"output,omitempty"`
	Poll       string          `json:"poll"` // path of this document
}

// Accepted responds to the proposal of an escalated call with 202 and the path under
// which the call's state can be read. The escalation is durable.
func (s *API) Accepted(c echo.Context, r propose.Request, esc *apierr.Escalation) error {
	c.Response().Header().Set("Location", pollOf(r.ID))
	c.Response().Header().Set("Retry-After", "5")
	return c.JSON(http.StatusAccepted, s.waiting(c, r, esc))
}

// waiting returns the state of an escalated call.
func (s *API) waiting(c echo.Context, r propose.Request, esc *apierr.Escalation) CallState {
	return CallState{CallID: r.ID, Session: r.Session, Called: r.SessionName, Status: pendingApproval, Verdict: contract.Escalate,
		ReasonCode: esc.Doc.Decision.ReasonCode, Expires: esc.Doc.Expires, Page: auth.ApprovalPage(s.Gate, c, r.ID), Poll: pollOf(r.ID)}
}

// Later responds to the proposal of a call that has no outcome yet with 202 and the path under
// which the call's state can be read. The call continues when the caller disconnects.
func Later(c echo.Context, r propose.Request) error {
	poll := pollOf(r.ID)
	c.Response().Header().Set("Location", poll)
	c.Response().Header().Set("Retry-After", "1")
	c.Response().Header().Set("Preference-Applied", "respond-async")
	return c.JSON(http.StatusAccepted, CallState{CallID: r.ID, Session: r.Session, Called: r.SessionName, Status: proposed, Poll: poll})
}

// Cancel handles DELETE /api/v1/calls/{id}. It records that the caller, who must be the
// actor of the call, requests its cancellation, and responds with the state of the call.
// A virtual key cancels only calls that it made. The executor stops a running call, and
// does not run one that has not started, even if it is approved later; a call that has
// ended is not changed. Any gateway can cancel a call that a gateway proposed. The
// cancellation of a call that another service proposed, and of a call that its caller
// executes, is an error (409).
func (s *API) Cancel(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	id := c.Param("id")
	e, err := s.CancelBy(ctx, who, id)
	if err != nil {
		return err
	}
	out := CallState{CallID: id, Session: e.Session, Status: proposed, Poll: pollOf(id)}
	if last, err := s.Runner.Queries.In(who.Tenant).Last(ctx, id); err == nil && last != nil {
		if _, err := out.fold(last); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, out)
}

// CancelBy records that a caller requests the cancellation of a call, and returns the proposal of
// the call. The error has status 404 for an unknown call or one that the caller may not cancel,
// 409 for a call that a gateway cannot cancel (see Cancel), and 503 if the cancellation cannot be
// recorded.
func (s *Runner) CancelBy(ctx context.Context, who *auth.Caller, id string) (*contract.Event, error) {
	e, err := s.Queries.In(who.Tenant).Event(ctx, audit.ProposalQuery, id)
	if err != nil {
		return nil, err
	}
	if e == nil || !who.MayCancel(e) {
		return nil, apierr.NotFound("no call " + id)
	}
	if e.Service() != contract.CallerExecutor {
		return nil, &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: contract.CodeConflict, CallID: id, Message: "the call was proposed by " + e.Service() + ", which cancels it with the call that it is a part of"}
	}
	var call contract.Call
	if err := contract.Decode(e.Data, &call); err != nil {
		return nil, err
	}
	if call.ReportWithin != 0 {
		return nil, &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: contract.CodeConflict, CallID: id, Message: "the call is executed by its caller: stop the effect there, and report its outcome"}
	}
	p := s.Proposer.Join(e, &call)
	defer p.Close()
	if err := p.Cancel(ctx); err != nil && !errors.Is(err, eventlog.ErrIDConflict) {
		return nil, apierr.Unavailable("the cancellation could not be recorded: " + err.Error())
	}
	return e, nil
}

// Cancelled reports whether a gateway has recorded a request to cancel a call, given any event e
// of the call. It queries audit's index, which has the request by an id that is derived from the
// call's, so the cost does not depend on the session. The error has status 503.
func (s *Runner) Cancelled(ctx context.Context, e *contract.Event) (bool, error) {
	return s.has(ctx, audit.CancellationQuery, e)
}

// has reports whether audit's index has the event that a query returns for the call of e, recorded
// by a gateway.
func (s *Runner) has(ctx context.Context, q queries.EventQuery, e *contract.Event) (bool, error) {
	found, err := s.Queries.In(e.Tenant).Event(ctx, q, e.CallID)
	return found != nil && found.Service() == contract.CallerExecutor, err
}

// Escalated responds as Accepted does if err is the escalation of the proposal r, and
// otherwise returns err.
func (s *API) Escalated(c echo.Context, r propose.Request, err error) error {
	var esc *apierr.Escalation
	if errors.As(err, &esc) {
		return s.Accepted(c, r, esc)
	}
	return err
}

// State handles GET /api/v1/calls/{id}. It responds with a CallState to the actor of the
// call and to holders of audit:read. For other callers, and for an unknown call, the
// response is 404. If the call's output was erased, the response is 410; if the output
// or the state cannot be read now, it is 503. To a caller that accepts server-sent events, it
// responds as watch does.
func (s *API) State(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	if acceptsEvents(c) {
		return s.watch(c, who)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	last, _, err := s.lastOf(ctx, who, c.Param("id"))
	if err != nil {
		return err
	}
	out, err := s.current(ctx, who.Tenant, last)
	if err != nil {
		return err
	}
	if out.ReceiptID == "" {
		c.Response().Header().Set("Retry-After", "1")
	}
	return c.JSON(http.StatusOK, out)
}

// lastOf returns the newest event of a call that audit's index has, and the ledger sequence up to
// which no event of the call is newer, or 0 if that is unknown. Its errors are those of State.
func (s *API) lastOf(ctx context.Context, who *auth.Caller, id string) (*contract.Event, uint64, error) {
	e, at, err := s.Runner.Queries.In(who.Tenant).LastAt(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	if e == nil || !who.Is(e) && !slices.Contains(who.Scopes, token.Audit) {
		return nil, 0, apierr.NotFound("no call " + id)
	}
	return e, at, nil
}

// current returns the state of a call, given its newest event, with, while it runs, its progress or
// its position in the queue. Its errors are those of State.
func (s *API) current(ctx context.Context, tenant string, e *contract.Event) (CallState, error) {
	ctx, cancel := context.WithTimeout(ctx, queries.Timeout)
	defer cancel()
	out, err := s.stateBy(ctx, tenant, e)
	if err == nil && out.Status == running {
		n, _ := NoticeOf(ctx, s.Runner.Queries, e)
		if out.Queued = n.Queued; n.Reported {
			out.Progress = &n.Progress
		}
	}
	return out, err
}

// StateOf returns the state of a call, without its progress and its position in a queue, and the
// event that determines it. Its errors are those of State.
func (s *API) StateOf(ctx context.Context, who *auth.Caller, id string) (CallState, *contract.Event, error) {
	e, _, err := s.lastOf(ctx, who, id)
	if err != nil {
		return CallState{}, nil, err
	}
	out, err := s.stateBy(ctx, who.Tenant, e)
	return out, e, err
}

// stateBy returns the state of a call in a tenant, given its newest event.
func (s *API) stateBy(ctx context.Context, tenant string, e *contract.Event) (CallState, error) {
	out := CallState{CallID: e.CallID, Session: e.Session, Status: proposed, Poll: pollOf(e.CallID)}
	ref, err := out.fold(e)
	if err == nil && out.Error == outcome.MessageEncrypted {
		var rec contract.Recorded
		if err = contract.Decode(e.Data, &rec); err == nil {
			s.Reveal(ctx, tenant, &rec)
			out.Error = rec.Effect.ErrorMessage
		}
	}
	if err == nil && ref != nil {
		if out.Output, err = s.Blobs.In(tenant).Open(ctx, ref); err != nil {
			err = apierr.Unreadable(out.CallID, err)
		}
	}
	if err == nil && out.ErrorCode == contract.CodeInvalidInput && ofSchema(out.ReasonCode) {
		s.Places().in(ctx, &out, tenant)
	}
	return out, err
}

// fold sets the state of a call from its newest event. It returns the output if the call
// succeeded and has one that was not withheld, or else nil. It does not change x unless
// the event is an escalation, an ALLOW, an expiry of the start, a claim or an outcome.
func (x *CallState) fold(e *contract.Event) (output *contract.Content, err error) {
	switch e.Name {
	case contract.EventEscalated:
		var d contract.Escalated
		if err := contract.Decode(e.Data, &d); err != nil {
			return nil, err
		}
		x.Status, x.Verdict, x.ReasonCode, x.Expires = pendingApproval, contract.Escalate, d.Decision.ReasonCode, d.Expires
	case contract.EventAllowed, contract.EventStartExpired: // the outcome of an expired call is recorded soon after its expiry
		x.Status, x.Verdict = allowed, contract.Allow
	case contract.EventEffectStarted:
		x.Status, x.Verdict = running, contract.Allow
	case contract.EventEffectRecorded:
		var rec contract.Recorded
		if err := contract.Decode(e.Data, &rec); err != nil {
			return nil, err
		}
		x.Status, x.Verdict, x.ReasonCode, x.ReceiptID = rec.Effect.Status, rec.Receipt.Verdict, rec.Receipt.ReasonCode, rec.Receipt.ID
		x.ErrorCode, x.Error = rec.ErrorCode(), rec.Effect.ErrorMessage
		if out := rec.Output; out != nil && (rec.Effect.Status == contract.Succeeded || rec.Effect.AttestedBy == contract.Caller) && out.Store != contract.StoreWithheld {
			return out, nil
		}
	}
	return nil, nil
}

// States of a call that has no outcome.
const (
	proposed        = "proposed"
	pendingApproval = "pending_approval" // the call waits for approval
	allowed         = contract.EventAllowed
	running         = "running"
)

// Open returns the possible values of CallState.Status for a call that has no outcome.
// After the outcome, the status is that of the effect.
func Open() []string { return []string{proposed, pendingApproval, allowed, running} }

// pollOf returns the path under which a call's state can be read.
func pollOf(call string) string { return "/api/v1/calls/" + call }
