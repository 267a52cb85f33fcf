// Package freeze follows the freeze of the mesh for an instance that starts effects:
// it answers whether one is in force, and acknowledges each on the ledger. The
// events come from the instance's control reader (bus.Control), which the caller runs.
package freeze

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// State is what one instance knows of the freeze. Emit and Instance must be set
// before any method is called; it is safe for concurrent use.
type State struct {
	Emit     *emit.Emitter
	Instance string

	id    atomic.Pointer[string] // of the event of the freeze in force
	known atomic.Bool
}

// On reports whether a freeze is in force, as far as the instance has read.
func (z *State) On() bool { return z.id.Load() != nil }

// Known reports whether Load has read the ledger; before, On is a guess.
func (z *State) Known() bool { return z.known.Load() }

// Apply folds an event of the control reader in, and reports whether it was one of
// the freeze. A freeze is acknowledged in a goroutine of its own, until ctx ends.
func (z *State) Apply(ctx context.Context, e *contract.Event) bool {
	z.Emit.See(e.Lamport)
	switch e.Name {
	case contract.EventMeshFrozen:
		z.id.Store(&e.ID)
		go z.acknowledge(ctx, e)
	case contract.EventMeshUnfrozen:
		z.id.Store(nil)
	default:
		return false
	}
	return true
}

// Load reads from the ledger whether the mesh is frozen. It is called before any
// work is taken; when ctx ends first, it returns nil and Known stays false.
func (z *State) Load(ctx context.Context) error {
	var newest eventlog.Entry
	for _, f := range bus.FreezeFilters() {
		en, err := z.Emit.Log.Last(ctx, f)
		if errors.Is(err, eventlog.ErrNotFound) || ctx.Err() != nil {
			continue
		}
		if err != nil {
			return err
		}
		if en.Seq > newest.Seq {
			newest = en
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if newest.Seq != 0 {
		if e, err := eventlog.Open(newest); err == nil {
			z.Apply(ctx, e)
		}
	}
	z.known.Store(true)
	return nil
}

// acknowledge records that nothing starts here any more: every effect that did
// start has its claim at a lower sequence than this event.
func (z *State) acknowledge(ctx context.Context, e *contract.Event) {
	var f struct{ ID string }
	if err := json.Unmarshal(e.Data, &f); err != nil {
		slog.Error("freeze cannot be read", "event", e.ID, "err", err)
		return
	}
	ack := z.Emit.New(contract.EventFreezeAcknowledged, "freeze", contract.Bytes(&contract.FreezeAck{FreezeID: f.ID, Instance: z.Instance}), nil)
	ack.ID, ack.Cause = contract.IDFreezeAck+f.ID+"-"+z.Instance, e.ID
	for ctx.Err() == nil {
		if _, err := z.Emit.Append(ctx, ack); err == nil || errors.Is(err, eventlog.ErrIDConflict) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
