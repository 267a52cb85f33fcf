// Package calls makes proposals of calls from requests, waits for the outcomes of the
// calls, and responds with the outcomes. It also serves the states of calls. Every API
// of the gateway that proposes calls uses it.
package calls

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// Metrics counts calls by kind and status. The status is that of the effect,
// "escalated", or "none" if no outcome was received. Observe also records the duration
// of the call. metrics.Metrics implements it.
type Metrics interface {
	Count(kind, status string)
	Observe(kind, status string, took time.Duration)
}

// API proposes calls, and serves the routes for calls of any kind, for judgements and
// for the states of calls. Its fields are set before its first use.
type API struct {
	*Maker
	*Runner
	Gate    *auth.Gate
	Streams *fair.Places // streams of states that are open at once

	// ModelRequest returns the proposal of a request to a language model; see
	// llmapi.API.Request.
	ModelRequest func(c echo.Context, kind string, body []byte, who *auth.Caller) (propose.Request, error)
}

// Async reports whether a request prefers an early response to waiting for an approval or
// for the outcome of a long call (Prefer: respond-async, RFC 7240).
func Async(c echo.Context) bool {
	return strings.Contains(c.Request().Header.Get("Prefer"), "respond-async")
}

// Run proposes a call, waits for its outcome and returns the results of Await. If the
// error is about an argument of the call, its Param names the place of the argument in
// the request (see body.InBody). Run sets the response headers that identify the call,
// even if it returns an error, so that the caller can fetch the outcome later.
func (s *API) Run(c echo.Context, r propose.Request) (*propose.Outcome, []byte, error) {
	out, output, err := s.Await(c.Request().Context(), r, Async(c))
	return out, output, identify(c, r, out, err)
}

// identify sets the response headers that identify a call, given the results of Await, and
// returns err with the place of the argument in the request.
func identify(c echo.Context, r propose.Request, out *propose.Outcome, err error) error {
	verdict := ""
	if errors.As(err, new(*apierr.Escalation)) {
		verdict = contract.Escalate
	}
	if out != nil {
		verdict = out.Recorded.Receipt.Verdict
	}
	Headers(c, r, verdict)
	return body.InBody(c, err)
}

// Args are the arguments of a call. Their members are those of the tool's input schema,
// which the pack or service that provides the tool defines.
type Args map[string]json.RawMessage

// Output is the output of a call, which can be any JSON document. The output_schema of a
// pack describes the outputs of its calls.
type Output json.RawMessage

// CallRequest is the body of POST /api/v1/calls.
type CallRequest struct {
	Kind string          `json:"kind"` // such as tool.cmd.upper
	Tool string          `json:"tool"` // if absent or empty, the kind without the prefix "tool."
	Args json.RawMessage `json:"args"` // if absent or null, {}
}

// CallResponse is the response to a call, or to a run of a pack, that succeeded.
type CallResponse struct {
	CallID    string                `json:"call_id"`
	ReceiptID string                `json:"receipt_id"`
	Session   string                `json:"session_id"`
	Called    string                `json:"session,omitempty"` // the caller's name for the session
	Tool      string                `json:"tool"`
	Output    json.RawMessage       `json:"output"`
	Instance  string                `json:"instance"` // instance name of the executor
	WallMS    int64                 `json:"wall_ms"`  // time that the effect took, in milliseconds
	Sandbox   *contract.Attestation `json:"sandbox,omitempty"`
}

// Check sets the defaults of the request, and stores the place of the args in c for
// body.InBody. It returns an error (400) if the kind is missing, the kind or the tool is
// longer than body.MaxName, or body.CallArgs rejects the args.
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

// Call handles POST /api/v1/calls. It proposes a call of any kind and responds as Answer
// does. The response to a request to a language model is not streamed. Such a request is
// an error (400) if the capture mode excludes the response from the ledger, from which
// Answer reads it.
func (s *API) Call(c echo.Context) error {
	var req CallRequest
	who, _, err := s.Gate.Into(c, &req)
	if err != nil {
		return err
	}
	if err := req.Check(c); err != nil {
		return err
	}
	if slices.Contains(llm.Kinds, req.Kind) { // args is a request to a language model
		r, err := s.ModelRequest(c, req.Kind, req.Args, who)
		if err != nil {
			return apierr.Beneath("/args", err)
		}
		if r.Body.Content.Store == contract.StoreWithheld {
			return apierr.BadRequest("/kind", "the capture mode is hashed or off, so the ledger does not hold the output; send the request to the path of its API, such as /v1/chat/completions")
		}
		r.Stream = false
		return apierr.Beneath("/args", s.Answer(c, r))
	}
	return s.Respond(c, who, req.Kind, req.Tool, req.Args)
}

// Respond makes a proposal from a request, and then proposes the call and responds as
// Answer does.
func (s *API) Respond(c echo.Context, who *auth.Caller, kind, tool string, args []byte) error {
	r, err := s.Request(c, kind, tool, args, who)
	if err != nil {
		return err
	}
	return s.Answer(c, r)
}

// Answer proposes the call r and waits for its outcome. It responds with a CallResponse
// if the call succeeds, and with 202 and the path of the call's state if the wait ends
// while the call waits for approval or, for an asynchronous request, while it has no
// outcome. It returns every other error of Run. If the request accepts server-sent events and is
// not asynchronous, the progress of a call that takes longer than a second is sent as events, and
// then the same documents are.
func (s *API) Answer(c echo.Context, r propose.Request) error {
	end := s.progressing(c, r)
	out, output, err := s.Await(c.Request().Context(), r, Async(c))
	st := end()
	err = identify(c, r, out, err)
	var esc *apierr.Escalation
	waits := errors.As(err, &esc)
	switch {
	case st != nil && waits:
		return st.send(eventResult, s.waiting(c, r, esc))
	case st != nil && err != nil:
		return st.fail(err, func(err error) { s.Log.Error("request failed", "path", c.Path(), "err", err) })
	case waits:
		return s.Accepted(c, r, esc)
	}
	if late := (*apierr.Error)(nil); Async(c) && errors.As(err, &late) && late.Code == contract.CodeOutcomePending {
		return Later(c, r)
	}
	if err != nil {
		return err
	}
	eff := &out.Recorded.Effect
	resp := CallResponse{CallID: r.ID, ReceiptID: out.Recorded.Receipt.ID, Session: r.Session, Called: r.SessionName, Tool: r.Tool, Output: output, Instance: eff.Instance, Sandbox: eff.Attestation}
	if eff.Usage != nil {
		resp.WallMS = eff.Usage.WallMS
	}
	if st != nil {
		return st.send(eventResult, resp)
	}
	return c.JSON(http.StatusOK, resp)
}

// JudgementRequest is the body of POST /api/v1/judgements. Policy, and not the gateway,
// checks it against the input schema of judge.score, so a body that does not match is
// recorded as a denied call.
type JudgementRequest struct {
	Session string `json:"session"` // id of the session, or the caller's name for it
	Rubric  string `json:"rubric"`  // YAML
}

// Judgement handles POST /api/v1/judgements, whose body is a JudgementRequest. It
// proposes a call of kind judge.score and responds as Answer does.
func (s *API) Judgement(c echo.Context) error {
	who, args, err := s.Gate.Body(c)
	if err != nil {
		return err
	}
	return s.Respond(c, who, "judge.score", "judge.score", args)
}
