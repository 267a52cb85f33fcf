package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

// newSecretCmd returns the command secret, which stores secrets and manages the keys
// that contents are encrypted with.
func newSecretCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "secret COMMAND",
		Short:   "Store a secret; rotate and destroy content keys",
		Example: "  binnacle secret put demo-api-key < key.txt\n  binnacle secret rotate-content-key",
	},
		&cobra.Command{
			Use:               "put NAME",
			Short:             "Store a secret that is read from standard input",
			Long:              "Store a secret that is read from standard input, so that it is in no process listing\nand no shell history. The ledger holds its name and a keyed fingerprint.",
			Example:           "  binnacle secret put demo-api-key < key.txt",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, args []string) error { return putSecret(cmd.Context(), c, args[0]) },
		},
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
			Long:              "Destroy a content key. What was encrypted with it can be read no more; every proof stays.",
			Example:           "  binnacle secret destroy-content-key tk-000001",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.say(c.governed(cmd.Context(), "vault.destroy_content_key", map[string]string{"id": args[0]}))
			},
		},
	)
}

// putSecret stores a secret from standard input, without one trailing newline. It reads one
// byte more than the longest value and its newline have, so that the mesh rejects a longer
// value instead of storing a part of it.
func putSecret(ctx context.Context, c *env, name string) error {
	value, err := io.ReadAll(io.LimitReader(c.in, 64<<10+2))
	if err != nil {
		return err
	}
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/secrets", map[string]string{"name": name, "value": strings.TrimSuffix(string(value), "\n")}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var doc map[string]string
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return err
	}
	return c.print(doc, func() { fmt.Fprintf(c.out, "stored %s, fingerprint %s\n", doc["name"], doc["fingerprint"]) })
}
