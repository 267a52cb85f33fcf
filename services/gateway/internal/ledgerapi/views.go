package ledgerapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// LiveView is the current content of a view in canonical form, with the view's position.
type LiveView struct {
	Name     string `json:"name"`
	Position uint64 `json:"position"`       // ledger sequence of the last applied entry
	Dump     string `json:"dump"`           // canonical form, or its SHA-256 if it is too large to send
	Root     string `json:"root,omitempty"` // key id of the root; set only for the view of the catalog
}

// ViewLine is one line of audit's view. Its members depend on the kind of line; views
// are compared as bytes, and their form may change with a release.
type ViewLine map[string]json.RawMessage

// View handles GET /api/v1/views/{service}. It responds with a LiveView, or with JSON
// lines for a view that its service sends as lines. The registry of services maps the
// parameter service to a view. The query for an optional view has a short deadline, so
// that a service that does not run does not delay callers that read every view.
func (s *API) View(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	own := s.Queries.In(who.Tenant)
	path := c.Param("service")
	if !contract.Token(path) {
		return apierr.BadRequest("service", "want the name of a service or of one of its views, such as policy")
	}
	v, service, ok := services.ViewAt(path)
	switch {
	case !ok:
		return apierr.NotFound("no service has a view " + path)
	case v.Verb == "":
		return s.ownView(c, &v)
	}
	q := query.ViewQuery.Of(service)
	q.Verb = v.Verb
	if v.Optional {
		q.Deadline = query.KeysViewQuery.Deadline
	}
	if v.Lines {
		return s.admitted(c, s.Streams, true, func() error {
			return queries.Lines(c, own, query.List[query.ViewRequest, json.RawMessage](q), query.ViewRequest{})
		})
	}
	return queries.Send(c, own, q, query.ViewRequest{})
}

// ownView responds with one of the gateway's own views. It reads the view again if the
// view's position has changed meanwhile, so that position and dump match.
func (s *API) ownView(c echo.Context, v *services.View) error {
	dump := map[string]func() []byte{services.ViewCatalog: s.Catalog.Dump, services.ViewAuthority: s.Authority.Dump}[v.Name]
	for {
		at, lines := s.Position(), dump()
		if s.Position() != at {
			continue
		}
		doc := LiveView{Name: v.Name, Position: at, Dump: string(lines)}
		if v.Name == services.ViewCatalog {
			doc.Root = s.RootKID
		}
		return c.JSON(http.StatusOK, doc)
	}
}
