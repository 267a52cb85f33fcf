package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/tree"
)

// opened returns the newest epoch of the log, which the root key opened by an event on
// the ledger, or epoch 1 if there is no such event. It returns an error if the ledger
// cannot be read, if the event is malformed, or if trust.VerifyEpoch rejects it.
func (s *Service) opened(ctx context.Context) (contract.LogEpoch, error) {
	newest := contract.LogEpoch{Epoch: 1}
	for _, tenant := range []string{logTenant(s.env), contract.CellTenant} { // before and after cell_opened
		filter := bus.Filter{Tenant: tenant, Service: services.Provision, Event: contract.EventLogEpochOpened, Key: "log"}.String()
		en, err := s.env.Emit.Log.Last(ctx, filter)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		if err != nil {
			return contract.LogEpoch{}, err
		}
		e, err := eventlog.Open(en, filter)
		if err != nil {
			return contract.LogEpoch{}, err
		}
		l, err := trust.VerifyEpoch(e, s.env.Trust.At)
		if err != nil {
			return contract.LogEpoch{}, err
		}
		if l.Epoch > newest.Epoch {
			newest = l
		}
	}
	return newest, nil
}

// closes reports whether l names the stored checkpoint as the last one of the previous
// epoch. It returns false if no checkpoint is stored.
func (s *Service) closes(l *contract.LogEpoch) (bool, error) {
	note, err := os.ReadFile(s.checkpointFile())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && sign.Digest(note) == l.Checkpoint, err
}

// enter determines the epoch of the log. If the stored checkpoint is the last one of the
// previous epoch, enter moves the files of that epoch to a folder with its number.
func (s *Service) enter(ctx context.Context) error {
	l, err := s.opened(ctx)
	if err != nil {
		return fmt.Errorf("log epoch: %w", err)
	}
	s.epoch = l.Epoch
	closes, err := s.closes(&l)
	if err != nil || !closes {
		return err
	}
	old := s.epochDir(l.Epoch - 1)
	if err := private.Mkdir(old); err != nil {
		return err
	}
	for _, name := range []string{"tree", "view.db", "ids", "checkpoint"} { // the checkpoint is moved last: if enter is interrupted before that, it repeats the move at the next start
		if err := os.Rename(filepath.Join(s.Dir, name), filepath.Join(old, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	s.env.Log.Info("the log continues in a new epoch", "epoch", l.Epoch, "reason", l.Reason)
	return nil
}

// epochDir returns the folder that holds the checkpoint, the tree and the index of a
// closed epoch.
func (s *Service) epochDir(n int64) string { return filepath.Join(s.Dir, fmt.Sprintf("epoch-%d", n)) }

// closedNote returns the last checkpoint of a closed epoch, or a not-found error.
func (s *Service) closedNote(n int64) ([]byte, error) {
	note, err := os.ReadFile(filepath.Join(s.epochDir(n), "checkpoint"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, notFound("no epoch %d of the log was closed", n)
	}
	return note, err
}

// closedTree returns the tree of a closed epoch and the size of its last checkpoint, up
// to which the tree can be used for proofs. The caller must close the tree. The error is
// not-found if no such epoch is closed, or if the tree does not yield the root of that
// checkpoint.
func (s queries) closedTree(n int64) (*tree.Tree, uint64, error) {
	note, err := s.closedNote(n)
	if err != nil {
		return nil, 0, err
	}
	c, err := s.env.Trust.Checkpoint(note)
	if err != nil {
		return nil, 0, err
	}
	t, err := tree.Open(filepath.Join(s.epochDir(n), "tree"))
	if err != nil {
		return nil, 0, err
	}
	if root, err := translog.Root(c.Size, t.Node); err != nil || root != c.Root {
		t.Close()
		return nil, 0, notFound("the tree of epoch %d was lost with its ledger", n)
	}
	return t, c.Size, nil
}

// reopened returns an error once a new epoch has been opened after a truncation of the
// ledger, so that the service restarts in that epoch. If the epoch cannot be determined
// or the checkpoint file cannot be read, it returns nil; the caller tries again.
func (s *Service) reopened(ctx context.Context) error {
	l, err := s.opened(ctx)
	if err != nil {
		return nil // retried at the next interval
	}
	if closes, err := s.closes(&l); err == nil && closes {
		return fmt.Errorf("log epoch %d was opened; start audit again", l.Epoch)
	}
	return nil
}

// mute returns the reason why no checkpoint is signed, or nil.
func (s *Service) mute() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return muted(s.truncated, s.compared)
}

// muted returns the reason why no checkpoint may be signed, or nil. If truncated, the
// error for which audit raised an alarm, is not nil, it is the reason. Otherwise the
// reason is errNotCompared until the ledger has been compared with the last checkpoint.
// A new checkpoint would replace the last one, which is the evidence of a loss.
func muted(truncated error, compared bool) error {
	if truncated == nil && !compared {
		return errNotCompared
	}
	return truncated
}

// errNotCompared is the error of requests for a checkpoint while audit is starting and
// signs none yet.
var errNotCompared = errors.New("audit is starting: the ledger is being compared with the last checkpoint; try again")
