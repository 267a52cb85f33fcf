package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/binnacle/backup"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// backupOptions holds the options of backup and restore.
type backupOptions struct {
	nats, in, out string
	ledger        string // exported ledger whose erasures restore repeats
	keys          string
	state         map[string]*string // values of the flags for the state folders, by service
	folders       backup.Folders     // set by fill
}

// declare declares the flags that backup and restore share.
func (o *backupOptions) declare(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.nats, "nats", "", "NATS server of a mesh of several processes, or of 'binnacle up --nats-listen', a `URL` (default the stopped mesh in DATA)")
	f.StringVar(&o.keys, "keys", "", "`FOLDER` of keys (default DATA/keys)")
	names := []string{"keys"}
	o.state = map[string]*string{}
	for _, s := range services.Programs() {
		if s.State == "" {
			continue
		}
		when := ""
		if s.Rebuilt {
			when = ", for restore"
		}
		o.state[s.Name] = f.String(s.State, "", fmt.Sprintf("state `FOLDER` of %s%s (default DATA/%s)", s.Name, when, s.State))
		names = append(names, s.State)
	}
	directories(cmd, names...)
}

// newBackupCmd returns the command backup, which writes a whole mesh to one file.
func newBackupCmd(c *env) *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use:               "backup --out FILE",
		Short:             "Write a whole mesh to one file",
		Long:              "Write a whole mesh to one file: ledger, contents, checkpoints, keys and vault. The mesh may\nrun, if --nats names its server. The file holds private keys.",
		Example:           "  binnacle backup --out mesh.backup\n  binnacle backup --nats nats://127.0.0.1:4222 --out mesh.backup",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runBackup(cmd.Context(), c, &o) },
	}
	o.declare(cmd)
	cmd.Flags().StringVar(&o.out, "out", "", "`FILE` to write; it holds private keys")
	return cmd
}

// newRestoreCmd returns the command restore, which restores a mesh from a backup.
func newRestoreCmd(c *env) *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use:               "restore --in FILE",
		Short:             "Make a mesh from a backup",
		Long:              "Make a mesh from a backup, in empty folders, and prove that its ledger has the root that\nits newest checkpoint names. With --ledger, content that was erased after the backup is\nerased again when the mesh starts.",
		Example:           "  binnacle restore --in mesh.backup --data restored\n  binnacle restore --in mesh.backup --ledger newest.jsonl --data restored",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runRestore(cmd.Context(), c, &o) },
	}
	o.declare(cmd)
	cmd.Flags().StringVar(&o.in, "in", "", "the backup, a `FILE`")
	cmd.Flags().StringVar(&o.ledger, "ledger", "", "ledger that was exported after the backup, a `FILE`; what it erased is erased again")
	return cmd
}

// fill sets o.folders to the folders that flags name or, for each folder without a flag,
// to its default below data.
func (o *backupOptions) fill(data string) {
	o.folders = backup.Folders{Keys: cmp.Or(o.keys, filepath.Join(data, "keys")), State: map[string]string{}}
	for name, dir := range o.state {
		s, _ := services.Get(name)
		o.folders.State[name] = cmp.Or(*dir, filepath.Join(data, s.State))
	}
}

// open connects as the provisioning identity, whose keys must exist. Without --nats it
// starts the bus of the stopped mesh in data, and the returned function stops that bus;
// with --nats the function does nothing.
func (o *backupOptions) open(data string) (*bus.Conn, func(), error) {
	if o.nats == "" {
		c, stop, err := mesh.Offline(data, o.folders.Keys)
		if errors.Is(err, mesh.ErrInUse) {
			err = fail(exitUsage, "%v: stop it, or run it with --nats-listen and name that here as --nats", err)
		}
		return c, stop, err
	}
	ring, err := keyring.Open(o.folders.Keys)
	if err != nil {
		return nil, nil, err
	}
	c, err := mesh.Provisioning(bus.Dialer{URL: o.nats, CA: run.NATSCA(o.folders.Keys)}, ring)
	return c, func() {}, err
}

// runBackup writes the backup to a temporary file, which it syncs and renames, so that
// an interrupted backup does not leave an incomplete file under the final name.
func runBackup(ctx context.Context, c *env, o *backupOptions) error {
	if o.out == "" {
		return fail(exitUsage, "backup requires --out FILE")
	}
	o.fill(c.data)
	conn, stop, err := o.open(c.data)
	if err != nil {
		return err
	}
	defer stop()
	defer conn.Close()
	file, err := private.Create(o.out + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(o.out + ".new")
	r, err := backup.Take(ctx, conn, mesh.Declarations(), o.folders, file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if err := private.Commit(file, o.out); err != nil {
		return err
	}
	return c.print(r, func() {
		fmt.Fprintf(c.out, "%s: %d events, %d contents, %d checkpoints, the newest over %d events\nIt holds private keys; protect it like the keys of the mesh.\n", o.out, r.Events, r.Blobs, r.Checkpoints, r.Size)
	})
}

// runRestore restores a backup. Without --nats, the NATS server starts only after the
// keys are restored, because its configuration depends on them.
func runRestore(ctx context.Context, c *env, o *backupOptions) error {
	if o.in == "" {
		return fail(exitUsage, "restore requires --in FILE")
	}
	o.fill(c.data)
	file, err := os.Open(o.in)
	if err != nil {
		return err
	}
	defer file.Close()
	var later io.Reader
	if o.ledger != "" {
		f, err := os.Open(o.ledger)
		if err != nil {
			return err
		}
		defer f.Close()
		later = f
	}
	stop := func() {}
	r, err := backup.Restore(ctx, file, later, o.folders, mesh.Declarations(), func() (*bus.Conn, error) {
		if o.nats == "" { // DATA may not exist yet, since flags may name other folders for everything that is restored
			if err := private.Mkdir(c.data); err != nil {
				return nil, err
			}
		}
		conn, s, err := o.open(c.data)
		if err == nil {
			stop = s
		}
		return conn, err
	})
	stop()
	if err != nil {
		return err
	}
	return c.print(r, func() {
		fmt.Fprintf(c.out, "restored %d events, %d contents, %d checkpoints; the ledger has the root that the checkpoint over %d events names\n", r.Events, r.Blobs, r.Checkpoints, r.Size)
		if later == nil {
			fmt.Fprintln(c.out, "Content that was erased after the backup can be read again: to prevent that, restore with --ledger.")
		} else {
			fmt.Fprintf(c.out, "%d erasures after the backup are repeated when the mesh starts\n", r.Erasures)
		}
		fmt.Fprintln(c.out, "Start the mesh.")
	})
}
