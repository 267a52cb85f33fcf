package state

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// cellFolds maps the name of an event that belongs to the cell to the function that
// applies it. In another tenant than the cell's own such an event has no effect.
var cellFolds = map[string]func(*States, *contract.Event) error{
	contract.EventToolRegistered:  toolRegistered,
	contract.EventToolRetired:     toolChanged,
	contract.EventLedgerTruncated: ledgerTruncated,
	contract.EventLogEpochOpened:  logEpochOpened,
	events.MeshFrozenName:         frozen,
	events.MeshUnfrozenName:       frozen,
	llmrouter.PricesPublishedName: published(func(c *cell, d *llmrouter.PricesPublished) { c.prices = *d }),
	llmrouter.DataAcceptedName:    published(func(c *cell, d *llmrouter.DataAccepted) { c.accepted = *d }),
}

// tenantFolds maps the name of an event that belongs to one tenant to the function that
// applies it. In a tenant that does not exist such an event has no effect. The table of
// governing events, which belong to a tenant too unless cellFolds has them, is in package
// govern.
var tenantFolds = map[string]func(*States, *contract.Event) error{
	contract.EventToolApproved:     own(toolChanged),
	contract.EventPolicyActivated:  own(policyActivated),
	contract.EventEscalated:        own(escalated),
	contract.EventApprovalRecorded: own(approvalRecorded),
}

// tenantEvents are the names of the events about the cell and its tenants, which package
// trust applies.
var tenantEvents = map[string]bool{
	contract.EventKeyPublished: true, contract.EventCellOpened: true, contract.EventOperatorDelegated: true, contract.EventOperatorWithdrawn: true,
	contract.EventTenantCreated: true, contract.EventTenantQuotaSet: true, contract.EventTenantResumed: true, contract.EventTenantSuspended: true,
}

// Reads reports whether Apply processes events with this name. The filters of the live
// reader must select the same events.
func Reads(name string) bool {
	return tenantEvents[name] || cellFolds[name] != nil || tenantFolds[name] != nil || govern.Folds(name)
}

// Apply applies one event. It ignores an event whose name Reads does not select, and logs
// and ignores an event in a tenant to which it cannot belong. A malformed event of a
// service other than policy is ignored, except that a ledger_truncated event has its
// effect in any form. An error means that an event of policy or a policy document cannot
// be read or applied. The view must then not be used, because later decisions would rest
// on the wrong documents.
func (st *States) Apply(e *contract.Event) error {
	if tenantEvents[e.Name] {
		return st.tenantsChanged(e)
	}
	if f := cellFolds[e.Name]; f != nil {
		if e.Tenant != st.own() {
			return foreign(e)
		}
		return f(st, e)
	}
	if !Reads(e.Name) {
		return nil
	}
	if !st.exists(e.Tenant) {
		return foreign(e)
	}
	if f := tenantFolds[e.Name]; f != nil {
		return f(st, e)
	}
	return st.in(e.Tenant, func(v *View) error { return govern.Evolve(&v.People, e) })
}

// write calls f while no other method reads the view.
func (st *States) write(f func(*cell)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f(&st.cell)
}

// in calls f with the view of an existing tenant while no other method reads it, and
// returns its error.
func (st *States) in(tenant string, f func(*View) error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return f(&st.made(tenant).view)
}

// own returns a fold that applies events of policy only.
func own(f func(*States, *contract.Event) error) func(*States, *contract.Event) error {
	return func(st *States, e *contract.Event) error {
		if e.Service() != services.Policy {
			return nil
		}
		return f(st, e)
	}
}

// published returns a fold for documents of the llm-router. It ignores events of other
// services, and malformed ones, because an event that another service stored must not
// make policy exit.
func published[T any, P interface {
	*T
	canon.Document
}](set func(*cell, P)) func(*States, *contract.Event) error {
	return func(st *States, e *contract.Event) error {
		d := P(new(T))
		if e.Service() != services.LLMRouter {
			return nil
		}
		if err := contract.Decode(e.Data, d); err != nil {
			slog.Error("malformed document of the llm-router", "event", e.ID, "err", err)
			return nil
		}
		st.write(func(c *cell) { set(c, d) })
		return nil
	}
}

func toolChanged(st *States, e *contract.Event) error { return st.Catalog.Apply(st.own(), e) }

// toolRegistered adds a tool document to the catalog and, if Keep is set, to the archive.
func toolRegistered(st *States, e *contract.Event) error {
	if st.Keep {
		var t contract.Tool
		if err := contract.Decode(e.Data, &t); err != nil {
			return nil // the catalog ignores it too
		}
		st.archive.AddTool(&t)
	}
	return st.Catalog.Apply(st.own(), e)
}

// tenantsChanged applies an event about the cell or its tenants. It logs and ignores one
// that package trust rejects. When the cell is opened, the documents of the original
// tenant are divided; see stack.Stack.Split.
func (st *States) tenantsChanged(e *contract.Event) (err error) {
	was := st.cell.tenants.Opened()
	st.write(func(c *cell) { err = c.tenants.Apply(e, trust.KeyAt(st.Keys)) })
	if err != nil {
		slog.Warn("an event about the cell is ignored", "event", e.ID, "err", err)
		return nil
	}
	switch {
	case e.Name == contract.EventTenantCreated:
		return created(st, e)
	case was != st.cell.tenants.Opened():
		return divide(st, e)
	}
	return nil
}

