package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// serverOptions are the flags of mcp add.
type serverOptions struct {
	from, class               string
	bare, sse, perSession     bool
	include, exclude, headers []string
	renames, descriptions     []string
	command, image            string
	args, env, hosts, files   []string // of command
	concurrency               int
	oauth                     bool
	login                     oauthOptions
}

// serverCmds returns the subcommands of mcp that manage the MCP servers of the mesh.
func serverCmds(c *env) []*cobra.Command {
	var o serverOptions
	add := &cobra.Command{
		Use:   "add NAME URL | NAME --command COMMAND --image IMAGE | [NAME] --from FILE",
		Short: "Add an MCP server to the mesh, or replace its settings",
		Long: `Add an MCP server to the mesh, or replace its settings. Its tools are then offered as
NAME.TOOL. The ceilings must permit the host of URL. COMMAND runs in a sandbox, in IMAGE,
which contains it, and uses MCP on standard input and output. It has no network but the
hosts of --host, which it reaches through the egress-broker; the broker adds the header of
--header to its requests, and ${vault:SECRET} in --env is a placeholder for that secret.
With --secret-file, COMMAND may read a secret in a file. With
--from, the servers of a file are added that have a URL and, with --image, those that have
a command; FILE is the configuration of another client, with the member mcpServers, or a
server.json of the official registry, whose server gets NAME or the last part of its name
there. With --oauth, you log in at the server's authorization server, once for the
operator's tenant and once for your own, before the server is added. These commands are for
operators of the mesh.`,
		Example:           "  binnacle mcp add github https://mcp.example/mcp --header Authorization=mcp.github\n  binnacle mcp add tracker https://mcp.example/mcp --oauth\n  binnacle mcp add memory --command node --arg /srv/memory.js --image tools\n  binnacle mcp add weather --command node --arg /srv/weather.js --image tools --host api.example --header Authorization=mcp.weather --env 'TOKEN=${vault:mcp.weather}'\n  binnacle mcp add --from ~/.cursor/mcp.json\n  binnacle mcp add weather --from server.json",
		Args:              takes(0, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, pos []string) error { return addServers(cmd.Context(), c, &o, pos) },
	}
	f := add.Flags()
	f.StringVar(&o.from, "from", "", "`FILE` with the member mcpServers, or a server.json")
	f.StringVar(&o.class, "class", "", "effect `CLASS` of the tools, E0 to E4 (default E3)")
	f.BoolVar(&o.bare, "bare", false, "offer the tools under the names that they have at the server")
	f.BoolVar(&o.sse, "sse", false, "use the HTTP transport of protocol version 2024-11-05")
	f.BoolVar(&o.perSession, "per-session", false, "use a session with the server for each session of the mesh")
	f.IntVar(&o.concurrency, "concurrency", 0, "maximum `CALLS` at a time (default 16; 1 for a command, which runs once for each)")
	f.StringVar(&o.command, "command", "", "`COMMAND` that starts the server in a sandbox, in place of URL")
	f.StringArrayVar(&o.args, "arg", nil, "`ARGUMENT` of COMMAND; may be repeated")
	f.StringArrayVar(&o.env, "env", nil, "`NAME=VALUE`: variable of COMMAND's environment, which is recorded and no secret; may be repeated")
	f.StringArrayVar(&o.hosts, "host", nil, "`HOST` that COMMAND may reach, or HOST:PORT; may be repeated")
	f.StringArrayVar(&o.files, "secret-file", nil, "`NAME=SECRET`: write SECRET to a file in memory, whose path is the variable NAME of COMMAND; may be repeated")
	f.StringVar(&o.image, "image", "", "`IMAGE` that contains COMMAND: NAME of a lock file, or NAME@sha256:…")
	f.StringArrayVar(&o.include, "include", nil, "offer only this `TOOL`; may be repeated")
	f.StringArrayVar(&o.exclude, "exclude", nil, "do not offer this `TOOL`; may be repeated")
	f.StringArrayVar(&o.headers, "header", nil, "`NAME=SECRET`: send a header whose value is \"Bearer \" and the secret; may be repeated")
	f.StringArrayVar(&o.renames, "rename", nil, "`TOOL=NAME`: offer a tool under this name; may be repeated")
	f.StringArrayVar(&o.descriptions, "describe", nil, "`TOOL=TEXT`: replace the description of a tool; may be repeated")
	f.BoolVar(&o.oauth, "oauth", false, "log in at the authorization server of the server, and send access tokens")
	o.login.declare(add)
	for _, name := range []string{"class", "concurrency", "include", "exclude", "header", "rename", "describe", "command", "arg", "env", "host", "secret-file", "image"} {
		complete(add, name, cobra.NoFileCompletions)
	}
	named := func(verb, short string) *cobra.Command {
		return &cobra.Command{
			Use:               verb + " NAME",
			Short:             short,
			Example:           "  binnacle mcp " + verb + " github",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, pos []string) error {
				c.operator = true
				return c.say(c.governed(cmd.Context(), "mcp."+verb, map[string]string{"name": pos[0]}))
			},
		}
	}
	return []*cobra.Command{add,
		{
			Use:               "list",
			Short:             "List the MCP servers and the virtual servers of the mesh and what they offer",
			Example:           "  binnacle mcp list\n  binnacle mcp list --output json",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return listServers(cmd.Context(), c) },
		},
		newMCPLoginCmd(c),
		named("refresh", "List again what an MCP server offers, and show the differences"),
		named("remove", "Remove an MCP server from the mesh"),
	}
}

