package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newToolsCmd returns the command tools, which lists the mesh's tools.
func newToolsCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:               "tools",
		Short:             "List the tools that can be called",
		Long:              "List the tools that can be called, with version and description. As JSON, YAML or lines\nalso their schemas, the secrets they declare and the digest of their document.",
		Example:           "  binnacle tools\n  binnacle tools --output json",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runTools(cmd.Context(), c) },
	}
}

// tool is a tool of the mesh, as the gateway returns it.
type tool struct {
	Name         string          `json:"name"`
	Version      string          `json:"version"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema"`
	Secrets      []string        `json:"secrets,omitempty"`
	Progress     bool            `json:"progress,omitempty"`
	Concurrency  string          `json:"concurrency,omitempty"`
	Digest       string          `json:"tool_schema_digest"`
}

func listTools(ctx context.Context, c *env) (tools []tool, err error) {
	err = c.get(ctx, "/api/v1/packs", &tools)
	return tools, err
}

func runTools(ctx context.Context, c *env) error {
	tools, err := listTools(ctx, c)
	if err != nil {
		return err
	}
	return c.table(tools, []output.Column{{Heading: "NAME", Min: 23}, {Heading: "VERSION", Min: 3}, {Heading: "DESCRIPTION"}}, func(g *output.Grid) {
		for _, t := range tools {
			g.Add(t.Name, t.Version, t.Description)
		}
	})
}