// created records that the event e has created a tenant, and adds the tenant's first
// person.
func created(st *States, e *contract.Event) error {
	var t contract.TenantCreated
	if err := contract.Decode(e.Data, &t); err != nil {
		return err
	}
	return st.in(t.Tenant, func(v *View) error {
		v.created = e
		return govern.Evolve(&v.People, e)
	})
}

// divide divides the documents of the original tenant; see stack.Stack.Split. If that
// tenant has no events, there is nothing to divide. e is the event cell_opened, which is
// applied already.
func divide(st *States, e *contract.Event) error {
	original := st.by[st.cell.tenants.Original()]
	if original == nil {
		st.write(func(c *cell) { c.early = c.base.InForce() })
		return nil
	}
	base, own, err := original.view.own.Split(st.cell.base, func(a *contract.Activated) (any, error) {
		return st.document(&contract.Event{Tenant: e.Tenant, Lamport: e.Lamport}, a)
	})
	if err != nil {
		return err
	}
	st.write(func(c *cell) {
		c.base, c.early, original.view.own, original.view.inForce = base, base.InForce(), own, own.Over(base)
	})
	return nil
}

// frozen applies the beginning or the end of a freeze.
func frozen(st *States, e *contract.Event) (err error) {
	st.write(func(c *cell) { err = govern.Evolve(&c.governing, e) })
	return err
}

// policyActivated puts a document in force, or retires one. Ceilings belong to the cell,
// and so do bundles in contract.CellTenant. Other bundles and overlays belong to the tenant
// of the event.
func policyActivated(st *States, e *contract.Event) error {
	var a contract.Activated
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	if a.Layer == "p0" && e.Tenant != st.own() {
		return foreign(e)
	}
	doc, err := st.document(e, &a)
	if err != nil {
		return err
	}
	if err := st.activate(e.Tenant, &a, doc); err != nil {
		return err
	}
	if st.Keep && doc != nil {
		st.archive.Add(a.Layer, a.Digest, doc)
	}
	return nil
}

// activate adds an activation with its document to the documents of the cell or of a
// tenant, and computes the documents in force again.
func (st *States) activate(tenant string, a *contract.Activated, doc any) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if a.Layer == "p0" || a.Layer == "p1" && tenant == contract.CellTenant {
		next, err := st.cell.base.With(a, doc)
		if err != nil {
			return err
		}
		st.cell.base = next
		each(st, func(s *State) { s.view.inForce = st.cell.over(s.view.own) })
		return nil
	}
	v := &st.made(tenant).view
	next, err := v.own.With(a, doc)
	if err != nil {
		return err
	}
	v.own, v.inForce = next, st.cell.over(next)
	return nil
}

// document returns the compiled document of the activation a in e, or nil for a
// retirement. If Keep is set and the content is erased or encrypted, it returns a
// stack.Erased value; decisions that rest on that document cannot be taken again.
func (st *States) document(e *contract.Event, a *contract.Activated) (any, error) {
	if a.Retired {
		return nil, nil
	}
	body, err := st.Open(e.Tenant, &a.Bundle)
	switch gone := errors.Is(err, contract.ErrErased) || errors.Is(err, contract.ErrEncrypted); {
	case err == nil:
		return stack.Compile(a.Layer, body, e.Lamport, st.Keys)
	case st.Keep && gone:
		return stack.Erased{Layer: a.Layer}, nil
	}
	return nil, fmt.Errorf("policy %s cannot be read: %w", a.Digest, err)
}

// ledgerTruncated causes every call to be denied until logEpochOpened ends the denial.
// An event that audit did not produce, or that cannot be decoded, has the same effect,
// but its checkpoint counts as empty.
func ledgerTruncated(st *States, e *contract.Event) error {
	var l audit.LedgerTruncated
	if e.Service() != services.Audit || contract.Decode(e.Data, &l) != nil {
		l.Checkpoint = ""
	}
	st.write(func(c *cell) { c.truncated, c.lost = true, l.Checkpoint })
	return nil
}

// logEpochOpened ends the denial of every call if the event's document is signed by a
// root key and names the checkpoint of the last ledger_truncated event. It ignores any
// other event.
func logEpochOpened(st *States, e *contract.Event) error {
	l, err := trust.VerifyEpoch(e, st.Keys)
	st.write(func(c *cell) {
		if err == nil && l.Checkpoint == c.lost {
			c.truncated, c.lost = false, ""
		}
	})
	return nil
}

// escalated adds a call to the calls that wait for votes.
func escalated(st *States, e *contract.Event) error {
	w := &Waiting{Event: e}
	if err := contract.Decode(slices.Clone(e.Data), &w.Escalated); err != nil {
		return err
	}
	return st.in(e.Tenant, func(v *View) error {
		if v.waiting == nil {
			v.waiting = map[string]*Waiting{}
		}
		v.waiting[e.CallID] = w
		return nil
	})
}

// approvalRecorded adds a vote to a waiting call, or removes the call if the vote
// settles it. It also records the counter of the passkey that signed the vote.
func approvalRecorded(st *States, e *contract.Event) error {
	var a contract.Approval
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	count, err := passkey.Count(a.Passkey)
	if err != nil {
		return err
	}
	return st.in(e.Tenant, func(v *View) error {
		if a.Passkey != nil {
			v.People.Passkeys.Signed(a.Passkey.CredentialID, count)
		}
		w := v.waiting[e.CallID]
		switch {
		case w == nil:
		case a.Resolved != "":
			delete(v.waiting, e.CallID)
		default:
			w.Votes = append(w.Votes, a)
		}
		return nil
	})
}
