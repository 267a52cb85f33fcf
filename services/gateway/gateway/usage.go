package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// usageOf is GET /api/v1/llm/stats and /spend: the window stands in from and to
// (RFC 3339), what to split spend by in by.
func (s *Service) usageOf(verb string) echo.HandlerFunc {
	return func(c echo.Context) error {
		if _, err := s.auth(c, token.Audit); err != nil {
			return err
		}
		q := map[string]any{}
		for _, name := range []string{"from", "to"} {
			v := c.QueryParam(name)
			if v == "" {
				continue
			}
			if _, err := time.Parse(time.RFC3339, v); err != nil {
				return badRequest(name, "want a time as RFC 3339 spells it, e.g. 2026-11-21T00:00:00Z")
			}
			q[name] = v
		}
		if by := c.QueryParam("by"); by != "" {
			q["by"] = strings.Split(by, ",")
		}
		ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
		defer cancel()
		var doc json.RawMessage
		if err := s.env.Ask(ctx, "llm-router", verb, q, &doc); err != nil {
			if msg := err.Error(); strings.Contains(msg, "by: ") {
				return badRequest("by", msg[strings.Index(msg, "by: "):])
			}
			return unavailable("the llm-router does not answer: " + err.Error())
		}
		return c.JSONBlob(http.StatusOK, doc)
	}
}
