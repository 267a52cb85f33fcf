package llmapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// relay proposes a call and relays its frames to the caller. A plain response is sent
// once the outcome is on the ledger. A stream is relayed as it arrives, but its end is
// held back until the outcome is on the ledger. A complete response therefore implies
// that the outcome and the receipt are durable. A call is cancelled if its client
// disconnects, or if the caller is suspended or the credential is revoked (see
// auth.Gate.Watch); a call with a stream is also cancelled if the credential expires. If
// the wait ends without the outcome for another reason, see unended.
func (s *API) relay(c echo.Context, r propose.Request) error {
	if s.Calls.Probe.Down() {
		return calls.Silent(r, "nothing was proposed")
	}
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	args, err := calls.ModelArgs(r.Args)
	if err != nil {
		return err
	}
	span := s.trace(c, &r, args)
	defer func() {
		span.SetAttributes(attribute.Int("http.response.status_code", c.Response().Status))
		span.End()
	}()
	frames := s.Open(r.ID, r.Executor)
	defer frames.Close()
	ctx := c.Request().Context()
	p, err := s.Calls.Propose(ctx, r)
	if err != nil {
		return err
	}
	defer p.Close()
	began := time.Now()
	a := &response{s: s, c: c, r: r, frames: frames}
	// r.Stream cannot be passed here, because it is also set for a plain response.
	allowed, done := s.Gate.Watch(ctx, who, args.Stream)
	defer done()
	// After an escalation, the wait is at most CallTimeout, even if the timeout of the
	// request is longer.
	terms := await.Terms{Within: r.Timeout + calls.Margin, Async: calls.Async(c), People: min(r.Timeout, s.CallTimeout)}
	res := s.Calls.Wait(allowed, p, terms, a)
	if res.State == await.Ended {
		s.Metrics.Observe(r.Kind, res.Outcome.Recorded.Effect.Status, time.Since(began))
		return a.end(&res.Outcome.Recorded)
	}
	if res.State == await.Left || res.State == await.Gone {
		_ = s.Calls.Unended(ctx, p, r, &res) // revoked writes the response
		return a.revoked(ctx, allowed)
	}
	return s.unended(ctx, a, p, &res)
}

// unended responds if the wait for a call ended without the outcome, or without all
// frames of the response. A stream that has begun ends with an error event, so that it
// cannot be mistaken for a complete response.
func (s *API) unended(ctx context.Context, a *response, p *propose.Pending, res *await.Result) error {
	c, r := a.c, a.r
	switch res.State {
	case await.Broken:
		return a.broken(res.Err)
	case await.Escalated:
		calls.Headers(c, r, contract.Escalate)
	case await.Overdue:
		calls.Headers(c, r, "")
	case await.Silent:
		s.Calls.GiveUp(ctx, p, r)
		return calls.Silent(r, "the call is cancelled unless the request has an Idempotency-Key")
	case await.Failed:
		if before, err := s.Calls.Before(ctx, r, res.Err); err != nil || before != nil {
			return s.repeatOr(c, r, before, err)
		}
	}
	err := s.Calls.Unended(ctx, p, r, res)
	var e *apierr.Error
	if a.open && errors.As(err, &e) {
		return a.fail(e)
	}
	return err
}

// trace starts a span for the request and sets the trace context of the proposal.
func (s *API) trace(c echo.Context, r *propose.Request, args *llm.Args) trace.Span {
	span := s.Tracer.Start(r.TraceCtx, "POST "+c.Path(), trace.SpanKindServer, attribute.String("http.request.method", "POST"), attribute.String("http.route", c.Path()),
		attribute.String("gen_ai.operation.name", operation(r.Kind)), attribute.String("gen_ai.request.model", args.Model), attribute.String("gen_ai.conversation.id", r.Session), attribute.String("binnacle.call.id", r.ID), attribute.String("binnacle.tenant", r.Tenant))
	r.TraceCtx = tracing.Context(span, r.TraceCtx)
	return span
}

// operation returns the value of OpenTelemetry's attribute gen_ai.operation.name for a
// kind of call.
func operation(kind string) string {
	switch kind {
	case llm.Embeddings:
		return "embeddings"
	case llm.Completions:
		return "text_completion"
	}
	return "chat"
}

// repeat responds to a request whose Idempotency-Key identifies the call before.Call
// with the recorded output of that call. The error is 409 if the request is for a
// stream, because the frames of a stream are not recorded. See calls.Runner.Repeat and
// undeleted for other errors.
func (s *API) repeat(c echo.Context, r propose.Request, before *calls.Prior) error {
	args, err := calls.ModelArgs(r.Args)
	if err != nil {
		return err
	}
	if args.Stream {
		return calls.Conflict(r, "a stream cannot be repeated; GET /api/v1/calls/"+r.ID+" returns the state of the call")
	}
	ctx := c.Request().Context()
	out, body, err := s.Calls.Repeat(ctx, r, before)
	verdict := ""
	if out != nil {
		verdict = out.Recorded.Receipt.Verdict
	}
	calls.Headers(c, r, verdict)
	if err == nil && r.Kind == llm.Responses {
		err = s.undeleted(ctx, r.Tenant, body)
	}
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, body)
}

// repeatOr returns err if it is not nil, or else the result of repeat.
func (s *API) repeatOr(c echo.Context, r propose.Request, before *calls.Prior, err error) error {
	if err != nil {
		return err
	}
	return s.repeat(c, r, before)
}
