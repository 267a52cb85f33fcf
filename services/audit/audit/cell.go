package audit

import (
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Until cell_opened, the mesh's own events are in the tenant of the first key that provision
// published; after it, they are in contract.CellTenant. Before cell_opened, the view rejects no
// event because of its tenant, except cell_opened itself. Like the rest of the view, the code in
// this file verifies no signatures; verifiers of evidence packs do.

// bKnown is empty until cell_opened.
var bKnown = []byte("known") // tenant in which events may be -> sequence of the event that made it known

// Keys in bMeta. Each is missing until the view has applied the event that sets it.
const (
	kMesh   = "mesh"   // number of the tenant of the first key that provision published
	kOpened = "opened" // sequence of cell_opened
)

// systemEvent is the view's record of a trust or policy event.
type systemEvent struct {
	Mesh bool   // the packs of every tenant contain the event if it is in the mesh's own tenant; see ofMesh
	Name string // event name
}

// Canonical implements canon.Document.
func (e *systemEvent) Canonical(c *canon.Codec) {
	c.Str("event", &e.Name)
	c.OptBool("mesh", &e.Mesh)
}

// ofMesh returns the value of systemEvent.Mesh for an event. It is true for cell_opened,
// for the activation of the policy of layer p0, for that of a policy of layer p1 from
// the configuration or in contract.CellTenant, and for the events of all keys except
// those of approvers and bundles. Events of version 1 have no source: at that time,
// policies were activated from the configuration only.
func ofMesh(e *contract.Event) bool {
	switch e.Name {
	case contract.EventCellOpened:
		return true
	case contract.EventPasskeyRegistered:
		return false
	case contract.EventPolicyActivated:
		var a contract.Activated
		return contract.Decode(e.Data, &a) == nil && (a.Layer == "p0" || a.Layer == "p1" && (a.Source == "config" || e.Version == 1 || e.Tenant == contract.CellTenant))
	}
	var k contract.TrustKey
	return contract.Decode(e.Data, &k) == nil && !strings.HasPrefix(k.Owner, "approver:") && !strings.HasPrefix(k.Owner, "bundle:")
}

// system records a trust or policy event, and the state that the view derives from the
// first key and from cell_opened.
func (w *writer) system(e *contract.Event, where place) error {
	if e.Name == contract.EventKeyPublished && e.Service() == services.Provision && getUint(w.tx, kMesh) == 0 {
		if err := putUint(w.tx, kMesh, uint64(where.tenant)); err != nil {
			return err
		}
	}
	if e.Name == contract.EventCellOpened {
		if err := w.open(e, where.seq); err != nil {
			return err
		}
	}
	doc := systemEvent{Name: e.Name, Mesh: ofMesh(e)}
	return w.tx.Bucket(bSystem).Put(where.key(), canon.Append(nil, &doc))
}

// open records that the ledger may have several tenants from cell_opened on.
func (w *writer) open(e *contract.Event, seq uint64) error {
	var o contract.CellOpened
	if err := contract.Decode(e.Data, &o); err != nil {
		return err
	}
	w.opened = seq
	if err := w.know(seq, contract.CellTenant, o.Tenant); err != nil {
		return err
	}
	return putUint(w.tx, kOpened, seq)
}

// know adds tenants to bKnown. It ignores an empty name.
func (w *writer) know(seq uint64, tenants ...string) error {
	for _, t := range tenants {
		if t == "" {
			continue
		}
		if err := w.tx.Bucket(bKnown).Put([]byte(t), key(seq)); err != nil {
			return err
		}
	}
	return nil
}

// created adds to bKnown the tenant that an event tenant_created names, and the tenant
// in which its budget is stored. wrongCreation must have accepted the event. Before
// cell_opened, created does nothing.
func (w *writer) created(e *contract.Event, seq uint64) error {
	if w.opened == 0 {
		return nil
	}
	var t contract.TenantCreated
	if err := contract.Decode(e.Data, &t); err != nil {
		return err
	}
	return w.know(seq, t.Tenant, contract.BudgetTenant(t.Tenant))
}

// wrongCreation returns the reason why e does not create a tenant, or "" if it does.
func (w *writer) wrongCreation(e *contract.Event) string {
	var t contract.TenantCreated
	if err := contract.Decode(e.Data, &t); err != nil {
		return err.Error()
	}
	id, err := contract.TenantID(t.Organization, t.Project, t.Environment)
	switch {
	case err != nil:
		return err.Error()
	case id != t.Tenant:
		return "tenant_created names tenant " + t.Tenant + ", want " + id
	case w.tx.Bucket(bKnown).Get([]byte(id)) != nil:
		return "tenant " + id + " is created for the second time"
	}
	return ""
}

// cellEvents maps the names of events that must be in the mesh's own tenant to the service that may
// record each of them. See meshOnly for trust and policy events.
var cellEvents = map[string]string{
	contract.EventOperatorDelegated: "provision",
	contract.EventOperatorWithdrawn: "provision",
	contract.EventLogEpochOpened:    "provision",
	contract.EventTenantCreated:     "policy",
	contract.EventTenantQuotaSet:    "policy",
	contract.EventTenantResumed:     "policy",
	contract.EventTenantSuspended:   "policy",
}

// meshOnly reports whether e is a trust or policy event that must be in the mesh's own
// tenant.
func meshOnly(e *contract.Event) bool {
	switch e.Name {
	case contract.EventKeyPublished, contract.EventKeyRevoked:
		return ofMesh(e)
	case contract.EventPolicyActivated:
		var a contract.Activated
		return contract.Decode(e.Data, &a) == nil && a.Layer == "p0"
	}
	return false
}

// inWrongTenant returns the reason why e must not be in its tenant, or must not be
// recorded by its service, or "".
func (w *writer) inWrongTenant(e *contract.Event) string {
	if e.Name == contract.EventCellOpened {
		return w.wrongOpening(e)
	}
	if w.opened == 0 {
		return ""
	}
	if w.tx.Bucket(bKnown).Get([]byte(e.Tenant)) == nil {
		return "tenant " + e.Tenant + " does not exist"
	}
	by, cell := cellEvents[e.Name]
	switch {
	case cell && e.Service() != by:
		return e.Name + " by " + e.Service() + ", want " + by
	case e.Tenant == contract.CellTenant && e.Name == contract.EventTenantCreated:
		return w.wrongCreation(e)
	case e.Tenant == contract.CellTenant:
		return ""
	case cell || meshOnly(e):
		return e.Name + " in tenant " + e.Tenant + ", want " + contract.CellTenant
	case contract.Reserved(e.Tenant) && (e.Service() != services.Policy || !budgetEvents[e.Name]):
		return e.Name + " by " + e.Service() + " in tenant " + e.Tenant + ", which has only budgets"
	}
	return ""
}

// budgetEvents are the names of the events that the tenant of a budget ledger may have.
var budgetEvents = map[string]bool{policy.AllotmentClosedName: true, policy.AllotmentRecalledName: true, policy.AllotmentReturnedName: true,
	policy.AllotmentTakenName: true, policy.BudgetChangedName: true, policy.LimitsSetName: true}

// wrongOpening returns the reason why e is not the cell_opened of the ledger, or "".
func (w *writer) wrongOpening(e *contract.Event) string {
	var o contract.CellOpened
	switch err := contract.Decode(e.Data, &o); {
	case err != nil:
		return err.Error()
	case w.opened != 0:
		return "cell_opened for the second time"
	case e.Service() != services.Provision:
		return e.Name + " by " + e.Service() + ", want provision"
	case getUint(w.tx, kMesh) != uint64(numberIn(w.tx, e.Tenant)):
		return "cell_opened in tenant " + e.Tenant + ", which is not the mesh's"
	case o.Cell != contract.CellTenant || o.Log != e.Tenant || e.Tenant != contract.CellTenant && o.Tenant != e.Tenant || contract.Reserved(o.Tenant):
		return "cell_opened names cell " + o.Cell + ", log " + o.Log + " and tenant " + o.Tenant
	}
	return ""
}

// SystemSeqs returns the sequences of the trust and policy events, up to sequence size,
// that the packs of a tenant contain, ascending: all of the tenant's own, and the mesh's
// own for which systemEvent.Mesh is true.
func (v *View) SystemSeqs(tenant string, size uint64) (out []uint64, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		own, opened := numberIn(tx, tenant), getUint(tx, kOpened)
		original, cell := uint32(getUint(tx, kMesh)), numberIn(tx, contract.CellTenant)
		from := []uint32{own, original, cell}
		slices.Sort(from)
		var err error
		for _, n := range slices.Compact(from) {
			ofTenant(tx.Bucket(bSystem), n, func(seq uint64, value []byte) bool {
				var e systemEvent
				if seq > size {
					return false
				}
				if err = canon.Read(value, &e); err != nil {
					return false
				}
				if n == own || e.Mesh && (n == cell || opened == 0 || seq <= opened) {
					out = append(out, seq)
				}
				return true
			})
		}
		slices.Sort(out)
		return err
	})
	return out, err
}

// meshTenant returns the tenant of the mesh's own events, or "" if the view has no key that
// provision published.
func meshTenant(v *View) (tenant string, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		if getUint(tx, kOpened) > 0 {
			tenant = contract.CellTenant
		} else {
			tenant = namesIn(tx)[uint32(getUint(tx, kMesh))]
		}
		return nil
	})
	return tenant, err
}
