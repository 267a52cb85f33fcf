package trust

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Cell is the state of the mesh as a whole: the tenant of the mesh's own events, the
// tenants that exist, and the operators. Before the event cell_opened, the ledger has
// one tenant, to which the mesh's own events also belong; on a new ledger it is
// contract.CellTenant. The zero value is the state before the first event. A Cell may be
// read concurrently, but not while Apply runs. Its canonical bytes hold its whole state,
// so that contract.Decode restores it.
type Cell struct {
	first     string // tenant of the first root key's event and of cell_opened; empty = neither was applied
	opened    bool
	original  string
	tenants   []Tenant            // sorted by id
	operators []contract.Operator // newest document of each principal, sorted by principal
}

// Tenant is one tenant of a Cell.
type Tenant struct {
	ID        string
	Quota     contract.Quota
	Since     string // time of the event that created the tenant or, for the original one, opened the cell
	Suspended bool
}

// Canonical implements canon.Document.
func (t *Tenant) Canonical(c *canon.Codec) {
	c.Str("id", &t.ID)
	c.Doc("quota", &t.Quota)
	c.Str("since", &t.Since)
	c.OptBool("suspended", &t.Suspended)
}

// Canonical implements canon.Document.
func (c *Cell) Canonical(d *canon.Codec) {
	d.OptStr("first", &c.first)
	d.OptBool("opened", &c.opened)
	canon.List(d, "operators", &c.operators)
	d.OptStr("original", &c.original)
	canon.List(d, "tenants", &c.tenants)
}

// KeyAt returns a public key that was valid at a Lamport time, as Registry.At does.
type KeyAt func(kid, owner, use string, lamport uint64) ([]byte, error)

// cellEvents are the events that change a Cell, by service and name, except key_published.
var cellEvents = map[string]func(*Cell, *contract.Event, KeyAt) error{
	"provision." + contract.EventCellOpened:        (*Cell).open,
	"provision." + contract.EventOperatorDelegated: (*Cell).operator,
	"provision." + contract.EventOperatorWithdrawn: (*Cell).operator,
	"policy." + contract.EventTenantCreated:        (*Cell).create,
	"policy." + contract.EventTenantQuotaSet:       (*Cell).setQuota,
	"policy." + contract.EventTenantResumed:        (*Cell).setState,
	"policy." + contract.EventTenantSuspended:      (*Cell).setState,
}

// Apply applies the next event of the ledger, and ignores events that do not concern the
// Cell. A reader that needs no state before cell_opened may begin with that event. keyAt
// is Registry.At of a registry to which the ledger's earlier trust events were applied.
// Apply returns an error that names the event, and leaves the Cell unchanged, if the
// event is not valid: if its data are malformed; if it is not in the tenant of the
// mesh's own events; if it is a second cell_opened; if it is about an operator or a
// tenant and comes before cell_opened; if cell_opened or a document for an operator
// breaks a rule or is not signed by a root key; if a tenant is created that exists, that
// is in the organization of the original tenant, or whose id is not contract.TenantID of
// its names; or if the event is about a tenant that does not exist.
func (c *Cell) Apply(e *contract.Event, keyAt KeyAt) error {
	if e.Name == contract.EventKeyPublished && e.Service() == "provision" {
		if c.first == "" {
			c.first = e.Tenant
		}
		return nil
	}
	f := cellEvents[e.Service()+"."+e.Name]
	if f == nil {
		return nil
	}
	var err error
	switch {
	case c.first != "" && e.Tenant != c.Tenant():
		err = errors.New("is not in the cell's tenant")
	case c.opened == (e.Name == contract.EventCellOpened):
		err = errors.New("the cell is already opened, or not opened yet")
	default:
		err = f(c, e, keyAt)
	}
	if err != nil {
		return fmt.Errorf("cell: event %s: %w", e.ID, err)
	}
	return nil
}

