// Package calls is the one path of the gateway: it makes the proposal of a call
// from a request, awaits its outcome on the ledger, and answers with it.
package calls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
)

// Metrics counts calls by how they end.
type Metrics interface {
	Count(kind, status string)
	Observe(kind, status string, took time.Duration)
}

// Tools is the catalog of what can be called.
type Tools interface {
	Lookup(kind string) (tool *contract.Tool, digest string)
	Drifted(t *contract.Tool, digest string) bool
}

// API proposes calls and waits for their outcomes. Its fields are set before its
// first use.
type API struct {
	Tenant      string
	CallTimeout time.Duration // how long a caller waits where it does not say
	Gate        *auth.Gate
	Sessions    *sessions.Resolver
	Labels      *labels.Reader
	Queries     *queries.Client
	Proposer    *propose.Proposer
	Tools       Tools
	Probe       *probe.Probe
	Metrics     Metrics
	Blobs       *blob.Store
	Ledger      eventlog.Log
	Log         *slog.Logger

	// ModelRequest makes the proposal of a request to a language model.
	ModelRequest func(c echo.Context, kind string, body []byte, who *auth.Caller) (propose.Request, error)

	schemas toolschema.Checker
}

// TimeoutHeader lets a caller say how long it will wait, in seconds. The call
// must start within that time, and is stopped when it is over.
const TimeoutHeader = "X-Binnacle-Timeout"