// addServers adds one server, or those of a file.
func addServers(ctx context.Context, c *env, o *serverOptions, pos []string) error {
	c.operator = true
	switch {
	case (o.from != "" || o.command != "") && o.oauth:
		return fail(exitUsage, "--oauth requires NAME and URL: commands, and the servers of a file, are added without a login")
	case o.from != "" && len(pos) < 2:
		return importServers(ctx, c, o, append(pos, "")[0])
	case o.from != "" || len(pos) == 0 || (len(pos) == 1) != (o.command != ""):
		return fail(exitUsage, "mcp add requires NAME and URL, NAME and --command, or --from FILE, which NAME may precede")
	}
	if o.oauth {
		o.headers = append(o.headers, "Authorization="+upstreamSecret(pos[0]))
	}
	args, err := settings(o, pos[0], append(pos, "")[1])
	if err != nil {
		return err
	}
	if o.oauth {
		if err := logInFor(ctx, c, o, pos[0], pos[1]); err != nil {
			return err
		}
		c.operator = true
	}
	return c.say(c.governed(ctx, "mcp.add", args))
}

// settings returns the args of mcp.add.
func settings(o *serverOptions, name, url string) (map[string]any, error) {
	args := map[string]any{"name": name}
	set := func(name string, value any, given bool) {
		if given {
			args[name] = value
		}
	}
	set("url", url, url != "")
	if url == "" {
		args["command"], args["image"] = o.command, o.image
		set("args", o.args, len(o.args) > 0)
		variables, err := pairs("env", "NAME=VALUE", o.env, "name", "value")
		if err != nil {
			return nil, err
		}
		set("env", variables, variables != nil)
		set("hosts", o.hosts, len(o.hosts) > 0)
		files, err := pairs("secret-file", "NAME=SECRET, where SECRET is the name of a secret in the vault that begins with mcp.", o.files, "name", "secret")
		if err != nil {
			return nil, err
		}
		set("files", files, files != nil)
	}
	set("class", o.class, o.class != "")
	set("names", "bare", o.bare)
	set("transport", "sse", o.sse)
	set("sessions", "per_session", o.perSession)
	set("concurrency", o.concurrency, o.concurrency != 0)
	set("include", o.include, len(o.include) > 0)
	set("exclude", o.exclude, len(o.exclude) > 0)
	var headers []map[string]string
	for _, h := range o.headers {
		header, secret, ok := strings.Cut(h, "=")
		if !ok {
			return nil, fail(exitUsage, "--header %q: want NAME=SECRET, where SECRET is the name of a secret in the vault that begins with mcp.", h)
		}
		headers = append(headers, map[string]string{"name": header, "secret": secret, "prefix": "Bearer "})
	}
	set("headers", headers, headers != nil)
	renames, err := pairs("rename", "TOOL=NAME, where TOOL is the name at the server", o.renames, "tool", "name")
	if err != nil {
		return nil, err
	}
	set("renames", renames, renames != nil)
	descriptions, err := pairs("describe", "TOOL=TEXT, where TOOL is the name at the server", o.descriptions, "tool", "text")
	if err != nil {
		return nil, err
	}
	set("descriptions", descriptions, descriptions != nil)
	return args, nil
}

