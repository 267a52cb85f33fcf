package calls

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
)

// Maker makes proposals of calls from requests. It records nothing. Its fields are set
// before its first use; it is safe for concurrent use.
type Maker struct {
	CallTimeout time.Duration // timeout of a call if the request has no TimeoutHeader
	Sessions    *sessions.Resolver
	Labels      *labels.Reader
	Queries     *queries.Services
	Tools       *catalog.Catalog
	Capture     func() string // returns the capture mode in force
	// Pseudonym returns the pseudonym of a data subject of a tenant.
	Pseudonym func(ctx context.Context, tenant, subject string) (string, error)
}

// TimeoutHeader is the request header with the timeout of a call in seconds. The time
// begins at the proposal or, for an escalated call, at its approval. A call that has not
// started within that time, or within policy's start window if that is shorter, does not
// start. A call that is still running at the end of the timeout is stopped by its
// executor. A caller that executes its call itself is not stopped.
const TimeoutHeader = "X-Binnacle-Timeout"

// pipelineTimeout is the timeout of a run of a pipeline if the request has no
// TimeoutHeader.
const pipelineTimeout = time.Hour

// Patience is the time for which the wait for a call that takes long, or whose client cannot send it
// again soon, outlasts a ledger that does not respond. It is below the duplicate window of the
// ledger, so that the proposal may be appended again.
const Patience = 4 * time.Minute

// TimeoutOf returns the timeout of a request's call of a kind: the value of TimeoutHeader,
// 1 to 600 seconds, or CallTimeout without that header. A run of a pipeline takes up to
// pipeline.MaxTimeout seconds, and pipelineTimeout without the header; a schedule lasts up
// to pipeline.MaxSchedule seconds, and as long without the header. Any other value is an
// error (400).
func (s *Maker) TimeoutOf(h http.Header, kind string) (time.Duration, error) {
	without, most := s.CallTimeout, 600
	switch kind {
	case "tool." + pipeline.RunPack:
		without, most = pipelineTimeout, pipeline.MaxTimeout
	case "tool." + pipeline.SchedulePack:
		without, most = pipeline.MaxSchedule*time.Second, pipeline.MaxSchedule
	}
	v := h.Get(TimeoutHeader)
	if v == "" {
		return without, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return 0, apierr.BadRequest(TimeoutHeader, "want seconds from 1 to "+strconv.Itoa(most))
	}
	return time.Duration(n) * time.Second, nil
}

// Request makes the proposal of a call from a request, with its session, inherited
// labels, Idempotency-Key and timeout. Names of sessions in the args are replaced by ids
// (see sessions.Resolver.InArgs). Nothing is recorded yet. With an Idempotency-Key, the
// proposal has the id of the call that the key identifies. An invalid header is an error
// (400), except a malformed traceparent, which is ignored.
func (s *Maker) Request(c echo.Context, kind, tool string, args []byte, who *auth.Caller) (propose.Request, error) {
	return s.request(c, kind, tool, args, who, 0)
}

// Own is like Request for a call that the caller executes itself and whose outcome it reports
// within the given time.
func (s *Maker) Own(c echo.Context, kind, tool string, args []byte, who *auth.Caller, within time.Duration) (propose.Request, error) {
	return s.request(c, kind, tool, args, who, within)
}

func (s *Maker) request(c echo.Context, kind, tool string, args []byte, who *auth.Caller, within time.Duration) (propose.Request, error) {
	ctx, h := c.Request().Context(), c.Request().Header
	in, err := s.Sessions.Of(ctx, who, h)
	if err != nil {
		return propose.Request{}, err
	}
	if args, err = s.Sessions.InArgs(ctx, who, kind, args, &in); err != nil {
		return propose.Request{}, err
	}
	if args, err = s.named(ctx, h, who, kind, args); err != nil {
		return propose.Request{}, err
	}
	timeout, err := s.TimeoutOf(h, kind)
	if err != nil {
		return propose.Request{}, err
	}
	idem := h.Get(idempotencyHeader)
	if err := body.CheckName(idempotencyHeader, idem); err != nil {
		return propose.Request{}, err
	}
	r, err := s.plain(h, who, in, kind, tool, args, within)
	if err != nil {
		return r, err
	}
	if r.Timeout, r.IdemKey = timeout, idem; idem != "" {
		if r.ID, err = s.repeatable(ctx, who, idem); err != nil {
			return r, err
		}
	}
	return r, s.Labels.Inherit(ctx, &r, "", args)
}

