package llmrouter

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/demo"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fair"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/gemini"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// attempt is one request to one provider.
type attempt struct {
	c      *call
	up     *upstream // nil: the demo
	cand   route.Candidate
	wire   string
	ans    answer
	began  time.Time
	ev     events.AttemptFinished
	usage  ir.Usage
	said   int // bytes of text that passed
	output []byte
	seen   scan.Seen // in the answer
	held   amounts   // that it may be billed for, and may send
	egress provider.Egress
	trace  string // context for the provider
	inject bool   // usage in the stream was requested by the router, not by the caller
}

// attempt asks one candidate and records what came of it. nil is success.
func (c *call) attempt(ctx context.Context, cand route.Candidate, rule string) *provider.Failure {
	if rule == "" {
		rule = cand.Rule
	}
	a := &attempt{c: c, seen: scan.Seen{}, cand: cand, up: c.s.providers[cand.Provider], began: time.Now()}
	a.egress.Afford = a.affordEgress
	a.ev = events.AttemptFinished{API: c.w.Call.Kind, Model: cand.Model, Provider: cand.Provider, Requested: c.args.Model, Rule: rule, Status: "succeeded",
		Streamed: c.args.Stream, Key: c.key.id, Tags: c.key.tags}
	a.ans = answer{kind: c.w.Call.Kind, id: idPrefix[c.w.Call.Kind] + strings.TrimPrefix(c.w.Call.ID, contract.IDCall), model: c.args.Model, created: c.now.Unix(), usage: c.args.Usage, body: c.body}
	op := map[string]string{llm.Embeddings: "embeddings", llm.Completions: "text_completion"}[c.w.Call.Kind]
	if op == "" {
		op = "chat"
	}
	attrs := []attribute.KeyValue{attribute.String("gen_ai.operation.name", op), attribute.String("gen_ai.provider.name", a.providerName()), attribute.String("gen_ai.request.model", cand.Model),
		attribute.String("gen_ai.conversation.id", c.w.Event.Session), attribute.String("binnacle.call.id", c.w.Call.ID), attribute.Bool("gen_ai.request.stream", c.args.Stream)}
	if v := gjson.GetBytes(c.args.Params, "temperature"); v.Exists() {
		attrs = append(attrs, attribute.Float64("gen_ai.request.temperature", v.Num))
	}
	span := c.s.env.Tracer.Start(c.w.Event.TraceCtx, op+" "+cand.Model, trace.SpanKindClient, attrs...)
	defer span.End()
	a.trace = tracing.Context(span, c.w.Event.TraceCtx)
	err := a.run(ctx)
	if errors.Is(err, errLost) || ctx.Err() != nil && err != nil {
		a.ev.Status = "cancelled"
	}
	var f *provider.Failure
	if err != nil && !errors.As(err, &f) {
		f = &provider.Failure{Code: codeFor(ctx, err), Message: err.Error()}
	}
	if f != nil {
		if a.ev.Status == "succeeded" {
			a.ev.Status = "failed"
		}
		a.ev.ErrorCode, a.ev.RetryAfterMS = f.Code, f.Retry.Milliseconds()
		if f.Status > 0 {
			a.ev.HTTPStatus = int64(f.Status)
		}
	}
	a.record(f)
	span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", a.ev.InputTokens), attribute.Int64("gen_ai.usage.output_tokens", a.ev.OutputTokens),
		attribute.String("gen_ai.response.id", a.ev.ResponseID), attribute.Int64("http.response.status_code", a.ev.HTTPStatus))
	if f != nil {
		span.SetAttributes(attribute.String("error.type", f.Code))
		span.SetStatus(codes.Error, f.Code)
	}
	return f
}

func codeFor(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, errStalled):
		return "client_stalled"
	case errors.Is(err, errLost):
		return "hedged"
	case ctx.Err() != nil:
		return "cancelled"
	case errors.Is(err, fair.ErrFull):
		return "provider_unavailable"
	}
	return "internal"
}

