// Package freeze tracks, for an instance that starts effects, whether the mesh is
// frozen, and acknowledges each freeze on the ledger. The events come from the
// instance's control reader (bus.Control), which the caller runs.
package freeze

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// State is the state of the freeze as one instance has read it from the ledger. Emit and
// Instance must be set before any method is called. It is safe for concurrent use.
type State struct {
	Emit     *emit.Emitter
	Instance string

	mu    sync.Mutex             // held while an event is applied
	seq   uint64                 // sequence of the last event that changed the state
	id    atomic.Pointer[string] // id of the event mesh_frozen in force; nil if the mesh is not frozen
	known atomic.Bool
}

// On reports whether a freeze is in force, according to the events applied so far.
func (z *State) On() bool { return z.id.Load() != nil }

// Known reports whether Load has read the ledger. Until then, On may report false
// although the mesh is frozen.
func (z *State) Known() bool { return z.known.Load() }

// Apply applies the event at a sequence of the ledger and reports whether it is a freeze
// or an unfreeze. An event that is not newer than the last one applied does not change
// the state: the control reader may start before the sequence that Load finds. Apply
// acknowledges each freeze, also such an older one, in a goroutine of its own, which
// retries until the acknowledgement is stored or ctx ends.
func (z *State) Apply(ctx context.Context, seq uint64, e *contract.Event) bool {
	z.Emit.See(e.Lamport)
	if e.Name != contract.EventMeshFrozen && e.Name != contract.EventMeshUnfrozen {
		return false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if newer := seq > z.seq; newer && e.Name == contract.EventMeshFrozen {
		z.seq = seq
		z.id.Store(&e.ID)
	} else if newer {
		z.seq = seq
		z.id.Store(nil)
	}
	if e.Name == contract.EventMeshFrozen {
		go z.acknowledge(ctx, e)
	}
	return true
}

// Load reads from the ledger whether the mesh is frozen, and acknowledges a freeze in
// force. It must be called before the instance accepts work. It repeats reads to which
// the server does not respond, and returns other errors of the ledger. If ctx ends
// first, Load returns nil and Known stays false.
func (z *State) Load(ctx context.Context) error {
	var newest eventlog.Entry
	// The filters select freezes and unfreezes. The newer one of their last events
	// determines the state.
	for _, f := range bus.FreezeFilters() {
		var en eventlog.Entry
		err := eventlog.Retry(ctx, func() (err error) {
			en, err = z.Emit.Log.Last(ctx, f)
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return err
		}
		if en.Seq > newest.Seq {
			newest = en
		}
	}
	if newest.Seq != 0 {
		if e, err := eventlog.Open(newest, bus.FreezeFilters()...); err == nil {
			z.Apply(ctx, newest.Seq, e)
		}
	}
	z.known.Store(true)
	return nil
}

// acknowledge appends freeze_acknowledged, which states that this instance starts no
// more effects: the claim of every effect that did start has a lower sequence than this
// event. The message ids that acknowledge tries depend on the freeze and the instance
// only, so the ledger stores the event once within its duplicate window.
func (z *State) acknowledge(ctx context.Context, e *contract.Event) {
	var f struct{ ID string }
	if err := json.Unmarshal(e.Data, &f); err != nil {
		slog.Error("freeze cannot be read", "event", e.ID, "err", err)
		return
	}
	ack := z.Emit.New(contract.EventFreezeAcknowledged, "freeze", contract.Bytes(&contract.FreezeAck{FreezeID: f.ID, Instance: z.Instance}), nil)
	ack.Cause = e.ID
	id := contract.IDFreezeAck + f.ID + "-" + z.Instance
	own := func(e *contract.Event) bool { return e.Source == ack.Source && e.Name == ack.Name }
	for ctx.Err() == nil {
		_, err := eventlog.Contend(ctx, z.Emit.Log, id, own, func(id string) (uint64, error) {
			ack.ID = id
			return z.Emit.Append(ctx, ack)
		})
		if err == nil || errors.Is(err, eventlog.ErrIDConflict) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
