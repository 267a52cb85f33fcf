// Package llmapi is the gateway's APIs of language models: it proposes requests as
// they are and relays the frames of their responses.
package llmapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// API serves the APIs of language models. Its fields are set before its first use.
type API struct {
	Capture     string        // how much of prompts and answers the ledger keeps
	CallTimeout time.Duration // how long people are waited for
	Gate        *auth.Gate
	Calls       *calls.API
	Labels      *labels.Reader
	Queries     *queries.Client
	Proposer    *propose.Proposer
	Probe       *probe.Probe
	Metrics     calls.Metrics
	Blobs       *blob.Store
	Box         *transient.Box
	Tracer      *tracing.Tracer
	Log         *slog.Logger
}

// Handler makes the handler of an API of language models. The request passes as it
// is; its summary is what is proposed.
func (s *API) Handler(kind string) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set(apierr.ShapeKey, kind)
		who, err := s.Gate.Caller(c, "")
		if err != nil {
			return err
		}
		r, err := s.Request(c, kind, body.Raw(c), who)
		if err != nil {
			return err
		}
		if r.IdemKey != "" {
			done, err := s.repeated(c, r)
			if done || err != nil {
				return err
			}
		}
		return s.relay(c, r)
	}
}

// Request makes the proposal of a request to a language model.
func (s *API) Request(c echo.Context, kind string, raw []byte, who *auth.Caller) (propose.Request, error) {
	args, labels, err := llm.Peek(kind, raw)
	var fe *llm.FieldError
	if errors.As(err, &fe) {
		return propose.Request{}, apierr.BadRequest(fe.Field, fe.Error())
	}
	if err != nil {
		return propose.Request{}, err
	}
	previous, err := s.continues(c.Request().Context(), args, who)
	if err != nil {
		var e *apierr.Error
		if errors.As(err, &e) && e.Status == http.StatusNotFound {
			e.Param = "/previous_response_id"
		}
		return propose.Request{}, err
	}
	h := c.Request().Header
	args.Capture = s.Capture
	for _, v := range h.Values("Anthropic-Beta") {
		for b := range strings.SplitSeq(v, ",") {
			if b = strings.TrimSpace(b); b != "" && len(b) <= body.MaxName && len(args.Beta) < 32 {
				args.Beta = append(args.Beta, b)
			}
		}
	}
	switch v := h.Get(cacheHeader); v {
	case "", "no":
		if who.Cache && v == "" {
			args.Cache = "use"
		}
	case "use":
		args.Cache = v
	default:
		return propose.Request{}, apierr.BadRequest(cacheHeader, `want "use" or "no"`)
	}
	r, err := s.Calls.Request(c, kind, kind, nil, who)
	if err != nil {
		return r, err
	}
	if h.Get(calls.TimeoutHeader) == "" {
		r.Timeout = llmTimeout
	}
	if err := s.Labels.Inherit(c.Request().Context(), &r, previous, raw); err != nil {
		return r, err
	}
	if err := llm.Request(c.Request().Context(), s.Blobs, &r, args, raw, append(labels, r.Labels...)); err != nil {
		return r, apierr.Unavailable("the request cannot be encrypted now: " + err.Error())
	}
	return r, nil
}

// llmTimeout is how long a request to a model may take where its caller does not
// say: models think for minutes.
const llmTimeout = 10 * time.Minute

// cacheHeader asks for an answer that was kept, where there is one.
const cacheHeader = "X-Binnacle-Cache"

// repeated answers a request whose Idempotency-Key was used before.
func (s *API) repeated(c echo.Context, r propose.Request) (bool, error) {
	e, err := s.Queries.Last(c.Request().Context(), r.ID)
	if err != nil || e == nil {
		return false, err
	}
	args, err := calls.ModelArgs(r.Args)
	if err != nil {
		return false, err
	}
	if args.Stream {
		return true, calls.Conflict(r, "a stream cannot be repeated; GET /api/v1/calls/"+r.ID+" has its end")
	}
	out, body, err := s.Calls.Repeat(c.Request().Context(), r, e)
	verdict := ""
	if out != nil {
		verdict = out.Recorded.Receipt.Verdict
	}
	calls.Headers(c, r, verdict)
	if err == nil && r.Kind == llm.Responses {
		err = s.undeleted(c.Request().Context(), body)
	}
	if err != nil {
		return true, err
	}
	return true, c.JSONBlob(http.StatusOK, body)
}

