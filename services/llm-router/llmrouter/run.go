package llmrouter

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// Header fields that the router sets in responses, and media types.
const (
	headerModel = "X-Binnacle-Model"
	headerCache = "X-Binnacle-Cache"
	headerType  = "Content-Type"
	typeJSON    = "application/json"
	typeStream  = "text/event-stream"
)

// headOf returns the head of a successful response from a candidate: status 200, the
// media type and the candidate's model.
func headOf(c *route.Candidate, media string) *llm.Head {
	return &llm.Head{Status: http.StatusOK, Headers: map[string]string{headerType: media, headerModel: c.ID()}}
}

// run executes the attempt, in this process or over HTTP. Before a request is sent over
// HTTP, its maximum cost is reserved and a key is selected. An error that is not a
// *provider.Failure was not caused by the provider.
func (a *attempt) run(ctx context.Context) error {
	if a.up.Local() != nil {
		return a.local(ctx)
	}
	if a.api = apiFor(a.up.Provider, a.c.api); a.api == nil {
		return unsupported(a.cand.Provider, a.c.w.Call.Kind)
	}
	if a.api == estimate {
		return a.count()
	}
	body, err := a.request(ctx)
	if err != nil {
		return a.c.unreadable(err, "the request cannot be translated for provider "+a.up.Name+": ")
	}
	if f := a.afford(); f != nil {
		return f
	}
	name, rests := a.up.keys.pick(time.Now(), a.c.w.Event.Tenant, a.cand.Model)
	if rests != nil {
		return rests
	}
	return a.sendWith(ctx, name, body)
}

// errPanicked is the error of an attempt that panicked.
var errPanicked = errors.New("the attempt failed because of a defect; see the service's log")

// sendWith sends the request with the named key, and then updates the state of the key,
// even if send panics: a key that is being probed would otherwise never be used again.
func (a *attempt) sendWith(ctx context.Context, key string, body []byte) error {
	value, err := "", errPanicked // the result if send panics
	defer func() { a.report(ctx, key, value, err) }()
	value, err = a.send(ctx, key, body)
	return err
}

// unreadable returns the failure for a request that cannot be read or translated. If err
// is a *provider.Failure, it is returned unchanged; errNotStored becomes fault.NotFound,
// errUnread becomes fault.ProviderUnavailable, and any other error is converted by
// refused, with why.
func (c *call) unreadable(err error, why string) error {
	var f *provider.Failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, errNotStored):
		return &provider.Failure{Code: fault.NotFound, Message: err.Error(), Fault: &ir.Fault{Param: "/previous_response_id", Message: err.Error()}}
	case errors.Is(err, errUnread):
		return &provider.Failure{Code: fault.ProviderUnavailable, Message: err.Error()}
	}
	return refused(c.body, err, why)
}

// send waits until the provider's concurrency limit permits the request, fetches the
// value of the named key, sends the request and forwards the response. If the wait
// fails, it releases the reserved tokens and price. If the request fails after the key
// was fetched, it returns the value with the error, so that report can discard a
// rejected value.
func (a *attempt) send(ctx context.Context, key string, body []byte) (value string, err error) {
	c, up := a.c, a.up
	if err := up.gate.Enter(ctx, c.w.Event.Tenant, c.w.Event.Actor); err != nil {
		a.held = a.release()
		return "", err
	}
	defer up.gate.Leave()
	if a.ev.ProviderKey = key; key != "" {
		if value, err = c.s.keys.get(ctx, c.w, key); err != nil {
			return "", &provider.Failure{Code: fault.CredentialMissing, Message: "the key of provider " + up.Name + " cannot be fetched: " + err.Error()}
		}
	}
	a.began = time.Now()
	res, err := up.Do(ctx, &provider.Call{API: a.api, Model: a.cand.Model, Body: body, Stream: c.args.Stream, Key: value, Beta: c.args.Beta, Trace: a.trace, Egress: &a.egress})
	if err != nil {
		var f *provider.Failure
		if errors.As(err, &f) && !a.native() {
			f.Body = nil // the body is in an API that the caller does not use
		}
		return value, err
	}
	defer res.Close()
	a.ev.HTTPStatus, a.ev.FirstByteMS, a.ev.ProviderRequestID = int64(res.Status), res.First.Milliseconds(), registry.RequestID(res.Headers)
	c.s.latency.add(a.cand.ID(), res.First)
	head := headOf(&a.cand, typeJSON)
	passHeaders(head.Headers, res.Headers)
	if c.args.Stream {
		return value, a.stream(ctx, res, head)
	}
	return value, a.plain(res, head)
}

