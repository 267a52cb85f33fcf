package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/tenant"
)

// inCell appends the event that decide returns to an aggregate of the cell, as
// handle.DoCell does. cause is the governing call, or nil if no call causes the event.
// decide also receives the state of the cell; the event is appended to the tenant in that
// state. The error is of type invalid if the cause is in another tenant.
func (i *instance) inCell(ctx context.Context, cause *contract.Event, key string, decide func(handle.Cell, []*contract.Event) (*contract.Event, error)) (*contract.Event, error) {
	var cell handle.Cell
	at := func(ctx context.Context) (handle.Cell, error) {
		var err error
		if cell, err = i.cell(ctx); err == nil && cause != nil && cause.Tenant != cell.Tenant {
			err = invalid{fmt.Errorf("tenant %s cannot govern the whole mesh: an operator of the mesh calls it, in the tenant %s", cause.Tenant, cell.Tenant)}
		}
		return cell, err
	}
	return handle.DoCell(ctx, i.emit.Log, at, services.Policy, key, func(h []*contract.Event) (*contract.Event, error) { return decide(cell, h) })
}

// tenants executes the calls that create tenants and change them.
type tenants struct{ *instance }

// change executes one call. It may be called again for the same call after the process
// has ended at any point: if the event of the call is on the ledger, change returns that
// event's result and appends nothing.
func (t *tenants) change(ctx context.Context, w *execute.Work) execute.Result {
	c, err := tenant.Parse(w.Call.Kind, w.Args)
	if err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	var ev *contract.Event
	_, err = t.inCell(ctx, w.Event, contract.TenantKey(c.Tenant), func(cell handle.Cell, h []*contract.Event) (*contract.Event, error) {
		if cell.Opened == 0 {
			return nil, invalid{errors.New("the mesh has one tenant until its cell is opened: run `binnacle trust cell` where the root key is, then restart the mesh")}
		}
		for _, ev = range h {
			if ev.Cause == w.Event.ID {
				return nil, nil
			}
		}
		name, data, err := c.Decide(h, cell.Original)
		if err != nil {
			return nil, invalid{err}
		}
		ev = t.fact(name, contract.TenantKey(c.Tenant), contract.Bytes(data), w.Event)
		return ev, nil
	})
	if res, failed := failure(err); failed {
		return res
	}
	t.caughtUp(ctx, ev)
	return result("policy."+ev.Name, map[string]any{"event": ev.ID, "result": json.RawMessage(ev.Data)})
}