// relay takes a call's frames to the caller: a plain answer once the outcome is
// on the ledger, a stream as it comes, with its end held until then.
func (s *API) relay(c echo.Context, r propose.Request) error {
	ctx := c.Request().Context()
	if s.Probe.Down() {
		return calls.Silent(r, "nothing was proposed")
	}
	defer s.Probe.Watch()()
	args, err := calls.ModelArgs(r.Args)
	if err != nil {
		return err
	}
	span := s.Tracer.Start(r.TraceCtx, "POST "+c.Path(), trace.SpanKindServer, attribute.String("http.request.method", "POST"), attribute.String("http.route", c.Path()),
		attribute.String("gen_ai.operation.name", operation(r.Kind)), attribute.String("gen_ai.request.model", args.Model), attribute.String("gen_ai.conversation.id", r.Session), attribute.String("binnacle.call.id", r.ID))
	r.TraceCtx = tracing.Context(span, r.TraceCtx)
	defer func() {
		span.SetAttributes(attribute.Int("http.response.status_code", c.Response().Status))
		span.End()
	}()
	frames := s.Box.Open(r.ID, r.Executor)
	defer frames.Close()
	p, err := s.Proposer.Propose(ctx, r)
	if err != nil {
		return calls.ProposeError(err)
	}
	defer p.Close()
	began := time.Now()

	a := &answering{s: s, c: c, r: r}
	async := strings.Contains(c.Request().Header.Get("Prefer"), "respond-async")
	var out *propose.Outcome
	var esc *contract.Escalated
	deadline := time.NewTimer(r.Timeout + 5*time.Second)
	defer deadline.Stop()
	lost := s.Probe.Lost()
	from, _ := s.Proposer.Position()
	late := time.NewTimer(probe.Unstarted)
	defer late.Stop()
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	standing, done := s.Gate.Watch(ctx, who, r.Stream)
	defer done()
	for {
		if out != nil && a.got >= out.Recorded.Effect.Frames {
			s.Metrics.Observe(r.Kind, out.Recorded.Effect.Status, time.Since(began))
			return a.end(&out.Recorded)
		}
		select {
		case <-frames.Wake():
			for {
				f, ok, err := frames.Try()
				if err != nil {
					return a.broken(err)
				}
				if !ok {
					break
				}
				if err := a.frame(f); err != nil {
					return s.abandon(ctx, p, r)
				}
				lost = nil // it runs; what is on its way may still come
				late.Stop()
			}
		case o := <-p.Outcome():
			out = &o
			deadline.Reset(3 * time.Second) // for frames still on their way
		case x := <-p.Escalated():
			if esc = &x; async {
				calls.Headers(c, r, contract.Escalate)
				return &apierr.Escalation{CallID: r.ID, Doc: esc}
			}
			deadline.Reset(min(r.Timeout, s.CallTimeout)) // people are not waited for as long as models
		case err := <-p.Failed():
			if r.IdemKey != "" && errors.Is(err, eventlog.ErrIDConflict) { // the same key, at the same moment
				if done, err := s.repeated(c, r); done || err != nil {
					return err
				}
			}
			return calls.WaitError(r, err)
		case <-lost:
			s.Calls.GiveUp(ctx, p, r)
			return calls.Silent(r, "the call is withdrawn")
		case <-late.C:
			if esc == nil && out == nil && s.Probe.Unsteady() && !s.Calls.Started(ctx, p.Event, from) {
				s.Calls.GiveUp(ctx, p, r)
				return calls.Silent(r, "the call is withdrawn")
			}
			late.Reset(probe.Every)
		case <-deadline.C:
			if out != nil {
				return a.broken(transient.ErrGap)
			}
			if esc != nil {
				calls.Headers(c, r, contract.Escalate)
				return &apierr.Escalation{CallID: r.ID, Doc: esc}
			}
			return calls.WaitError(r, propose.ErrUnknownOutcome)
		case <-standing.Done():
			err := s.abandon(ctx, p, r)
			if e := (*apierr.Error)(nil); ctx.Err() == nil && errors.As(context.Cause(standing), &e) { // not the client: its authority ended
				if a.open {
					return a.fail(e)
				}
				return e
			}
			return err
		}
	}
}

// operation is the name OpenTelemetry gives to what a kind does.
func operation(kind string) string {
	switch kind {
	case llm.Embeddings:
		return "embeddings"
	case llm.Completions:
		return "text_completion"
	}
	return "chat"
}

// abandon records that the client left.
func (s *API) abandon(ctx context.Context, p *propose.Pending, r propose.Request) error {
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := p.Cancel(bye); err != nil {
		s.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
	}
	return nil
}

// answering writes one answer.
type answering struct {
	s     *API
	c     echo.Context
	r     propose.Request
	head  *llm.Head
	body  []byte // of a plain answer, or the held end of a stream
	open  bool   // a stream that has begun
	got   int64  // frames
	taken int64  // bytes written or kept
	told  int64  // of them told to the sender
	n     int64  // credits sent
}

func (a *answering) streams() bool {
	return a.head != nil && a.head.Status == http.StatusOK && a.head.Headers["Content-Type"] == "text/event-stream"
}

func (a *answering) frame(t transient.Frame) error {
	f, err := llm.ParseFrame(t.Data)
	if err != nil {
		return err
	}
	a.got++
	if f.Head != nil {
		a.head = f.Head
	}
	if !a.streams() {
		a.body = append(a.body, f.Data...)
	} else if len(f.Data) > 0 {
		if err := a.write(f.Data); err != nil {
			return err
		}
	}
	a.body = append(a.body, f.End...)
	a.taken += int64(len(f.Data) + len(f.End))
	if a.taken-a.told >= llm.Window/2 && a.head != nil {
		a.told = a.taken
		a.n++
		return a.s.Box.Post(a.head.Instance, llm.CreditID(a.r.ID), a.n, fmt.Appendf(nil, "%d", a.taken))
	}
	return nil
}

