// Package packs serves the REST API of tools.
package packs

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// API lists packs and runs them. Its fields are set before its first use.
type API struct {
	Gate  *auth.Gate
	Calls *calls.API
	Tools *catalog.Catalog
}

// Schema is a JSON Schema (2020-12), as the pack or service that provides the tool
// registered it.
type Schema map[string]any

// Pack is one tool as the REST API lists it.
type Pack struct {
	Name         string       `json:"name"`
	Version      string       `json:"version"`
	Description  string       `json:"description"`
	InputSchema  contract.Raw `json:"input_schema"`
	OutputSchema contract.Raw `json:"output_schema"`
	Secrets      []string     `json:"secrets,omitempty"`     // names of the secrets that the tool may use
	Progress     bool         `json:"progress,omitempty"`    // calls of the pack report their progress
	Concurrency  string       `json:"concurrency,omitempty"` // class of which the configuration bounds the calls that run at a time
	Digest       string       `json:"tool_schema_digest"`
}

// Approved returns the tools with kinds "tool.…" whose document is the one approved for
// the tenant or, if none was approved, the first one of the kind. It omits other tools,
// because a changed description must not reach a model before it has been approved.
func Approved(tools catalog.Tools) []contract.Tool {
	var out []contract.Tool
	for _, t := range tools.Tools() {
		if strings.HasPrefix(t.Kind, "tool.") && !tools.Drifted(&t, contract.Digest(&t)) {
			out = append(out, t)
		}
	}
	return out
}

func describe(t *contract.Tool) Pack {
	p := Pack{Name: t.Tool, Version: t.Version, Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Digest: contract.Digest(t)}
	declared := toolschema.DeclaredBy(t)
	p.Progress, p.Concurrency = declared.Progress, declared.Concurrency
	for _, g := range t.Secrets {
		p.Secrets = append(p.Secrets, g.Name)
	}
	return p
}

// List handles GET /api/v1/packs. It responds with all packs that are approved for the
// caller's tenant, in the order of their kinds.
func (s *API) List(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	out := []Pack{}
	for _, t := range Approved(s.Tools.In(who.Tenant)) {
		out = append(out, describe(&t))
	}
	return c.JSON(http.StatusOK, out)
}

// Get handles GET /api/v1/packs/{name}. A tool that is not a pack, or whose document is
// not the approved one, is returned only with unapproved=true, for its approval.
// Otherwise, and for an unknown tool, the status is 404.
func (s *API) Get(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	name, unapproved := c.Param("name"), c.QueryParam("unapproved") == "true"
	t, digest := s.Tools.Lookup("tool." + name)
	if t == nil && unapproved { // a tool that is not a pack is looked up by its kind
		t, digest = s.Tools.Lookup(name)
	}
	if t != nil && (unapproved || !s.Tools.In(who.Tenant).Drifted(t, digest)) {
		return c.JSON(http.StatusOK, describe(t))
	}
	return apierr.NotFound("no pack " + c.Param("name"))
}

// Run handles POST /api/v1/packs/{name}. It proposes a call of the pack. A call of an
// unknown pack is proposed too, so that the attempt and its denial are on the ledger.
func (s *API) Run(c echo.Context) error {
	who, args, err := s.Gate.Body(c)
	if err != nil {
		return err
	}
	name := c.Param("name")
	if err := body.CheckName("name", "tool."+name); err != nil {
		return err
	}
	return s.Calls.Respond(c, who, "tool."+name, name, args)
}
