package ledgerapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// optionalWithin bounds a query for a view that may be missing: a service that does
// not run must not hold up callers who read every view.
const optionalWithin = 5 * time.Second

// View is GET /api/v1/views/{service}: a live view in canonical form, with its
// position. The registry of services says which service serves the view at a path,
// and by which query.
func (s *API) View(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	path := c.Param("service")
	if !contract.Token(path) {
		return apierr.BadRequest("service", "no such service")
	}
	v, service, ok := services.ViewAt(path)
	switch {
	case !ok:
		return apierr.Unavailable("no service has a view " + path)
	case v.Verb == "":
		return s.ownView(c, &v)
	case v.Lines:
		return s.Queries.Lines(c, service, v.Verb, nil)
	case v.Optional:
		return s.viewOf(c, service, v.Verb, optionalWithin)
	}
	return s.viewOf(c, service, v.Verb, queries.Timeout)
}

// ownView sends a view of the gateway itself. The position and the dump are those of
// one moment.
func (s *API) ownView(c echo.Context, v *services.View) error {
	dump := map[string]func() []byte{services.ViewCatalog: s.Catalog.Dump, services.ViewAuthority: s.Authority.Dump}[v.Name]
	for {
		at, lines := s.Position(), dump()
		if s.Position() != at {
			continue
		}
		doc := map[string]any{"name": v.Name, "position": at, "dump": string(lines)}
		if v.Name == services.ViewCatalog {
			doc["root"] = s.RootKID
		}
		return c.JSON(http.StatusOK, doc)
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