// providerName is the provider as OpenTelemetry names it, by its kind.
func (a *attempt) providerName() string {
	if a.up == nil {
		return "binnacle.demo"
	}
	if n := map[string]string{"azure": "azure.ai.openai", "bedrock": "aws.bedrock", "gemini": "gcp.gemini", "compatible": a.up.Name}[a.up.Kind]; n != "" {
		return n
	}
	return a.up.Kind
}

// record puts the attempt on the ledger and its usage on the call's account.
func (a *attempt) record(f *provider.Failure) {
	c := a.c
	passed := a.said > 0 || a.ev.Status == "cancelled" && a.ev.HTTPStatus > 0
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
	if f == nil && a.wire == provider.Responses && a.wire == native[c.w.Call.Kind] {
		a.ev.ItemIds = itemIDs(a.output)
	}
	a.ev.Findings = append(c.inPrompt.List("prompt."), a.seen.List("output.")...)
	c.w.Fact(events.AttemptFinishedName, contract.Bytes(&a.ev))
}

func (a *attempt) run(ctx context.Context) error {
	if a.up == nil {
		return a.demo(ctx)
	}
	c, up := a.c, a.up
	if a.wire = wireFor(up.Provider, c.w.Call.Kind); a.wire == "" {
		return a.unsupported()
	}
	if a.wire == wireEstimate {
		return a.count()
	}
	req := provider.Call{Wire: a.wire, Model: a.cand.Model, Stream: c.args.Stream, Beta: c.args.Beta, Trace: a.trace, Egress: &a.egress}
	var err error
	if req.Body, err = a.request(ctx); err != nil {
		var f *provider.Failure
		if errors.As(err, &f) {
			return f
		}
		if errors.Is(err, errNotStored) {
			return &provider.Failure{Code: "not_found", Message: err.Error(), Fault: &ir.Fault{Param: "/previous_response_id", Message: err.Error()}}
		}
		return refused(c.body, err, "the request cannot be translated for provider "+up.Name+": ")
	}
	if f := a.afford(); f != nil {
		return f
	}
	name, rests := up.keys.pick(time.Now(), a.cand.Model)
	if rests != nil {
		rests.Free = true
		return rests
	}
	told := false
	defer func() {
		if !told {
			up.keys.report(name, (*route.Breaker).Undecided)
		}
	}()
	if err := up.gate.Enter(ctx, c.w.Event.Actor); err != nil {
		a.held = a.release()
		return err
	}
	defer up.gate.Leave()
	if a.ev.ProviderKey = name; name != "" {
		if req.Key, err = c.s.keys.get(ctx, c.w, name); err != nil {
			return &provider.Failure{Code: "credential_missing", Free: true, Message: "the key of provider " + up.Name + " cannot be had: " + err.Error()}
		}
	}
	a.began = time.Now()
	res, err := up.Do(ctx, &req)
	if err != nil {
		var f *provider.Failure
		if errors.As(err, &f) && ctx.Err() == nil && f.Code != provider.OverBudget {
			told = true
			a.judge(name, req.Key, f)
			if a.wire != native[c.w.Call.Kind] {
				f.Body = nil // said in another API's words
			}
		}
		return err
	}
	defer res.Close()
	a.ev.HTTPStatus, a.ev.FirstByteMS, a.ev.ProviderRequestID = int64(res.Status), res.First.Milliseconds(), requestID(res.Headers)
	c.s.latency.add(a.cand.ID(), res.First)
	head := &llm.Head{Status: http.StatusOK, Headers: map[string]string{"X-Binnacle-Model": a.cand.ID()}}
	passHeaders(head.Headers, res.Headers)
	if c.args.Stream {
		err = a.stream(ctx, res, head)
	} else {
		err = a.plain(res, head)
	}
	var f *provider.Failure
	switch {
	case ctx.Err() != nil || errors.Is(err, errStalled) || errors.Is(err, errLost):
	case err == nil:
		told = true
		up.keys.report(name, (*route.Breaker).Success)
	case errors.As(err, &f):
		told = true
		a.judge(name, req.Key, f)
	}
	return err
}

