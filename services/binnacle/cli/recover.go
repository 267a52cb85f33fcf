package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// recoverLog opens a new log epoch: the ledger lost something that a checkpoint
// had committed to, nothing can bring it back, and the mesh is to go on. It
// needs the root seed and reads the whole ledger first: a ledger that still
// holds what the checkpoint commits to is refused, because an epoch that closes
// a healthy log would look like a fork to everybody who follows it.
func recoverLog(ctx context.Context, c *env) error {
	checkpoint := c.fs.String("checkpoint", "", "the last checkpoint that audit stored (default DATA/audit/checkpoint)")
	reason := c.fs.String("reason", "", "what happened; it is signed and stays on the ledger")
	url := c.fs.String("nats", os.Getenv("BINNACLE_NATS"), "NATS server that has the ledger; empty: the stopped mesh in DATA")
	to := distributeFlag(c.fs)
	if _, err := c.parse(0, 0, "--reason TEXT [--checkpoint FILE] [--nats URL]"); err != nil {
		return err
	}
	if *reason == "" {
		return fail(exitUsage, "recover wants --reason: it is signed and stays on the ledger")
	}
	if *checkpoint == "" {
		*checkpoint = filepath.Join(*c.data, "audit", "checkpoint")
	}
	note, err := os.ReadFile(*checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(exitFailed, "%s does not exist: audit misses nothing that it signed for; without it, removing audit's folder is enough", *checkpoint)
	}
	if err != nil {
		return err
	}
	head, err := ledger.ReadHead(note)
	if err != nil {
		return fail(exitFailed, "%s: %v", *checkpoint, err)
	}
	ring, err := keyring.Open(filepath.Join(*c.data, "keys"))
	if err != nil {
		return err
	}
	lost, err := c.loss(ctx, ring, *url, &head)
	if err != nil {
		return err
	}
	if lost == "" {
		return fail(exitFailed, "the ledger holds all %d events that %s commits to: there is nothing to recover from", head.Size, *checkpoint)
	}
	l, err := ring.OpenEpoch(note, *reason)
	if err != nil {
		return err
	}
	if err := distribute(ring, *to); err != nil {
		return err
	}
	return c.print(map[string]any{"epoch": l.Epoch, "closed": head.Origin, "closed_size": head.Size, "checkpoint": l.Checkpoint, "lost": lost}, func() {
		fmt.Fprintf(c.out, "%s\nepoch %d is open after %s, which had %d events\nStart the mesh (or audit) again. Keep the old checkpoint and what evidence you have: it still verifies.\n", lost, l.Epoch, head.Origin, head.Size)
	})
}

// loss compares the ledger with a checkpoint and returns what is missing or
// other, or "" where the ledger holds all that the checkpoint commits to.
func (c *env) loss(ctx context.Context, ring *keyring.Ring, url string, head *ledger.Head) (string, error) {
	var conn *bus.Conn
	var err error
	if url != "" {
		conn, err = mesh.Provisioning(bus.Dialer{URL: url, CA: run.NATSCA(ring.Dir)}, ring)
	} else {
		if _, err := os.Stat(filepath.Join(*c.data, "nats")); err != nil {
			return "", fail(exitUsage, "no ledger is in %s; name the NATS server that has it with --nats", *c.data)
		}
		var stop func()
		if conn, stop, err = mesh.Offline(*c.data); err == nil {
			defer stop()
		}
	}
	if errors.Is(err, mesh.ErrInUse) {
		return "", fail(exitFailed, "%v; stop it first", err)
	}
	if err != nil {
		return "", err
	}
	defer conn.NC.Close()
	var t ledger.Tree
	for en, err := range (eventlog.JetStream{Conn: conn}).Scan(ctx, "evt.>", 1) {
		if err != nil {
			return "", fmt.Errorf("read the ledger: %w", err)
		}
		if t.Size == head.Size {
			break
		}
		if en.Seq != t.Size+1 {
			return fmt.Sprintf("entry %d of the ledger is missing", t.Size+1), nil
		}
		if err := t.Add(en.Data); err != nil {
			return "", err
		}
	}
	if t.Size < head.Size {
		return fmt.Sprintf("the ledger has %d of %d events", t.Size, head.Size), nil
	}
	root, err := t.Root()
	if err != nil {
		return "", err
	}
	if root != head.Root {
		return fmt.Sprintf("the first %d events of the ledger are not those of the checkpoint", head.Size), nil
	}
	return "", nil
}
