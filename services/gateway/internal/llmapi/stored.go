package llmapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// Response handles GET /v1/responses/:id. It responds with a stored response from the
// ledger, but only to the actor that requested it. The status is 404 for other callers,
// and for a response that was not stored or was deleted, and 410 for one that was erased.
func (s *API) Response(c echo.Context) error {
	who, _, rec, err := s.stored(c)
	if err != nil {
		return err
	}
	body, err := s.readStored(c, who.Tenant, rec.Receipt.CallID, rec.Output)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, body)
}

// InputItems handles GET /v1/responses/:id/input_items. It responds with the input of a
// stored response, last item first unless order=asc. The parameters after and limit
// (default 20) select a page. The status is 404 as for Response, and 400 for an invalid
// parameter.
func (s *API) InputItems(c echo.Context) error {
	who, call, _, err := s.stored(c)
	if err != nil {
		return err
	}
	limit := 20
	if v := c.QueryParam("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil || limit < 1 || limit > 100 {
			return apierr.BadRequest("limit", "want 1 to 100")
		}
	}
	order := c.QueryParam("order")
	if order != "" && order != "asc" && order != "desc" {
		return apierr.BadRequest("order", `want "asc" or "desc"`)
	}
	body, err := s.readStored(c, who.Tenant, call.ID, call.Body)
	if err != nil {
		return err
	}
	items, err := itemsOf(body, strings.TrimPrefix(call.ID, contract.IDCall))
	if err != nil {
		return err
	}
	if order != "asc" {
		slices.Reverse(items)
	}
	if after := c.QueryParam("after"); after != "" {
		i := slices.IndexFunc(items, func(it Item) bool { return it["id"] == after })
		if i < 0 {
			return apierr.BadRequest("after", "no item of this response has the id "+after)
		}
		items = items[i+1:]
	}
	more := len(items) > limit
	items = items[:min(limit, len(items))]
	out := ItemPage{Object: "list", HasMore: more, Data: items}
	if len(items) > 0 {
		out.FirstID, out.LastID = items[0]["id"], items[len(items)-1]["id"]
	}
	return c.JSON(http.StatusOK, out)
}

// Item is one item of the input of a stored response, in the form of OpenAI's API. It
// has the members that the caller sent. A missing id is added; a missing type and status
// are added to a message, whose text becomes a content part.
type Item map[string]any

// ItemPage is a part of the input of a stored response.
type ItemPage struct {
	Data    []Item `json:"data"`
	FirstID any    `json:"first_id"` // id of the first item; null if there is none
	HasMore bool   `json:"has_more"`
	LastID  any    `json:"last_id"` // id of the last item; null if there is none
	Object  string `json:"object"`  // "list"
}

// DeletedResponse is the response to the deletion of a stored response: the output of
// the llm-router.
type DeletedResponse struct {
	Deleted bool   `json:"deleted"` // true
	ID      string `json:"id"`
	Object  string `json:"object"` // "response"
}

// DeleteResponse handles DELETE /v1/responses/:id. It proposes a call, on which policy
// decides. The deleted response remains on the ledger, but is no longer served. The
// status is 404 unless the caller's actor requested the stored response.
func (s *API) DeleteResponse(c echo.Context) error {
	who, _, _, err := s.stored(c)
	if err != nil {
		return err
	}
	w := canon.Object(nil)
	w.Str("id", c.Param("id"))
	r, err := s.Calls.Request(c, "llm.delete_response", "llm.delete_response", w.End(), who)
	if err != nil {
		return err
	}
	_, output, err := s.Calls.Run(c, r)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, output)
}

