package snapshot

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

var (
	errNoKey        = errors.New("the service has no valid key for snapshots")
	errNoCheckpoint = errors.New("audit has signed no checkpoint yet")
	errRange        = errors.New("a number in it is out of range")
)

// maxLamport is the Lamport time at which a key is valid only if it was not revoked.
const maxLamport = math.MaxInt64

// Verify returns an error unless h is signed by a key of its service that is valid now
// for snapshots.
func Verify(h *contract.Snapshot, trust Trust) error {
	public, err := trust.At(h.KID, h.Service, contract.UseSnapshot, maxLamport)
	if err != nil {
		return err
	}
	body := *h
	body.Sig = ""
	return sign.Verify(public, sign.DomainSnapshot, contract.Bytes(&body), h.Sig)
}

// check returns an error unless the snapshot may be used: it is of this service, tenant and root
// key, was made by this version of the code, has no number out of range, and is signed with a key
// that is valid now; the ledger's entry at its position is the one that it names; and checkLog
// accepts the checkpoint that it names. A snapshot that was taken before entries were lost is
// therefore not used with the entries that replaced them.
func (s *Store) check(ctx context.Context, h *Stored, code int64) error {
	switch {
	case h.Tenant != s.Tenant || h.Service != s.Service || h.Root != s.RootKID:
		return fmt.Errorf("it is of service %s, tenant %s and root key %s", h.Service, h.Tenant, h.Root)
	case h.Code != code:
		return fmt.Errorf("it is of version %d of the view's code, not %d", h.Code, code)
	case h.Chunks < 0 || h.Chunks > maxChunks || h.Position < 1 || h.CheckpointSeq < 1 || h.CheckpointSize < 1:
		return errRange
	}
	if err := Verify(&h.Snapshot, s.Trust); err != nil {
		return err
	}
	en, err := s.Log.Get(ctx, uint64(h.Position))
	if err != nil {
		return fmt.Errorf("entry %d of the ledger: %w", h.Position, err)
	}
	if leaf := translog.LeafHash(en.Data); hex.EncodeToString(leaf[:]) != h.Leaf {
		return fmt.Errorf("entry %d of the ledger is not the one that it names", h.Position)
	}
	return s.checkLog(ctx, h)
}

// checkLog returns an error unless the checkpoint that the snapshot names is stored, is
// signed by audit, is of the same log as the newest checkpoint, and does not cover more
// entries than that.
func (s *Store) checkLog(ctx context.Context, h *Stored) error {
	newest, _, err := s.checkpoint(ctx, map[string]any{"last_by_subj": bus.LogSubject(s.Tenant, bus.CheckpointSubject)})
	if err != nil {
		return err
	}
	named, _, err := s.checkpoint(ctx, map[string]any{"seq": h.CheckpointSeq})
	if err != nil {
		return err
	}
	if named.Origin != h.Origin || named.Size != uint64(h.CheckpointSize) || hex.EncodeToString(named.Root[:]) != h.CheckpointRoot {
		return errors.New("audit's checkpoint is not the one that it names")
	}
	if newest.Origin != named.Origin || newest.Size < named.Size {
		return fmt.Errorf("it is of the log %s of %d entries; audit's last checkpoint is of %s and %d", named.Origin, named.Size, newest.Origin, newest.Size)
	}
	return nil
}

// checkpoint reads the message of the stream CHECKPOINTS that req selects. It returns
// the checkpoint, whose signature Trust has verified, and its sequence on the stream.
func (s *Store) checkpoint(ctx context.Context, req map[string]any) (*translog.Checkpoint, uint64, error) {
	m, err := s.Conn.Get(ctx, bus.Checkpoints, req)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, 0, errNoCheckpoint
	}
	if err != nil {
		return nil, 0, err
	}
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, 0, err
	}
	c, err := s.Trust.Checkpoint(bytes.Clone(m.Data))
	return c, seq, err
}
