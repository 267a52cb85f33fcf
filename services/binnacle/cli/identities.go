package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// identity is an entry of identities: a principal, role, delegation, session grant, consent,
// revocation, invitation or link, the mapping of a group to a role, or the groups of a principal,
// as Kind specifies.
type identity struct {
	Kind      string   `json:"kind"`
	ID        string   `json:"id"`
	Principal string   `json:"principal"`
	Role      string   `json:"role"`
	Delegate  string   `json:"delegate"`
	Kinds     []string `json:"kinds"`
	Expires   string   `json:"expires"`
	From      uint64   `json:"from_lamport"`
	To        uint64   `json:"to_lamport"`
	Type      string   `json:"type"`
	Suspended bool     `json:"suspended"`
}

// identities is the response to GET /api/v1/identities.
type identities struct {
	Identities []identity        `json:"identities"`
	BreakGlass []json.RawMessage `json:"break_glass"`
	Frozen     string            `json:"frozen"`
}

// identityColumns holds the columns of a list of identities, by the kind of the
// identities in it.
var identityColumns = map[string][]output.Column{
	"principal":  {{Heading: "PRINCIPAL", Min: 19}, {Heading: "TYPE", Min: 15}, {Heading: "STATE"}},
	"role":       {{Heading: "PRINCIPAL", Min: 19}, {Heading: "ROLE", Min: 15}, {Heading: "STATE"}},
	"session":    {{Heading: "SESSION"}, {Heading: "GRANT"}},
	"delegation": {{Heading: "ID"}, {Heading: "DELEGATION"}},
	"invitation": {{Heading: "ID"}, {Heading: "PRINCIPAL", Min: 19}, {Heading: "STATE"}},
}

// row returns the cells of an identity, in the columns of its kind.
func (i *identity) row() []string {
	state := fmt.Sprintf("since lamport %d", i.From)
	if i.Kind == "principal" && i.Suspended {
		state += ", suspended"
	}
	if i.To > 0 {
		state += fmt.Sprintf(", ended at lamport %d", i.To)
	}
	if i.Expires != "" {
		state += ", expires " + i.Expires
	}
	switch i.Kind {
	case "principal":
		return []string{i.Principal, i.Type, state}
	case "invitation":
		return []string{i.ID, i.Principal, state}
	case "role":
		return []string{i.Principal, i.Role, state}
	case "session":
		return []string{i.ID, i.Delegate + " for " + i.Principal + ", " + state}
	}
	return []string{i.ID, i.Delegate + " for " + i.Principal + ": " + strings.Join(i.Kinds, " ") + ", " + state}
}

// alsoListed holds the kinds of identities that a list in JSON Lines also has, by the kind of the list.
var alsoListed = map[string][]string{"invitation": {"link", "group", "groups"}, "session": {"consent"}, "delegation": {"revocation"}}

// newIdentityListCmd returns the subcommand list of the command parent. As a table it
// lists the identities of a kind, and in JSON Lines also those that the variable alsoListed names. As
// one document it prints the identities of every kind.
func newIdentityListCmd(c *env, parent, kind, short string) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:               "list",
		Short:             short,
		Long:              short + ", with what has ended; with --at, as it was at a lamport.",
		Example:           "  binnacle " + parent + " list\n  binnacle " + parent + " list --at 100",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return listIdentities(cmd.Context(), c, kind, at) },
	}
	atFlag(cmd, &at)
	return cmd
}

// atFlag declares the flag --at.
func atFlag(cmd *cobra.Command, at *string) {
	cmd.Flags().StringVar(at, "at", "", "`LAMPORT` to show the state at")
	complete(cmd, "at", cobra.NoFileCompletions)
}

func listIdentities(ctx context.Context, c *env, kind, at string) error {
	var doc identities
	path := "/api/v1/identities"
	if at != "" {
		path += "?at=" + url.QueryEscape(at)
	}
	if err := c.get(ctx, path, &doc); err != nil {
		return err
	}
	var items []identity
	for _, i := range doc.Identities {
		if i.Kind == kind || slices.Contains(alsoListed[kind], i.Kind) {
			items = append(items, i)
		}
	}
	return listed(c, doc, items, identityColumns[kind], func(g *output.Grid) {
		for _, i := range items {
			if i.Kind == kind {
				g.Add(i.row()...)
			}
		}
	})
}
