// Package llmapi serves the APIs of language models: it proposes the requests unchanged
// and relays the frames of the responses. It also serves the list of models, stored
// responses, and statistics.
package llmapi

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// API serves the APIs of language models. Its fields are set before its first use.
type API struct {
	Capture     func() string // returns the capture mode: plain, encrypted, hashed or off
	CallTimeout time.Duration // maximum wait for the outcome of an escalated call
	Gate        *auth.Gate
	Calls       *calls.API
	Labels      *labels.Reader
	Queries     *queries.Services
	Metrics     calls.Metrics
	Blobs       *blob.Store
	Tracer      *tracing.Tracer
	Log         *slog.Logger

	// Open subscribes to the frames of a call that the service named by from sends.
	// Frames that were sent before are not delivered.
	Open func(call, from string) Frames
	// Post sends the frame with number n of the stream id to an instance, without
	// waiting until the frame is stored.
	Post func(to, id string, n int64, data []byte) error
}

// Frames is the stream of the frames of one call, in order; transient.Stream implements
// it.
type Frames interface {
	// Wake returns a channel that receives a value when Try can return a frame.
	Wake() <-chan struct{}
	// Try returns the next frame and reports whether there was one. An error ends the
	// stream.
	Try() (f transient.Frame, ok bool, err error)
	Close()
}

// ProviderRequest is a request in the format of a provider's API. That API defines the
// members of the request; model is provider/model, an alias or a virtual model. The
// gateway forwards the request unchanged.
type ProviderRequest map[string]json.RawMessage

// ProviderResponse is a response in the format of the API to which the request belongs.
// That API defines the members of the response. The gateway relays the response of the
// llm-router unchanged.
type ProviderResponse map[string]json.RawMessage

// Handler returns the handler of the API for a kind of request to language models. The
// gateway forwards the request unchanged; the args of the call are a summary of it.
// Errors have the shape of the API: Anthropic's for messages and their token counts,
// otherwise OpenAI's. If the request's Idempotency-Key identifies a call that was
// proposed earlier with an equal request, the recorded output of that call is sent once
// the call has ended (see repeat). If that call had another request, the response is an
// error.
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
		before, err := s.Calls.Before(c.Request().Context(), r, nil)
		if err != nil {
			return err
		}
		if before != nil {
			return s.repeat(c, r, before)
		}
		return s.relay(c, r)
	}
}

// Request makes the proposal of a request to a language model. The args of the proposal
// are a summary of the request; the body of the proposal is the request itself,
// unchanged. Without a TimeoutHeader the timeout is llmTimeout.
func (s *API) Request(c echo.Context, kind string, raw []byte, who *auth.Caller) (propose.Request, error) {
	args, labels, err := llm.Peek(kind, raw)
	var fe *llm.FieldError
	if errors.As(err, &fe) {
		return propose.Request{}, apierr.BadRequest(fe.Field, fe.Error())
	}
	if err != nil {
		return propose.Request{}, err
	}
	ctx, h := c.Request().Context(), c.Request().Header
	previous, err := s.continues(ctx, args, who)
	if err != nil {
		return propose.Request{}, err
	}
	args.Capture, args.Beta = s.Capture(), append(args.Beta, betas(h)...)
	if args.Cache, err = cacheOf(h, who); err != nil {
		return propose.Request{}, err
	}
	r, err := s.Calls.Request(c, kind, kind, nil, who)
	if err != nil {
		return r, err
	}
	if h.Get(calls.TimeoutHeader) == "" {
		r.Timeout = llmTimeout
	}
	if err := s.Labels.Inherit(ctx, &r, previous, raw); err != nil {
		return r, err
	}
	if err := llm.Request(ctx, s.Blobs.In(who.Tenant), &r, args, raw, append(labels, r.Labels...)); err != nil {
		return r, apierr.Unavailable("the request cannot be encrypted now: " + err.Error())
	}
	return r, nil
}

// maxBetas is the maximum number of beta features that betas returns.
const maxBetas = 32

// betas returns the beta features that the header Anthropic-Beta of a request names, at
// most maxBetas. It omits names longer than body.MaxName.
func betas(h http.Header) (out []string) {
	for _, v := range h.Values("Anthropic-Beta") {
		for b := range strings.SplitSeq(v, ",") {
			if b = strings.TrimSpace(b); b != "" && len(b) <= body.MaxName && len(out) < maxBetas {
				out = append(out, b)
			}
		}
	}
	return out
}

