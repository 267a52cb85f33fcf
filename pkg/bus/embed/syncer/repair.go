package syncer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/binnacle-mesh/binnacle/pkg/boot"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// repair makes the files of a server usable after a loss of power, in which every write
// that was not synced may be lost, each independently of the others. The ledger, the
// checkpoints and their mirrors are cut at the first gap; what follows was not synced, so
// no process has acted on it. A mirror is also cut to the length of the stream that it
// copies, if that has messages, because messages that are appended now would differ from
// those that only the mirror has. The server rebuilds the states of streams from their
// messages. The positions of consumers are removed, because they may be ahead of the
// ledger; the provisioner restores them from it. Snapshots of views and cached content
// are removed. repair moves each block that it shortens or removes to the folder "lost",
// and deletes no message of these four streams.
func repair(store string) error {
	aside := filepath.Join(store, "lost", time.Now().UTC().Format("20060102T150405.000000000"))
	slog.Warn("the system was started again while the NATS server was running; its files are repaired", "store", store)
	ends := map[string]uint64{}
	for _, x := range []struct{ account, name, origin string }{
		{account, bus.Events, ""}, {account, bus.Checkpoints, ""}, {"MIRROR", bus.MirrorEvents, bus.Events}, {"MIRROR", bus.MirrorCheckpoints, bus.Checkpoints},
	} {
		limit := uint64(1<<64 - 1)
		if end := ends[x.origin]; end > 0 {
			limit = end
		}
		c := cutter{dir: streamDir(store, x.account, x.name), name: x.name, limit: limit, aside: filepath.Join(aside, x.name)}
		end, err := c.cut()
		if err != nil {
			return fmt.Errorf("stream %s: %w", x.name, err)
		}
		ends[x.name] = end
		if err := discard(c.dir); err != nil {
			return err
		}
	}
	err := errors.Join(discard(streamDir(store, account, bus.Artifacts)), discard(streamDir(store, account, bus.Blobs)),
		os.RemoveAll(streamDir(store, account, bus.Snapshots)), os.RemoveAll(streamDir(store, account, bus.Cache)))
	return errors.Join(err, boot.Sync(store))
}

// streamDir returns the folder of a stream's files.
func streamDir(store, account, name string) string {
	return filepath.Join(store, server.JetStreamStoreDir, account, "streams", name)
}

// discard removes the stored state of a stream, which the server would use instead of the
// messages, and the stream's consumers.
func discard(dir string) error {
	err := os.Remove(filepath.Join(dir, "msgs", "index.db"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(dir, "obs")))
}

// cutter cuts the messages of a stream at the first gap.
type cutter struct {
	dir   string // the stream's folder
	name  string
	limit uint64 // last sequence that may remain
	aside string // folder to which a block is moved before it is shortened or removed
}

// cut removes the messages after the first gap and those after limit. It returns the last
// sequence that remains, or 0 if there is none.
func (c *cutter) cut() (end uint64, err error) {
	blocks, err := blocksOf(c.dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for i, index := range blocks {
		path := filepath.Join(c.dir, "msgs", fmt.Sprintf("%d.blk", index))
		buf, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		last, keep, whole := check(c.name, index, buf, end, c.limit)
		if whole {
			end = last
			continue
		}
		slog.Warn("messages that were not synced are cut off", "stream", c.name, "block", index, "after", last)
		for _, later := range blocks[i:] {
			if err := c.move(later); err != nil {
				return 0, err
			}
		}
		if len(keep) > 0 {
			err = private.Write(path, keep)
		}
		return last, err
	}
	return end, nil
}

// move moves a block to the folder aside.
func (c *cutter) move(index int) error {
	if err := private.Mkdir(c.aside); err != nil {
		return err
	}
	name := fmt.Sprintf("%d.blk", index)
	return os.Rename(filepath.Join(c.dir, "msgs", name), filepath.Join(c.aside, name))
}