// judge tells the key's breaker of a failure that speaks about the provider or
// the key, not about the request.
func (a *attempt) judge(name, value string, f *provider.Failure) {
	b := a.up.keys
	switch f.Code {
	case "content_blocked":
		b.report(name, (*route.Breaker).Success)
	case "rate_limited":
		b.rest(name, a.cand.Model, time.Now().Add(max(f.Retry, time.Second)))
	case "credential_invalid":
		a.c.s.keys.refused(name, value)
		b.report(name, func(x *route.Breaker) { x.Failure(time.Now()) })
	case "upstream_timeout", "upstream_unreachable", "upstream_cut", "upstream_malformed", "upstream_error":
		b.report(name, func(x *route.Breaker) { x.Failure(time.Now()) })
	default:
		b.report(name, (*route.Breaker).Success)
	}
}

func (a *attempt) unsupported() error {
	return &provider.Failure{Code: "unsupported", Status: http.StatusBadRequest, Message: "provider " + a.cand.Provider + " does not offer " + a.c.w.Call.Kind}
}

// count answers a request to count tokens by an estimate.
func (a *attempt) count() error {
	a.usage.Known = true
	doc, err := json.Marshal(map[string]int{"input_tokens": len(a.c.body)/4 + 1})
	if err != nil {
		return err
	}
	a.output, a.ev.Estimated = doc, true
	return a.send(&llm.Head{Status: http.StatusOK, Headers: map[string]string{"Content-Type": "application/json", "X-Binnacle-Model": a.cand.ID()}}, doc)
}

// request is the body for the provider: the caller's own with the model's name
// changed in place, or its translation.
func (a *attempt) request(ctx context.Context) ([]byte, error) {
	c := a.c
	if a.wire == native[c.w.Call.Kind] {
		body, err := rename(c.body, a.cand.Model)
		if err == nil && a.wire == provider.Chat && c.args.Stream && !c.args.Usage {
			a.inject = true // what is not counted cannot be billed
			body, err = sjson.SetBytes(body, "stream_options.include_usage", true)
		}
		return body, err
	}
	if a.wire == provider.GeminiEmbed {
		return embeddings(c.body, a.cand.Model)
	}
	r, err := parseRequest(c.w.Call.Kind, c.body)
	if err != nil {
		return nil, err
	}
	if err := c.history(ctx, r); err != nil {
		return nil, err
	}
	a.ans.request, a.ans.prev = r, c.args.Previous
	if v := gjson.GetBytes(c.body, "store"); c.w.Call.Kind == llm.Responses {
		a.ans.store = !v.Exists() || v.Bool()
	}
	r.Model = a.cand.Model
	body, err := buildRequest(a.wire, r)
	if err == nil && a.wire == provider.Chat && r.MaxTokens > 0 && a.up.Kind != "openai" && a.up.Kind != "azure" {
		body, err = sjson.SetBytes(body, "max_tokens", r.MaxTokens) // many servers know no other bound
	}
	return body, err
}

// rename replaces the model's name and nothing else.
func rename(body []byte, model string) ([]byte, error) {
	at := gjson.GetBytes(body, "model")
	if at.Index == 0 {
		return sjson.SetBytes(body, "model", model)
	}
	name, err := json.Marshal(model)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(body)+len(name)+64)
	out = append(append(out, body[:at.Index]...), name...)
	return append(out, body[at.Index+len(at.Raw):]...), nil
}

