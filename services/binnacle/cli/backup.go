package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/backup"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// backupFlags are what backup and restore share.
type backupFlags struct {
	nats    *string
	folders backup.Folders
}

func (c *env) backupFlags() *backupFlags {
	f := &backupFlags{nats: c.fs.String("nats", "", "NATS server of a mesh of several processes, or of `binnacle up --nats-listen`; default: the stopped mesh in DATA")}
	c.fs.StringVar(&f.folders.Keys, "keys", "", "folder of keys (default DATA/keys)")
	c.fs.StringVar(&f.folders.Vault, "vault", "", "the vault-broker's state folder (default DATA/vault)")
	c.fs.StringVar(&f.folders.Audit, "audit", "", "audit's state folder, for restore (default DATA/audit)")
	return f
}

func (f *backupFlags) fill(data string) {
	for dir, def := range map[*string]string{&f.folders.Keys: "keys", &f.folders.Vault: "vault", &f.folders.Audit: "audit"} {
		if *dir == "" {
			*dir = filepath.Join(data, def)
		}
	}
}

// open connects as the provisioning identity. The keys must be in place.
func (f *backupFlags) open(data string) (*bus.Conn, func(), error) {
	if *f.nats == "" {
		c, stop, err := mesh.Offline(data)
		if errors.Is(err, mesh.ErrInUse) {
			err = fail(exitUsage, "%v: stop it, or run it with --nats-listen and name that here as --nats", err)
		}
		return c, stop, err
	}
	ring, err := keyring.Open(f.folders.Keys)
	if err != nil {
		return nil, nil, err
	}
	c, err := mesh.Provisioning(bus.Dialer{URL: *f.nats, CA: run.NATSCA(f.folders.Keys)}, ring)
	return c, func() {}, err
}

// backupCmd takes a whole mesh away in one file.
func backupCmd(ctx context.Context, c *env) error {
	f := c.backupFlags()
	out := c.fs.String("out", "", "file to write; it holds private keys")
	if _, err := c.parse(0, 0, "--out FILE [--nats URL]"); err != nil {
		return err
	}
	if *out == "" {
		return fail(exitUsage, "backup wants --out FILE")
	}
	f.fill(*c.data)
	conn, stop, err := f.open(*c.data)
	if err != nil {
		return err
	}
	defer stop()
	defer conn.Close()
	file, err := private.Create(*out + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(*out + ".new")
	r, err := backup.Take(ctx, conn, mesh.Declarations(), f.folders, file)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(*out+".new", *out); err != nil {
		return err
	}
	return c.print(r, func() {
		fmt.Fprintf(c.out, "%s: %d events, %d contents, %d checkpoints, the newest over %d events\nIt holds private keys; keep it as you keep them.\n", *out, r.Events, r.Blobs, r.Checkpoints, r.Size)
	})
}

// restore puts a backup back.
func restore(ctx context.Context, c *env) error {
	f := c.backupFlags()
	in := c.fs.String("in", "", "the backup")
	if _, err := c.parse(0, 0, "--in FILE [--nats URL]"); err != nil {
		return err
	}
	if *in == "" {
		return fail(exitUsage, "restore wants --in FILE")
	}
	f.fill(*c.data)
	file, err := os.Open(*in)
	if err != nil {
		return err
	}
	defer file.Close()
	stop := func() {}
	r, err := backup.Restore(ctx, file, f.folders, mesh.Declarations(), func() (*bus.Conn, error) {
		conn, s, err := f.open(*c.data)
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
		fmt.Fprintf(c.out, "restored %d events, %d contents, %d checkpoints; the ledger has the root that the checkpoint over %d events names\nStart the mesh.\n", r.Events, r.Blobs, r.Checkpoints, r.Size)
	})
}
