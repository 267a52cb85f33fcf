package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// AddFacts adds to f the facts about a call that follow from the view: facts about the
// freeze, the completeness of the ledger, the tenant, and the call's principals and
// their delegation. Actor, OnBehalfOf, Kind, Delegation and Now must be set already; now
// is the same time as Now.
func (v *View) AddFacts(f *guard.Facts, now time.Time) {
	p := &v.People
	overdue := contract.Time(now.Add(-govern.ReviewWithin))
	f.Truncated, f.Frozen = v.cell.truncated, v.Frozen()
	v.AddStanding(f)
	if t, _ := v.cell.tenants.Of(v.tenant); t.Suspended {
		f.TenantSuspended = true
	}
	if v.tenant == contract.CellTenant {
		f.Operator = v.cell.tenants.Operator(f.Actor, f.Now)
	}
	f.OutsideCell = v.Outside() && guard.GovernsCell(f.Kind) || v.Alone() && guard.ChangesTenants(f.Kind)
	f.BreakGlass, f.ReviewDue = p.Emergencies.Of(f.Actor, f.Now, overdue)
	if f.OnBehalfOf == "" && f.Delegation == "" {
		return
	}
	if f.DelegationBad = p.Delegations.Fault(f.Delegation, f.OnBehalfOf, f.Actor, f.Kind, f.Now); f.DelegationBad != "" {
		return
	}
	scopes, _ := p.Delegations.Scopes(f.Delegation)
	f.Delegator = &guard.DelegatorFact{Roles: p.People.Roles(f.OnBehalfOf, f.Now), Scopes: scopes}
	// A break-glass grant of the actor does not apply to calls on behalf of another
	// principal. A review that is overdue for either principal denies the call, unless the
	// call is the review itself.
	_, due := p.Emergencies.Of(f.OnBehalfOf, f.Now, overdue)
	f.BreakGlass, f.ReviewDue = "", f.ReviewDue || due
}

// Outside reports whether the tenant's calls may not govern the cell, because the cell
// is opened and the tenant is not the cell's own.
func (v *View) Outside() bool { return v.cell.tenants.Opened() && v.tenant != contract.CellTenant }

// Alone reports whether the cell is not opened and the tenant is not contract.CellTenant.
// The tenant is then the only one of the ledger, and its calls may govern the whole mesh,
// but cannot create or change tenants.
func (v *View) Alone() bool { return !v.cell.tenants.Opened() && v.tenant != contract.CellTenant }

// AddStanding adds the roles of the actor, and whether the actor or the principal
// it acts for is suspended.
func (v *View) AddStanding(f *guard.Facts) {
	p := &v.People.People
	f.Roles = v.People.Roles(f.Actor, f.Now)
	f.Suspended = p.Suspended(f.Actor) || f.OnBehalfOf != "" && p.Suspended(f.OnBehalfOf)
}

// Key returns the facts about the virtual key that the client presented, or nil
// if it presented none. model is the model that the call requests, or "".
func (v *View) Key(f *guard.Facts, model string) *guard.KeyFact {
	id, ok := strings.CutPrefix(f.Client, contract.KeyClient)
	if !ok {
		return nil
	}
	return v.People.Key(id, f.Actor, f.Kind, f.Now, model)
}

// AddSecrets adds the results of comparing the secrets that the tool of the call declares with
// the tenant's access list, if there is one. Actor, OnBehalfOf, Client, Kind, Tool and Now must
// be set already.
func (st *State) AddSecrets(f *guard.Facts) {
	var l *contract.SecretAccess
	st.Read(func(v *View) { l = v.People.Access.List() })
	if l == nil {
		return
	}
	t, _ := st.tools().Lookup(f.Kind)
	f.SecretAccess = guard.SecretFacts(l, f, t)
}

// Limits returns all limits in force: those of the ceilings, with guard.CeilingLimit
// added before their ids, those of policy.set_limits, and those of virtual keys. The
// caller owns the slice.
func (v *View) Limits() []guard.Limit {
	var out []guard.Limit
	if p0 := v.cell.base.Ceilings(); p0 != nil {
		for _, l := range p0.Limits {
			l.ID = guard.CeilingLimit + l.ID
			out = append(out, l)
		}
	}
	return append(append(out, v.People.Limits.List()...), v.People.Keys.Limits()...)
}

// Charged returns the result of Limits with the ids that the limits have in accounts.
// These ids differ from those of Limits if the tenant shares its budget ledger with
// other tenants.
func (v *View) Charged() []guard.Limit {
	out := v.Limits()
	if v.shares {
		for i := range out {
			out[i].ID = limit.Own(v.tenant, &out[i])
		}
	}
	return out
}

// Price returns the published price of a model, by the name that callers use for it. ok
// is false if the llm-router has published none; a published price may be Unpriced.
func (v *View) Price(model string) (p llmrouter.ModelPrice, ok bool) {
	i, ok := slices.BinarySearchFunc(v.cell.prices.Models, model, func(m llmrouter.ModelPrice, name string) int { return cmp.Compare(m.Model, name) })
	if ok {
		p = v.cell.prices.Models[i]
	}
	return p, ok
}

// Sends returns how often a request may be sent to each model that may answer it,
// according to the llm-router's published settings, or 0 if it has published none.
func (v *View) Sends() int64 { return v.cell.prices.Sends }

// Accepts returns the labels of data that a model may receive or, if the model itself is
// not listed, those that its provider may receive. The label "*" stands for every label;
// an empty slice means that the model may receive no labelled data. The caller must not
// change the slice.
func (v *View) Accepts(model string) []string {
	provider, _, _ := strings.Cut(model, "/")
	for _, name := range []string{model, provider + "/"} {
		i, ok := slices.BinarySearchFunc(v.cell.accepted.Models, name, func(m llmrouter.ModelAccepts, name string) int { return cmp.Compare(m.Model, name) })
		if ok {
			return v.cell.accepted.Models[i].Accepts
		}
	}
	return nil
}

// Names returns the names that exist for the tenant, for the consistency check: those in
// the catalog and those in governing events. For the cell's own tenant, whose documents
// are in force for every tenant, these are the governing events of all tenants. executors
// are the executors that exist even if they offer no tool. The caller must set the fields
// about the document to activate, Now, Tenant, Actor and Session.
func (st *State) Names(executors []string) *cpi.Known {
	k := &cpi.Known{Executors: slices.Clone(executors)}
	for _, t := range st.all.Catalog.Tools() {
		add(&k.Kinds, t.Kind)
		add(&k.Executors, t.Executor)
		for _, h := range guard.HostsOf(&t) {
			add(&k.Hosts, h)
		}
		for _, name := range guard.SecretsOf(&t) {
			add(&k.Secrets, name)
		}
	}
	st.all.mu.RLock()
	defer st.all.mu.RUnlock()
	if st.view.tenant == st.all.own() {
		for _, tenant := range slices.Sorted(maps.Keys(st.all.by)) {
			st.all.by[tenant].view.names(k)
		}
	}
	st.view.names(k)
	return k
}

// names adds the names in the governing events of the tenant.
func (v *View) names(k *cpi.Known) {
	for _, x := range v.People.Identities() {
		add(&k.Principals, x.Principal)
		add(&k.Principals, x.Delegate)
		if x.To == 0 {
			add(&k.Roles, x.Role)
		}
	}
	for _, x := range v.People.Keys.List() {
		add(&k.Keys, x.ID)
		add(&k.Principals, x.Actor)
	}
}

// add appends a name to a list unless it is empty or present.
func add(list *[]string, name string) {
	if name != "" && !slices.Contains(*list, name) {
		*list = append(*list, name)
	}
}
