// Package authtest provides a registry of tenants for tests.
package authtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Registry implements auth.Tenants. It is safe for concurrent use.
type Registry struct {
	mu        sync.Mutex
	cell      string
	tenants   map[string]*tenant
	operators []string
	ends      map[string]time.Time // of delegations, by operator
	changed   chan struct{}
}

type tenant struct {
	suspended bool
	quota     contract.Quota
}

// New returns the registry of a mesh that has the given tenants. The cell is not open, and
// first is the tenant of the mesh's own events.
func New(first string, others ...string) *Registry {
	r := &Registry{cell: first, tenants: map[string]*tenant{first: {}}, changed: make(chan struct{})}
	for _, t := range others {
		r.tenants[t] = &tenant{}
	}
	return r
}

// change calls f, and closes the channel that Changed has returned.
func (r *Registry) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Open opens the cell. From then on, contract.CellTenant is the tenant of the mesh's own
// events, and the given principals of that tenant are the operators.
func (r *Registry) Open(operators ...string) {
	r.change(func() {
		r.cell, r.tenants[contract.CellTenant], r.operators = contract.CellTenant, &tenant{}, operators
	})
}

// Withdraw removes an operator.
func (r *Registry) Withdraw(operator string) {
	r.change(func() {
		r.operators = slices.DeleteFunc(slices.Clone(r.operators), func(p string) bool { return p == operator })
	})
}

// Create adds a tenant.
func (r *Registry) Create(id string) { r.change(func() { r.tenants[id] = &tenant{} }) }

// Suspend sets whether a tenant is suspended.
func (r *Registry) Suspend(id string, suspended bool) {
	r.change(func() { r.tenants[id].suspended = suspended })
}

// SetQuota sets the quota of a tenant.
func (r *Registry) SetQuota(id string, q contract.Quota) {
	r.change(func() { r.tenants[id].quota = q })
}

// Tenant implements auth.Tenants.
func (r *Registry) Tenant() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cell
}

// Check implements auth.Tenants.
func (r *Registry) Check(id string) (exists, suspended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tenants[id]
	return t != nil, t != nil && t.suspended
}

// Await implements auth.Tenants.
func (r *Registry) Await(ctx context.Context, id string) bool {
	for {
		changed := r.Changed()
		if exists, _ := r.Check(id); exists {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Quota implements auth.Tenants.
func (r *Registry) Quota(id string) contract.Quota {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tenants[id]; t != nil {
		return t.quota
	}
	return contract.Quota{}
}

// DelegateUntil sets the end of an operator's delegation, and removes the ends of all
// other delegations. A delegation without an end does not expire.
func (r *Registry) DelegateUntil(operator string, end time.Time) {
	r.change(func() { r.ends = map[string]time.Time{operator: end} })
}

// Operator implements auth.Tenants.
func (r *Registry) Operator(principal, now string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	end, limited := r.ends[principal]
	return slices.Contains(r.operators, principal) && (!limited || now < contract.Time(end))
}

// Changed implements auth.Tenants.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}