// open applies cell_opened.
func (c *Cell) open(e *contract.Event, keyAt KeyAt) error {
	var o contract.CellOpened
	if err := contract.Decode(e.Data, &o); err != nil {
		return err
	}
	if err := opens(e, &o); err != nil {
		return err
	}
	body := o
	body.Sig = ""
	if err := byRoot(e, keyAt, sign.DomainCell, o.SignerKID, contract.Bytes(&body), o.Sig); err != nil {
		return err
	}
	c.first, c.opened, c.original = e.Tenant, true, o.Tenant
	if o.Tenant != "" {
		c.put(Tenant{ID: o.Tenant, Since: e.Time})
	}
	return nil
}

// opens checks the cell, the log and the original tenant that cell_opened names.
func opens(e *contract.Event, o *contract.CellOpened) error {
	reserved := contract.Reserved(o.Tenant)
	switch {
	case o.Cell != contract.CellTenant || o.Log != e.Tenant:
		return errors.New("opens another cell, or names another log")
	case e.Tenant != contract.CellTenant && (o.Tenant != e.Tenant || reserved):
		return errors.New("the original tenant is not the ledger's tenant, or its id is reserved")
	case o.Tenant != "" && (reserved || !contract.Token(o.Tenant)):
		return errors.New("the original tenant's id is reserved, or malformed")
	}
	return nil
}

// operator applies operator_delegated or operator_withdrawn.
func (c *Cell) operator(e *contract.Event, keyAt KeyAt) error {
	var o contract.Operator
	if err := contract.Decode(e.Data, &o); err != nil {
		return err
	}
	i, known := c.find(o.Principal)
	before := ""
	if known {
		before = c.operators[i].Issued
	}
	if err := delegates(e, &o, before); err != nil {
		return err
	}
	body := o
	body.Sig = ""
	if err := byRoot(e, keyAt, sign.DomainOperator, o.SignerKID, contract.Bytes(&body), o.Sig); err != nil {
		return err
	}
	if !known {
		c.operators = slices.Insert(c.operators, i, o)
	}
	c.operators[i] = o
	return nil
}

// delegates checks a document for an operator. before is the time of the document before
// it for the same principal, or "" if there is none.
func delegates(e *contract.Event, o *contract.Operator, before string) error {
	_, err := contract.ParseTime(o.Issued)
	if err == nil && o.NotAfter != "" {
		_, err = contract.ParseTime(o.NotAfter)
	}
	switch {
	case err != nil:
		return err
	case o.Withdrawn != (e.Name == contract.EventOperatorWithdrawn) || o.Principal == "":
		return errors.New("its document does not match its name, or names no principal")
	case o.Issued <= before: // equal forms, so the order of strings is that of times
		return errors.New("is not newer than the last document for the principal")
	}
	return nil
}

// find returns the index of the document for a principal, or the index at which to insert
// it.
func (c *Cell) find(principal string) (int, bool) {
	return slices.BinarySearchFunc(c.operators, principal, func(o contract.Operator, name string) int { return strings.Compare(o.Principal, name) })
}

// byRoot returns an error unless a key that was a root key at the event's Lamport time
// signed body.
func byRoot(e *contract.Event, keyAt KeyAt, domain, kid string, body []byte, sig string) error {
	public, err := keyAt(kid, "provision", contract.UseRoot, e.Lamport)
	if err != nil {
		return err
	}
	return sign.Verify(public, domain, body, sig)
}

// create applies tenant_created.
func (c *Cell) create(e *contract.Event, _ KeyAt) error {
	var t contract.TenantCreated
	if err := contract.Decode(e.Data, &t); err != nil {
		return err
	}
	id, err := contract.TenantID(t.Organization, t.Project, t.Environment)
	if err != nil {
		return err
	}
	original, _ := contract.TenantParts(c.original)
	switch {
	case id != t.Tenant:
		return fmt.Errorf("tenant %s is not the id of its organization, project and environment", t.Tenant)
	case t.Organization == original:
		return fmt.Errorf("organization %s is that of the original tenant", t.Organization)
	case c.at(id) >= 0:
		return fmt.Errorf("tenant %s exists", id)
	}
	made := Tenant{ID: id, Since: e.Time}
	if t.Quota != nil {
		made.Quota = *t.Quota
	}
	c.put(made)
	return nil
}

