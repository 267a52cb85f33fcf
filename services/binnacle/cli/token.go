package cli

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

type tokenOptions struct {
	actor, client string
	scopes        []string
	ttl           time.Duration
}

// newTokenCmd returns the command token, which mints bearer tokens with the mesh's token
// key and revokes them.
func newTokenCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "token COMMAND",
		Short:   "Mint and revoke bearer tokens",
		Example: "  binnacle token create --actor alice --scope tools:call > alice.token\n  binnacle token revoke --principal alice --reason left",
	},
		newTokenCreateCmd(c),
		&cobra.Command{
			Use:               "admin",
			Short:             "Print the administrator's token, a new one if the old one is about to expire",
			Example:           "  binnacle token admin --data data",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(*cobra.Command, []string) error { return printToken(c, mesh.AdminToken) },
		},
		&cobra.Command{
			Use:               "operator",
			Short:             "Print the operator's token, a new one if the old one is about to expire",
			Example:           "  binnacle token operator --data data",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(*cobra.Command, []string) error { return printToken(c, mesh.OperatorToken) },
		},
		newTokenRevokeCmd(c),
	)
}

func newTokenCreateCmd(c *env) *cobra.Command {
	var o tokenOptions
	var tenant string
	cmd := &cobra.Command{
		Use:               "create --actor WHO --scope SCOPE…",
		Short:             "Mint a token with the keys in DATA and print it",
		Example:           "  binnacle token create --actor alice --scope tools:call --scope llm:call --ttl 8h\n  binnacle token create --tenant acme_shop_prod --actor alice --scope llm:call",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return createToken(c, tenant, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.actor, "actor", "", "`WHO` the token identifies")
	f.StringVar(&tenant, "tenant", "", "id of the `TENANT` it is for (default the mesh's original tenant)")
	complete(cmd, "tenant", fromMesh(c, tenantNames))
	f.StringVar(&o.client, "client", "-", "the `CLIENT` it is for")
	f.DurationVar(&o.ttl, "ttl", 24*time.Hour, "how long it is valid")
	f.StringArrayVar(&o.scopes, "scope", nil, fmt.Sprintf("`SCOPE`, may be repeated; one of %v", token.All))
	flagWords(cmd, "scope", token.All...)
	return cmd
}

func newTokenRevokeCmd(c *env) *cobra.Command {
	var principal, reason string
	cmd := &cobra.Command{
		Use:   "revoke ID|TOKEN --reason WHY | --principal WHO --reason WHY",
		Short: "Revoke a token, or all that a principal's credentials gave until now",
		Example: "  binnacle token revoke ODRO5TPIFZG2DIPOSU7QNZHE2D --reason lost\n" +
			"  binnacle token revoke --principal alice --reason left",
		Args:              takes(0, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (principal != "") {
				return wrongUsage(cmd)
			}
			return revokeToken(cmd.Context(), c, args, principal, reason)
		},
	}
	reasonFlag(cmd, &reason)
	cmd.Flags().StringVar(&principal, "principal", "", "`WHO`: all that this principal's credentials gave until now")
	return cmd
}

// revokeToken proposes the revocation of one token or, with a principal, of all of the
// principal's credentials up to now.
func revokeToken(ctx context.Context, c *env, pos []string, principal, reason string) error {
	args := map[string]string{"reason": reason}
	if principal != "" {
		args["principal"] = principal
	} else {
		args["id"] = token.ID(pos[0])
	}
	return c.say(c.governed(ctx, "policy.revoke_token", args))
}

// createToken mints a token with the seed in DATA/keys, without a request to the mesh.
func createToken(c *env, tenant string, o *tokenOptions) error {
	if o.actor == "" || len(o.scopes) == 0 {
		return fail(exitUsage, "token create requires --actor and at least one --scope")
	}
	t, err := mintToken(c.data, tenant, o)
	if err != nil {
		return err
	}
	return c.print(map[string]string{"token": t, "id": token.ID(t)}, func() { fmt.Fprintln(c.out, t) })
}

// mintToken returns a new token of a tenant, or of the mesh's original tenant if tenant is
// empty, signed with the seed in the ring of keys in the folder data. The gateway decides
// whether the tenant exists.
func mintToken(data, tenant string, o *tokenOptions) (string, error) {
	ring, original, err := openRing(data)
	if err != nil {
		return "", fmt.Errorf("tokens are minted where the mesh's keys are: %w", err)
	}
	seed, err := ring.Seed("token.seed")
	if err != nil {
		return "", fmt.Errorf("tokens are minted where the mesh's keys are: %w", err)
	}
	tenant = cmp.Or(tenant, original)
	if !contract.Token(tenant) {
		return "", fail(exitUsage, "--tenant %q: want the id of a tenant, such as acme_shop_prod", tenant)
	}
	t, err := token.Mint(seed, tenant, o.actor, o.client, o.scopes, time.Now(), o.ttl)
	if err != nil {
		return "", &exitError{code: exitUsage, err: err}
	}
	return t, nil
}

// printToken calls of, and prints the token that it returns, which is the
// administrator's or the operator's.
func printToken(c *env, of func(dir string, ring *keyring.Ring) (string, error)) error {
	ring, _, err := openRing(c.data)
	if err != nil {
		return err
	}
	t, err := of(c.data, ring)
	if err != nil {
		return err
	}
	return c.print(map[string]string{"token": t}, func() { fmt.Fprintln(c.out, t) })
}

// openRing opens the ring of keys in the folder data and returns it with its original
// tenant.
func openRing(data string) (*keyring.Ring, string, error) {
	ring, err := keyring.Open(filepath.Join(data, "keys"))
	if err != nil {
		return nil, "", err
	}
	tenant, err := ring.Tenant()
	return ring, tenant, err
}
