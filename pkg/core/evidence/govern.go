package evidence

import (
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// causes maps the name of each event by which policy changes the mesh as a whole, once the
// cell is opened, to the kind of the call that causes it. It omits policy_activated, which
// a call of any kind may cause (see changed and caused).
var causes = map[string]string{
	contract.EventTenantCreated:   "tenant.create",
	contract.EventTenantQuotaSet:  "tenant.set_quota",
	contract.EventTenantResumed:   "tenant.resume",
	contract.EventTenantSuspended: "tenant.suspend",
	contract.EventMeshFrozen:      "policy.freeze",
	contract.EventMeshUnfrozen:    guard.KindUnfreeze,
}

// governing holds the delegations of operators and the changes of the mesh as a whole that the
// first pass reads. It is empty for an export of another tenant than the cell's, which shows
// neither operators nor the calls of the cell.
type governing struct {
	delegated map[string][]delegation // by principal, in the order of the ledger
	changes   []change
	wanted    map[string]bool // ids of the claims that the changes name as their causes
}

// delegation is a document, at index n of the ledger, that makes a principal an operator
// until notAfter; "" means without end.
type delegation struct {
	n        uint64
	notAfter string
}

// change is an event at index n of the ledger that changes the mesh as a whole.
type change struct {
	n               uint64
	id, name, cause string
}

// claim is an event effect_started at index n of the ledger, with the tenant
// and the kind of its call.
type claim struct {
	n            uint64
	tenant, kind string
}

// whole reports whether the ledger or export contains every event of the cell.
func (l *authentic) whole() bool { return !l.export || l.tenant == contract.CellTenant }

// delegate records the document in operator_delegated, at index n.
func (l *authentic) delegate(n uint64, e *contract.Event) error {
	var o contract.Operator
	if err := contract.Decode(e.Data, &o); err != nil {
		return err
	}
	if l.delegated == nil {
		l.delegated = map[string][]delegation{}
	}
	l.delegated[o.Principal] = append(l.delegated[o.Principal], delegation{n, o.NotAfter})
	return nil
}

// changed records the event at index n if, after the opening of the cell, policy changes
// the mesh as a whole with it. The activation of a policy counts if it has a cause;
// without one, the policy is from the configuration. For an export that is not whole,
// changed records no event.
func (l *authentic) changed(n uint64, e *contract.Event) {
	if !l.whole() || !l.cell.Opened() || e.Tenant != contract.CellTenant || e.Service() != "policy" {
		return
	}
	if causes[e.Name] == "" && (e.Name != contract.EventPolicyActivated || e.Cause == "") {
		return
	}
	if l.wanted == nil {
		l.wanted = map[string]bool{}
	}
	l.changes = append(l.changes, change{n, e.ID, e.Name, e.Cause})
	l.wanted[e.Cause] = true
}

// opened reports whether index n is after the opening of the cell.
func (l *authentic) opened(n uint64) bool { return l.cell.Opened() && n > l.openedAt }

// outside reports whether the decision at index n was made after the opening of the cell
// and allows, in a tenant other than the cell's, a call that governs the whole mesh. An
// instance of policy that had not read cell_opened may have recorded such a decision. The
// call must have no effect.
func (l *authentic) outside(n uint64, d *contract.Decision) bool {
	return l.opened(n) && d.Tenant != contract.CellTenant && guard.GovernsCell(d.Kind)
}

// permits checks the event at index n, with data d, against the rules about who governs
// the mesh; c is the state of the event's call, or nil. It returns an error in two cases:
// the event records the success of a call for which outside is true; or, after the opening
// of the cell, the event allows a call of the cell's tenant, and no document before it
// makes the actor an operator at the time of the decision. Withdrawals are not taken into
// account, because policy may not have read them when it decided.
func (l *authentic) permits(n uint64, d *data, c *callState) error {
	switch {
	case d.recorded != nil && c != nil && c.outside && d.recorded.Effect.Status == contract.Succeeded:
		return fmt.Errorf("allows %s in tenant %s, which only the cell may, and it succeeded", c.decision.Kind, c.decision.Tenant)
	case d.allowed != nil && d.allowed.Decision.Tenant == contract.CellTenant && l.opened(n):
		return l.operated(n, &d.allowed.Decision)
	}
	return nil
}

// operated returns an error unless a document before index n makes the actor of the
// decision an operator at the decision's time.
func (l *authentic) operated(n uint64, d *contract.Decision) error {
	if slices.ContainsFunc(l.delegated[d.Actor], func(x delegation) bool {
		return x.n < n && (x.notAfter == "" || d.Time <= x.notAfter) // equal forms, so the order of strings is that of times
	}) {
		return nil
	}
	return fmt.Errorf("allows a call of the cell by %s, who was not an operator at that time", d.Actor)
}

// note is called after the event at index n was applied to its call. It
// records the result of outside for an ALLOW, and the claim of a call that a
// change names as its cause.
func (w *walk) note(n uint64, e *contract.Event, d *data, s *course) {
	switch c := s.calls[e.CallID]; {
	case d.allowed != nil:
		c.outside = w.l.outside(n, c.decision)
	case d.started != nil && e.Name == contract.EventEffectStarted && w.l.wanted[e.ID]:
		w.claims[e.ID] = claim{n, e.Tenant, c.call.Kind}
	}
}

// caused returns an error unless each change of the mesh as a whole was caused by an
// earlier claim of a call of the cell. The kind of the call must be the one in causes;
// a call of any kind may cause the activation of a policy. All events must have been
// added, without an error.
func (w *walk) caused() error {
	for _, g := range w.l.changes {
		c, ok := w.claims[g.cause]
		kind := causes[g.name]
		if !ok || c.n > g.n || c.tenant != contract.CellTenant || kind != "" && c.kind != kind {
			return fmt.Errorf("line %d: event %s (%s): no call of the cell caused it", g.n+1, g.id, g.name)
		}
	}
	return nil
}
