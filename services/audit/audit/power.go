package audit

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/boot"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// viewFiles lists the files and folders of the view. None of them is synced while audit
// runs.
var viewFiles = []string{"view.db", "ids", "tree"}

// surviving removes the view's files if the system lost power while they were in use, so that the
// view is built again: a part of them may be lost, and the ledger would seem to differ from the
// rest. It does so in durability mode "power" only: in another one the ledger itself may have lost
// events, which the comparison with the view then shows. The caller calls closed after it has
// closed the view.
func surviving(cfg *Config, log *slog.Logger) (closed func(), err error) {
	if cfg.Durability != "power" {
		return func() {}, nil
	}
	if err := private.Mkdir(cfg.Dir); err != nil {
		return nil, err
	}
	mark, lost, renew, err := boot.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if lost {
		log.Warn("the system was started again while audit was running; its view is built again")
		for _, name := range viewFiles {
			err = errors.Join(err, os.RemoveAll(filepath.Join(cfg.Dir, name)))
		}
	}
	if err := errors.Join(err, renew()); err != nil {
		return nil, err
	}
	return func() {
		if err := errors.Join(boot.Sync(cfg.Dir), boot.Close(cfg.Dir, mark)); err != nil {
			log.Warn("audit's view is not synced, and is built again if the system loses power", "err", err)
		}
	}, nil
}

// durable waits until all that audit has read is durable on the ledger. It tries again
// until ctx is done, because an error would end the service, and then once more, for the
// last entries.
func durable(ctx context.Context, c *bus.Conn, log *slog.Logger) error {
	for warned := false; ; warned = true {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		err := c.Durable(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !warned {
			log.Warn("audit waits until the ledger is synced", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
