package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/suggest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newContextCmd returns the command context, which lists, selects and changes the stored
// contexts.
func newContextCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "context COMMAND",
		Short: "List, choose and change the meshes that this command line works with",
		Long: `List, choose and change contexts. A context is a mesh's address, or the addresses of several
of its gateways, separated by commas, with the token that login stored and the authority of
its certificate. They are in binnacle/contexts.json
in your configuration folder, readable by you alone. Flags override
BINNACLE_* variables, which override the context in use. A context's token is sent to its
own address only.`,
		Example: "  binnacle context set prod --addr https://mesh.example\n  binnacle login --context prod < prod.token\n  binnacle context use prod",
	},
		&cobra.Command{
			Use:               "list",
			Short:             "List the contexts; no token is shown",
			Example:           "  binnacle context list",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(*cobra.Command, []string) error { return listContexts(c) },
		},
		&cobra.Command{
			Use:               "use NAME",
			Short:             "Use a context unless a flag or variable overrides it",
			Example:           "  binnacle context use prod",
			Args:              takes(1, 1),
			ValidArgsFunction: byPosition(completeContexts),
			RunE: func(_ *cobra.Command, args []string) error {
				return changeContexts(c, args[0], "in use", func(s *contexts.Store) error { return s.Use(args[0]) })
			},
		},
		newContextSetCmd(c),
		&cobra.Command{
			Use:               "remove NAME",
			Short:             "Remove a context and its token",
			Example:           "  binnacle context remove prod",
			Args:              takes(1, 1),
			ValidArgsFunction: byPosition(completeContexts),
			RunE: func(_ *cobra.Command, args []string) error {
				return changeContexts(c, args[0], "removed", func(s *contexts.Store) error { return s.Remove(args[0]) })
			},
		},
	)
}

func newContextSetCmd(c *env) *cobra.Command {
	var ca, cert, key string
	cmd := &cobra.Command{
		Use:               "set NAME --addr ADDRESS",
		Short:             "Add a context, or change its address; a token or login stays only with its address",
		Example:           "  binnacle context set prod --addr https://mesh.example --ca ca.pem",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(completeContexts),
		RunE: func(_ *cobra.Command, args []string) error {
			return changeContexts(c, args[0], "stored", func(s *contexts.Store) error {
				x := s.Contexts[args[0]]
				if c.addr != "" && c.addr != x.Addr {
					x.Addr, x.Token, x.Refresh, x.Expires = c.addr, "", "", time.Time{}
				}
				if c.given("ca") {
					x.CA = ca
				}
				if c.given("client-cert") {
					x.ClientCert = cert
				}
				if c.given("client-key") {
					x.ClientKey = key
				}
				if x.Addr == "" {
					return fail(exitUsage, "context set requires --addr")
				}
				return s.Put(args[0], x)
			})
		},
	}
	cmd.Flags().StringVar(&ca, "ca", "", "PEM `FILE` of the authority of the mesh's certificate; empty is the system's")
	cmd.Flags().StringVar(&cert, "client-cert", "", "PEM `FILE` of the certificate to present to the mesh; empty is none")
	cmd.Flags().StringVar(&key, "client-key", "", "PEM `FILE` of its key")
	return cmd
}

// contextRow is one context, as 'context list' prints it. It does not contain the token
// itself, so that the list can be shown to others.
type contextRow struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	Addr    string `json:"addr"`
	Token   bool   `json:"token"` // whether a token is stored
	CA      string `json:"ca,omitempty"`
}

func listContexts(c *env) error {
	path, err := contexts.Path()
	if err != nil {
		return err
	}
	s, err := contexts.Load(path)
	if err != nil {
		return err
	}
	var rows []contextRow
	for _, name := range s.Names() {
		x := s.Contexts[name]
		rows = append(rows, contextRow{name, name == s.Current, x.Addr, x.Token != "", x.CA})
	}
	columns := []output.Column{{Heading: "IN USE"}, {Heading: "NAME", Min: 16}, {Heading: "ADDRESS", Min: 24}, {Heading: "TOKEN"}, {Heading: "CA"}}
	return c.table(rows, columns, func(g *output.Grid) {
		for _, r := range rows {
			g.Add(map[bool]string{true: "*"}[r.Current], r.Name, r.Addr, map[bool]string{true: "stored", false: "none"}[r.Token], r.CA)
		}
	})
}

// changeContexts applies a change to the stored contexts, saves them, and prints the
// name of the changed context followed by what, a description of its new state.
func changeContexts(c *env, name, what string, change func(*contexts.Store) error) error {
	path, err := contexts.Path()
	if err != nil {
		return err
	}
	current := ""
	err = contexts.Change(path, func(s *contexts.Store) error {
		err := change(s)
		if _, exists := s.Contexts[name]; err != nil && !exists {
			return fail(exitUsage, "%v%s", err, didYouMean(suggest.Near(name, s.Names())))
		}
		current = s.Current
		return err
	})
	if err != nil {
		return err
	}
	return c.print(map[string]string{"context": name, "state": what, "in_use": current}, func() { fmt.Fprintf(c.out, "context %s is %s\n", name, what) })
}
