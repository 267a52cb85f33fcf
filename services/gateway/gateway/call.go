package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// caller is the verified party behind a request.
type caller struct {
	actor, client string
	scopes        []string
	until         time.Time // the credential's end; zero: none
	cache         bool      // cached responses will do

	token  string      // id of the bearer token; empty with a virtual key
	issued time.Time   // of the bearer token
	key    *virtualKey // that was shown, or nil
}

// verify checks a credential, and that its authority has not ended. A token whose
// signature was verified is cached by its digest, since a signature costs more than
// the rest of the request at the edge; what may end is checked every time.
func (s *Service) verify(raw string) (*caller, error) {
	if !s.knows() { // what was revoked is not known yet
		return nil, unavailable("the gateway has not read the ledger to its end yet")
	}
	if strings.HasPrefix(raw, keyPrefix) {
		return s.authority.byKey(raw)
	}
	digest := sha256.Sum256([]byte(raw))
	if v, ok := s.verified.Load(digest); ok {
		k := v.(*caller)
		return k, s.authority.check(k)
	}
	c, err := token.Verify(s.TokenKey, s.env.Tenant, raw)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(c.Client, contract.KeyClient) {
		return nil, errors.New("a token's client cannot be a virtual key")
	}
	k := &caller{actor: c.Subject, client: c.Client, scopes: c.Scopes, until: c.ExpiresAt.Time, token: c.ID, issued: c.IssuedAt.Time}
	if err := s.authority.check(k); err != nil {
		return nil, err
	}
	if s.verifiedCount.Add(1) > maxKnown {
		s.verified.Clear()
		s.verifiedCount.Store(0)
	}
	s.verified.Store(digest, k)
	return k, nil
}

// knows reports whether the view of authority has caught up with the ledger, once.
func (s *Service) knows() bool {
	if s.view == nil {
		return true // there is no ledger
	}
	select {
	case <-s.view.Ready():
		return true
	default:
		return false
	}
}

const maxKnown = 10000

// auth verifies the bearer token, once for a request; scope, if named, must be
// held.
func (s *Service) auth(c echo.Context, scope string) (*caller, error) {
	who, ok := c.Get(callerKey).(*caller)
	if !ok {
		var err error
		if who, err = s.authenticate(c); err != nil {
			return nil, err
		}
	}
	if scope != "" && !slices.Contains(who.scopes, scope) {
		return nil, scopeMissing(scope)
	}
	return who, nil
}

func (s *Service) authenticate(c echo.Context) (*caller, error) {
	raw, ok := credential(c.Request().Header)
	if !ok {
		return nil, &apiError{Status: http.StatusUnauthorized, Type: "authentication_error", Code: "token_missing",
			Message: "send Authorization: Bearer <token>; `binnacle token create` makes one"}
	}
	who, err := s.verify(raw)
	if err != nil {
		return nil, ended(err)
	}
	return who, nil
}

// credential is the token or key that a request carries: in Authorization,
// whose scheme is case-insensitive (RFC 9110 §11.1), or in X-Api-Key, as
// Anthropic's clients send it.
func credential(h http.Header) (string, bool) {
	if scheme, raw, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(raw), true
	}
	raw := h.Get("X-Api-Key")
	return raw, raw != ""
}

// timeoutHeader lets a caller say how long it will wait, in seconds. The call
// must start within that time, and is stopped when it is over.
const timeoutHeader = "X-Binnacle-Timeout"

