package run

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Trust is an instance's view of the key registry, which is built from key events on the
// ledger. It is safe for concurrent use.
type Trust struct {
	mu  sync.RWMutex
	reg trust.Registry
	at  uint64 // ledger sequence of the last event that was read as a key event
	see func(lamport uint64)

	erased []func(tenant string) // see Env.OnErasure

	cell *Cell // receives the events of bus.Trust, without the keys that the registry rejects

	position func() uint64                         // returns the sequence of the last event of bus.Trust that was applied
	reach    func(context.Context) (uint64, error) // waits until every stored event was applied; see follow.Follower.Reach
	reached  atomic.Uint64                         // greatest result of reach
}

// errBehind is the error of an attempt of Await after which the view lacks events.
var errBehind = fmt.Errorf("%w: the key registry has not read every event yet", eventlog.ErrUnavailable)

// Await waits until the registry has applied every key event before the ledger sequence seq of
// a stored event. From then on, further key events do not change the result of At for the
// Lamport time of that event. A view that looks up keys while it applies an event must call
// Await first, because its reader and that of the registry advance independently. The error is
// that of ctx.
func (t *Trust) Await(ctx context.Context, seq uint64) error {
	return eventlog.Retry(ctx, func() error {
		if t.reached.Load() >= seq || t.position() >= seq {
			return nil
		}
		at, err := t.reach(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, err)
		}
		for old := t.reached.Load(); at > old && !t.reached.CompareAndSwap(old, at); old = t.reached.Load() {
		}
		if at < seq {
			return errBehind
		}
		return nil
	})
}

// dump returns the canonical form of the view and the ledger sequence of the last event
// that was read as a key event, even if the registry rejected it; the sequence is 0 if
// there is none.
func (t *Trust) dump() query.ViewDump {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return query.ViewDump{Name: "keys", Position: t.at, Dump: string(t.reg.Dump())}
}

// apply applies an event of the reader bus.Trust to the key registry and to the cell. It
// always returns nil: an event that is not valid, or that the registry or the cell
// rejects, is ignored or logged, because a forged event of any service would otherwise
// stop the instance.
func (t *Trust) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en, bus.Trust.Filters...)
	if err != nil {
		return nil
	}
	if e.Name == contract.EventContentKeysDestroyed {
		t.erase(e.Tenant)
		return nil
	}
	if isKey := e.Name == contract.EventKeyPublished || e.Name == contract.EventKeyRevoked; !isKey || t.applyKey(en.Seq, e) {
		t.cell.apply(en.Seq, e, t.At)
	}
	return nil
}

// erase calls the functions that OnErasure registered.
func (t *Trust) erase(tenant string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, f := range t.erased {
		f(tenant)
	}
}

// applyKey applies a key event to the registry, and reports whether the registry has
// accepted it.
func (t *Trust) applyKey(seq uint64, e *contract.Event) bool {
	var k contract.TrustKey
	if err := contract.Decode(e.Data, &k); err != nil {
		slog.Error("trust event refused", "seq", seq, "err", err)
		return false
	}
	t.see(e.Lamport) // events signed under the key must have a greater lamport than its publication
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = seq
	err := t.reg.Apply(k, e.Lamport)
	if err != nil {
		slog.Error("trust event refused", "seq", seq, "err", err)
	}
	return err == nil
}

// At implements guard.KeyAt. It returns the public key kid, or an error unless the key
// belongs to owner, permits use, and was published and not yet revoked at lamport. The
// caller must not change the bytes.
func (t *Trust) At(kid, owner, use string, lamport uint64) ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.reg.At(kid, owner, use, lamport)
}

// Current returns the key that was published last among owner's keys for use that are
// not revoked. The second result is false if there is none.
func (t *Trust) Current(owner, use string) (contract.TrustKey, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.reg.Current(owner, use)
}

// Valid reports whether a key is published and has not been revoked.
func (t *Trust) Valid(kid string) bool {
	for _, k := range t.Keys() {
		if k.KID == kid {
			return k.RevokedSince == 0
		}
	}
	return false
}

// Checkpoint parses a checkpoint and verifies that one of audit's keys for checkpoints
// signed it. The key may have been revoked since.
func (t *Trust) Checkpoint(note []byte) (c *translog.Checkpoint, err error) {
	err = errors.New("checkpoint: audit has no key")
	for _, k := range t.Keys() {
		if k.Owner != services.Audit || !slices.Contains(k.Uses, contract.UseCheckpoint) {
			continue
		}
		public, decodeErr := base64.StdEncoding.DecodeString(k.PublicKey)
		if decodeErr != nil {
			continue
		}
		if c, err = translog.ParseNote(note, public); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// Keys returns every key, revoked ones included, in order of publication and then of key
// id. The caller owns the slice, but must not change the Uses of its elements.
func (t *Trust) Keys() []trust.Key {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.reg.Keys()
}

// wait returns when the root key and, unless kid is "", the key with that id are
// published, or when ctx ends. It logs a warning every 5 s.
func (t *Trust) wait(ctx context.Context, kid string) {
	for warned := time.Now(); ctx.Err() == nil; {
		if time.Since(warned) > 5*time.Second {
			warned = time.Now()
			slog.Warn("waiting for the key to be published", "kid", kid)
		}
		t.mu.RLock()
		ok := t.reg.Has(t.reg.Root) && (kid == "" || t.reg.Has(kid))
		t.mu.RUnlock()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
