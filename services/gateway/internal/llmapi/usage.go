package llmapi

import (
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Stats handles GET /api/v1/llm/stats. It responds with success rates and latencies of
// models in a time window.
func (s *API) Stats(c echo.Context) error {
	who, from, to, err := s.window(c)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), llmrouter.StatsQuery, llmrouter.StatsRequest{From: from, To: to})
}

// Spend handles GET /api/v1/llm/spend. It responds with tokens and cost in a time
// window. The parameter by lists the dimensions to group by, separated by commas.
func (s *API) Spend(c echo.Context) error {
	who, from, to, err := s.window(c)
	if err != nil {
		return err
	}
	q := llmrouter.SpendRequest{From: from, To: to}
	if by := c.QueryParam("by"); by != "" {
		q.By = strings.Split(by, ",")
	}
	return queries.Send(c, s.Queries.In(who.Tenant), llmrouter.SpendQuery, q)
}

// window returns the caller, and the time window in the parameters from and to (RFC
// 3339), each "" if absent. It returns an error if one of them is malformed or the
// caller lacks audit:read.
func (s *API) window(c echo.Context) (who *auth.Caller, from, to string, err error) {
	if who, err = s.Gate.Caller(c, token.Audit); err != nil {
		return nil, "", "", err
	}
	for name, at := range map[string]*string{"from": &from, "to": &to} {
		if *at = c.QueryParam(name); *at == "" {
			continue
		}
		if _, err := time.Parse(time.RFC3339, *at); err != nil {
			return nil, "", "", apierr.BadRequest(name, "want an RFC 3339 time, such as 2026-11-21T00:00:00Z")
		}
	}
	return who, from, to, nil
}
