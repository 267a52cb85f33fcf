package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
)

// clientOptions are the flags of mcp config.
type clientOptions struct {
	project, name, state, server string
	write, undo                  bool
}

// newMCPConfigCmd returns the command mcp config, which connects MCP clients with the mesh.
func newMCPConfigCmd(c *env) *cobra.Command {
	var o clientOptions
	cmd := &cobra.Command{
		Use:   "config CLIENT",
		Short: "Connect an MCP client with the mesh, by its configuration",
		Long: `Show what would change in the configuration of a client so that it uses the tools of the
mesh, and change it with --write. What is there stays. With --undo, the entry is removed:
a configuration that was not edited since gets its original bytes. The token is not
written: the client reads BINNACLE_TOKEN when it starts; VS Code prompts for the token once;
Claude Desktop runs 'binnacle mcp serve' with the token of the context in use.`,
		Example:           "  binnacle mcp config codex\n  binnacle mcp config claude-code --project . --write\n  binnacle mcp config codex --undo --write",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(words(install.MCPClients()...)),
		RunE:              func(_ *cobra.Command, args []string) error { return configureClient(c, &o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.project, "project", "", "`FOLDER` of a project: its configuration instead of the user's")
	f.StringVar(&o.name, "name", "binnacle", "`NAME` of the mesh in the client's configuration")
	f.StringVar(&o.server, "server", "", "`NAME` of the virtual server that the client uses (default all that the mesh offers)")
	complete(cmd, "server", cobra.NoFileCompletions)
	f.StringVar(&o.state, "state", "", "`FOLDER` of the original files (default: binnacle/mcp in XDG_STATE_HOME or ~/.local/state)")
	f.BoolVar(&o.write, "write", false, "make the change")
	f.BoolVar(&o.undo, "undo", false, "remove the entry")
	return cmd
}

// connection returns the entry of the mesh for a client. With --undo, the entry has neither a
// URL nor a command.
func connection(c *env, o *clientOptions, client string) (*install.Connection, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	config, err := os.UserConfigDir()
	if err != nil {
		return nil, err
	}
	x := &install.Connection{Client: client, Name: o.name, Home: home, Config: config, State: o.state}
	if x.State == "" {
		x.State = filepath.Join(envOr("XDG_STATE_HOME", filepath.Join(home, ".local", "state")), "binnacle", "mcp")
	}
	if o.project != "" {
		if x.Project, err = filepath.Abs(o.project); err != nil {
			return nil, err
		}
	}
	if o.undo {
		return x, nil
	}
	t := c.mesh()
	if t.err != nil {
		return nil, t.err
	}
	x.URL = mcpURL(c, o.server)
	if install.Starts(client) {
		if t.context == "" || t.token == "" && !t.refreshes {
			return nil, fail(exitAuth, "%s runs `binnacle mcp serve`, which needs a context with a token: `binnacle login --context NAME` stores one, --context NAME names it", client)
		}
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		x.Command = []string{self, "mcp", "serve", "--context", t.context}
		if o.server != "" {
			x.Command = append(x.Command, "--server", o.server)
		}
	}
	return x, nil
}

// configureClient shows a change of a client's configuration, and makes it if write is set.
func configureClient(c *env, o *clientOptions, client string) error {
	x, err := connection(c, o, client)
	if err != nil {
		return err
	}
	compute := x.Install
	if o.undo {
		compute = x.Uninstall
	}
	change, err := compute()
	if errors.Is(err, install.ErrUnknown) || errors.Is(err, install.ErrInvalid) {
		return fail(exitUsage, "%v", err)
	}
	if err != nil {
		return err
	}
	if o.write {
		if err := x.Apply(change, !o.undo); err != nil {
			return err
		}
	}
	doc := map[string]any{"client": client, "path": change.Path, "changed": o.write, "diff": change.Diff()}
	return c.print(doc, func() {
		fmt.Fprint(c.out, change.Diff())
		if !o.write {
			fmt.Fprintln(c.out, "nothing was changed; --write makes the change")
		}
	})
}
