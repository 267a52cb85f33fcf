package llmapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Usage is GET /api/v1/llm/stats and /spend: the window stands in from and to
// (RFC 3339), what to split spend by in by.
func (s *API) Usage(verb string) echo.HandlerFunc {
	return func(c echo.Context) error {
		if _, err := s.Gate.Caller(c, token.Audit); err != nil {
			return err
		}
		q := map[string]any{}
		for _, name := range []string{"from", "to"} {
			v := c.QueryParam(name)
			if v == "" {
				continue
			}
			if _, err := time.Parse(time.RFC3339, v); err != nil {
				return apierr.BadRequest(name, "want a time as RFC 3339 spells it, e.g. 2026-11-21T00:00:00Z")
			}
			q[name] = v
		}
		if by := c.QueryParam("by"); by != "" {
			q["by"] = strings.Split(by, ",")
		}
		ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
		defer cancel()
		var doc json.RawMessage
		if err := s.Queries.Ask(ctx, "llm-router", verb, q, &doc); err != nil {
			if msg := err.Error(); strings.Contains(msg, "by: ") {
				return apierr.BadRequest("by", msg[strings.Index(msg, "by: "):])
			}
			return apierr.Unavailable("the llm-router does not answer: " + err.Error())
		}
		return c.JSONBlob(http.StatusOK, doc)
	}
}
