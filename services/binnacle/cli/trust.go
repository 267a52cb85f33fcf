package cli

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// trustOptions holds the options of subcommands that change the key ring.
type trustOptions struct{ keys, distribute string }

// newTrustCmd returns the command trust. Its subcommands, except list, work offline on
// files. The subcommands that change the key ring also copy its keys to the services'
// folders if --distribute or BINNACLE_DISTRIBUTE is set.
func newTrustCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "trust COMMAND",
		Short:   "Make, rotate and revoke keys; sign the ceilings (offline)",
		Example: "  binnacle trust add approval carol\n  binnacle trust rotate policy\n  binnacle trust list",
	},
		newTrustInitCmd(c),
		newTrustListCmd(c),
		newTrustAddCmd(c),
		newTrustCellCmd(c),
		newTrustOperatorCmd(c),
		newRingCmd(c, &cobra.Command{
			Use:   "rotate SERVICE|root|KEY",
			Short: "Replace a service's signing key, the root key or another key",
			Long: `Replace a service's signing key, the root key or another key:

  nats           the keys by which the services, provision, mirror and auditor connect to NATS
  nats/IDENTITY  one of these keys
  token          the key of the tokens of 'binnacle token create'
  webhook        the key of the signatures of notices
  seal           the key to which values for the vault-broker are sealed

Of these, the former key stays valid until 'binnacle trust retire KEY'. A running
mesh uses the new keys within seconds.`,
			Example:           "  binnacle trust rotate policy\n  binnacle trust rotate root\n  binnacle trust rotate nats",
			Args:              takes(1, 1),
			ValidArgsFunction: byPosition(words(slices.Concat(services.Names(), []string{"root"}, keyring.Replaceable())...)),
		}, func(ring *keyring.Ring, pos []string) error { return rotate(c, ring, pos[0]) }),
		newRingCmd(c, &cobra.Command{
			Use:               "retire KEY",
			Short:             "End the validity of a key that was rotated: nats, nats/IDENTITY, token, webhook or seal",
			Example:           "  binnacle trust retire nats\n  binnacle trust retire token",
			Args:              takes(1, 1),
			ValidArgsFunction: byPosition(words(keyring.Replaceable()...)),
		}, func(ring *keyring.Ring, pos []string) error {
			return printKID(c)(pos[0], keyring.Retire(ring, pos[0]))
		}),
		newRingCmd(c, &cobra.Command{
			Use:               "revoke KID",
			Short:             "Revoke a key",
			Example:           "  binnacle trust revoke k-0123456789",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
		}, func(ring *keyring.Ring, pos []string) error { return printKID(c)(pos[0], ring.Revoke(pos[0])) }),
		newRingCmd(c, &cobra.Command{
			Use:     "sign CEILINGS.json",
			Short:   "Sign a document of ceilings (P0) with the root key",
			Example: "  binnacle trust sign ceilings.json",
			Args:    takes(1, 1),
		}, func(ring *keyring.Ring, pos []string) error { return signCeilings(c, ring, pos[0]) }),
		&cobra.Command{
			Use:     "public SEEDFILE",
			Short:   "Print the public half of a seed file, in base64",
			Example: "  binnacle trust public witness.seed",
			Args:    takes(1, 1),
			RunE:    func(_ *cobra.Command, args []string) error { return publicOf(c, args[0]) },
		},
	)
}

// rotate replaces a key of the ring, and prints its id. With a new token key, it also makes new
// tokens of the administrator and the operator.
func rotate(c *env, ring *keyring.Ring, name string) error {
	switch {
	case name == "root":
		return printKID(c)(ring.RotateRoot())
	case !slices.Contains(keyring.Replaceable(), name):
		return printKID(c)(ring.Rotate(name))
	}
	id, err := keyring.Replace(ring, name)
	if err == nil && name == keyring.TokenKey {
		err = mesh.Tokens(c.data, ring)
	}
	return printKID(c)(id, err)
}

// newRingCmd sets cmd to apply the function change to the key ring, and then to
// distribute the ring if --distribute or its variable is set, and returns cmd.
func newRingCmd(c *env, cmd *cobra.Command, change func(ring *keyring.Ring, pos []string) error) *cobra.Command {
	var o trustOptions
	cmd.Flags().StringVar(&o.keys, "keys", "", "`FOLDER` of keys (default DATA/keys)")
	directories(cmd, "keys")
	distributeFlag(cmd, &o.distribute)
	cmd.RunE = func(_ *cobra.Command, pos []string) error {
		if o.keys == "" {
			o.keys = filepath.Join(c.data, "keys")
		}
		ring, err := keyring.Open(o.keys)
		if err != nil {
			return err
		}
		if err := change(ring, pos); err != nil {
			return err
		}
		return distribute(ring, o.distribute)
	}
	return cmd
}