// begin writes the response's head.
func (a *answering) begin(verdict string) http.Header {
	calls.Headers(a.c, a.r, verdict)
	h := a.c.Response().Header()
	if a.head != nil {
		for k, v := range a.head.Headers {
			h.Set(k, v)
		}
	}
	return h
}

func (a *answering) write(data []byte) error {
	resp := a.c.Response()
	if !a.open {
		a.open = true
		h := a.begin(contract.Allow) // frames come only from an allowed call
		h.Set("Cache-Control", "no-cache")
		resp.WriteHeader(http.StatusOK)
	}
	if _, err := resp.Write(data); err != nil {
		return err
	}
	resp.Flush()
	return nil
}

// end closes the answer, now that its outcome is on the ledger.
func (a *answering) end(r *contract.Recorded) error {
	e := apierr.OfOutcome(r)
	switch {
	case e == nil && a.streams():
		return a.write(a.body)
	case e == nil && a.head == nil: // answered without a frame
		return a.broken(transient.ErrGap)
	case a.open:
		return a.fail(e)
	case a.head != nil && a.head.Status != http.StatusOK && r.Effect.Status == contract.Failed:
		h := a.begin(r.Receipt.Verdict)
		if a.head.Fault == nil {
			h.Set("Content-Type", "application/json")
			return a.c.Blob(a.head.Status, "application/json", a.body)
		}
		e.Status, e.Param, e.Message, e.Code = a.head.Status, a.head.Fault.Param, a.head.Fault.Message, a.head.Fault.Code
		e.Type = apierr.TypeOf(e.Status)
		return e
	case e != nil:
		calls.Headers(a.c, a.r, r.Receipt.Verdict)
		return e
	}
	a.begin(r.Receipt.Verdict)
	return a.c.Blob(http.StatusOK, "application/json", a.body)
}

// fail ends a stream that has begun with an error, in the words of its API, and
// never as if it were complete.
func (a *answering) fail(e *apierr.Error) error { return a.write(e.Event(a.r.Kind)) }

// broken ends an answer that lost frames.
func (a *answering) broken(err error) error {
	msg := "the live stream broke; what was recorded is on the ledger under the receipt id"
	if !errors.Is(err, transient.ErrGap) {
		msg = err.Error()
	}
	e := &apierr.Error{Status: http.StatusBadGateway, Type: "server_error", Code: "stream_broken", Message: msg, CallID: a.r.ID, ReceiptID: "r-" + a.r.ID}
	if !a.open {
		calls.Headers(a.c, a.r, contract.Allow)
		return e
	}
	return a.fail(e)
}

// Models is GET /v1/models. Providers are asked for what they offer by a call of
// its own, at most every few minutes.
func (s *API) Models(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	type list struct {
		Data  []map[string]any `json:"data"`
		Stale bool             `json:"stale"`
	}
	ask := func() (l list, err error) {
		ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
		defer cancel()
		if err = s.Queries.Ask(ctx, "llm-router", "models", nil, &l); err != nil {
			err = apierr.Unavailable("the llm-router does not answer: " + err.Error())
		}
		return l, err
	}
	l, err := ask()
	if err != nil {
		return err
	}
	if l.Stale && slices.Contains(who.Scopes, "llm:call") {
		r, err := s.Calls.Request(c, "llm.models", "llm.models", []byte("{}"), who)
		if err != nil {
			return err
		}
		if _, _, err := s.Calls.Run(c, r); err == nil { // else the list is what it was
			if l, err = ask(); err != nil {
				return err
			}
		}
	}
	if c.Request().Header.Get("Anthropic-Version") != "" {
		return c.JSON(http.StatusOK, anthropicModels(l.Data))
	}
	if id, err := url.PathUnescape(c.Param("*")); err == nil && id != "" {
		for _, m := range l.Data {
			if m["id"] == id {
				return c.JSON(http.StatusOK, m)
			}
		}
		e := apierr.NotFound("no model " + id + "; GET /v1/models lists what there is")
		e.Code, e.Param = "model_not_found", "model" // in the path
		return e
	}
	return c.JSON(http.StatusOK, map[string]any{"object": "list", "data": l.Data})
}

// anthropicModels is the list in the shape of Anthropic's API.
func anthropicModels(data []map[string]any) map[string]any {
	out := []map[string]any{}
	first, last := "", ""
	for _, m := range data {
		id, _ := m["id"].(string)
		if first == "" {
			first = id
		}
		last = id
		out = append(out, map[string]any{"type": "model", "id": id, "display_name": id, "created_at": "1970-01-01T00:00:00Z"})
	}
	return map[string]any{"data": out, "has_more": false, "first_id": first, "last_id": last}
}
