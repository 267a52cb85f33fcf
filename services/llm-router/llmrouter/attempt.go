package llmrouter

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// attempt is one try of a call with one candidate. It is used by one goroutine, except
// that goroutines of the transport may use egress and call affordEgress. Hedged attempts
// of a call run concurrently and share the call; call.mu guards the totals that they
// update.
type attempt struct {
	c      *call
	up     *upstream
	cand   route.Candidate
	api    *dialect.API // API in which the request is sent; nil until run has selected it, and for a provider in this process
	ans    answer
	began  time.Time
	ev     events.AttemptFinished
	usage  ir.Usage
	said   int // size of the output so far, in bytes
	output []byte
	seen   scan.Seen // findings of the guard in the response
	held   amounts   // amounts reserved for this attempt in call.billed
	egress provider.Egress
	trace  string // traceparent header field for the provider
	inject bool   // the router requested that the stream report usage; the caller did not
}

// newAttempt returns an attempt with one candidate. rule is recorded as the reason for
// choosing the candidate; if it is empty, cand.Rule is recorded.
func (c *call) newAttempt(cand route.Candidate, rule string) *attempt {
	if rule == "" {
		rule = cand.Rule
	}
	a := &attempt{c: c, seen: scan.Seen{}, cand: cand, up: c.s.providers[cand.Provider], began: time.Now()}
	a.egress.Afford = a.affordEgress
	a.ev = events.AttemptFinished{API: c.w.Call.Kind, Model: cand.Model, Provider: cand.Provider, Requested: c.args.Model, Rule: rule, Status: contract.Succeeded,
		Streamed: c.args.Stream, Key: c.key.id, Tags: c.key.tags}
	a.ans = answer{caller: c.api, Frame: dialect.Frame{ID: c.api.IDPrefix + c.name(), Model: c.args.Model, Created: c.now.Unix(), Usage: c.args.Usage, Body: c.body}}
	return a
}

// execute sends the call to the attempt's candidate and records the result. It returns
// nil on success.
func (a *attempt) execute(ctx context.Context) *provider.Failure {
	span := spanOf(a)
	defer span.End()
	a.trace = tracing.Context(span, a.c.w.Event.TraceCtx)
	f := a.failure(ctx, a.contained(ctx))
	a.record(f)
	span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", a.ev.InputTokens), attribute.Int64("gen_ai.usage.output_tokens", a.ev.OutputTokens),
		attribute.String("gen_ai.response.id", a.ev.ResponseID), attribute.Int64("http.response.status_code", a.ev.HTTPStatus))
	if f != nil {
		span.SetAttributes(attribute.String("error.type", f.Code))
		span.SetStatus(codes.Error, f.Code)
	}
	return f
}

// contained executes the attempt. It converts a panic into errPanicked and logs it, so
// that the attempt is recorded with its usage, and the call continues as after any other
// failure.
func (a *attempt) contained(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w := a.c.w
			a.c.s.env.Log.Error("attempt panicked", "call", w.Call.ID, "model", a.cand.ID(), "panic", w.Redactor().String(fmt.Sprint(p)), "stack", w.Redactor().String(string(debug.Stack())))
			err = errPanicked
		}
	}()
	return a.run(ctx)
}

// spanOf starts the trace span of an attempt, with attribute names from the
// OpenTelemetry conventions for generative AI.
func spanOf(a *attempt) trace.Span {
	c := a.c
	attrs := []attribute.KeyValue{attribute.String("gen_ai.operation.name", c.api.Operation), attribute.String("gen_ai.provider.name", a.up.TraceName()), attribute.String("gen_ai.request.model", a.cand.Model),
		attribute.String("gen_ai.conversation.id", c.w.Event.Session), attribute.String("binnacle.call.id", c.w.Call.ID), attribute.String("binnacle.tenant", c.w.Event.Tenant), attribute.Bool("gen_ai.request.stream", c.args.Stream)}
	if v := gjson.GetBytes(c.args.Params, "temperature"); v.Exists() {
		attrs = append(attrs, attribute.Float64("gen_ai.request.temperature", v.Num))
	}
	return c.s.env.Tracer.Start(c.w.Event.TraceCtx, c.api.Operation+" "+a.cand.Model, trace.SpanKindClient, attrs...)
}

