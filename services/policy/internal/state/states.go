package state

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// States is the view policy.state: the state of the cell, and the State of each tenant.
// The zero value is the empty view; Open and Keys must be set before the first Apply.
// Apply must be called by one goroutine at a time; the other methods, except Recall, may be
// called concurrently with it.
type States struct {
	// Open returns the content of a tenant's policy document. It fails with
	// contract.ErrErased or ErrEncrypted if the content is erased or encrypted.
	Open func(tenant string, c *contract.Content) ([]byte, error)
	// Keys looks up the public half of a key that was a root key at a Lamport time.
	Keys guard.KeyAt
	// Keep makes the view retain every policy document that was ever in force and every
	// registered tool document, which Recall needs. It must be set before the first Apply.
	Keep bool
	// Configured is the cell's own tenant until the first root key is on the ledger. It
	// must be set before the first Apply.
	Configured string

	// Catalog holds the tool documents in force. It has a lock of its own.
	Catalog catalog.Catalog

	mu      sync.RWMutex
	cell    cell
	by      map[string]*State     // states of the tenants that have events of their own
	first   atomic.Pointer[State] // the state in by that was made first
	archive stack.Archive         // filled only if Keep is set; Apply and Recall use it, and must not run concurrently
}

// Cell returns the cell's own tenant, in which the events that apply to the whole cell
// are recorded.
func (st *States) Cell() string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.own()
}

// Opened reports whether the cell is opened, so that tenants can be created.
func (st *States) Opened() bool {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.cell.tenants.Opened()
}

// Tenants returns the tenants of the mesh according to the events that st has applied,
// sorted by id, and the id of the original one.
func Tenants(st *States) (all []trust.Tenant, original string) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	original = st.cell.tenants.Original()
	if t, exists := st.cell.tenants.Of(original); exists && !st.cell.tenants.Opened() {
		return []trust.Tenant{t}, original
	}
	return st.cell.tenants.Tenants(), original
}

// own returns the result of Cell. The caller holds st.mu.
func (st *States) own() string { return cmp.Or(st.cell.tenants.Tenant(), st.Configured) }

// Of returns the state of a tenant, or nil if no such tenant exists. For a tenant without
// events of its own it returns an empty state, which is replaced by another one at its
// first event; a caller must therefore not retain the result.
func (st *States) Of(tenant string) *State {
	if s := st.first.Load(); s != nil && s.view.tenant == tenant {
		return s // the only tenant of most meshes is found without a lock
	}
	st.mu.RLock()
	defer st.mu.RUnlock()
	if s := st.by[tenant]; s != nil {
		return s
	}
	if !st.exists(tenant) {
		return nil
	}
	return st.fresh(tenant)
}

// fresh returns an empty state of a tenant. The caller holds st.mu.
func (st *States) fresh(tenant string) *State {
	return &State{all: st, view: View{tenant: tenant, shares: st.budget(tenant) != tenant, cell: &st.cell}}
}

// Budget returns the tenant in which the budget ledger for calls of a tenant is
// recorded: the tenant itself for the cell's own and the original tenant, and otherwise
// the result of contract.BudgetTenant.
func (st *States) Budget(tenant string) string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.budget(tenant)
}

// budget returns the result of Budget. The caller holds st.mu.
func (st *States) budget(tenant string) string {
	if tenant == st.own() || tenant == st.cell.tenants.Original() {
		return tenant
	}
	return contract.BudgetTenant(tenant)
}

// Budgets returns the results of Budget for all tenants, sorted and without duplicates.
func (st *States) Budgets() []string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	out := []string{st.own()}
	for _, t := range st.cell.tenants.Tenants() {
		out = append(out, st.budget(t.ID))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Limits returns the limits in force for the calls of a tenant, with the ids that they
// have in accounts, or nil if the tenant does not exist.
func (st *States) Limits(tenant string) (limits []guard.Limit) {
	if s := st.Of(tenant); s != nil {
		s.Read(func(v *View) { limits = v.Charged() })
	}
	return limits
}

// Nearest returns the state of a tenant or, if no such tenant exists, that of the cell's
// own tenant, whose documents decide the calls of a tenant that does not exist.
func (st *States) Nearest(tenant string) *State {
	if s := st.Of(tenant); s != nil {
		return s
	}
	return st.OfCell()
}

// OfCell returns the state of the cell's own tenant.
func (st *States) OfCell() *State { return st.Of(st.Cell()) }

// Base returns the documents in force for every tenant. The value does not change when
// other documents are activated.
func (st *States) Base() stack.Stack {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.cell.base
}

// exists reports whether a tenant exists. The caller holds st.mu.
func (st *States) exists(tenant string) bool {
	if tenant == st.own() {
		return true
	}
	_, ok := st.cell.tenants.Of(tenant)
	return ok
}

// made returns the state of an existing tenant, which it makes if there is none. The
// caller holds st.mu for writing.
func (st *States) made(tenant string) *State {
	s := st.by[tenant]
	if s == nil {
		s = st.fresh(tenant)
		if st.by == nil {
			st.by = map[string]*State{}
			st.first.Store(s)
		}
		st.by[tenant] = s
	}
	return s
}

// each calls f for the states of the tenants of st that have events of their own, in the
// order of their ids. The caller holds st.mu.
func each(st *States, f func(*State)) {
	for _, tenant := range slices.Sorted(maps.Keys(st.by)) {
		f(st.by[tenant])
	}
}

// foreign logs an event that is ignored because events of its name have no effect in its
// tenant. It returns nil.
func foreign(e *contract.Event) error {
	slog.Warn("an event of a tenant that cannot have it is ignored", "event", e.ID, "name", e.Name, "tenant", e.Tenant)
	return nil
}

// Overdue returns the escalations of all tenants whose time to vote has expired at now, a
// time in contract.TimeFormat, in no particular order.
func (st *States) Overdue(now string) (out []*Waiting) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, s := range st.by {
		for _, w := range s.view.waiting {
			if w.Escalated.Expires <= now {
				out = append(out, w)
			}
		}
	}
	return out
}

// Dump returns the canonical form of the view, lines of JSON in a fixed order: those of
// the cell, and then, after a line with its id, those of each tenant that has any. Two
// views after the same events have the same dump.
func (st *States) Dump() []byte {
	b := st.Catalog.Dump()
	st.mu.RLock()
	defer st.mu.RUnlock()
	b = st.cell.dump(b)
	each(st, func(s *State) {
		lines := s.view.dump(nil)
		if len(lines) == 0 {
			return
		}
		w := canon.Object(b)
		w.Str("tenant", s.view.tenant)
		b = append(append(w.End(), '\n'), lines...)
	})
	return b
}
