package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/ledger"
)

// recoverLog opens a new log epoch: the ledger lost something that a checkpoint
// had committed to, nothing can bring it back, and the mesh is to go on. It
// needs the root seed, and works on files only.
func recoverLog(_ context.Context, c *env) error {
	checkpoint := c.fs.String("checkpoint", "", "the last checkpoint that audit kept (default DATA/audit/checkpoint)")
	reason := c.fs.String("reason", "", "what happened; it goes on the ledger")
	if _, err := c.parse(0, 0, "--reason TEXT [--checkpoint FILE]"); err != nil {
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
		return fail(exitFailed, "%s is not there: audit misses nothing that it signed for; without it, removing audit's folder is enough", *checkpoint)
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
	l, err := ring.OpenEpoch(note, *reason)
	if err != nil {
		return err
	}
	return c.print(map[string]any{"epoch": l.Epoch, "closed": head.Origin, "closed_size": head.Size, "checkpoint": l.Checkpoint}, func() {
		fmt.Fprintf(c.out, "epoch %d is open behind %s, which had %d events\nStart the mesh (or audit) again. Keep the old checkpoint and what evidence you have: it still verifies.\n", l.Epoch, head.Origin, head.Size)
	})
}
