package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

type recoverOptions struct{ checkpoint, reason, nats, distribute string }

// newRecoverCmd returns the command recover, which opens a new log epoch after the
// ledger has lost events.
func newRecoverCmd(c *env) *cobra.Command {
	var o recoverOptions
	cmd := &cobra.Command{
		Use:   "recover --reason TEXT",
		Short: "Continue after the ledger lost something, in a new log epoch",
		Long: `Open a new log epoch: the ledger lost something that a checkpoint had committed to,
nothing can bring it back, and the mesh is to continue. It needs the root seed in
DATA/keys and reads the whole ledger first; a ledger that holds everything is refused.`,
		Example:           "  binnacle recover --reason 'disk of host a failed, no replica' --data data",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return recoverLog(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.checkpoint, "checkpoint", "", "the last checkpoint that audit stored, a `FILE` (default DATA/audit/checkpoint)")
	f.StringVar(&o.reason, "reason", "", "`TEXT` that explains the recovery; it is signed and recorded on the ledger")
	f.StringVar(&o.nats, "nats", "", "NATS server that has the ledger, a `URL`; empty is the stopped mesh in DATA")
	variable(f, "nats", "BINNACLE_NATS")
	distributeFlag(cmd, &o.distribute)
	return cmd
}

// recoverLog opens a new log epoch after the ledger has lost events that a checkpoint
// commits to. It requires the root seed. It returns an error if the ledger still has all
// those events, because witnesses could report a new epoch over a healthy log as a fork.
func recoverLog(ctx context.Context, c *env, o *recoverOptions) error {
	if o.reason == "" {
		return fail(exitUsage, "recover requires --reason: it is signed and stays on the ledger")
	}
	if o.checkpoint == "" {
		o.checkpoint = filepath.Join(c.data, "audit", "checkpoint")
	}
	note, err := os.ReadFile(o.checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(exitFailed, "%s does not exist: audit misses nothing that it signed for; without it, removing audit's folder is enough", o.checkpoint)
	}
	if err != nil {
		return err
	}
	head, err := ledger.ReadHead(note)
	if err != nil {
		return fail(exitFailed, "%s: %v", o.checkpoint, err)
	}
	ring, err := keyring.Open(filepath.Join(c.data, "keys"))
	if err != nil {
		return err
	}
	lost, err := findLoss(ctx, c, ring, o.nats, &head)
	if err != nil {
		return err
	}
	if lost == "" {
		return fail(exitFailed, "the ledger holds all %d events that %s commits to: there is nothing to recover from", head.Size, o.checkpoint)
	}
	l, err := ring.OpenEpoch(note, o.reason)
	if err != nil {
		return err
	}
	if err := distribute(ring, o.distribute); err != nil {
		return err
	}
	return c.print(map[string]any{"epoch": l.Epoch, "closed": head.Origin, "closed_size": head.Size, "checkpoint": l.Checkpoint, "lost": lost}, func() {
		fmt.Fprintf(c.out, "%s\nepoch %d is open after %s, which had %d events\nStart the mesh (or audit) again. Keep the old checkpoint and what evidence you have: it still verifies.\n", lost, l.Epoch, head.Origin, head.Size)
	})
}

// findLoss compares the ledger with a checkpoint and returns a description of how the
// ledger differs, or "" if it begins with the events of the checkpoint.
func findLoss(ctx context.Context, c *env, ring *keyring.Ring, url string, head *ledger.Head) (string, error) {
	var conn *bus.Conn
	var err error
	if url != "" {
		conn, err = mesh.Provisioning(bus.Dialer{URL: url, CA: run.NATSCA(ring.Dir)}, ring)
	} else {
		if _, err := os.Stat(filepath.Join(c.data, "nats")); err != nil {
			return "", fail(exitUsage, "no ledger is in %s; name the NATS server that has it with --nats", c.data)
		}
		var stop func()
		if conn, stop, err = mesh.Offline(c.data, ring.Dir); err == nil {
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
	return compareLedger(ctx, conn, head)
}

// compareLedger reads a ledger from its first event and compares its events with the
// events that a checkpoint commits to. It returns a description of the difference, or ""
// if the ledger begins with the checkpoint's events.
func compareLedger(ctx context.Context, conn *bus.Conn, head *ledger.Head) (string, error) {
	var t ledger.Tree
	for en, err := range (eventlog.JetStream{Conn: conn}).Scan(ctx, bus.Filter{}.String(), 1) {
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
