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
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// State is the state of the freeze as one instance has read it from the ledger. The
// exported fields must be set before any method is called. It is safe for concurrent use.
type State struct {
	Emit     *emit.Emitter
	Instance string
	// Cell returns the state of the cell after every event that was stored when it was
	// called, or the error of the context. Only events of the cell freeze the mesh.
	Cell func(context.Context) (handle.Cell, error)

	mu    sync.Mutex             // held while an event is applied
	seq   uint64                 // sequence of the newest freeze or unfreeze applied; 0 = none
	id    atomic.Pointer[string] // id of the event mesh_frozen in force; nil if the mesh is not frozen
	known atomic.Bool
}

// On reports whether a freeze is in force, according to the events applied so far.
func (z *State) On() bool { return z.id.Load() != nil }

// Known reports whether Load has read the ledger. Until then, On may report false
// although the mesh is frozen.
func (z *State) Known() bool { return z.known.Load() }

// Apply applies the event at a sequence of the ledger and reports whether it is a freeze
// or an unfreeze. It ignores a freeze or an unfreeze that is not an event of the cell. An
// event that is not newer than the last one applied does not change the state: the
// control reader may start before the sequence that Load finds. Apply acknowledges each
// freeze, even an older one, in a goroutine of its own, which retries until the
// acknowledgement is stored or ctx ends. A freeze with malformed data is not
// acknowledged.
func (z *State) Apply(ctx context.Context, seq uint64, e *contract.Event) bool {
	z.Emit.See(e.Lamport)
	if e.Name != contract.EventMeshFrozen && e.Name != contract.EventMeshUnfrozen {
		return false
	}
	if !z.ofCell(ctx, seq, e.Tenant) {
		slog.Error("an event of a tenant that cannot freeze the mesh is ignored", "event", e.ID, "name", e.Name, "tenant", e.Tenant)
		return true
	}
	z.apply(ctx, seq, e)
	return true
}

// ofCell reports whether an event at a sequence in a tenant is one of the cell. It returns
// false if ctx ends before the state of the cell is known.
func (z *State) ofCell(ctx context.Context, seq uint64, tenant string) bool {
	if tenant == contract.CellTenant {
		return true
	}
	cell, err := z.Cell(ctx)
	return err == nil && cell.Holds(seq, tenant)
}

// apply applies a freeze or an unfreeze of the cell.
func (z *State) apply(ctx context.Context, seq uint64, e *contract.Event) {
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
}

// Load reads from the ledger whether the mesh is frozen. Like Apply, it acknowledges a
// freeze in force in a goroutine, so the acknowledgement may not be stored when Load
// returns. Load must be called before the instance accepts work. It repeats reads to
// which the server does not respond, and returns other errors of the ledger. Entries that
// are not valid events are ignored. If ctx ends first, Load returns nil and Known stays
// false.
func (z *State) Load(ctx context.Context) error {
	var newest handle.Stored
	err := eventlog.Retry(ctx, func() error {
		cell, err := z.Cell(ctx)
		if err != nil {
			return err
		}
		for _, name := range [...]string{contract.EventMeshFrozen, contract.EventMeshUnfrozen} {
			all, err := cell.History(ctx, z.Emit.Log, bus.Filter{Service: services.Policy, Event: name})
			if err != nil {
				return err
			}
			if n := len(all); n > 0 && all[n-1].Seq > newest.Seq {
				newest = all[n-1]
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if newest.Event != nil {
		z.apply(ctx, newest.Seq, newest.Event)
	}
	z.known.Store(true)
	return nil
}

// acknowledge appends freeze_acknowledged, which states that this instance starts no
// more effects: the claim of every effect that it did start has a lower sequence than
// this event. The message ids that acknowledge tries depend on the freeze and the
// instance only, so the ledger stores the event once within its duplicate window.
func (z *State) acknowledge(ctx context.Context, e *contract.Event) {
	var f struct{ ID string }
	if err := json.Unmarshal(e.Data, &f); err != nil {
		slog.Error("freeze cannot be read", "event", e.ID, "err", err)
		return
	}
	// The acknowledgement belongs to the tenant of the freeze.
	ack := z.Emit.In(e.Tenant).New(contract.EventFreezeAcknowledged, "freeze", contract.Bytes(&contract.FreezeAck{FreezeID: f.ID, Instance: z.Instance}), nil)
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