// cacheOf returns "use" if the response may be a cached one, or "" if not. Without
// cacheHeader, the setting of the caller's virtual key applies. A value of cacheHeader
// other than "use" and "no" is an error (400).
func cacheOf(h http.Header, who *auth.Caller) (string, error) {
	switch v := h.Get(cacheHeader); v {
	case "no":
		return "", nil
	case "use":
		return v, nil
	case "":
		if who.Cache {
			return "use", nil
		}
		return "", nil
	}
	return "", apierr.BadRequest(cacheHeader, `want "use" or "no"`)
}

// llmTimeout is the timeout of a request to a model without a TimeoutHeader. A model may
// take minutes to respond.
const llmTimeout = 10 * time.Minute

// cacheHeader is the request header that allows ("use") or forbids ("no") a cached
// response.
const cacheHeader = "X-Binnacle-Cache"

// Models handles GET /v1/models and GET /v1/models/{id}. If the llm-router's list is
// stale and the caller has the scope llm:call, a call llm.models refreshes the list
// first; if that call fails, the stale list is used. With the header Anthropic-Version
// the responses and errors have the shape of Anthropic's API. The response is 404 for an
// unknown id.
func (s *API) Models(c echo.Context) error {
	anthropic := c.Request().Header.Get("Anthropic-Version") != ""
	if anthropic {
		c.Set(apierr.ShapeKey, llm.Messages)
	}
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	ask := func() (llmrouter.ModelList, error) {
		return queries.Do(c.Request().Context(), s.Queries.In(who.Tenant), llmrouter.ModelsQuery, llmrouter.ModelsRequest{})
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
		if _, _, err := s.Calls.Run(c, r); err == nil { // if the call fails, the stale list is returned
			if l, err = ask(); err != nil {
				return err
			}
		}
	}
	if id := c.Param("*"); id != "" {
		return sendModel(c, l.Data, id, anthropic)
	}
	if anthropic {
		return c.JSON(http.StatusOK, anthropicModels(l.Data))
	}
	return c.JSON(http.StatusOK, ModelPage{Object: "list", Data: l.Data})
}

// sendModel responds with the model of data that has the given id. The error is 404 if
// there is none.
func sendModel(c echo.Context, data []llmrouter.Model, id string, anthropic bool) error {
	i := slices.IndexFunc(data, func(m llmrouter.Model) bool { return m.ID == id })
	switch {
	case i < 0:
		e := apierr.NotFound("no model " + id + "; GET /v1/models lists the models")
		e.Code, e.Param = contract.CodeModelNotFound, "model" // name of the path parameter in OpenAI's API
		return e
	case anthropic:
		return c.JSON(http.StatusOK, anthropicModel(data[i]))
	}
	return c.JSON(http.StatusOK, data[i])
}

// ModelPage is the list of models in the shape of OpenAI's API.
type ModelPage struct {
	Object string            `json:"object"` // always "list"
	Data   []llmrouter.Model `json:"data"`
}

// AnthropicPage is the list of models in the shape of Anthropic's API.
type AnthropicPage struct {
	Data    []AnthropicModel `json:"data"`
	HasMore bool             `json:"has_more"`
	FirstID string           `json:"first_id"`
	LastID  string           `json:"last_id"`
}

// AnthropicModel is one model in the shape of Anthropic's API.
type AnthropicModel struct {
	Type        string `json:"type"` // always "model"
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"` // always 1970-01-01T00:00:00Z, because the time is not known
}

func anthropicModel(m llmrouter.Model) AnthropicModel {
	return AnthropicModel{Type: "model", ID: m.ID, DisplayName: m.ID, CreatedAt: "1970-01-01T00:00:00Z"}
}

func anthropicModels(data []llmrouter.Model) AnthropicPage {
	out := AnthropicPage{Data: []AnthropicModel{}}
	for _, m := range data {
		out.Data = append(out.Data, anthropicModel(m))
	}
	if len(data) > 0 {
		out.FirstID, out.LastID = data[0].ID, data[len(data)-1].ID
	}
	return out
}