func (s *Service) timeout(h http.Header) (time.Duration, error) {
	v := h.Get(timeoutHeader)
	if v == "" {
		return s.CallTimeout, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > 600 {
		return 0, badRequest(timeoutHeader, "want seconds from 1 to 600")
	}
	return time.Duration(n) * time.Second, nil
}

// request makes the proposal of a call.
func (s *Service) request(c echo.Context, kind, tool string, args []byte, who *caller) (propose.Request, error) {
	ctx := c.Request().Context()
	in, err := s.sessionOf(ctx, who, c.Request().Header)
	if err != nil {
		return propose.Request{}, err
	}
	if args, err = s.inArgs(ctx, who, kind, args, &in); err != nil {
		return propose.Request{}, err
	}
	timeout, err := s.timeout(c.Request().Header)
	if err != nil {
		return propose.Request{}, err
	}
	idem := c.Request().Header.Get("Idempotency-Key")
	if len(idem) > maxName {
		return propose.Request{}, badRequest("Idempotency-Key", "at most 128 characters")
	}
	behalf, delegation, err := delegationOf(c.Request().Header)
	if err != nil {
		return propose.Request{}, err
	}
	r := propose.Request{ID: propose.NewCallID(), Kind: kind, Tool: tool, Args: args, Actor: who.actor, Client: who.client, Token: who.token,
		Scopes: who.scopes, Timeout: timeout, TraceCtx: traceContext(c.Request().Header), IdemKey: idem,
		OnBehalfOf: behalf, Delegation: delegation}
	r.Executor = s.executorOf(kind)
	in.into(&r)
	if idem != "" {
		if r.ID, err = s.repeatable(c.Request().Context(), who.actor, idem); err != nil {
			return r, err
		}
	}
	return r, s.inherit(ctx, &r, "", args)
}

// executorOf is the service that the catalog names for a kind; empty where it
// names none, and policy will deny.
func (s *Service) executorOf(kind string) string {
	if t, _ := s.tools.Lookup(kind); t != nil {
		return t.Executor
	}
	return ""
}

// Delegation headers: for whom the caller acts, and by which delegation. They
// claim; policy checks.
const (
	callIDHeader     = "X-Binnacle-Call-Id"
	behalfHeader     = "X-Binnacle-On-Behalf-Of"
	delegationHeader = "X-Binnacle-Delegation"
)

func delegationOf(h http.Header) (behalf, delegation string, err error) {
	behalf, delegation = h.Get(behalfHeader), h.Get(delegationHeader)
	if len(behalf) > maxName || len(delegation) > maxName {
		return "", "", badRequest(behalfHeader, "at most 128 characters")
	}
	return behalf, delegation, nil
}

// maxName bounds the names a caller can put into an event.
const maxName = 128

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceContext is the W3C trace context, or nothing where it is malformed, as
// the specification asks.
func traceContext(h http.Header) string {
	if v := h.Get("Traceparent"); traceparent.MatchString(v) {
		return v
	}
	return ""
}

// headers names the call on the response. Every id is known before the
// outcome is.
func headers(c echo.Context, r propose.Request, verdict string) {
	h := c.Response().Header()
	h.Set(sessionHeader, session{id: r.Session, name: r.SessionName}.called())
	h.Set(sessionIDHeader, r.Session)
	h.Set(callIDHeader, r.ID)
	h.Set("X-Request-Id", r.ID)
	h.Set("Request-Id", r.ID)
	h.Set("X-Binnacle-Decision-Id", "d-"+r.ID)
	h.Set("X-Binnacle-Receipt-Id", receipt.ID(r.ID))
	if verdict != "" {
		h.Set("X-Binnacle-Verdict", verdict)
	}
}

// await proposes and waits. Its error is an *apiError wherever the ledger
// gave an outcome, and an *escalation where the call waits for people and the
// caller's time is over, or, if async, at once.
func (s *Service) await(ctx context.Context, r propose.Request, async bool) (*propose.Outcome, []byte, error) {
	if s.pulse.down() {
		return nil, nil, silent(r, "nothing was proposed")
	}
	defer s.pulse.watch()()
	if r.IdemKey != "" {
		if e, err := s.lastOf(ctx, r.ID); err != nil {
			return nil, nil, err
		} else if e != nil {
			return s.repeat(ctx, r, e)
		}
	}
	p, err := s.prop.Propose(ctx, r)
	if err != nil {
		return nil, nil, proposeError(err)
	}
	defer p.Close()
	began := time.Now()
	wait, cancel := context.WithTimeout(ctx, r.Timeout+5*time.Second)
	defer cancel()
	out, esc, err := s.waitFor(wait, p, async)
	if esc != nil && err != nil {
		s.metrics.count(r.Kind, "escalated")
		return nil, nil, &escalation{r.ID, esc}
	}
	if r.IdemKey != "" && errors.Is(err, eventlog.ErrIDConflict) { // the same key, at the same moment
		e, err := s.lastOf(ctx, r.ID)
		if err == nil && e == nil {
			err = unavailable("the first call under this Idempotency-Key cannot be found now")
		}
		if err != nil {
			return nil, nil, err
		}
		return s.repeat(ctx, r, e)
	}
	if err != nil {
		s.metrics.count(r.Kind, "none")
		if errors.Is(err, errSilent) {
			s.giveUp(ctx, p, r)
			return nil, nil, silent(r, "GET /api/v1/calls/"+r.ID+" will tell what became of the call; an Idempotency-Key makes it safe to send again")
		}
		if ctx.Err() != nil { // the client left
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := p.Cancel(bye); err != nil {
				s.env.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
			}
			return nil, nil, ctx.Err()
		}
		return nil, nil, waitError(r, err)
	}
	s.metrics.observe(r.Kind, out.Recorded.Effect.Status, time.Since(began))
	if e := ofOutcome(&out.Recorded); e != nil {
		s.pointAt(e, r)
		return out, nil, e
	}
	body, err := s.output(ctx, out)
	return out, body, err
}

// pointAt names the argument that was wrong: the one that broke the tool's schema,
// as the schema is now (the record holds the reason alone), or the one that the
// executor's error names.
func (s *Service) pointAt(e *apiError, r propose.Request) {
	if e.Code == "invalid_input" {
		e.pointBy(e.Message, r)
		return
	}
	if e.ReasonCode != contract.ReasonSchemaViolation && e.ReasonCode != contract.ReasonArgsUnknownField {
		return
	}
	t, _ := s.tools.Lookup(r.Kind)
	if t == nil || s.tools.Drifted(t, contract.Digest(t)) {
		return
	}
	if at, keyword := outputs.Where(t, r.Args); keyword != "" {
		e.Pointer = "/args" + at
		e.Message += " " + e.Pointer + " breaks " + keyword + "."
	}
}

// waitFor waits for the outcome, and returns an escalation on the way. It does
// not wait for a ledger that does not respond, nor for queues on it that do not yet.
func (s *Service) waitFor(ctx context.Context, p *propose.Pending, async bool) (*propose.Outcome, *contract.Escalated, error) {
	var esc *contract.Escalated
	lost := s.pulse.lost()
	from, _ := s.prop.Position()
	late := time.NewTimer(unstarted)
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
			if esc == nil && s.pulse.unsteady() && !s.started(ctx, p.Event, from) {
				return nil, nil, errSilent
			}
			late.Reset(beatEvery)
		case <-ctx.Done():
			return nil, esc, errors.Join(propose.ErrUnknownOutcome, ctx.Err())
		}
	}
}