// Plain makes the proposal of a call in a session from its arguments and the headers for
// delegation and tracing. The proposal has no Idempotency-Key, no inherited labels, and
// the default timeout. The error is 400 if a header for delegation is longer than
// body.MaxName, if pinned rejects the SandboxHeader, or if encrypted rejects the SubjectHeader.
func (s *Maker) Plain(h http.Header, who *auth.Caller, in sessions.Session, kind, tool string, args []byte) (propose.Request, error) {
	return s.plain(h, who, in, kind, tool, args, 0)
}

func (s *Maker) plain(h http.Header, who *auth.Caller, in sessions.Session, kind, tool string, args []byte, within time.Duration) (propose.Request, error) {
	behalf, delegation, err := delegationOf(h)
	if err != nil {
		return propose.Request{}, err
	}
	if args, err = s.pinned(h, kind, args); err != nil {
		return propose.Request{}, err
	}
	r := propose.Request{ID: propose.NewCallID(), Tenant: who.Tenant, Kind: kind, Tool: tool, Args: args, Actor: who.Actor, Client: who.Client, Token: who.Token,
		Scopes: who.Scopes, Timeout: s.CallTimeout, TraceCtx: traceContext(h), OnBehalfOf: behalf, Delegation: delegation, Executor: s.ExecutorOf(kind), ReportWithin: within}
	if kind == "tool."+pipeline.RunPack { // it would be cancelled otherwise
		r.Patience = Patience
	}
	in.Into(&r)
	return r, s.encrypted(h, &r)
}

// ExecutorOf returns the service that executes calls of a kind according to the catalog,
// or "" if the kind is not in the catalog. Policy denies calls of kinds that are not in
// the catalog.
func (s *Maker) ExecutorOf(kind string) string {
	if t, _ := s.Tools.Lookup(kind); t != nil {
		return t.Executor
	}
	return ""
}

// Names of request and response headers.
const (
	// IDHeader is the response header with the call's id.
	IDHeader = "X-Binnacle-Call-Id"

	idempotencyHeader = "Idempotency-Key"

	// Request headers that contain the principal on whose behalf the caller acts, and
	// the id of the delegation that permits this. Policy checks the delegation.
	behalfHeader     = "X-Binnacle-On-Behalf-Of"
	delegationHeader = "X-Binnacle-Delegation"
)

// delegationOf returns the values of behalfHeader and delegationHeader, each "" if
// absent. The error is 400, and names the header, if one of them is longer than
// body.MaxName.
func delegationOf(h http.Header) (behalf, delegation string, err error) {
	behalf, delegation = h.Get(behalfHeader), h.Get(delegationHeader)
	if err := errors.Join(body.CheckName(behalfHeader, behalf), body.CheckName(delegationHeader, delegation)); err != nil {
		return "", "", err
	}
	return behalf, delegation, nil
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceContext returns the W3C trace context of a request (header traceparent), or "" if
// it is absent or malformed: the specification requires receivers to ignore a malformed
// one.
func traceContext(h http.Header) string {
	if v := h.Get("Traceparent"); traceparent.MatchString(v) {
		return v
	}
	return ""
}

// Headers sets the response headers that identify a call: the name and id of its
// session, the ids of the call, decision and receipt, and the verdict unless it is
// empty. All ids are known before the outcome is.
func Headers(c echo.Context, r propose.Request, verdict string) {
	h := c.Response().Header()
	h.Set(sessions.Header, sessions.Session{ID: r.Session, Name: r.SessionName}.Called())
	h.Set(sessions.IDHeader, r.Session)
	h.Set(IDHeader, r.ID)
	h.Set("X-Request-Id", r.ID)
	h.Set("Request-Id", r.ID)
	h.Set("X-Binnacle-Decision-Id", contract.IDDecision+r.ID)
	h.Set("X-Binnacle-Receipt-Id", receipt.ID(r.ID))
	if verdict != "" {
		h.Set("X-Binnacle-Verdict", verdict)
	}
}
