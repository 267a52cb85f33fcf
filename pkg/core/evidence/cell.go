package evidence

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// cellMakers maps the name of each event about the mesh as a whole to the service that
// produces the event.
var cellMakers = map[string]string{
	contract.EventCellOpened: "provision", contract.EventOperatorDelegated: "provision", contract.EventOperatorWithdrawn: "provision",
	contract.EventTenantCreated: "policy", contract.EventTenantQuotaSet: "policy", contract.EventTenantResumed: "policy", contract.EventTenantSuspended: "policy",
}

// applyCell applies an event of cellMakers. In a pack, cell_opened alone is allowed: the
// other events name tenants and people that do not concern the pack's reader. For exports,
// admits has checked which of them concern the tenant.
func (s *system) applyCell(e *contract.Event) error {
	if e.Service() != cellMakers[e.Name] {
		return fmt.Errorf("event %s: %s is not a system event", e.ID, e.Type())
	}
	if s.tenant != "" && !s.export && e.Name != contract.EventCellOpened {
		return fmt.Errorf("event %s: a pack has no %s", e.ID, e.Name)
	}
	return s.cell.Apply(e, s.reg.At)
}

// own checks the tenant of an event that publishes or revokes a key of owner, or that
// opens a log epoch. The key of an approver or of a signer of bundles may be in any
// tenant of a ledger, but in a pack only in the pack's tenant (see ofPack). Every other
// event must be in the tenant of the mesh's own events, once that tenant is known.
func (s *system) own(e *contract.Event, owner string) error {
	if personal(owner) {
		return s.ofPack(e)
	}
	if t := s.cell.Tenant(); t != "" && e.Tenant != t {
		return fmt.Errorf("event %s: is not in the cell's tenant %s", e.ID, t)
	}
	return nil
}

// personal reports whether a key of owner is valid for one tenant only: the key of an
// approver or of a bundle's signer.
func personal(owner string) bool {
	return strings.HasPrefix(owner, contract.OwnerApprover) || strings.HasPrefix(owner, contract.OwnerBundle)
}

// ofPack returns an error if the event is not in the tenant of the pack or export and
// the cell is open. While the cell is not open, it records the first such error for end,
// because until the opening all events may be in the ledger's one tenant.
func (s *system) ofPack(e *contract.Event) error {
	if s.tenant == "" || e.Tenant == s.tenant {
		return nil
	}
	err := fmt.Errorf("event %s: belongs to tenant %s; this pack is of %s and the cell", e.ID, e.Tenant, s.tenant)
	if s.cell.Opened() {
		return err
	}
	if s.foreign == nil {
		s.foreign = err
	}
	return nil
}

// end returns the error that ofPack recorded, if the cell was opened afterwards.
func (s *system) end() error {
	if s.cell.Opened() {
		return s.foreign
	}
	return nil
}

// activate records the digest of a policy that was activated, for the tenants whose
// decisions may name it. Before the cell is opened, these are the ledger's one tenant
// and, for ceilings and the bundles of the configuration, every later tenant. Ceilings
// that a tenant other than the cell's activates after the opening are in force for no
// tenant: an instance of policy that had not read cell_opened may have recorded their
// activation. The error is that of ofPack.
func (s *system) activate(e *contract.Event, a *contract.Activated) error {
	key := a.Layer + a.Digest
	if !s.cell.Opened() {
		s.policies[policyOf{"", key}] = true
		if ofEveryTenant(e, a) || e.Tenant == contract.CellTenant {
			s.policies[policyOf{contract.CellTenant, key}] = true
			return nil
		}
		return s.ofPack(e)
	}
	if e.Tenant == contract.CellTenant {
		s.policies[policyOf{contract.CellTenant, key}] = true
		return nil
	}
	if a.Layer != "p0" {
		s.policies[policyOf{s.holder(e.Tenant), key}] = true
	}
	return s.ofPack(e)
}

// ofEveryTenant reports whether a policy that was activated in the tenant of the mesh's own
// events is in force for every tenant: P0 ceilings, and P1 bundles of contract.CellTenant or of
// the configuration. Events of version 1 have no source: at that time, policies were activated
// from the configuration only.
func ofEveryTenant(e *contract.Event, a *contract.Activated) bool {
	return a.Layer == "p0" || a.Layer == "p1" && (a.Source == "config" || e.Version == 1 || e.Tenant == contract.CellTenant)
}

// policyOf identifies an activated policy: policy is its layer followed by its digest, and
// tenant is the tenant for which it was activated. tenant is "" for the original tenant and,
// until the cell is opened, for every tenant. Ceilings and bundles of contract.CellTenant apply
// to every tenant; see activated.
type policyOf struct{ tenant, policy string }

