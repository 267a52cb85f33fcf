package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// chat is POST /v1/chat/completions. The whole request is the call's args.
func (s *Service) chat(c echo.Context) error {
	who, args, err := s.callerBody(c)
	if err != nil {
		return err
	}
	var peek struct {
		Model    string            `json:"model"`
		Stream   bool              `json:"stream"`
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(args, &peek); err != nil {
		return badRequest("body", err.Error())
	}
	if peek.Model == "" {
		return badRequest("model", "name a model as provider/model, e.g. demo/echo; GET /v1/models lists them")
	}
	if len(peek.Messages) == 0 {
		return badRequest("messages", "messages must hold at least one message")
	}
	r, err := s.request(c, "llm.chat", "llm.chat", args, who)
	if err != nil {
		return err
	}
	r.Labels = labelsOf(peek.Messages)
	if peek.Stream {
		r.Stream = true
		if r.IdemKey != "" {
			if e, err := s.lastOf(c.Request().Context(), r.ID); err != nil || e != nil {
				return errors.Join(err, conflict(r, "a stream cannot be repeated; GET /api/v1/calls/"+r.ID+" has its end"))
			}
		}
		return s.stream(c, r)
	}
	_, output, err := s.run(c, r)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, output)
}

// labelUserFile is the data class of files that a caller brings along.
const labelUserFile = "user_file"

// labelsOf names the data classes in a chat's messages, by the types of their
// parts, which the caller's own program wrote.
func labelsOf(messages []json.RawMessage) []string {
	for _, m := range messages {
		var msg struct {
			Content []struct {
				Type string `json:"type"`
			} `json:"content"`
		}
		if json.Unmarshal(m, &msg) != nil {
			continue // plain text
		}
		for _, part := range msg.Content {
			if part.Type != "" && part.Type != "text" && part.Type != "refusal" {
				return []string{labelUserFile}
			}
		}
	}
	return nil
}

// stream relays live frames as server-sent events. The outcome on the ledger
// says how many frames there were; only then is the stream called complete.
func (s *Service) stream(c echo.Context, r propose.Request) error {
	ctx := c.Request().Context()
	if s.pulse.down() {
		return silent(r, "nothing was proposed")
	}
	defer s.pulse.watch()()
	frames := s.env.Box.Open(r.ID)
	defer frames.Close()
	p, err := s.prop.Propose(ctx, r)
	if err != nil {
		return proposeError(err)
	}
	defer p.Close()
	began := time.Now()

	type arrival struct {
		f   transient.Frame
		err error
	}
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	arrivals := make(chan arrival)
	go func() {
		for {
			f, err := frames.Next(reading)
			select {
			case arrivals <- arrival{f, err}:
			case <-reading.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	sse := &sse{c: c, r: r}
	var out *propose.Outcome
	var esc *contract.Escalated
	deadline := time.NewTimer(r.Timeout + 5*time.Second)
	defer deadline.Stop()
	lost := s.pulse.lost()
	from, _ := s.prop.Position()
	late := time.NewTimer(unstarted)
	defer late.Stop()
	got := int64(0)
	for {
		if out != nil && (got >= out.Recorded.Effect.Frames || ofOutcome(&out.Recorded) != nil && got == 0) {
			s.metrics.observe(r.Kind, out.Recorded.Effect.Status, time.Since(began))
			return sse.end(&out.Recorded)
		}
		select {
		case a := <-arrivals:
			if a.err != nil {
				return sse.broken(a.err)
			}
			got++
			if err := sse.frame(a.f.Data); err != nil {
				return s.abandon(ctx, p, r)
			}
			lost = nil // it runs; what is on its way may still come
			late.Stop()
		case o := <-p.Outcome():
			out = &o
			deadline.Reset(3 * time.Second) // for frames still on their way
		case x := <-p.Escalated():
			esc = &x
		case err := <-p.Failed():
			return waitError(r, err)
		case <-lost:
			s.giveUp(ctx, p, r)
			return silent(r, "the call is withdrawn")
		case <-late.C:
			if esc == nil && out == nil && s.pulse.unsteady() && !s.started(ctx, p.Event, from) {
				s.giveUp(ctx, p, r)
				return silent(r, "the call is withdrawn")
			}
			late.Reset(beatEvery)
		case <-deadline.C:
			if out != nil {
				return sse.broken(transient.ErrGap)
			}
			if esc != nil {
				headers(c, r, contract.Escalate)
				return &escalation{r.ID, esc}
			}
			return waitError(r, propose.ErrUnknownOutcome)
		case <-ctx.Done():
			return s.abandon(ctx, p, r)
		}
	}
}

// abandon records that the client left.
func (s *Service) abandon(ctx context.Context, p *propose.Pending, r propose.Request) error {
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := p.Cancel(bye); err != nil {
		s.env.Log.Warn("cancellation not recorded", "call", r.ID, "err", err)
	}
	return nil
}

// sse writes one event stream.
type sse struct {
	c    echo.Context
	r    propose.Request
	open bool
}

func (w *sse) start() {
	if w.open {
		return
	}
	w.open = true
	headers(w.c, w.r, contract.Allow) // frames come only from an allowed call
	h := w.c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	w.c.Response().WriteHeader(http.StatusOK)
}

func (w *sse) write(data []byte) error {
	w.start()
	b := append(append([]byte("data: "), data...), '\n', '\n')
	if _, err := w.c.Response().Write(b); err != nil {
		return err
	}
	w.c.Response().Flush()
	return nil
}

// frame writes the chunks of one frame, each an event.
func (w *sse) frame(data json.RawMessage) error {
	var chunks []json.RawMessage
	if err := json.Unmarshal(data, &chunks); err != nil {
		return err
	}
	for _, c := range chunks {
		if err := w.write(c); err != nil {
			return err
		}
	}
	return nil
}

// end closes a complete stream, or reports the outcome as an error.
func (w *sse) end(r *contract.Recorded) error {
	if e := ofOutcome(r); e != nil {
		if !w.open {
			headers(w.c, w.r, r.Receipt.Verdict)
			return e
		}
		return w.fail(e)
	}
	return w.write([]byte("[DONE]"))
}

func (w *sse) fail(e *apiError) error {
	b, err := json.Marshal(map[string]any{"error": e})
	if err != nil {
		return err
	}
	return w.write(b)
}

// broken ends a stream that lost frames: an explicit error, never [DONE].
func (w *sse) broken(err error) error {
	msg := "the live stream broke; the complete answer is on the ledger under the receipt id"
	if !errors.Is(err, transient.ErrGap) {
		msg = err.Error()
	}
	e := &apiError{Status: http.StatusBadGateway, Type: "server_error", Code: "stream_broken", Message: msg, CallID: w.r.ID, ReceiptID: "r-" + w.r.ID}
	if !w.open {
		headers(w.c, w.r, contract.Allow)
		return e
	}
	return w.fail(e)
}

func (s *Service) models(c echo.Context) error {
	if _, err := s.auth(c, ""); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), 5*time.Second)
	defer cancel()
	var models json.RawMessage
	if err := s.env.Ask(ctx, "llm-router", "models", nil, &models); err != nil {
		return unavailable("the llm-router does not answer: " + err.Error())
	}
	return c.JSON(http.StatusOK, map[string]any{"object": "list", "data": models})
}
