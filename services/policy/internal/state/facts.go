package state

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
)

// AddFacts adds to the facts of a call the freeze; the roles, suspensions, break-glass
// grants, overdue reviews and delegation of the call's principals; and whether the
// ledger is truncated. Actor, OnBehalfOf, Kind, Delegation and Now must be set already;
// now is the same time as Now.
func (v *View) AddFacts(f *guard.Facts, now time.Time) {
	p := &v.People
	overdue := contract.Time(now.Add(-govern.ReviewWithin))
	f.Truncated, f.Frozen = v.truncated, p.Freeze.ID()
	v.AddStanding(f)
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
	// principal. A review that is overdue for either principal denies the call.
	_, due := p.Emergencies.Of(f.OnBehalfOf, f.Now, overdue)
	f.BreakGlass, f.ReviewDue = "", f.ReviewDue || due
}

// AddStanding adds the roles of the actor, and whether the actor or the principal
// it acts for is suspended.
func (v *View) AddStanding(f *guard.Facts) {
	p := &v.People.People
	f.Roles = p.Roles(f.Actor, f.Now)
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

// Limits returns all limits in force: those of the ceilings, those of
// policy.set_limits, and those of virtual keys. The caller owns the slice.
func (v *View) Limits() []guard.Limit {
	var out []guard.Limit
	if p0 := v.Stack.Ceilings(); p0 != nil {
		for _, l := range p0.Limits {
			l.ID = guard.CeilingLimit + l.ID
			out = append(out, l)
		}
	}
	return append(append(out, v.People.Limits.List()...), v.People.Keys.Limits()...)
}

// Price returns the published price of a model, by the name that callers use for it. ok
// is false if the llm-router has published none; a published price may be Unpriced.
func (v *View) Price(model string) (p llmrouter.ModelPrice, ok bool) {
	i, ok := slices.BinarySearchFunc(v.prices.Models, model, func(m llmrouter.ModelPrice, name string) int { return cmp.Compare(m.Model, name) })
	if ok {
		p = v.prices.Models[i]
	}
	return p, ok
}

// Sends returns how often a request may be sent to each model that may answer it,
// according to the llm-router's published settings, or 0 if it has published none.
func (v *View) Sends() int64 { return v.prices.Sends }

// Accepts returns the labels of data that a model may receive or, if the model has no
// entry of its own, those that its provider may receive. The label "*" stands for every
// label; nil means that the model may receive no labelled data. The caller must not
// change the slice.
func (v *View) Accepts(model string) []string {
	provider, _, _ := strings.Cut(model, "/")
	for _, name := range []string{model, provider + "/"} {
		i, ok := slices.BinarySearchFunc(v.accepted.Models, name, func(m llmrouter.ModelAccepts, name string) int { return cmp.Compare(m.Model, name) })
		if ok {
			return v.accepted.Models[i].Accepts
		}
	}
	return nil
}

// Names returns the names that exist in the mesh, for the consistency check: those in
// the catalog and those in governing events. executors are the executors that exist even
// if they offer no tool.
func (st *State) Names(executors []string) *cpi.Known {
	k := &cpi.Known{Executors: slices.Clone(executors)}
	for _, t := range st.Catalog.Tools() {
		add(&k.Kinds, t.Kind)
		add(&k.Executors, t.Executor)
		for _, h := range t.Egress {
			add(&k.Hosts, h)
		}
		for i := range t.Secrets {
			add(&k.Secrets, t.Secrets[i].Name)
		}
	}
	st.Read(func(v *View) {
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
	})
	return k
}

// add appends a name to a list unless it is empty or present.
func add(list *[]string, name string) {
	if name != "" && !slices.Contains(*list, name) {
		*list = append(*list, name)
	}
}
