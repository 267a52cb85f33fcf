package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// newInitCmd returns the command init, which makes the keys of a mesh.
func newInitCmd(c *env) *cobra.Command {
	var to, tenant string
	cmd := &cobra.Command{
		Use:               "init",
		Short:             "Make the keys of a mesh",
		Long:              "Make the keys of a mesh in DATA/keys, with the administrator's token in DATA/admin.token\nand the operator's in DATA/operator.token. What exists is left as it is. Nothing\nsecret is printed.",
		Example:           "  binnacle init --data data\n  binnacle init --data data --tenant acme_shop_prod",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return makeKeys(c, tenant, to) },
	}
	originalFlag(cmd, &tenant)
	distributeFlag(cmd, &to)
	return cmd
}

// originalFlag declares the flag --tenant of the commands that make keys.
func originalFlag(cmd *cobra.Command, tenant *string) {
	cmd.Flags().StringVar(tenant, "tenant", mesh.DefaultTenant, "id of the `TENANT` that a new mesh begins with; ignored if there are keys")
	variable(cmd.Flags(), "tenant", "BINNACLE_TENANT")
	complete(cmd, "tenant", cobra.NoFileCompletions)
}

// makeKeys makes the missing keys and tokens, and distributes the keys if to is not empty.
// A new ring has the given original tenant.
func makeKeys(c *env, tenant, to string) error {
	ring, err := mesh.Init(c.data, tenant)
	if errors.Is(err, keyring.ErrTenant) {
		return fail(exitUsage, "--tenant: %v", err)
	}
	if err != nil {
		return err
	}
	if err := mesh.Tokens(c.data, ring); err != nil {
		return err
	}
	if err := distribute(ring, to); err != nil {
		return err
	}
	return c.print(map[string]string{"data": c.data, "root": ring.RootKID}, func() {
		fmt.Fprintf(c.out, "keys are in %s\nroot %s\n", filepath.Join(c.data, "keys"), ring.RootKID)
	})
}

// distributeFlag declares the flag --distribute.
func distributeFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "distribute", "", "`FOLDER` with one folder per service, and nats: each receives its own keys, or the server's configuration")
	variable(cmd.Flags(), "distribute", "BINNACLE_DISTRIBUTE")
	directories(cmd, "distribute")
}

// distribute copies the keys of every service and of provision, and the NATS server's
// configuration, to the folders with their names in the folder to. It skips folders that
// do not exist, and does nothing if to is empty. The file that BINNACLE_NATS_TLS_CA
// names, if any, is added to the ring first.
func distribute(ring *keyring.Ring, to string) error {
	if to == "" {
		return nil
	}
	if ca := os.Getenv("BINNACLE_NATS_TLS_CA"); ca != "" {
		if err := ring.PutNATSCA(ca); err != nil {
			return fail(exitUsage, "BINNACLE_NATS_TLS_CA: %v", err)
		}
	}
	return mesh.Distribute(ring, to, bus.ServerOptions{StoreDir: natsStore, Listen: natsListen, HTTP: natsMonitor, SyncAlways: os.Getenv("BINNACLE_DURABILITY") == "power",
		TLSCert: os.Getenv("BINNACLE_NATS_TLS_CERT"), TLSKey: os.Getenv("BINNACLE_NATS_TLS_KEY")})
}

// Defaults of the NATS server's configuration: the folder of its store, and the
// addresses for clients and for monitoring.
const (
	natsStore   = "/data"
	natsListen  = "0.0.0.0:4222"
	natsMonitor = "127.0.0.1:8222"
)
