// Package snapshot stores the states of a service's views on the stream SNAPSHOTS, so
// that an instance can start from a state instead of the ledger's first entry.
//
// A snapshot is a shortcut, never evidence: a view that is built from one must equal the
// view that replay builds from the ledger, and a mesh works without snapshots. An
// instance uses a snapshot only if its signing key is valid now, if it was made by the
// same version of the code, and if the ledger and audit's checkpoints still are those
// that it names; see Store.check. The key registry is always built from the ledger, since
// the keys that verify a snapshot must not come from one.
//
// Each instance stores the snapshots of a view alternately under two names: first the
// parts of the state, then the signed description. A crash at any time leaves the
// description that was stored before, with its parts.
package snapshot

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Source is a view of which snapshots are taken.
type Source struct {
	View string
	// Code is the version of the code that folds the view and reads its state. It must
	// be increased whenever an old state would lead to another view than the ledger.
	Code int64
	// Load replaces the empty state of the view with a state that Save returned. If it
	// returns an error, the view must still be empty.
	Load func(state []byte) error
	// Save returns the state of the view after every entry that the ledger had when Save
	// was called, and the sequence of the last entry that the state includes.
	Save func(context.Context) (state []byte, position uint64, err error)
}

// Store stores and loads the snapshots of one instance. Its fields must be set before the first
// call. Start may be called concurrently, but Keep and Close must not run at the same time. A nil
// Store stores nothing and loads nothing.
type Store struct {
	Conn     *bus.Conn
	Log      eventlog.Log
	Trust    Trust
	SignKey  func() *sign.Key
	Tenant   string // name of the ledger's log, which never changes
	Service  string
	Instance string
	RootKID  string // key id of the root key
	Now      func() time.Time
	Logger   *slog.Logger
	Every    uint64 // entries of the ledger after which Keep takes a new snapshot; 0 = 50,000

	mu   sync.Mutex
	kept []*keeping

	keyless sync.Once // for the log message that the service has no valid key for snapshots
}

// Trust is the instance's view of the key registry.
type Trust interface {
	// At returns the public key kid, or an error unless it belongs to owner, permits use
	// and is valid at lamport.
	At(kid, owner, use string, lamport uint64) ([]byte, error)
	// Checkpoint parses a checkpoint and verifies audit's signature.
	Checkpoint(note []byte) (*translog.Checkpoint, error)
}

// keeping is a registered Source, with the position and name of its newest known
// snapshots.
type keeping struct {
	Source
	last uint64 // position of the newest snapshot that this instance loaded, stored or found; 0 = none
	name string // name, one of names, of this instance's newest snapshot; "" = none or not known
}

// Limits of snapshots, and intervals between them.
const (
	growth    = 50_000          // default of Store.Every
	atLeast   = 1_000           // minimum growth of the ledger, in entries, for which Close takes a snapshot
	look      = 5 * time.Second // interval at which Keep reads how far the ledger has grown
	closing   = 5 * time.Second // timeout of Close
	maxChunks = 512
	chunk     = 512 << 10 // maximum number of bytes of a part
)

// Start loads the newest usable snapshot of a view, and registers the view for later
// snapshots. It returns the sequence from which the view must read the ledger: 1 if
// there is no usable snapshot. If a newer snapshot is not used, the reason is logged,
// unless its description is malformed.
func (s *Store) Start(ctx context.Context, src Source) (from uint64) {
	if s == nil {
		return 1
	}
	k := &keeping{Source: src}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept = append(s.kept, k)
	}()
	all, err := s.stored(ctx, src.View)
	if err != nil {
		s.Logger.Warn("snapshots not read; the view is built from the whole ledger", "view", src.View, "err", err)
		return 1
	}
	for i := range all {
		h := &all[i]
		err := s.check(ctx, h, src.Code)
		if err == nil {
			err = s.load(ctx, h, src.Load)
		}
		if err != nil {
			s.Logger.Warn("snapshot not used", "view", src.View, "instance", h.Instance, "position", h.Position, "err", err)
			continue
		}
		s.Logger.Info("view starts from a snapshot", "view", src.View, "instance", h.Instance, "position", h.Position)
		k.last = uint64(h.Position)
		return k.last + 1
	}
	return 1
}

// load reads the parts of a snapshot and passes the state to f.
func (s *Store) load(ctx context.Context, h *Stored, f func([]byte) error) error {
	state, err := h.State(ctx, s.Conn)
	if err != nil {
		return err
	}
	return f(state)
}

// Keep takes a new snapshot of a view whenever the ledger has grown by Every entries
// since the newest snapshot, which may be another instance's, until ctx is done.
func (s *Store) Keep(ctx context.Context) {
	if s == nil {
		return
	}
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		tail, err := s.Conn.LastSeq(ctx, bus.Events)
		if err != nil {
			continue
		}
		for _, k := range s.sources() {
			if tail >= k.last+s.every() {
				s.renew(ctx, k, tail)
			}
		}
	}
}

// Close takes a last snapshot of each view for which the ledger has grown by at least
// 1,000 entries since the newest known snapshot. It returns after at most five seconds.
// The views must not advance any more.
func (s *Store) Close(ctx context.Context) {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, closing)
	defer cancel()
	tail, err := s.Conn.LastSeq(ctx, bus.Events)
	if err != nil {
		return
	}
	for _, k := range s.sources() {
		if tail >= k.last+atLeast {
			s.take(ctx, k)
		}
	}
}

func (s *Store) every() uint64 { return cmp.Or(s.Every, growth) }

func (s *Store) sources() []*keeping {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept
}

// renew takes a snapshot of a view. It takes none if the stored snapshots cannot be
// listed, or if one of them is usable and the ledger has grown by less than Every entries
// since that one.
func (s *Store) renew(ctx context.Context, k *keeping, tail uint64) {
	all, err := s.stored(ctx, k.View)
	if err != nil {
		return
	}
	for i := range all {
		h := &all[i]
		if tail < uint64(h.Position)+s.every() && uint64(h.Position) <= tail && s.check(ctx, h, k.Code) == nil {
			k.last = uint64(h.Position)
			return
		}
	}
	s.take(ctx, k)
}

// take takes a snapshot of a view, unless the view has not advanced since the newest
// known one. Errors are logged, a missing key only once.
func (s *Store) take(ctx context.Context, k *keeping) {
	state, position, err := k.Save(ctx)
	if err == nil && position > k.last {
		if err = s.store(ctx, k, state, position); err == nil {
			k.last = position
			s.Logger.Info("snapshot stored", "view", k.View, "position", position, "bytes", len(state))
			return
		}
	}
	switch {
	case errors.Is(err, errNoKey):
		s.keyless.Do(func() {
			s.Logger.Warn("no snapshots are stored: give the service a key for them with `binnacle trust rotate "+s.Service+"`", "err", err)
		})
	case errors.Is(err, errNoCheckpoint):
		s.Logger.Debug("snapshot not stored", "view", k.View, "err", err)
	case err != nil:
		s.Logger.Warn("snapshot not stored", "view", k.View, "err", err)
	}
}

// Sign returns h, signed with key. It sets KID and Sig.
func Sign(key *sign.Key, h contract.Snapshot) contract.Snapshot {
	h.KID, h.Sig = key.KID, ""
	h.Sig = key.Sign(sign.DomainSnapshot, contract.Bytes(&h))
	return h
}