// setState applies tenant_suspended or tenant_resumed.
func (c *Cell) setState(e *contract.Event, _ KeyAt) error {
	var s contract.TenantState
	if err := contract.Decode(e.Data, &s); err != nil {
		return err
	}
	return c.change(s.Tenant, func(t *Tenant) { t.Suspended = e.Name == contract.EventTenantSuspended })
}

// setQuota applies tenant_quota_set.
func (c *Cell) setQuota(e *contract.Event, _ KeyAt) error {
	var q contract.TenantQuotaSet
	if err := contract.Decode(e.Data, &q); err != nil {
		return err
	}
	return c.change(q.Tenant, func(t *Tenant) { t.Quota = q.Quota })
}

// change calls f with the tenant, or returns an error if it does not exist.
func (c *Cell) change(id string, f func(*Tenant)) error {
	i := c.at(id)
	if i < 0 {
		return fmt.Errorf("tenant %s does not exist", id)
	}
	f(&c.tenants[i])
	return nil
}

// put inserts a tenant that does not exist.
func (c *Cell) put(t Tenant) {
	i, _ := slices.BinarySearchFunc(c.tenants, t, func(a, b Tenant) int { return cmp.Compare(a.ID, b.ID) })
	c.tenants = slices.Insert(c.tenants, i, t)
}

// at returns the index of a tenant in tenants, or -1.
func (c *Cell) at(id string) int {
	i, ok := slices.BinarySearchFunc(c.tenants, id, func(t Tenant, id string) int { return strings.Compare(t.ID, id) })
	if !ok {
		return -1
	}
	return i
}

// Opened reports whether cell_opened was applied.
func (c *Cell) Opened() bool { return c.opened }

// Tenant returns the tenant of the mesh's own events: contract.CellTenant once the cell is
// opened, before that the tenant of the first root key's event, and "" before that event.
func (c *Cell) Tenant() string {
	if c.opened {
		return contract.CellTenant
	}
	return c.first
}

// Original returns the id of the one tenant that no call created: before the cell is
// opened, the ledger's only tenant. It returns "" if there is none.
func (c *Cell) Original() string {
	if c.opened || c.first == contract.CellTenant {
		return c.original
	}
	return c.first
}

// Log returns the last part of the origin of the ledger's log, before "/epoch-n", or ""
// if neither the event of the first root key nor cell_opened was applied.
func (c *Cell) Log() string { return c.first }

// Of returns the tenant with this id, and reports whether it exists. Before the cell is
// opened, only the original tenant exists. CellTenant does not exist as a tenant. Of
// does not allocate.
func (c *Cell) Of(id string) (Tenant, bool) {
	if !c.opened {
		return Tenant{ID: id}, id != "" && id == c.Original()
	}
	if i := c.at(id); i >= 0 {
		return c.tenants[i], true
	}
	return Tenant{}, false
}

// Tenants returns every tenant, sorted by id, in a slice that the caller owns. Before the
// cell is opened, it returns none.
func (c *Cell) Tenants() []Tenant { return slices.Clone(c.tenants) }

// Operator reports whether the principal of CellTenant is an operator at now, a time in
// contract.TimeFormat: the newest document for the principal is a delegation that has no
// end or ends at now or later. Operator does not compare now with the time of issue, which
// only orders the documents for a principal and may be ahead of the reader's clock: a
// document, above all a withdrawal, is in force as soon as it is on the ledger.
func (c *Cell) Operator(principal, now string) bool {
	i, ok := c.find(principal)
	if !ok || c.operators[i].Withdrawn {
		return false
	}
	end := c.operators[i].NotAfter
	return end == "" || now <= end // equal forms, so the order of strings is that of times
}

// Operators returns the newest document of each principal, sorted by principal, withdrawn
// ones included, in a slice that the caller owns.
func (c *Cell) Operators() []contract.Operator { return slices.Clone(c.operators) }
