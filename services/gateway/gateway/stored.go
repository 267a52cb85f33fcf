package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// response is GET /v1/responses/:id. A stored response is what the ledger holds
// of it; it is its maker's alone.
func (s *Service) response(c echo.Context) error {
	c.Set(shapeKey, llm.Responses)
	who, err := s.auth(c, "")
	if err != nil {
		return err
	}
	id := c.Param("id")
	none := notFound("no response " + id + " is stored")
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	var call string
	if err := s.env.Ask(ctx, "llm-router", "response_call", map[string]string{"id": id}, &call); err != nil {
		return unavailable("the llm-router does not answer: " + err.Error())
	}
	if call == "" {
		return none
	}
	first, err := s.askEvent(ctx, "proposal", call)
	if err != nil {
		return err
	}
	last, err := s.lastOf(ctx, call)
	for err == nil && last != nil && last.Name != "effect_recorded" && ctx.Err() == nil { // audit may be a moment behind
		time.Sleep(5 * time.Millisecond)
		last, err = s.lastOf(ctx, call)
	}
	if err != nil {
		return err
	}
	var p contract.Call
	var rec contract.Recorded
	if first == nil || last == nil || first.Actor != who.actor || contract.Decode(first.Data, &p) != nil || contract.Decode(last.Data, &rec) != nil || rec.Output == nil || p.Kind != llm.Responses {
		return none
	}
	raw, err := s.env.Blobs.Open(ctx, &p.Args)
	if err != nil {
		return unavailable("the ledger does not answer: " + err.Error())
	}
	if args, err := llmArgs(raw); err != nil || !args.Stored() {
		return none
	}
	body, err := s.env.Blobs.Open(ctx, rec.Output)
	if errors.Is(err, contract.ErrErased) {
		return none
	}
	if err != nil {
		return unavailable("the response cannot be read now: " + err.Error())
	}
	return c.JSONBlob(http.StatusOK, body)
}