// failure converts an error of run to a *provider.Failure, and records the code, the
// HTTP status (if there is one) and the retry time of the failure in a.ev. It logs the
// failure's detail, which callers must not see. a.ev.Status becomes contract.Cancelled
// if ctx is done, or else the status of the failure's row in fault.Table. failure
// returns nil if err is nil.
func (a *attempt) failure(ctx context.Context, err error) *provider.Failure {
	if err == nil {
		return nil
	}
	var f *provider.Failure
	if !errors.As(err, &f) {
		f = &provider.Failure{Code: codeFor(ctx, err), Message: err.Error(), Taken: true}
	}
	a.ev.Status = f.Row().Status
	if ctx.Err() != nil {
		a.ev.Status = contract.Cancelled
	}
	if f.Detail != "" {
		w := a.c.w
		a.c.s.env.Log.Warn("provider refused a key", "call", w.Call.ID, "provider", a.cand.Provider, "key", a.ev.ProviderKey, "status", f.Status, "answer", w.Redactor().String(f.Detail))
	}
	a.ev.ErrorCode, a.ev.RetryAfterMS = f.Code, f.Retry.Milliseconds()
	if f.Status > 0 {
		a.ev.HTTPStatus = int64(f.Status)
	}
	return f
}

// codeFor returns the code of an error that was not caused by a provider.
func codeFor(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, errStalled):
		return fault.ClientStalled
	case errors.Is(err, errLost):
		return fault.Hedged
	case ctx.Err() != nil:
		return fault.Cancelled
	case errors.Is(err, fair.ErrFull):
		return fault.ProviderUnavailable
	}
	return fault.Internal
}

// record settles the attempt's reservation, and adds the attempt to the call's events
// and its usage to the call's totals. The attempt's output, if any, becomes that of the
// call if the attempt succeeded or its response has begun. If the provider reported no
// usage, or an impossible one (see ir.Usage.Checked), the usage is estimated for an
// attempt that succeeded, had output, or was cancelled after the provider had sent a
// status.
func (a *attempt) record(f *provider.Failure) {
	c := a.c
	a.usage = a.usage.Checked()
	passed := a.said > 0 || a.ev.Status == contract.Cancelled && a.ev.HTTPStatus > 0
	if !a.usage.Known && (passed || f == nil) {
		c.estimate(&a.usage, a.said)
		a.ev.Estimated = true
	}
	u := &a.usage
	a.ev.InputTokens, a.ev.OutputTokens, a.ev.CachedTokens, a.ev.CacheWriteTokens, a.ev.ReasoningTokens = u.In, u.Out, u.Cached, u.CacheWrite, u.Reasoning
	if cost, ok := c.s.Cost(a.cand.ID(), u.In, u.Cached, u.CacheWrite, u.Out); ok {
		a.ev.USDMicros, a.ev.PriceVersion = cost, c.s.Prices.Version
	}
	a.ev.LatencyMS = time.Since(a.began).Milliseconds()
	c.mu.Lock()
	defer c.mu.Unlock()
	a.settle(f)
	c.tries++
	a.ev.Attempt = c.tries
	c.usage.InputTokens += u.In
	c.usage.OutputTokens += u.Out
	c.usage.CachedTokens += u.Cached
	c.usage.ReasoningTokens += u.Reasoning
	c.usage.USDMicros += a.ev.USDMicros
	c.usage.Cents = (c.usage.USDMicros + 9999) / 10000
	if len(a.output) > 0 && (f == nil || c.out.claimedBy(a)) {
		c.output = a.output
	}
	if f == nil && a.native() && a.api.Items {
		a.ev.ItemIds = itemIDs(a.output)
	}
	a.ev.Findings = append(c.inPrompt.List("prompt."), a.seen.List("output.")...)
	c.w.Fact(events.AttemptFinishedName, contract.Bytes(&a.ev))
}

// native reports whether the request is sent in the caller's own API, so that bodies and
// events need no translation.
func (a *attempt) native() bool { return a.api != nil && a.api == a.c.api.Native }

// name returns the call's id without its prefix; ids in responses are derived from it.
func (c *call) name() string { return strings.TrimPrefix(c.w.Call.ID, contract.IDCall) }