// run awaits a call and names it on the response, whatever came of it.
func (s *Service) run(c echo.Context, r propose.Request) (*propose.Outcome, []byte, error) {
	async := strings.Contains(c.Request().Header.Get("Prefer"), "respond-async")
	out, output, err := s.await(c.Request().Context(), r, async)
	verdict := ""
	if errors.As(err, new(*escalation)) {
		verdict = contract.Escalate
	}
	if out != nil {
		verdict = out.Recorded.Receipt.Verdict
	}
	headers(c, r, verdict)
	return out, output, inBody(c, err)
}

// started reports whether the ledger holds, after from, more of a call than that
// it was proposed and allowed.
func (s *Service) started(ctx context.Context, e *contract.Event, from uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, beatWithin)
	defer cancel()
	for _, name := range []string{"effect_started", "effect_recorded"} {
		for en, err := range s.env.Emit.Log.Scan(ctx, "evt."+e.Tenant+".*.*."+name+"."+e.Session, from) {
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

// silent is the error for callers while the ledger has no leader.
func silent(r propose.Request, what string) *apiError {
	e := unavailable("the ledger does not answer now; " + what)
	e.Code, e.CallID, e.RetryAfter = "ledger_unavailable", r.ID, "5"
	return e
}

// giveUp cancels, as soon as the ledger answers, a call whose caller was sent
// away, unless the caller holds a key to come back to it by.
func (s *Service) giveUp(ctx context.Context, p *propose.Pending, r propose.Request) {
	if r.IdemKey != "" {
		return
	}
	go func() {
		later, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := p.Cancel(later); err != nil {
			s.env.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
		}
	}()
}

func proposeError(err error) error {
	if errors.Is(err, blob.ErrTooLarge) {
		return &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "invalid_input", Message: err.Error()}
	}
	return unavailable("the ledger does not take proposals now: " + err.Error())
}

func waitError(r propose.Request, err error) error {
	if errors.Is(err, propose.ErrUnknownOutcome) {
		return &apiError{Status: http.StatusGatewayTimeout, Type: "server_error", Code: "outcome_pending", CallID: r.ID, ReceiptID: receipt.ID(r.ID),
			Message: "no outcome yet; it will be on the ledger under the receipt id"}
	}
	e := unavailable("the proposal could not be recorded; nothing happened")
	e.CallID = r.ID
	return e
}

func (s *Service) output(ctx context.Context, out *propose.Outcome) ([]byte, error) {
	if out.Recorded.Output == nil || out.Recorded.Output.Store == contract.StoreWithheld {
		return []byte("{}"), nil
	}
	body, err := s.env.Blobs.Open(ctx, out.Recorded.Output)
	if err != nil {
		return nil, unavailable("the output cannot be read now: " + err.Error())
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

// check fills in what the request leaves out, and bounds what it names.
func (q *CallRequest) check(c echo.Context) (err error) {
	if q.Kind == "" {
		return badRequest("/kind", "name the kind of call, e.g. tool.cmd.upper")
	}
	if q.Tool == "" {
		q.Tool = strings.TrimPrefix(q.Kind, "tool.")
	}
	if err := errors.Join(checkName("/kind", q.Kind), checkName("/tool", q.Tool)); err != nil {
		return err
	}
	c.Set(argsKey, "/args")
	q.Args, err = callArgs("/args", q.Args)
	return err
}

func (s *Service) call(c echo.Context) error {
	var req CallRequest
	who, _, err := s.callerInto(c, &req)
	if err != nil {
		return err
	}
	if err := req.check(c); err != nil {
		return err
	}
	if slices.Contains(llm.Kinds, req.Kind) { // args are the request itself
		r, err := s.llmRequest(c, req.Kind, req.Args, who)
		if err != nil {
			return beneath("/args", err)
		}
		r.Stream = false
		return beneath("/args", s.answer(c, r))
	}
	return s.respond(c, who, req.Kind, req.Tool, req.Args)
}

// respond runs one call to its end and answers with its output.
func (s *Service) respond(c echo.Context, who *caller, kind, tool string, args []byte) error {
	r, err := s.request(c, kind, tool, args, who)
	if err != nil {
		return err
	}
	return s.answer(c, r)
}

func (s *Service) answer(c echo.Context, r propose.Request) error {
	out, output, err := s.run(c, r)
	var esc *escalation
	if errors.As(err, &esc) {
		return s.accepted(c, r, esc)
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

// judgement is POST /api/v1/judgements: {session, rubric}.
func (s *Service) judgement(c echo.Context) error {
	who, args, err := s.callerBody(c)
	if err != nil {
		return err
	}
	return s.respond(c, who, "judge.score", "judge.score", args)
}