func newTrustInitCmd(c *env) *cobra.Command {
	var to, tenant string
	cmd := &cobra.Command{
		Use:               "init",
		Short:             "Make the keys of a mesh, as 'binnacle init' does",
		Example:           "  binnacle trust init --data data",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return makeKeys(c, tenant, to) },
	}
	originalFlag(cmd, &tenant)
	distributeFlag(cmd, &to)
	return cmd
}

func newTrustListCmd(c *env) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List the keys that the ledger has published",
		Example:           "  binnacle trust list\n  binnacle trust list --at 100",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return listKeys(cmd.Context(), c, at) },
	}
	atFlag(cmd, &at)
	return cmd
}

func newTrustAddCmd(c *env) *cobra.Command {
	var public, tenant string
	cmd := newRingCmd(c, &cobra.Command{
		Use:               "add approval|bundle|witness NAME",
		Short:             "Add the key of an approver, a bundle's signer or a witness",
		Example:           "  binnacle trust add approval carol\n  binnacle trust add approval carol --tenant acme_shop_prod\n  binnacle trust add witness w1 --public \"$(cat w1.pub)\"",
		Args:              takes(2, 2),
		ValidArgsFunction: byPosition(words("approval", "bundle", "witness"), cobra.NoFileCompletions),
	}, func(ring *keyring.Ring, pos []string) error {
		pub, err := keyring.PublicKey(public)
		if err != nil {
			return fail(exitUsage, "%v", err)
		}
		return printKID(c)(ring.AddKey(pos[0], pos[1], tenant, pub))
	})
	cmd.Flags().StringVar(&public, "public", "", "public `KEY` in base64; empty makes a key pair")
	cmd.Flags().StringVar(&tenant, "tenant", "", "id of the `TENANT` of the approver or signer (default the mesh's original tenant)")
	complete(cmd, "tenant", fromMesh(c, tenantNames))
	return cmd
}

// signCeilings signs a P0 document and stores it in the ring. A member that the file
// lacks has the value of keyring.DefaultCeilings.
func signCeilings(c *env, ring *keyring.Ring, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	ceilings := keyring.DefaultCeilings
	if err := strictJSON(b, &ceilings); err != nil {
		return fail(exitUsage, "%s: %v", file, err)
	}
	doc, err := ring.SignP0(ceilings)
	if err != nil {
		return fail(exitUsage, "%s: %v", file, err)
	}
	digest := sign.Digest(doc)
	return c.print(map[string]string{"file": ring.Path("p0.json"), "digest": digest}, func() {
		fmt.Fprintf(c.out, "signed %s\n%s\nput it in force with `binnacle policy activate --layer p0 %s`, or by restarting policy\n", ring.Path("p0.json"), digest, ring.Path("p0.json"))
	})
}

// publicOf prints the public key that belongs to the seed in a file, in base64.
func publicOf(c *env, file string) error {
	seed, err := keyring.ReadSeed(file)
	if err != nil {
		return err
	}
	pub := base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	return c.print(map[string]string{"public_key": pub}, func() { fmt.Fprintln(c.out, pub) })
}

// printKID returns a function that prints the key id that a change of the ring returned,
// or returns the change's error.
func printKID(c *env) func(kid string, err error) error {
	return func(kid string, err error) error {
		if err != nil {
			return err
		}
		return c.print(map[string]string{"kid": kid}, func() { fmt.Fprintln(c.out, kid) })
	}
}

func listKeys(ctx context.Context, c *env, at string) error {
	path := "/api/v1/trust/keys"
	if at != "" {
		path += "?at=" + url.QueryEscape(at)
	}
	var keys []struct {
		KID          string   `json:"kid"`
		Owner        string   `json:"owner"`
		Uses         []string `json:"uses"`
		SignerKID    string   `json:"signer_kid"`
		Since        uint64   `json:"since_lamport"`
		RevokedSince uint64   `json:"revoked_since_lamport,omitempty"`
		Valid        bool     `json:"valid"`
	}
	if err := c.get(ctx, path, &keys); err != nil {
		return err
	}
	columns := []output.Column{{Heading: "KID"}, {Heading: "OWNER", Min: 19}, {Heading: "USES", Min: 31}, {Heading: "SINCE LAMPORT", Min: 14}, {Heading: "STATE"}}
	return c.table(keys, columns, func(g *output.Grid) {
		for _, k := range keys {
			state := "valid"
			if !k.Valid {
				state = "not valid"
			}
			g.Add(k.KID, k.Owner, strings.Join(k.Uses, ","), fmt.Sprintf("since %d", k.Since), state)
		}
	})
}
