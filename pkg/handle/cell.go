package handle

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Cell identifies the tenants in which the aggregates of the mesh as a whole are stored,
// such as the registry of tools, the ceilings in force and the freeze. On a ledger of
// release 0.5 or earlier they begin in its only tenant, and continue in
// contract.CellTenant after the event cell_opened.
type Cell struct {
	Tenant   string // tenant to which the events of the aggregates are appended
	Original string // tenant in which the aggregates begin, or "" if that is Tenant
	Opened   uint64 // ledger sequence of cell_opened; 0 before that event. Events of Original after it are not events of the cell
}

// Holds reports whether an event of a tenant at a ledger sequence can be an event of the
// cell: whether the tenant is Tenant, or Original and the event is before cell_opened.
func (c Cell) Holds(seq uint64, tenant string) bool {
	return tenant != "" && (tenant == c.Tenant || tenant == c.Original && seq < c.Opened)
}

// Stored is an event with its ledger sequence.
type Stored struct {
	Seq uint64
	*contract.Event
}

// History returns the events of the cell that filter selects, in order and without
// invalid ones: the events of Original before cell_opened, and the events of Tenant. The
// tenant of filter is not used. It returns the error of the ledger.
func (c Cell) History(ctx context.Context, l eventlog.Log, filter bus.Filter) ([]Stored, error) {
	all, _, err := c.history(ctx, l, filter)
	return all, err
}

// history is History, and also returns the sequence of the last entry of Tenant that
// filter selects, or 0 if there is none.
func (c Cell) history(ctx context.Context, l eventlog.Log, filter bus.Filter) (all []Stored, last uint64, err error) {
	if c.Original != "" && c.Original != c.Tenant {
		filter.Tenant = c.Original
		if all, _, err = scan(ctx, l, filter.String(), c.Opened, nil); err != nil {
			return nil, 0, err
		}
	}
	filter.Tenant = c.Tenant
	return scan(ctx, l, filter.String(), math.MaxUint64, all)
}

// scan appends the events before the sequence end that filter selects to all, and returns
// the sequence of the last entry before end, or 0 if there is none. Invalid entries count
// for the sequence only.
func scan(ctx context.Context, l eventlog.Log, filter string, end uint64, all []Stored) (_ []Stored, last uint64, err error) {
	for en, err := range l.Scan(ctx, filter, 1) {
		if err != nil {
			return nil, 0, err
		}
		if en.Seq >= end {
			break
		}
		last = en.Seq
		if e, err := eventlog.Open(en, filter); err == nil {
			all = append(all, Stored{en.Seq, e})
		}
	}
	return all, last, nil
}

// DoCell is Do for an aggregate of the cell, which the service owns under the given key.
// decide receives the events of the cell's whole history; see Cell.History. The event that
// decide returns is appended to the cell's tenant, whatever its tenant was. at returns the
// current state of the cell; its error ends DoCell. If at fails after an append, DoCell
// returns the appended event and the error. If the append fails without a conflict, DoCell
// returns the event, which may not be stored, and the error.
//
// If the cell is opened while DoCell appends to the original tenant, the appended event
// may be after cell_opened. It is then not an event of the cell, and DoCell decides again
// and appends to the cell's tenant.
func DoCell(ctx context.Context, l eventlog.Log, at func(context.Context) (Cell, error), service, key string, decide func([]*contract.Event) (*contract.Event, error)) (*contract.Event, error) {
	filter := bus.Filter{Service: service, Key: key}
	for range tries {
		cell, err := at(ctx)
		if err != nil {
			return nil, err
		}
		e, seq, err := cell.try(ctx, l, filter, decide)
		if errors.Is(err, eventlog.ErrConflict) {
			continue
		}
		if err != nil || e == nil || cell.Opened != 0 {
			return e, err
		}
		if cell, err = at(ctx); err != nil || cell.Opened == 0 || seq < cell.Opened {
			return e, err
		}
	}
	return nil, fmt.Errorf("%s: too many writers: %w", filter, eventlog.ErrConflict)
}

// try makes one attempt of DoCell. It returns the appended event and its sequence, or nil
// if decide has nothing to record. If the append fails, it returns the event with the
// error, which wraps eventlog.ErrConflict if another writer has appended.
func (c Cell) try(ctx context.Context, l eventlog.Log, filter bus.Filter, decide func([]*contract.Event) (*contract.Event, error)) (*contract.Event, uint64, error) {
	all, last, err := c.history(ctx, l, filter)
	if err != nil {
		return nil, 0, err
	}
	history := make([]*contract.Event, len(all))
	for i := range all {
		history[i] = all[i].Event
	}
	e, err := decide(history)
	if err != nil || e == nil {
		return nil, 0, err
	}
	e.Tenant = c.Tenant
	b, err := e.Encode()
	if err != nil {
		return nil, 0, err
	}
	seq, err := l.AppendExpect(ctx, e.Subject(), e.ID, b, bus.AggregateFilter(c.Tenant, filter.Service, filter.Key), last)
	return e, seq, err
}
