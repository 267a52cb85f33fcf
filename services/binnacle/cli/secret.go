package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newSecretCmd returns the command secret, which stores secrets and manages the keys
// that contents are encrypted with.
func newSecretCmd(c *env) *cobra.Command {
	named := func(verb, short string) *cobra.Command {
		return governedCmd(c, &cobra.Command{
			Use:               verb + " NAME",
			Short:             short,
			Example:           "  binnacle secret " + verb + " demo-api-key",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
		}, "vault."+verb, func(pos []string) any { return map[string]string{"name": pos[0]} })
	}
	return group(&cobra.Command{
		Use:     "secret COMMAND",
		Short:   "Store, rotate, list and erase secrets; rotate and destroy content keys",
		Example: "  binnacle secret put demo-api-key < key.txt\n  binnacle secret list",
	},
		newSecretPutCmd(c),
		newSecretRotateCmd(c),
		newSecretListCmd(c),
		newSecretShowCmd(c),
		newSecretAccessCmd(c),
		named("delete", "Make a secret unreadable until it is restored or stored again"),
		named("restore", "Make a deleted secret readable again"),
		named("erase", "Destroy all versions of a secret permanently"),
		&cobra.Command{
			Use:               "rotate-content-key",
			Short:             "Encrypt what is recorded from now on with a new key",
			Example:           "  binnacle secret rotate-content-key",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return c.say(c.governed(cmd.Context(), "vault.rotate_content_key", map[string]string{}))
			},
		},
		&cobra.Command{
			Use:               "destroy-content-key ID",
			Short:             "Erase all content that was encrypted with a key",
			Long:              "Destroy a content key. What was encrypted with it can no longer be read; every proof stays valid.",
			Example:           "  binnacle secret destroy-content-key tk-000001",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.say(c.governed(cmd.Context(), "vault.destroy_content_key", map[string]string{"id": args[0]}))
			},
		},
	)
}

// secretOptions are the flags of secret put and secret rotate.
type secretOptions struct {
	kind      string
	expiresIn time.Duration
	overlap   time.Duration
	bytes     int
}

// times adds the flags that both commands have.
func (o *secretOptions) times(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&o.expiresIn, "expires-in", 0, "how long the value is released (default without end)")
	f.DurationVar(&o.overlap, "overlap", 0, "how long the value before it is released too, as NAME.previous")
}

// members returns the members of a request about the secret name, with the values of the flags.
func (o *secretOptions) members(name string) (map[string]any, error) {
	doc := map[string]any{"name": name}
	if o.expiresIn < 0 || o.overlap < 0 || o.overlap%time.Second != 0 {
		return nil, fail(exitUsage, "--expires-in and --overlap are positive, and --overlap has whole seconds")
	}
	if o.expiresIn > 0 {
		doc["expires"] = time.Now().Add(o.expiresIn).UTC().Format(time.RFC3339)
	}
	if o.overlap > 0 {
		doc["overlap_seconds"] = int64(o.overlap / time.Second)
	}
	if o.kind != "" {
		doc["type"] = o.kind
	}
	if o.bytes != 0 {
		doc["bytes"] = o.bytes
	}
	return doc, nil
}

// newSecretPutCmd returns the command secret put.
func newSecretPutCmd(c *env) *cobra.Command {
	var o secretOptions
	cmd := &cobra.Command{
		Use:               "put NAME",
		Short:             "Store a secret that is read from standard input",
		Long:              "Store a secret that is read from standard input, so that it is in no process listing\nand no shell history. The ledger holds its name and a keyed fingerprint. A value that\nis stored before becomes an earlier version.",
		Example:           "  binnacle secret put demo-api-key < key.txt\n  binnacle secret put deploy --type ssh < ~/.ssh/deploy\n  binnacle secret put demo-api-key --expires-in 720h --overlap 1h < key.txt",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return putSecret(cmd.Context(), c, &o, args[0]) },
	}
	o.times(cmd)
	types := []string{"api_key", "certificate", "cookie", "file", "login", "oauth", "ssh"}
	cmd.Flags().StringVar(&o.kind, "type", "", "`TYPE` whose form the value must have: "+strings.Join(types, ", "))
	complete(cmd, "type", cobra.FixedCompletions(types, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// newSecretRotateCmd returns the command secret rotate.
func newSecretRotateCmd(c *env) *cobra.Command {
	var o secretOptions
	cmd := &cobra.Command{
		Use:               "rotate NAME",
		Short:             "Replace a secret by a new random value",
		Long:              "Replace a secret by a new random value that no person sees, or create it. With --overlap,\ntools receive the value before it as NAME.previous for that time.",
		Example:           "  binnacle secret rotate webhook-key --overlap 1h",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := o.members(args[0])
			if err != nil {
				return err
			}
			return c.say(c.governed(cmd.Context(), "vault.rotate", doc))
		},
	}
	o.times(cmd)
	cmd.Flags().IntVar(&o.bytes, "bytes", 0, "`NUMBER` of random bytes, which are stored in base64 (default 32)")
	complete(cmd, "bytes", cobra.NoFileCompletions)
	return cmd
}

// secretVersion describes a version of a secret.
type secretVersion struct {
	Created, Expires, Fingerprint, Overlap, Type string
	Version                                      int
}

// secretEntry describes a secret.
type secretEntry struct {
	Name, State string
	LastUsed    string `json:"last_used"`
	Newest      secretVersion
	Versions    []secretVersion
}

// newSecretListCmd returns the command secret list.
func newSecretListCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:               "list",
		Short:             "List secrets with their types, versions, validity and last use",
		Example:           "  binnacle secret list\n  binnacle secret list --output json",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return listSecrets(cmd.Context(), c) },
	}
}