// itemsOf returns the input of a request as items with ids; an id that is missing is
// derived from call. A string becomes one message, and the text of a message becomes one
// content part. A message without a type or a status gets one.
func itemsOf(body []byte, call string) ([]Item, error) {
	var q struct {
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	items := []Item{}
	var text *string
	if err := json.Unmarshal(q.Input, &text); err == nil && text != nil {
		items = append(items, Item{"role": "user", "content": *text})
	} else if err != nil && len(q.Input) > 0 { // without input, a stored prompt or conversation was used instead
		d := json.NewDecoder(bytes.NewReader(q.Input))
		d.UseNumber()
		if err := d.Decode(&items); err != nil {
			return nil, err
		}
	}
	for i, it := range items {
		if it["type"] == nil && it["role"] != nil {
			it["type"] = "message"
		}
		if text, ok := it["content"].(string); ok && it["type"] == "message" {
			part := "input_text"
			if it["role"] == "assistant" {
				part = "output_text"
			}
			it["content"] = []any{map[string]any{"type": part, "text": text}}
		}
		if it["type"] == "message" && it["status"] == nil {
			it["status"] = "completed"
		}
		if it["id"] == nil {
			it["id"] = fmt.Sprintf("item_%s_%d", call, i)
		}
	}
	return items, nil
}

// stored returns the caller of a request, the call that made the response with the id in
// the request's path, and the call's outcome. The error is 404 unless the response is
// stored and the caller's actor made it, and 503 if that cannot be determined. If the
// outcome is not recorded yet, stored waits for it, for at most queries.Timeout; the
// error is 404 if there is no outcome by then.
func (s *API) stored(c echo.Context) (*auth.Caller, *contract.Call, *contract.Recorded, error) {
	c.Set(apierr.ShapeKey, llm.Responses)
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	at, err := s.storedResponse(ctx, who.Tenant, c.Param("id"))
	if err != nil {
		return nil, nil, nil, err
	}
	if at.Call == "" || at.Actor != who.Actor {
		return nil, nil, nil, noResponse(c)
	}
	first, err := s.Queries.In(who.Tenant).Event(ctx, audit.ProposalQuery, at.Call)
	if err != nil {
		return nil, nil, nil, err
	}
	var call contract.Call
	if first == nil || !who.Is(first) || contract.Decode(first.Data, &call) != nil || call.Kind != llm.Responses {
		return nil, nil, nil, noResponse(c)
	}
	if err := s.keeps(ctx, c, who.Tenant, &call); err != nil {
		return nil, nil, nil, err
	}
	rec, err := s.Calls.OutcomeOf(ctx, first, &call)
	if err != nil {
		return nil, nil, nil, err
	}
	if rec == nil {
		return nil, nil, nil, noResponse(c)
	}
	return who, &call, rec, nil
}

// keeps returns an error unless the request of the call allowed the response to be
// stored. The error is 404 if the request did not allow it or the args of the call were
// erased, and 503 if the args cannot be read now.
func (s *API) keeps(ctx context.Context, c echo.Context, tenant string, call *contract.Call) error {
	raw, err := s.Blobs.In(tenant).Open(ctx, &call.Args)
	if errors.Is(err, contract.ErrErased) {
		return noResponse(c)
	}
	if err != nil {
		return apierr.Unavailable("the ledger does not respond: " + err.Error())
	}
	if args, err := calls.ModelArgs(raw); err != nil || !args.Stored() {
		return noResponse(c)
	}
	return nil
}

// storedResponse returns the llm-router's record of a stored response of a tenant. Its
// Call is empty if no response with the id is stored, or if the response was deleted.
// The response may belong to another caller of the tenant.
func (s *API) storedResponse(ctx context.Context, tenant, id string) (llmrouter.StoredResponse, error) {
	return queries.Do(ctx, s.Queries.In(tenant), llmrouter.StoredResponseQuery, llmrouter.StoredResponseRequest{ID: id})
}

// continues adds to the summary a the tokens of the stored responses that the request
// continues, if the caller's actor made them. It returns the call that made the last of
// these responses, or "" if the request continues none or that response is not stored.
// The error is that of the query to the llm-router. The llm-router checks, when it
// executes the call, whether the caller may continue the responses.
func (s *API) continues(ctx context.Context, a *llm.Args, who *auth.Caller) (call string, err error) {
	if a.Previous == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, queries.Timeout)
	defer cancel()
	r, err := s.storedResponse(ctx, who.Tenant, a.Previous)
	var e *apierr.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		e.Param = "/previous_response_id"
	}
	if err == nil && r.Actor == who.Actor {
		a.History = r.Tokens
		a.In, a.Hold = a.In+r.Tokens, a.Hold+r.Tokens
	}
	return r.Call, err
}

func noResponse(c echo.Context) *apierr.Error { return noResponseOf(c.Param("id")) }

func noResponseOf(id string) *apierr.Error {
	return apierr.NotFound("no response " + id + " is stored")
}

// undeleted returns an error (404) if the response was stored and has since been
// deleted, and the error of storedResponse if that cannot be determined. It returns nil
// for a response without an id.
func (s *API) undeleted(ctx context.Context, tenant string, response []byte) error {
	var d struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(response, &d); err != nil || d.ID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queries.Timeout)
	defer cancel()
	r, err := s.storedResponse(ctx, tenant, d.ID)
	if err == nil && r.Deleted {
		return noResponseOf(d.ID)
	}
	return err
}

// readStored reads a recorded content of a tenant's response, which a call made. The error is 404
// if nothing was recorded or the content was withheld, 410 if it was erased, and 503 if it
// cannot be read now.
func (s *API) readStored(c echo.Context, tenant, call string, ref *contract.Content) ([]byte, error) {
	if ref == nil || ref.Store == contract.StoreWithheld {
		return nil, noResponse(c)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	body, err := s.Blobs.In(tenant).Open(ctx, ref)
	if err != nil {
		return nil, apierr.Unreadable(call, err)
	}
	return body, nil
}