// TimeoutOf is how long the caller of a request waits.
func (s *API) TimeoutOf(h http.Header) (time.Duration, error) {
	v := h.Get(TimeoutHeader)
	if v == "" {
		return s.CallTimeout, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > 600 {
		return 0, apierr.BadRequest(TimeoutHeader, "want seconds from 1 to 600")
	}
	return time.Duration(n) * time.Second, nil
}

// Request makes the proposal of a call.
func (s *API) Request(c echo.Context, kind, tool string, args []byte, who *auth.Caller) (propose.Request, error) {
	ctx := c.Request().Context()
	in, err := s.Sessions.Of(ctx, who, c.Request().Header)
	if err != nil {
		return propose.Request{}, err
	}
	if args, err = s.Sessions.InArgs(ctx, who, kind, args, &in); err != nil {
		return propose.Request{}, err
	}
	timeout, err := s.TimeoutOf(c.Request().Header)
	if err != nil {
		return propose.Request{}, err
	}
	idem := c.Request().Header.Get("Idempotency-Key")
	if len(idem) > body.MaxName {
		return propose.Request{}, apierr.BadRequest("Idempotency-Key", "at most 128 characters")
	}
	behalf, delegation, err := Delegation(c.Request().Header)
	if err != nil {
		return propose.Request{}, err
	}
	r := propose.Request{ID: propose.NewCallID(), Kind: kind, Tool: tool, Args: args, Actor: who.Actor, Client: who.Client, Token: who.Token,
		Scopes: who.Scopes, Timeout: timeout, TraceCtx: TraceContext(c.Request().Header), IdemKey: idem,
		OnBehalfOf: behalf, Delegation: delegation}
	r.Executor = s.ExecutorOf(kind)
	in.Into(&r)
	if idem != "" {
		if r.ID, err = s.repeatable(c.Request().Context(), who.Actor, idem); err != nil {
			return r, err
		}
	}
	return r, s.Labels.Inherit(ctx, &r, "", args)
}

// ExecutorOf is the service that the catalog names for a kind; empty where it
// names none, and policy will deny.
func (s *API) ExecutorOf(kind string) string {
	if t, _ := s.Tools.Lookup(kind); t != nil {
		return t.Executor
	}
	return ""
}

// Delegation headers: for whom the caller acts, and by which delegation. They
// claim; policy checks.
const (
	IDHeader         = "X-Binnacle-Call-Id"
	behalfHeader     = "X-Binnacle-On-Behalf-Of"
	delegationHeader = "X-Binnacle-Delegation"
)

// Delegation returns whom a request says that it is made for, and by which
// delegation.
func Delegation(h http.Header) (behalf, delegation string, err error) {
	behalf, delegation = h.Get(behalfHeader), h.Get(delegationHeader)
	if len(behalf) > body.MaxName || len(delegation) > body.MaxName {
		return "", "", apierr.BadRequest(behalfHeader, "at most 128 characters")
	}
	return behalf, delegation, nil
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// TraceContext is the W3C trace context, or nothing where it is malformed, as
// the specification asks.
func TraceContext(h http.Header) string {
	if v := h.Get("Traceparent"); traceparent.MatchString(v) {
		return v
	}
	return ""
}

// Headers names the call on the response. Every id is known before the
// outcome is.
func Headers(c echo.Context, r propose.Request, verdict string) {
	h := c.Response().Header()
	h.Set(sessions.Header, sessions.Session{ID: r.Session, Name: r.SessionName}.Called())
	h.Set(sessions.IDHeader, r.Session)
	h.Set(IDHeader, r.ID)
	h.Set("X-Request-Id", r.ID)
	h.Set("Request-Id", r.ID)
	h.Set("X-Binnacle-Decision-Id", "d-"+r.ID)
	h.Set("X-Binnacle-Receipt-Id", receipt.ID(r.ID))
	if verdict != "" {
		h.Set("X-Binnacle-Verdict", verdict)
	}
}

// Await proposes and waits. Its error is an *apierr.Error wherever the ledger
// gave an outcome, and an *apierr.Escalation where the call waits for people and the
// caller's time is over, or, if async, at once.
func (s *API) Await(ctx context.Context, r propose.Request, async bool) (*propose.Outcome, []byte, error) {
	if s.Probe.Down() {
		return nil, nil, Silent(r, "nothing was proposed")
	}
	defer s.Probe.Watch()()
	if r.IdemKey != "" {
		if e, err := s.Queries.Last(ctx, r.ID); err != nil {
			return nil, nil, err
		} else if e != nil {
			return s.Repeat(ctx, r, e)
		}
	}
	p, err := s.Proposer.Propose(ctx, r)
	if err != nil {
		return nil, nil, ProposeError(err)
	}
	defer p.Close()
	began := time.Now()
	wait, cancel := context.WithTimeout(ctx, r.Timeout+5*time.Second)
	defer cancel()
	out, esc, err := s.waitFor(wait, p, async)
	if esc != nil && err != nil {
		s.Metrics.Count(r.Kind, "escalated")
		return nil, nil, &apierr.Escalation{CallID: r.ID, Doc: esc}
	}
	if r.IdemKey != "" && errors.Is(err, eventlog.ErrIDConflict) { // the same key, at the same moment
		e, err := s.Queries.Last(ctx, r.ID)
		if err == nil && e == nil {
			err = apierr.Unavailable("the first call under this Idempotency-Key cannot be found now")
		}
		if err != nil {
			return nil, nil, err
		}
		return s.Repeat(ctx, r, e)
	}
	if err != nil {
		s.Metrics.Count(r.Kind, "none")
		if errors.Is(err, errSilent) {
			s.GiveUp(ctx, p, r)
			return nil, nil, Silent(r, "GET /api/v1/calls/"+r.ID+" will tell what became of the call; an Idempotency-Key makes it safe to send again")
		}
		if ctx.Err() != nil { // the client left
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := p.Cancel(bye); err != nil {
				s.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
			}
			return nil, nil, ctx.Err()
		}
		return nil, nil, WaitError(r, err)
	}
	s.Metrics.Observe(r.Kind, out.Recorded.Effect.Status, time.Since(began))
	if e := apierr.OfOutcome(&out.Recorded); e != nil {
		s.PointAt(e, r)
		return out, nil, e
	}
	body, err := s.output(ctx, out)
	return out, body, err
}

// PointAt names the argument that was wrong: the one that broke the tool's schema,
// as the schema is now (the record holds the reason alone), or the one that the
// executor's error names.
func (s *API) PointAt(e *apierr.Error, r propose.Request) {
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

// waitFor waits for the outcome, and returns an escalation on the way. It does
// not wait for a ledger that does not respond, nor for queues on it that do not yet.
func (s *API) waitFor(ctx context.Context, p *propose.Pending, async bool) (*propose.Outcome, *contract.Escalated, error) {
	var esc *contract.Escalated
	lost := s.Probe.Lost()
	from, _ := s.Proposer.Position()
	late := time.NewTimer(probe.Unstarted)
	defer late.Stop()
	for {
		select {
		case out := <-p.Outcome():
			return &out, esc, nil
		case err := <-p.Failed():
			return nil, esc, fmt.Errorf("proposal not recorded: %w", err)
		case x := <-p.Escalated():
			if esc = &x; async {
				return nil, esc, propose.ErrUnknownOutcome
			}
		case <-lost:
			return nil, esc, errSilent
		case <-late.C:
			if esc == nil && s.Probe.Unsteady() && !s.Started(ctx, p.Event, from) {
				return nil, nil, errSilent
			}
			late.Reset(probe.Every)
		case <-ctx.Done():
			return nil, esc, errors.Join(propose.ErrUnknownOutcome, ctx.Err())
		}
	}
}

// Run awaits a call and names it on the response, whatever came of it.
func (s *API) Run(c echo.Context, r propose.Request) (*propose.Outcome, []byte, error) {
	async := strings.Contains(c.Request().Header.Get("Prefer"), "respond-async")
	out, output, err := s.Await(c.Request().Context(), r, async)
	verdict := ""
	if errors.As(err, new(*apierr.Escalation)) {
		verdict = contract.Escalate
	}
	if out != nil {
		verdict = out.Recorded.Receipt.Verdict
	}
	Headers(c, r, verdict)
	return out, output, body.InBody(c, err)
}

// Started reports whether the ledger holds, after from, more of a call than that
// it was proposed and allowed.
func (s *API) Started(ctx context.Context, e *contract.Event, from uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, probe.Within)
	defer cancel()
	for _, name := range []string{"effect_started", "effect_recorded"} {
		for en, err := range s.Ledger.Scan(ctx, "evt."+e.Tenant+".*.*."+name+"."+e.Session, from) {
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

var errSilent = errors.New("the ledger does not answer")

// Silent is the error for callers while the ledger has no leader.
func Silent(r propose.Request, what string) *apierr.Error {
	e := apierr.Unavailable("the ledger does not answer now; " + what)
	e.Code, e.CallID, e.RetryAfter = "ledger_unavailable", r.ID, "5"
	return e
}

// GiveUp cancels, as soon as the ledger answers, a call whose caller was sent
// away, unless the caller holds a key to come back to it by.
func (s *API) GiveUp(ctx context.Context, p *propose.Pending, r propose.Request) {
	if r.IdemKey != "" {
		return
	}
	go func() {
		later, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := p.Cancel(later); err != nil {
			s.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
		}
	}()
}

// ProposeError is the response where a proposal could not be begun.
func ProposeError(err error) error {
	if errors.Is(err, blob.ErrTooLarge) {
		return &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "invalid_input", Message: err.Error()}
	}
	return apierr.Unavailable("the ledger does not take proposals now: " + err.Error())
}

// WaitError is the response where waiting for a call's outcome ended with err.
func WaitError(r propose.Request, err error) error {
	if errors.Is(err, propose.ErrUnknownOutcome) {
		return &apierr.Error{Status: http.StatusGatewayTimeout, Type: "server_error", Code: "outcome_pending", CallID: r.ID, ReceiptID: receipt.ID(r.ID),
			Message: "no outcome yet; it will be on the ledger under the receipt id"}
	}
	e := apierr.Unavailable("the proposal could not be recorded; nothing happened")
	e.CallID = r.ID
	return e
}

func (s *API) output(ctx context.Context, out *propose.Outcome) ([]byte, error) {
	if out.Recorded.Output == nil || out.Recorded.Output.Store == contract.StoreWithheld {
		return []byte("{}"), nil
	}
	body, err := s.Blobs.Open(ctx, out.Recorded.Output)
	if err != nil {
		return nil, apierr.Unavailable("the output cannot be read now: " + err.Error())
	}
	return body, nil
}

// CallRequest is the body of POST /api/v1/calls.
type CallRequest struct {
	Kind string          `json:"kind"`
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args"`
}

// CallResponse answers calls and pack runs.
type CallResponse struct {
	CallID    string                `json:"call_id"`
	ReceiptID string                `json:"receipt_id"`
	Session   string                `json:"session_id"`
	Called    string                `json:"session,omitempty"` // the caller's name for it
	Tool      string                `json:"tool"`
	Output    json.RawMessage       `json:"output"`
	Instance  string                `json:"instance"`
	WallMS    int64                 `json:"wall_ms"`
	Sandbox   *contract.Attestation `json:"sandbox,omitempty"`
}

// Check fills in what the request leaves out, and bounds what it names.
func (q *CallRequest) Check(c echo.Context) (err error) {
	if q.Kind == "" {
		return apierr.BadRequest("/kind", "name the kind of call, e.g. tool.cmd.upper")
	}
	if q.Tool == "" {
		q.Tool = strings.TrimPrefix(q.Kind, "tool.")
	}
	if err := errors.Join(body.CheckName("/kind", q.Kind), body.CheckName("/tool", q.Tool)); err != nil {
		return err
	}
	c.Set(body.ArgsKey, "/args")
	q.Args, err = body.CallArgs("/args", q.Args)
	return err
}

// Call is POST /api/v1/calls.
func (s *API) Call(c echo.Context) error {
	var req CallRequest
	who, _, err := s.Gate.Into(c, &req)
	if err != nil {
		return err
	}
	if err := req.Check(c); err != nil {
		return err
	}
	if slices.Contains(llm.Kinds, req.Kind) { // args are the request itself
		r, err := s.ModelRequest(c, req.Kind, req.Args, who)
		if err != nil {
			return apierr.Beneath("/args", err)
		}
		r.Stream = false
		return apierr.Beneath("/args", s.Answer(c, r))
	}
	return s.Respond(c, who, req.Kind, req.Tool, req.Args)
}

// Respond runs one call to its end and answers with its output.
func (s *API) Respond(c echo.Context, who *auth.Caller, kind, tool string, args []byte) error {
	r, err := s.Request(c, kind, tool, args, who)
	if err != nil {
		return err
	}
	return s.Answer(c, r)
}

// Answer runs a proposed call to its end and answers with its output.
func (s *API) Answer(c echo.Context, r propose.Request) error {
	out, output, err := s.Run(c, r)
	var esc *apierr.Escalation
	if errors.As(err, &esc) {
		return Accepted(c, r, esc)
	}
	if err != nil {
		return err
	}
	eff := &out.Recorded.Effect
	resp := CallResponse{CallID: r.ID, ReceiptID: out.Recorded.Receipt.ID, Session: r.Session, Called: r.SessionName, Tool: r.Tool, Output: output, Instance: eff.Instance, Sandbox: eff.Attestation}
	if eff.Usage != nil {
		resp.WallMS = eff.Usage.WallMS
	}
	return c.JSON(http.StatusOK, resp)
}

// Judgement is POST /api/v1/judgements: {session, rubric}.
func (s *API) Judgement(c echo.Context) error {
	who, args, err := s.Gate.Body(c)
	if err != nil {
		return err
	}
	return s.Respond(c, who, "judge.score", "judge.score", args)
}
