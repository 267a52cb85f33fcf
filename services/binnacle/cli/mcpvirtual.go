package cli

import (
	"net/url"

	"github.com/spf13/cobra"
)

// mcpURL returns the URL at which the mesh serves MCP. If server is not "", it is the name of the
// virtual server to use.
func mcpURL(c *env, server string) string {
	u := c.base() + "/mcp"
	if server != "" {
		u += "?server=" + url.QueryEscape(server)
	}
	return u
}

// virtualCmds returns the subcommands of mcp that manage virtual servers.
func virtualCmds(c *env) []*cobra.Command {
	var tools, prompts, resources []string
	var description string
	var search bool
	publish := &cobra.Command{
		Use:   "publish NAME",
		Short: "Publish a virtual MCP server with a choice of the tools of the mesh",
		Long: `Publish a virtual MCP server, or replace one: a choice of the tools, prompts and resources of
the mesh, which clients use at /mcp?server=NAME. Its tools keep their names. With --search it
lists two tools, one that finds tools by words and one that calls them, for models that
cannot read the schemas of hundreds of tools. A changed virtual server is used only after
'binnacle policy approve-tool mcp.server.NAME'. This command is for operators of the mesh.`,
		Example:           "  binnacle mcp publish triage --tool 'github.*' --tool web.fetch\n  binnacle mcp publish everything --tool '*' --search",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			c.operator = true
			if len(tools) == 0 {
				return fail(exitUsage, "mcp publish requires --tool, the name of a tool or the beginning of names followed by *")
			}
			args := map[string]any{"name": pos[0], "tools": tools}
			for member, list := range map[string][]string{"prompts": prompts, "resources": resources} {
				if len(list) > 0 {
					args[member] = list
				}
			}
			if description != "" {
				args["description"] = description
			}
			if search {
				args["search"] = true
			}
			return c.say(c.governed(cmd.Context(), "mcp.publish", args))
		},
	}
	f := publish.Flags()
	f.StringArrayVar(&tools, "tool", nil, "`NAME` of a tool, or the beginning of names followed by *; may be repeated")
	f.StringArrayVar(&prompts, "prompt", nil, "`NAME` of a prompt, or the beginning of names followed by *; may be repeated")
	f.StringArrayVar(&resources, "resources", nil, "`SERVER` whose resources are offered; may be repeated")
	f.StringVar(&description, "description", "", "`TEXT` about the virtual server")
	f.BoolVar(&search, "search", false, "list a tool that finds tools, and one that calls them, instead of the tools")
	for _, name := range []string{"tool", "prompt", "resources", "description"} {
		complete(publish, name, cobra.NoFileCompletions)
	}
	return []*cobra.Command{publish, {
		Use:               "unpublish NAME",
		Short:             "Remove a virtual MCP server",
		Example:           "  binnacle mcp unpublish triage",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			c.operator = true
			return c.say(c.governed(cmd.Context(), "mcp.unpublish", map[string]string{"name": pos[0]}))
		},
	}}
}
