// Package state holds the documents and facts with which calls are decided: tool
// documents, the policies in force, the results of governing calls, calls that wait for
// approval, prices, the labels of data that models may receive, and whether the ledger
// is complete. The service and replay compute the state with the same code, from ledger
// events and the policy documents that these refer to. Its dump is the view
// policy.state. The package does not read the clock or the ledger.
package state

import (
	"context"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// State holds the documents and facts with which the calls of one tenant are decided.
// Its methods may be called concurrently with States.Apply.
type State struct {
	all  *States
	view View
}

// View is the content of a state at one position of the ledger. It must not be
// used after Read returns.
type View struct {
	People govern.State

	tenant  string // id of the tenant
	shares  bool   // whether the tenant shares its budget ledger with other tenants
	cell    *cell
	created *contract.Event     // event that created the tenant; nil for the original tenant and the cell's own
	own     stack.Stack         // documents that the tenant's events put in force; has no ceilings
	inForce stack.Stack         // documents of the cell and of own; not used if own is empty, see stack
	waiting map[string]*Waiting // calls that wait for votes, by call id
}

// stack returns the documents in force for the tenant.
func (v *View) stack() *stack.Stack {
	if v.own.Empty() {
		return &v.cell.base
	}
	return &v.inForce
}

// Frozen returns the id of the freeze in force, or "".
func (v *View) Frozen() string { return v.cell.governing.Freeze.ID() }

// Read calls f with a view that does not change during the call. f must not
// block, since Apply waits for it.
func (st *State) Read(f func(*View)) {
	st.all.mu.RLock()
	defer st.all.mu.RUnlock()
	f(&st.view)
}

// Created returns the event that created the tenant, which also registers its first
// person, or nil if no event did. It is in the cell's own tenant. The caller must not
// change it.
func (st *State) Created() (e *contract.Event) {
	st.Read(func(v *View) { e = v.created })
	return e
}

// Stack returns the policy documents in force. The value does not change when other
// documents are activated.
func (st *State) Stack() (s stack.Stack) {
	st.Read(func(v *View) { s = *v.stack() })
	return s
}

// MayVote implements govern.View. It returns an error if the principal may not
// vote, as govern.State.MayVote does.
func (st *State) MayVote(principal string) (err error) {
	st.Read(func(v *View) { err = v.People.MayVote(principal) })
	return err
}

// EndedAt implements govern.View. It returns when all credentials of a principal were
// last revoked (contract.TimeFormat), or "" if they never were.
func (st *State) EndedAt(principal string) (at string) {
	st.Read(func(v *View) { at = v.People.EndedAt(principal) })
	return at
}

// Roles implements govern.View; see govern.State.Roles.
func (st *State) Roles(principal, now string) (roles []string) {
	st.Read(func(v *View) { roles = v.People.Roles(principal, now) })
	return roles
}

// Linked implements govern.View; see govern.State.Linked.
func (st *State) Linked(principal string) (identity string) {
	st.Read(func(v *View) { identity = v.People.Linked(principal) })
	return identity
}

// Revoked implements govern.View; see govern.Tokens.Revoked.
func (st *State) Revoked(token, principal, at string) (revoked bool) {
	st.Read(func(v *View) { revoked = v.People.Revoked(token, principal, at) })
	return revoked
}

// tools returns the tool documents by which calls of the tenant are decided.
func (st *State) tools() stack.Tools { return st.all.Catalog.In(st.view.tenant) }

// Evaluate evaluates a new call with the policy and tool documents in force.
func (st *State) Evaluate(ctx context.Context, c stack.Call) stack.Evaluation {
	s := st.Stack()
	b := s.Basis(st.tools(), &c.Facts)
	return stack.Evaluate(ctx, b, c)
}

// EvaluateBy evaluates a call with the stack s, which need not be in force, and
// with the tool documents in force.
func (st *State) EvaluateBy(ctx context.Context, s stack.Stack, c stack.Call) stack.Evaluation {
	b := s.Basis(st.tools(), &c.Facts)
	return stack.Evaluate(ctx, b, c)
}

// Recall returns the documents that the recorded decision d names, and its call without
// the args; e is the event that recorded d. Keep must be set. Recall fails with
// contract.ErrErased if the content of a policy is erased or encrypted, and with another
// error if a document is not known or the facts cannot be decoded. Later events do not
// change the results.
func (st *States) Recall(e *contract.Event, d *contract.Decision) (b stack.Basis, c stack.Call, err error) {
	c.ID = d.CallID
	if err := contract.Decode(d.Facts, &c.Facts); err != nil {
		return b, c, err
	}
	b, err = st.archive.Basis(e, d, &c.Facts)
	return b, c, err
}

// InForce is a policy document in force: its activation and its body.
type InForce struct {
	contract.Activated
	Body []byte `json:"body"`
}

// opens returns the tenant that stores the content of a document in force: that of the
// event that activated it.
func (st *State) opens(a *contract.Activated) (tenant string) {
	st.Read(func(v *View) {
		switch tenant = v.tenant; {
		case slices.Contains(v.cell.early, a):
			tenant = v.cell.tenants.Log()
		case slices.Contains(v.cell.base.InForce(), a):
			tenant = st.all.own()
		}
	})
	return tenant
}

// InForce returns the policy documents in force, in the order of stack.Stack.InForce.
// Body is nil if the content cannot be read, for example because it was erased.
func (st *State) InForce() []InForce {
	s := st.Stack()
	out := []InForce{}
	for _, a := range s.InForce() {
		x := InForce{Activated: *a}
		x.Body, _ = st.all.Open(st.opens(a), &a.Bundle)
		out = append(out, x)
	}
	return out
}

// dump appends the lines of the view in a fixed order.
func (v *View) dump(b []byte) []byte {
	for _, x := range v.own.InForce() {
		b = append(canon.Append(b, x), '\n')
	}
	b = append(b, v.People.Dump()...)
	ids := make([]string, 0, len(v.waiting))
	for id := range v.waiting {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		w := canon.Object(b)
		w.Str(contract.EventEscalated, id)
		w.Int("votes", int64(len(v.waiting[id].Votes)))
		b = append(w.End(), '\n')
	}
	return b
}
