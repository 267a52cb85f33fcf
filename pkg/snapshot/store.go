package snapshot

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// stored returns the stored snapshots of a view, the newest first. It omits messages that
// are not descriptions of such snapshots. Nothing is verified.
func (s *Store) stored(ctx context.Context, view string) ([]Stored, error) {
	all, err := list(ctx, s.Conn, bus.SnapshotSubject(s.Tenant, s.Service, "*", view, "*", bus.SnapshotHead))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(h Stored) bool { return h.Err != nil })
	slices.SortStableFunc(all, func(a, b Stored) int { return cmp.Compare(b.Position, a.Position) })
	return all, nil
}

// store stores a snapshot under the name that does not hold this instance's newest one.
func (s *Store) store(ctx context.Context, k *keeping, state []byte, position uint64) error {
	key := s.SignKey()
	if key == nil {
		return errNoKey
	}
	if _, err := s.Trust.At(key.KID, s.Service, contract.UseSnapshot, maxLamport); err != nil {
		return fmt.Errorf("%w: %w", errNoKey, err)
	}
	c, seq, err := s.checkpoint(ctx, map[string]any{"last_by_subj": bus.LogSubject(s.Tenant, bus.CheckpointSubject)})
	if err != nil {
		return err
	}
	en, err := s.Log.Get(ctx, position)
	if err != nil {
		return err
	}
	leaf := translog.LeafHash(en.Data)
	parts := slices.Collect(slices.Chunk(state, chunk))
	if len(parts) > maxChunks {
		return fmt.Errorf("the state of %d bytes is too large", len(state))
	}
	h := Sign(key, contract.Snapshot{Tenant: s.Tenant, Service: s.Service, Instance: s.Instance, View: k.View, Code: k.Code, Root: s.RootKID,
		Position: int64(position), Leaf: hex.EncodeToString(leaf[:]), Chunks: int64(len(parts)), Digest: sign.Digest(state), Time: contract.Time(s.Now()),
		Origin: c.Origin, CheckpointSeq: int64(seq), CheckpointSize: int64(c.Size), CheckpointRoot: hex.EncodeToString(c.Root[:])})
	name, err := s.free(ctx, k)
	if err != nil {
		return err
	}
	if err := s.Conn.Durable(ctx); err != nil { // the state must not contain events that may be lost
		return err
	}
	subject := func(part string) string {
		return bus.SnapshotSubject(s.Tenant, s.Service, s.Instance, k.View, name, part)
	}
	for n, part := range parts {
		if _, err := s.Conn.JS.Publish(ctx, subject(strconv.Itoa(n)), part); err != nil {
			return err
		}
	}
	if _, err := s.Conn.JS.Publish(ctx, subject(bus.SnapshotHead), contract.Bytes(&h)); err != nil {
		return err
	}
	k.name = name
	return nil
}

// free returns the name that does not hold this instance's newest snapshot of a view.
func (s *Store) free(ctx context.Context, k *keeping) (string, error) {
	if k.name == "" { // the first snapshot since the instance started
		all, err := s.stored(ctx, k.View)
		if err != nil {
			return "", err
		}
		for _, h := range all {
			if h.Instance == s.Instance {
				k.name = h.name
				break
			}
		}
	}
	if k.name == names[0] {
		return names[1], nil
	}
	return names[0], nil
}
