package gateway

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Pack is one tool as REST lists it.
type Pack struct {
	Name         string       `json:"name"`
	Version      string       `json:"version"`
	Description  string       `json:"description"`
	InputSchema  contract.Raw `json:"input_schema"`
	OutputSchema contract.Raw `json:"output_schema"`
	Secrets      []string     `json:"secrets,omitempty"`
	Digest       string       `json:"tool_schema_digest"`
}

// packs lists what is called as a tool: kinds "tool.…". A tool whose document
// is not the approved one is left out: what it says of itself must not reach a
// model before people have read it.
func (s *Service) packs() []contract.Tool {
	var out []contract.Tool
	for _, t := range s.tools.Tools() {
		if strings.HasPrefix(t.Kind, "tool.") && !s.tools.Drifted(&t, contract.Digest(&t)) {
			out = append(out, t)
		}
	}
	return out
}

func describe(t *contract.Tool) Pack {
	p := Pack{Name: t.Tool, Version: t.Version, Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Digest: contract.Digest(t)}
	for _, g := range t.Secrets {
		p.Secrets = append(p.Secrets, g.Name)
	}
	return p
}

func (s *Service) listPacks(c echo.Context) error {
	if _, err := s.auth(c, ""); err != nil {
		return err
	}
	out := []Pack{}
	for _, t := range s.packs() {
		out = append(out, describe(&t))
	}
	return c.JSON(http.StatusOK, out)
}

func (s *Service) getPack(c echo.Context) error {
	if _, err := s.auth(c, ""); err != nil {
		return err
	}
	name, unapproved := c.Param("name"), c.QueryParam("unapproved") == "true"
	t, digest := s.tools.Lookup("tool." + name)
	if t == nil && unapproved { // people approve tools that are no packs, too
		t, digest = s.tools.Lookup(name)
	}
	if t != nil && (unapproved || !s.tools.Drifted(t, digest)) {
		return c.JSON(http.StatusOK, describe(t))
	}
	return notFound("no pack " + c.Param("name"))
}

// runPack proposes a call of the pack. An unknown pack is proposed too: that
// it was asked for, and denied, is a fact.
func (s *Service) runPack(c echo.Context) error {
	who, args, err := s.callerBody(c)
	if err != nil {
		return err
	}
	name := c.Param("name")
	if err := checkName("name", "tool."+name); err != nil {
		return err
	}
	return s.respond(c, who, "tool."+name, name, args)
}