// listSecrets prints all secrets of the tenant.
func listSecrets(ctx context.Context, c *env) error {
	all := []json.RawMessage{}
	var rows []secretEntry
	for args := map[string]any{}; ; {
		raw, err := c.governed(ctx, "vault.list", args)
		if err != nil {
			return err
		}
		var doc struct {
			More    bool
			Secrets []json.RawMessage
		}
		if err := json.Unmarshal(raw, &doc); err != nil {
			return err
		}
		for _, s := range doc.Secrets {
			var e secretEntry
			if err := json.Unmarshal(s, &e); err != nil {
				return err
			}
			rows = append(rows, e)
		}
		all = append(all, doc.Secrets...)
		if !doc.More || len(doc.Secrets) == 0 {
			break
		}
		args["after"] = rows[len(rows)-1].Name
	}
	columns := []output.Column{{Heading: "NAME", Min: 8}, {Heading: "TYPE"}, {Heading: "STATE"}, {Heading: "VERSION"}, {Heading: "EXPIRES"}, {Heading: "LAST USED"}}
	return c.table(all, columns, func(g *output.Grid) {
		for _, e := range rows {
			version := "-"
			if e.Newest.Version > 0 {
				version = strconv.Itoa(e.Newest.Version)
			}
			g.Add(e.Name, cmp.Or(e.Newest.Type, "-"), e.State, version, cmp.Or(e.Newest.Expires, "-"), cmp.Or(e.LastUsed, "-"))
		}
	})
}

// newSecretShowCmd returns the command secret show.
func newSecretShowCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "List the stored versions of a secret, the newest first",
		Example:           "  binnacle secret show demo-api-key",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := c.governed(cmd.Context(), "vault.show", map[string]string{"name": args[0]})
			if err != nil {
				return err
			}
			var e secretEntry
			if err := json.Unmarshal(raw, &e); err != nil {
				return err
			}
			columns := []output.Column{{Heading: "VERSION"}, {Heading: "TYPE"}, {Heading: "CREATED"}, {Heading: "EXPIRES"}, {Heading: "OVERLAP"}, {Heading: "FINGERPRINT", Min: 8}}
			return c.table(raw, columns, func(g *output.Grid) {
				for _, v := range e.Versions {
					g.Add(strconv.Itoa(v.Version), cmp.Or(v.Type, "-"), v.Created, cmp.Or(v.Expires, "-"), cmp.Or(v.Overlap, "-"), v.Fingerprint)
				}
			})
		},
	}
}

// putSecret stores a secret from standard input, without one trailing newline. It reads one
// byte more than the longest value and its newline have, so that the mesh rejects a longer
// value instead of storing a part of it.
func putSecret(ctx context.Context, c *env, o *secretOptions, name string) error {
	req, err := o.members(name)
	if err != nil {
		return err
	}
	value, err := io.ReadAll(io.LimitReader(c.in, 64<<10+2))
	if err != nil {
		return err
	}
	req["value"] = strings.TrimSuffix(string(value), "\n")
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/secrets", req, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var doc map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return err
	}
	return c.print(doc, func() { fmt.Fprintf(c.out, "stored %v, fingerprint %v\n", doc["name"], doc["fingerprint"]) })
}