// holder returns the tenant in policyOf for the policies of a tenant. In a ledger, a
// tenant that does not exist, whose calls can only be denied, has the policies of the
// original tenant.
func (s *system) holder(tenant string) string {
	if !s.cell.Opened() || tenant == s.cell.Original() {
		return ""
	}
	if _, ok := s.cell.Of(tenant); ok || tenant == contract.CellTenant || s.tenant != "" {
		return tenant
	}
	return ""
}

// activated reports whether every policy that the decision names was activated: the P0
// ceilings by the cell, the P1 bundles by the cell or the decision's tenant, the P2
// overlays by that tenant. The P0 and P1 policies of a denial are not checked, because
// their absence is itself a reason to deny; its overlays may also be those of the
// original tenant.
func (s *system) activated(d *contract.Decision) bool {
	t := s.holder(d.Tenant)
	denied := d.Verdict == contract.Deny
	if d.Policies.P2 != "" && !s.known("p2", d.Policies.P2, t) && !(denied && s.known("p2", d.Policies.P2, "")) {
		return false
	}
	return denied || s.known("p0", d.Policies.P0, contract.CellTenant) && s.known("p1", d.Policies.P1, contract.CellTenant, t)
}

// known reports whether every policy in a "+"-separated list of digests was activated
// for the layer, by one of the tenants.
func (s *system) known(layer, digests string, tenants ...string) bool {
	for digest := range strings.SplitSeq(digests, "+") {
		found := false
		for _, t := range tenants {
			found = found || s.policies[policyOf{t, layer + digest}]
		}
		if !found {
			return false
		}
	}
	return true
}

// checkOrigin checks the origin of the log's checkpoint. Once the cell is
// opened, the origin must name the trusted root and the log that cell_opened
// names. Before, any origin is accepted.
func (s *system) checkOrigin(origin string) error {
	if !s.cell.Opened() {
		return nil
	}
	want := "binnacle/" + s.reg.Root + "/" + s.cell.Log()
	rest, ok := strings.CutPrefix(origin, want)
	if epoch, more := strings.CutPrefix(rest, "/epoch-"); more {
		n, err := strconv.ParseInt(epoch, 10, 64)
		ok = ok && err == nil && n > 1 && strconv.FormatInt(n, 10) == epoch
	} else if rest != "" {
		ok = false
	}
	if !ok {
		return fmt.Errorf("the checkpoint is of %s, the ledger's log is %s", origin, want)
	}
	return nil
}

// checkPackTenant returns an error for the tenant of an organization's budget ledger,
// which has no sessions and therefore no packs.
func checkPackTenant(tenant string) error {
	if strings.HasPrefix(tenant, contract.BudgetPrefix) {
		return errors.New("a pack of a budget ledger's tenant")
	}
	return nil
}

// budgetEvents are the names of the events that the tenant of a budget ledger may have.
var budgetEvents = map[string]bool{contract.EventAllotmentClosed: true, contract.EventAllotmentRecalled: true, contract.EventAllotmentReturned: true,
	contract.EventAllotmentTaken: true, contract.EventBudgetChanged: true, contract.EventLimitsSet: true}

// exists returns an error if, once the cell is opened, the tenant of an event of the
// ledger does not exist, or is the tenant of a budget ledger and the event is not one of
// policy about budgets or limits.
func (l *authentic) exists(e *contract.Event) error {
	if !l.cell.Opened() || e.Tenant == contract.CellTenant {
		return nil
	}
	if l.organizations[e.Tenant] {
		if e.Service() != "policy" || e.Session != "" || !budgetEvents[e.Name] {
			return fmt.Errorf("event %s: tenant %s is for a budget ledger only", e.ID, e.Tenant)
		}
		return nil
	}
	if _, ok := l.cell.Of(e.Tenant); !ok {
		return fmt.Errorf("event %s: tenant %s does not exist", e.ID, e.Tenant)
	}
	return nil
}

// readCell applies an event about the mesh as a whole, at index n of the ledger.
func (l *authentic) readCell(n uint64, e *contract.Event) error {
	if err := l.applyCell(e); err != nil {
		return err
	}
	switch e.Name {
	case contract.EventCellOpened:
		l.openedAt = n
	case contract.EventOperatorDelegated:
		return l.delegate(n, e)
	case contract.EventTenantCreated:
		var t contract.TenantCreated
		if err := contract.Decode(e.Data, &t); err != nil {
			return err
		}
		l.organizations[contract.BudgetTenant(t.Tenant)] = true
	}
	return nil
}
