package execute

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

// freezes select the two events of the freeze.
var freezes = bus.Filters("policy", contract.EventMeshFrozen, contract.EventMeshUnfrozen)

// freeze is what an instance that starts effects knows of the freeze.
type freeze struct {
	emit     *emit.Emitter
	instance string
	id       atomic.Pointer[string] // of the freeze in force
	known    atomic.Bool            // the ledger was read: before, on is a guess
}

func (z *freeze) on() bool { return z.id.Load() != nil }

// apply folds an event in; false: it is not one of the freeze.
func (z *freeze) apply(ctx context.Context, e *contract.Event) bool {
	z.emit.See(e.Lamport)
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

// thaw learns whether the mesh is frozen, before any work is taken.
func (z *freeze) thaw(ctx context.Context) error {
	var newest eventlog.Entry
	for _, f := range freezes {
		en, err := z.emit.Log.Last(ctx, f)
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
			z.apply(ctx, e)
		}
	}
	z.known.Store(true)
	return nil
}

// acknowledge says on the ledger that nothing starts here any more. Every
// effect that did start has its claim below this event.
func (z *freeze) acknowledge(ctx context.Context, e *contract.Event) {
	var f struct{ ID string }
	if err := json.Unmarshal(e.Data, &f); err != nil {
		slog.Error("freeze cannot be read", "event", e.ID, "err", err)
		return
	}
	ack := z.emit.New(contract.EventFreezeAcknowledged, "freeze", contract.Bytes(&contract.FreezeAck{FreezeID: f.ID, Instance: z.instance}), nil)
	ack.ID, ack.Cause = contract.IDFreezeAck+f.ID+"-"+z.instance, e.ID
	for ctx.Err() == nil {
		if _, err := z.emit.Append(ctx, ack); err == nil || errors.Is(err, eventlog.ErrIDConflict) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
