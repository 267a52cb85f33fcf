package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

func newMCPInspectCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show an MCP server of the mesh: its health, what it offers, and what has changed",
		Long: `Show the settings and the health of an MCP server of the mesh, and its tools, prompts and
resources with the digests of their documents. A document whose digest differs from the
pinned one is denied until 'binnacle policy approve-tool KIND' accepts it. The health is
that of the mcp-router that executed the call. As JSON, YAML or lines also the descriptions.`,
		Example:           "  binnacle mcp inspect github\n  binnacle mcp inspect github --output json",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, pos []string) error { return inspectServer(cmd.Context(), c, pos[0]) },
	}
}

// inspected is a server in the output of mcp.list.
type inspected struct {
	Name, URL, Transport, Sessions, Class string
	Command, Image                        string
	Concurrency                           int
	TimeoutMS                             int `json:"timeout_ms"`
	Headers                               []struct{ Name, Secret string }
	Health                                struct {
		Failures, Idle, Busy int
		State, Error         string
	}
	Tools []offered
}

// offered is a document in the output of mcp.list.
type offered struct {
	Kind, Digest         string
	Pinned               string `json:"pinned_digest"`
	Approved             bool
	Resources, Templates []string
}

// state returns "pinned" if the document is approved, and otherwise a text with
// the digest of the pinned document.
func (o *offered) state() string {
	if o.Approved {
		return "pinned"
	}
	return "CHANGED, pinned is " + cmp.Or(o.Pinned, "none")
}

func inspectServer(ctx context.Context, c *env, name string) error {
	c.operator = true
	raw, err := c.governed(ctx, "mcp.list", map[string]any{})
	if err != nil {
		return err
	}
	var doc struct{ Servers []json.RawMessage }
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	for _, b := range doc.Servers {
		var s inspected
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		if s.Name == name {
			return c.print(b, func() { s.print(c) })
		}
	}
	return fail(exitFailed, "no MCP server has the name %q: `binnacle mcp list` lists them", name)
}

// print writes the server for people.
func (s *inspected) print(c *env) {
	fmt.Fprintf(c.out, "server    %s at %s (%s, %s sessions, class %s)\n", s.Name, cmp.Or(s.URL, s.Command+" in "+s.Image), s.Transport, s.Sessions, s.Class)
	fmt.Fprintf(c.out, "limits    %d calls at a time, %d ms each\n", s.Concurrency, s.TimeoutMS)
	for _, h := range s.Headers {
		fmt.Fprintf(c.out, "header    %s from secret %s\n", h.Name, h.Secret)
	}
	health := s.Health.State + ", no failure"
	if s.Health.Error != "" {
		health = fmt.Sprintf("%s, %d failures to connect, the last: %s", s.Health.State, s.Health.Failures, s.Health.Error)
	}
	fmt.Fprintf(c.out, "health    %s; %d sessions in use, %d unused\n\n", health, s.Health.Busy, s.Health.Idle)
	grid := output.Grid{Columns: []output.Column{{Heading: "KIND", Min: 16}, {Heading: "DIGEST"}, {Heading: "STATE"}}}
	changed := ""
	for _, t := range s.Tools {
		grid.Add(t.Kind, t.Digest, t.state())
		if !t.Approved {
			changed = cmp.Or(changed, t.Kind)
		}
		var uris strings.Builder
		for _, u := range append(t.Resources, t.Templates...) {
			fmt.Fprintf(&uris, "    %s\n", u)
		}
		if uris.Len() > 0 {
			grid.Note(strings.TrimSuffix(uris.String(), "\n"))
		}
	}
	_ = grid.Write(c.out, withHeadings(c), c.style())
	if changed != "" {
		fmt.Fprintf(c.out, "\nChanged documents are denied. `binnacle policy approve-tool %s` accepts one.\n", changed)
	}
}