// report updates the state of a request's key according to the result of the request. If
// ctx is done, the request counts neither as a success nor as a failure.
func (a *attempt) report(ctx context.Context, name, value string, err error) {
	says := fault.Healthy
	var f *provider.Failure
	switch {
	case ctx.Err() != nil:
		says = fault.Unknown
	case errors.As(err, &f):
		says = f.Row().Key
	case err != nil:
		says = fault.Of(codeFor(ctx, err)).Key
	}
	key := tenantKey{a.c.w.Event.Tenant, name}
	keys, failed := a.up.keys, func(b *route.Breaker) { b.Failure(time.Now()) }
	switch says {
	case fault.Unknown:
		keys.report(key, (*route.Breaker).Undecided)
	case fault.Healthy:
		keys.report(key, (*route.Breaker).Success)
	case fault.Resting:
		keys.rest(key, a.cand.Model, time.Now().Add(max(f.Retry, time.Second)))
	case fault.Rejected:
		a.c.s.keys.refused(key, value)
		keys.report(key, failed)
	case fault.Failing:
		keys.report(key, failed)
	}
}

// unsupported returns the failure for a provider that has no API for a kind of calls.
func unsupported(provided, kind string) error {
	return &provider.Failure{Code: fault.Unsupported, Status: http.StatusBadRequest, Message: "provider " + provided + " does not offer " + kind}
}

// count completes a call that counts tokens with an estimate of four bytes per token,
// without a request to the provider.
func (a *attempt) count() error {
	a.usage.Known = true
	doc, err := json.Marshal(map[string]int{"input_tokens": len(a.c.body)/4 + 1})
	if err != nil {
		return err
	}
	a.output, a.ev.Estimated = doc, true
	return a.answerWith(headOf(&a.cand, typeJSON), doc)
}

// plain forwards a response that is not a stream, after translating it and applying the
// output guards. It returns a failure for a response that cannot be read or that a guard
// blocks, and the errors of answerWith.
func (a *attempt) plain(res *provider.Answer, head *llm.Head) error {
	if llm.Check(res.Body) != nil {
		return a.up.Malformed("did not respond with one JSON document")
	}
	body, err := a.translate(res.Body)
	if err != nil {
		return err
	}
	said := gjson.ParseBytes(body)
	if at := a.c.api.Said; at != "" { // guard the model's output only, since the other members repeat parts of the request
		said = said.Get(at)
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
	return a.answerWith(head, body)
}

// translate returns a provider's response in the caller's API, and records its usage and
// id, except for translated embeddings. A response that is already in that API is
// returned unchanged.
func (a *attempt) translate(body []byte) ([]byte, error) {
	if a.native() {
		a.usage = usageOf(a.api, body)
		a.ev.ResponseID = responseID(body)
		return body, nil
	}
	if e := a.api.Embed; e != nil {
		vectors, err := e.Parse(body)
		if err != nil {
			return nil, a.up.Malformed("sent a response that cannot be read: " + err.Error())
		}
		return embeddingsAnswer(a.c.body, a.c.args.Model, vectors)
	}
	r, err := a.api.Parse(body, a.c.name())
	if err != nil {
		return nil, a.up.Malformed("sent a response that cannot be read: " + err.Error())
	}
	a.usage = r.Usage
	if body, err = a.ans.build(r); err != nil {
		return nil, err
	}
	a.ev.ResponseID = responseID(body)
	return body, nil
}

// answerWith selects this attempt as the one whose response is sent, and sends a
// complete document to the caller. It returns errLost if another attempt was selected
// before, or the error of sending the document.
func (a *attempt) answerWith(head *llm.Head, body []byte) error {
	if err := a.c.out.claim(a, head); err != nil {
		return err
	}
	return a.c.out.finish(body)
}
