package run

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
)

// Cell holds the properties of the mesh as a whole that an instance has read from the
// ledger: the tenant that holds the mesh's own events, the name of the log, the tenants
// that exist, and the operators. It is complete before the service runs, and is updated
// as events are read. It is safe for concurrent use.
type Cell struct {
	mu      sync.Mutex // guards the fields up to changed
	state   trust.Cell
	opened  uint64        // ledger sequence of cell_opened; 0 before it
	changed chan struct{} // closed at the next change; nil if Changed was not called since the last one
	current atomic.Pointer[cellState]

	reach func(context.Context) (uint64, error) // waits until every stored event was applied
}

// cellState is the state of a Cell between two events that change it. It is not modified.
type cellState struct {
	cell    handle.Cell
	log     string
	tenants map[string]trust.Tenant // the tenants that exist
}

// apply applies an event of the reader bus.Trust. A key event must be one that the
// registry has accepted.
func (c *Cell) apply(seq uint64, e *contract.Event, keyAt trust.KeyAt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.state.Apply(e, keyAt); err != nil {
		slog.Error("event about the cell refused", "seq", seq, "err", err)
		return
	}
	if c.opened == 0 && c.state.Opened() {
		c.opened = seq
	}
	c.current.Store(nil)
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Changed returns a channel that is closed when an event is read that may change the
// results of the other methods. A caller must call Changed before those methods, so that
// it misses no change.
func (c *Cell) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// now returns the current state. It takes a lock only after an event that changed it.
func (c *Cell) now() *cellState {
	if s := c.current.Load(); s != nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &cellState{cell: handle.Cell{Tenant: c.state.Tenant(), Original: c.state.Original(), Opened: c.opened}, log: c.state.Log(), tenants: map[string]trust.Tenant{}}
	for _, t := range c.state.Tenants() {
		s.tenants[t.ID] = t
	}
	if t, exists := c.state.Of(s.cell.Original); exists {
		s.tenants[t.ID] = t
	}
	c.current.Store(s)
	return s
}

// Tenant returns the tenant of the mesh's own events, according to the events read so
// far: contract.CellTenant once the cell is opened, and before that the tenant of the
// first root key's event. It is "" until that event has been read.
func (c *Cell) Tenant() string { return c.now().cell.Tenant }

// Original returns the mesh's original tenant, which no call created, or "" if there is
// none.
func (c *Cell) Original() string { return c.now().cell.Original }

// Check reports whether a tenant exists, and whether it is suspended, according to the
// events read so far. Once the cell is opened, the tenant of the mesh's own events
// exists and is never suspended.
func (c *Cell) Check(tenant string) (exists, suspended bool) {
	s := c.now()
	if tenant != "" && tenant == s.cell.Tenant && s.cell.Opened > 0 {
		return true, false
	}
	t, exists := s.tenants[tenant]
	return exists, t.Suspended
}

// Known reports whether a tenant exists, as Check does.
func (c *Cell) Known(tenant string) bool {
	exists, _ := c.Check(tenant)
	return exists
}

// Await reports whether a tenant exists. If the events read so far have no such tenant, it
// waits until every event that was stored when Await was called has been read, or until
// ctx is done.
func (c *Cell) Await(ctx context.Context, tenant string) bool {
	if !c.Known(tenant) {
		_, _ = c.Now(ctx) // an error means that ctx is done
	}
	return c.Known(tenant)
}

// Quota returns the quota of a tenant, or the zero Quota if the tenant has none.
func (c *Cell) Quota(tenant string) contract.Quota { return c.now().tenants[tenant].Quota }

// Operator reports whether a principal of the tenant of the mesh's own events may operate
// the mesh at now, a time in contract.TimeFormat. Before the cell is opened there are no
// operators, and the result is false.
func (c *Cell) Operator(principal, now string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Operator(principal, now)
}

// Log returns the name of the ledger's log: the last part of its origin, before
// "/epoch-n", and the token of the subjects of its checkpoints. It is "" until the first
// key has been read, and never changes afterwards.
func (c *Cell) Log() string { return c.now().log }

// Now returns the state of the cell (see handle.Cell) after every event that was stored
// when Now was called. While the ledger cannot be read, Now tries again until ctx ends;
// it then returns the error of ctx.
func (c *Cell) Now(ctx context.Context) (handle.Cell, error) {
	err := eventlog.Retry(ctx, func() error {
		if _, err := c.reach(ctx); err != nil {
			return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, err)
		}
		return nil
	})
	if err != nil {
		return handle.Cell{}, err
	}
	return c.now().cell, nil
}

// standing reports whether a tenant is that of the mesh itself, and whether it is the original
// tenant or one that a call created. contract.CellTenant is the mesh's own even before the cell is
// opened, so that queries about the mesh need no other tenant. Both are true for every tenant until
// the first key has been read.
func (c *Cell) standing(tenant string) (cell, member bool) {
	s := c.now()
	if s.log == "" {
		return true, true
	}
	_, member = s.tenants[tenant]
	return tenant == s.cell.Tenant || tenant == contract.CellTenant, member
}
