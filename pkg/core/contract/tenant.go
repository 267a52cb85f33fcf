package contract

import (
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// CellTenant is the tenant of the mesh's own events: keys of services, P0 ceilings, tools
// and the list of tenants. A ledger of release 0.5 or older keeps them in its only tenant,
// up to its event cell_opened.
const CellTenant = "_cell"

// BudgetPrefix begins the id of the tenant in which the budget ledger of an organization
// is kept; the organization follows. Such a tenant has no sessions.
const BudgetPrefix = "_org-"

// maxPart is the greatest length in bytes of an organization's, project's or
// environment's name.
const maxPart = 32

// Reserved reports whether id is reserved for the mesh, so that no tenant may be created
// with it: ids that begin with "_", such as CellTenant.
func Reserved(id string) bool { return strings.HasPrefix(id, "_") }

// TenantID returns the id of the tenant for an environment: the three names, joined by
// "_". It returns an error that names the first of them that is not 1 to 32 bytes of
// [a-z0-9-] with a letter or digit at both ends. Different arguments have different ids.
func TenantID(organization, project, environment string) (string, error) {
	for _, p := range [...]struct{ what, name string }{{"organization", organization}, {"project", project}, {"environment", environment}} {
		if !tenantPart(p.name) {
			return "", fmt.Errorf("%s %q: want 1 to %d of [a-z0-9-], with a letter or digit at both ends", p.what, p.name, maxPart)
		}
	}
	return organization + "_" + project + "_" + environment, nil
}

// tenantPart reports whether s can be one of the three names in a tenant's id.
func tenantPart(s string) bool {
	return s != "" && len(s) <= maxPart && s[0] != '-' && s[len(s)-1] != '-' &&
		!strings.ContainsFunc(s, func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') })
}

// TenantKey returns the key of the aggregate, in CellTenant, of the events that create and
// change the tenant with this id.
func TenantKey(id string) string { return "tenant-" + id }

// TenantParts returns the ids of the organization and the project that the tenant belongs
// to: the first part of the tenant's id, and the first two, joined by "_". An id with one
// part is its own organization and project; one with two is its own project. CellTenant
// belongs to none, and both results are empty.
func TenantParts(id string) (organization, project string) {
	if id == CellTenant {
		return "", ""
	}
	organization, rest, more := strings.Cut(id, "_")
	if !more {
		return id, id
	}
	project, _, _ = strings.Cut(rest, "_")
	return organization, organization + "_" + project
}

// BudgetTenant returns the tenant in which the budget ledger for calls of a tenant is
// kept: BudgetPrefix and the organization if id has the form of TenantID, otherwise id
// itself. It does not apply to the original tenant, whose budget ledger is kept in that
// tenant, whatever its id.
func BudgetTenant(id string) string {
	parts := strings.Split(id, "_")
	if len(parts) != 3 {
		return id
	}
	if _, err := TenantID(parts[0], parts[1], parts[2]); err != nil {
		return id
	}
	return BudgetPrefix + parts[0]
}

// CellOpened is the data of provision.cell_opened. From this event on, the ledger may have
// several tenants, and the mesh's own events are in Cell. It is stored in the tenant that held
// the mesh's own events until then, which is Cell itself if the ledger is new. A root key signs
// it.
type CellOpened struct {
	Cell      string `json:"cell"` // CellTenant
	Log       string `json:"log"`  // last part of the origin of the ledger's log, before "/epoch-n"
	Sig       string `json:"sig,omitempty"`
	SignerKID string `json:"signer_kid"` // id of the root key that signed
	Tenant    string `json:"tenant"`     // the original tenant, which no call created; empty = none
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (o *CellOpened) Canonical(c *canon.Codec) {
	c.Str("cell", &o.Cell)
	c.Str("log", &o.Log)
	c.OptStr("sig", &o.Sig)
	c.Str("signer_kid", &o.SignerKID)
	c.Str("tenant", &o.Tenant)
}

// Operator is the data of provision.operator_delegated and provision.operator_withdrawn,
// which are in CellTenant. A root key signs it. Of the documents for one principal, the
// newest by Issued counts, so publishing an older one again has no effect.
type Operator struct {
	Issued    string `json:"issued"`              // when the document was signed (TimeFormat)
	NotAfter  string `json:"not_after,omitempty"` // end of the delegation (TimeFormat); empty = none
	Principal string `json:"principal"`           // name of a principal of CellTenant
	Sig       string `json:"sig,omitempty"`
	SignerKID string `json:"signer_kid"` // id of the root key that signed
	Withdrawn bool   `json:"withdrawn,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (o *Operator) Canonical(c *canon.Codec) {
	c.Str("issued", &o.Issued)
	c.OptStr("not_after", &o.NotAfter)
	c.Str("principal", &o.Principal)
	c.OptStr("sig", &o.Sig)
	c.Str("signer_kid", &o.SignerKID)
	c.OptBool("withdrawn", &o.Withdrawn)
}

// TenantCreated is the data of policy.tenant_created, which is in CellTenant, as are the
// other events about tenants. From this event on the tenant exists.
type TenantCreated struct {
	Admin        string `json:"admin"` // principal that is registered as the tenant's first administrator
	Environment  string `json:"environment"`
	Organization string `json:"organization"`
	Project      string `json:"project"`
	Quota        *Quota `json:"quota,omitempty"` // nil = none of its own
	Tenant       string `json:"tenant"`          // TenantID of the three names
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (t *TenantCreated) Canonical(c *canon.Codec) {
	c.Str("admin", &t.Admin)
	c.Str("environment", &t.Environment)
	c.Str("organization", &t.Organization)
	c.Str("project", &t.Project)
	canon.OptDoc(c, "quota", &t.Quota)
	c.Str("tenant", &t.Tenant)
}

// TenantState is the data of policy.tenant_suspended and policy.tenant_resumed. While a
// tenant is suspended, none of its calls is allowed or started.
type TenantState struct {
	Reason string `json:"reason"`
	Tenant string `json:"tenant"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (t *TenantState) Canonical(c *canon.Codec) {
	c.Str("reason", &t.Reason)
	c.Str("tenant", &t.Tenant)
}

// TenantQuotaSet is the data of policy.tenant_quota_set. Quota replaces the tenant's
// earlier one as a whole.
type TenantQuotaSet struct {
	Quota  Quota  `json:"quota"`
	Tenant string `json:"tenant"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (t *TenantQuotaSet) Canonical(c *canon.Codec) {
	c.Doc("quota", &t.Quota)
	c.Str("tenant", &t.Tenant)
}

// Quota holds the limits on a tenant's use of each gateway, and on its artifacts. A member
// that is 0 is no limit, except that the configured limit applies to artifacts.
type Quota struct {
	ArtifactBytes  int64 `json:"artifact_bytes,omitempty"`   // bytes of stored artifacts, on all gateways
	BodyBytes      int64 `json:"body_bytes,omitempty"`       // bytes of request bodies in flight
	CallsPerSecond int64 `json:"calls_per_second,omitempty"` // calls accepted per second
	InFlight       int64 `json:"in_flight,omitempty"`        // calls in flight
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (q *Quota) Canonical(c *canon.Codec) {
	c.OptInt("artifact_bytes", &q.ArtifactBytes)
	c.OptInt("body_bytes", &q.BodyBytes)
	c.OptInt("calls_per_second", &q.CallsPerSecond)
	c.OptInt("in_flight", &q.InFlight)
}
