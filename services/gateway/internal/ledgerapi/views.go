package ledgerapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// keysWithin bounds a query for a service's view of the key registry: one that does
// not run has none.
const keysWithin = 5 * time.Second

// View is GET /api/v1/views/{service}: a live view in canonical form, with its
// position. Beside the names of services there are names of further views of theirs.
func (s *API) View(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	name := c.Param("service")
	switch name {
	case "gateway":
		return c.JSON(http.StatusOK, map[string]any{"name": "gateway.catalog", "position": s.Position(), "dump": string(s.Catalog.Dump()), "root": s.RootKID})
	case "gateway-authority":
		return s.authorityView(c)
	case "audit":
		return s.Queries.Lines(c, "audit", "view", nil)
	case "policy-budget":
		return s.Queries.Doc(c, "policy", "budget_view", nil)
	case "policy-starts":
		return s.Queries.Doc(c, "policy", "starts_view", nil)
	}
	if !contract.Token(name) {
		return apierr.BadRequest("service", "no such service")
	}
	if owner, ok := strings.CutPrefix(name, "keys-"); ok {
		return s.viewOf(c, owner, run.KeysView, keysWithin)
	}
	return s.viewOf(c, name, "view", queries.Timeout)
}

// authorityView dumps the view of authority with the position that it was taken at.
func (s *API) authorityView(c echo.Context) error {
	for {
		at, dump := s.Position(), s.Authority.Dump()
		if s.Position() == at {
			return c.JSON(http.StatusOK, map[string]any{"name": "gateway.authority", "position": at, "dump": string(dump)})
		}
	}
}

// viewOf sends a service's response to a query for a view as it is.
func (s *API) viewOf(c echo.Context, service, verb string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), within)
	defer cancel()
	var doc json.RawMessage
	if err := s.Queries.Ask(ctx, service, verb, nil, &doc); err != nil {
		return apierr.Unavailable(err.Error())
	}
	return c.JSONBlob(http.StatusOK, doc)
}