// pairs returns the values of a flag, each of which is two texts with an equals sign between them,
// as objects with the members left and right. want describes a value.
func pairs(flag, want string, values []string, left, right string) (out []map[string]string, err error) {
	for _, v := range values {
		l, r, ok := strings.Cut(v, "=")
		if !ok {
			return nil, fail(exitUsage, "--%s %q: want %s", flag, v, want)
		}
		out = append(out, map[string]string{left: l, right: r})
	}
	return out, nil
}

// importServers adds the servers of a file. It leaves out the servers for which leaveOut
// returns a reason, and prints them with the reasons. It stops at the first call that
// fails. If name is not empty, the file must have one server, which gets the name.
func importServers(ctx context.Context, c *env, o *serverOptions, name string) error {
	b, err := os.ReadFile(o.from)
	if err != nil {
		return fail(exitUsage, "%v", err)
	}
	servers, err := readServers(b)
	if err != nil {
		return fail(exitUsage, "%s: %v", o.from, err)
	}
	if name != "" {
		if len(servers) != 1 {
			return fail(exitUsage, "%s has %d servers: leave NAME out, or name a file with one server", o.from, len(servers))
		}
		servers[0].name = name
	}
	added, left := []json.RawMessage{}, []string{}
	for _, s := range servers {
		if reason := s.leaveOut(len(o.headers) > 0, o.image != ""); reason != "" {
			left = append(left, s.name+" ("+reason+")")
			continue
		}
		own := *o
		own.sse = own.sse || s.sse
		own.command, own.args, own.env = s.command, s.args, s.env
		args, err := settings(&own, s.name, s.url)
		if err != nil {
			return err
		}
		out, err := c.governed(ctx, "mcp.add", args)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		added = append(added, out)
	}
	return c.print(map[string]any{"added": added, "left_out": left}, func() {
		fmt.Fprintf(c.out, "%d servers added\n", len(added))
		for _, l := range left {
			fmt.Fprintln(c.out, "left out:", l)
		}
	})
}

// listServers prints the MCP servers and the virtual servers of the mesh.
func listServers(ctx context.Context, c *env) error {
	c.operator = true
	raw, err := c.governed(ctx, "mcp.list", map[string]any{})
	if err != nil {
		return err
	}
	var doc struct {
		Servers []struct {
			Name, URL, Transport, Sessions, Command string
			Tools                                   []struct{ Approved bool }
			Health                                  struct{ State, Error string }
		}
		Virtual []struct {
			Name     string
			Approved bool
			Offers   []string
		}
	}
	var whole struct{ Servers, Virtual []json.RawMessage }
	if err := errors.Join(json.Unmarshal(raw, &doc), json.Unmarshal(raw, &whole)); err != nil {
		return err
	}
	columns := []output.Column{{Heading: "NAME"}, {Heading: "URL", Min: 8}, {Heading: "TRANSPORT"}, {Heading: "OFFERS"}, {Heading: "CHANGED"}, {Heading: "HEALTH"}, {Heading: "ERROR", Min: 8}}
	return listed(c, raw, append(whole.Servers, whole.Virtual...), columns, func(g *output.Grid) {
		for _, s := range doc.Servers {
			changed := 0
			for _, t := range s.Tools {
				if !t.Approved {
					changed++
				}
			}
			g.Add(s.Name, cmp.Or(s.URL, s.Command), s.Transport, fmt.Sprint(len(s.Tools)), fmt.Sprint(changed), s.Health.State, cmp.Or(s.Health.Error, "-"))
		}
		for _, v := range doc.Virtual {
			changed := "1"
			if v.Approved {
				changed = "0"
			}
			g.Add(v.Name, "/mcp?server="+v.Name, "virtual", fmt.Sprint(len(v.Offers)), changed, "-", "-")
		}
	})
}
