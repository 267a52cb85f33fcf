package catalog

import (
	"log/slog"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// ViewFilters select the events from which a View is built.
var ViewFilters = append(slices.Clone(Filters), bus.Filters(services.Provision, contract.EventKeyPublished, contract.EventCellOpened)...)

// View is a Catalog that reads from the ledger which tenant is the cell's: the one of the
// first root key until the cell is opened, and contract.CellTenant after that. The tools
// that were registered before the opening remain in it. Keys must be set before the first
// Apply. Apply must be called by one goroutine at a time; the methods of Catalog may be
// called concurrently with it.
type View struct {
	Catalog
	Keys trust.KeyAt // looks up the root key that signed cell_opened

	cell trust.Cell
}

// Apply applies one event to the view; see Catalog.Apply. It ignores events with other
// names than those of ViewFilters, and logs and ignores an event about the cell that is
// not valid.
func (v *View) Apply(e *contract.Event) error {
	if e.Name != contract.EventKeyPublished && e.Name != contract.EventCellOpened {
		return v.Catalog.Apply(v.cell.Tenant(), e)
	}
	if err := v.cell.Apply(e, v.Keys); err != nil {
		slog.Error("event about the cell refused", "event", e.ID, "err", err)
	}
	return nil
}

// Tenant returns the tenant of the mesh's own events, according to the events applied so far,
// or "" before the first key. Like Apply, it must be called by one goroutine at a time.
func (v *View) Tenant() string { return v.cell.Tenant() }
