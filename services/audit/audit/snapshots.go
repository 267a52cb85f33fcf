package audit

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
)

// snapshots checks the stored snapshots of views.
type snapshots struct{ *Service }

// snapshotPause is the interval at which audit checks the stored snapshots of views.
const snapshotPause = 10 * time.Second

// maxRejections is the maximum number of rejections that audit records in one pass, so
// that a service that stores many false snapshots cannot fill the ledger.
const maxRejections = 4

// run checks the stored snapshots of views until ctx is done, and records false ones on
// the ledger. It returns nil.
func (s snapshots) run(ctx context.Context) error {
	checked := map[string]bool{} // by digest
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(snapshotPause):
		}
		all, err := snapshot.List(ctx, s.env.Conn, logTenant(s.env))
		if err != nil {
			continue
		}
		now := map[string]bool{}
		rejected := 0
		for i := range all {
			d := all[i].ID
			if checked[d] {
				now[d] = true
				continue
			}
			why, done := s.check(&all[i])
			if why != nil {
				done = rejected < maxRejections && s.reject(ctx, &all[i], why) == nil
				rejected++
			}
			now[d] = done
		}
		checked = now
	}
}

// check returns the reason why a snapshot is false, or nil. done is false if it cannot
// be checked yet, in general because the view has not reached its position.
func (s snapshots) check(h *snapshot.Stored) (why error, done bool) {
	if h.Err != nil {
		return h.Err, true
	}
	if h.Tenant != logTenant(s.env) || h.Root != s.env.RootKID {
		return fmt.Errorf("it is of tenant %s and root key %s", h.Tenant, h.Root), true
	}
	if err := snapshot.Verify(&h.Snapshot, s.env.Trust); err != nil {
		return err, true
	}
	if h.Origin != s.origin() {
		return nil, true // no instance loads a snapshot of an earlier epoch
	}
	pos, _ := s.view.Position()
	if h.Position < 1 || h.CheckpointSize < 1 {
		return errors.New("a number in it is out of range"), true
	}
	if uint64(max(h.Position, h.CheckpointSize)) > pos {
		return nil, false
	}
	leaf, err := s.view.Tree.Node(0, uint64(h.Position)-1)
	if err != nil {
		return nil, false
	}
	if hex.EncodeToString(leaf[:]) != h.Leaf {
		return fmt.Errorf("entry %d of the ledger is not the one that it names", h.Position), true
	}
	root, err := translog.Root(uint64(h.CheckpointSize), s.view.Tree.Node)
	if err != nil {
		return nil, false
	}
	if hex.EncodeToString(root[:]) != h.CheckpointRoot {
		return fmt.Errorf("the log of %d entries does not have the root that it names", h.CheckpointSize), true
	}
	return nil, true
}

// reject logs that a snapshot is false, for the reason why, and records it on the
// ledger.
func (s snapshots) reject(ctx context.Context, h *snapshot.Stored, why error) error {
	s.env.Log.Error("false snapshot", "service", h.Service, "view", h.View, "position", h.Position, "err", why)
	d := h.Rejected(why)
	e := s.env.Emit.In(s.env.Cell.Tenant()).New(contract.EventSnapshotRejected, "snapshots", contract.Bytes(&d), nil)
	_, err := s.env.Emit.Append(ctx, e)
	return err
}