// plain takes a plain answer to the caller.
func (a *attempt) plain(res *provider.Answer, head *llm.Head) error {
	body := res.Body
	head.Headers["Content-Type"] = "application/json"
	if llm.Check(body) != nil {
		return a.up.Malformed("did not answer with one JSON document")
	}
	switch {
	case a.wire == native[a.c.w.Call.Kind]:
		a.usage = usageOf(a.wire, body)
		a.ev.ResponseID = responseID(body)
	case a.wire == provider.GeminiEmbed:
		vectors, err := gemini.ParseEmbeddings(body)
		if err != nil {
			return a.up.Malformed("sent an answer that cannot be read: " + err.Error())
		}
		if body, err = embeddingsAnswer(a.c.body, a.c.args.Model, vectors); err != nil {
			return err
		}
	default:
		r, err := parseResponse(a.wire, body, strings.TrimPrefix(a.c.w.Call.ID, contract.IDCall))
		if err != nil {
			return a.up.Malformed("sent an answer that cannot be read: " + err.Error())
		}
		a.usage = r.Usage
		if body, err = a.ans.build(r); err != nil {
			return err
		}
		a.ev.ResponseID = responseID(body)
	}
	said := gjson.ParseBytes(body)
	if a.c.w.Call.Kind == llm.Responses { // beside it stands what the caller said
		said = said.Get("output")
	}
	if len(a.c.reply) > 0 && said.Exists() {
		clean, blocked := a.c.reply.JSON([]byte(said.Raw), a.seen)
		if blocked != "" {
			return contentBlocked("answer", blocked)
		}
		body = slices.Concat(body[:said.Index], clean, body[said.Index+len(said.Raw):])
	}
	a.said = len(body)
	a.output = body
	return a.send(head, body)
}

func (a *attempt) send(head *llm.Head, body []byte) error {
	if err := a.c.out.claim(a, head); err != nil {
		return err
	}
	return a.c.out.finish(body)
}

// demo answers by itself.
func (a *attempt) demo(ctx context.Context) error {
	c := a.c
	if a.cand.Model != demo.Model {
		return &provider.Failure{Code: "model_not_found", Status: http.StatusNotFound, Message: "the demo has one model, demo/" + demo.Model}
	}
	switch c.w.Call.Kind {
	case llm.Chat, llm.Responses, llm.Messages:
	default:
		return a.unsupported()
	}
	r, err := parseRequest(c.w.Call.Kind, c.body)
	if err == nil {
		err = c.history(ctx, r)
	}
	if errors.Is(err, errNotStored) {
		return &provider.Failure{Code: "not_found", Message: err.Error(), Fault: &ir.Fault{Param: "/previous_response_id", Message: err.Error()}}
	}
	if err != nil {
		return refused(c.body, err, "")
	}
	a.ans.request, a.ans.prev, a.ans.store = r, c.args.Previous, true
	a.ans.id = strings.Replace(a.ans.id, "-", "-demo-", 1)
	head := &llm.Head{Status: http.StatusOK, Headers: map[string]string{"X-Binnacle-Model": a.cand.ID(), "Content-Type": "application/json"}}
	var sum ir.Collect
	var enc encoder
	if c.args.Stream {
		head.Headers["Content-Type"] = "text/event-stream"
		enc = a.ans.encoder()
	}
	a.ev.HTTPStatus = http.StatusOK
	steps := demo.Answer(a.ans.id, r)
	if len(c.reply) > 0 {
		f := filter{g: c.reply, seen: a.seen}
		var shown []ir.Event
		for _, e := range steps {
			more, blocked := f.step(e)
			if blocked != "" {
				return contentBlocked("answer", blocked)
			}
			shown = append(shown, more...)
		}
		steps = shown
	}
	if err := c.out.claim(a, head); err != nil {
		return err
	}
	for _, e := range steps {
		sum.Add(&e)
		if e.Kind == ir.Used {
			a.usage.Merge(e.Usage)
		}
		if e.Content() {
			a.said += len(e.Part.Text)
		}
		if enc != nil {
			if err := c.out.write(enc.Encode(&e)); err != nil {
				return err
			}
		}
	}
	answer := sum.Response()
	answer.Usage = a.usage
	if a.output, err = a.ans.build(answer); err != nil {
		return err
	}
	a.ev.ResponseID = a.ans.id
	if enc != nil {
		return c.out.finish(enc.Finish())
	}
	return c.out.finish(a.output)
}
