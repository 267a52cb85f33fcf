package evidence

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// cell is a world with the tenants acme_shop_prod and acme_shop_test and, if its ledger
// is one of an older release, the original tenant t.
type cell struct {
	*world
	p1 map[string]string // digest of the bundle that each tenant activated
}

const (
	prod = "acme_shop_prod"
	test = "acme_shop_test"
	org  = "_org-acme"
)

// newCell returns a cell whose ledger began in the tenant first: t for one of an older
// release, and contract.CellTenant for a new one.
func newCell(t testing.TB, first string) *cell {
	c := &cell{newWorldOf(t, "", first), map[string]string{}}
	c.origin = "binnacle/" + c.root.KID + "/" + first
	for e := range c.ledgerOfSystem() {
		c.store(e)
	}
	original := ""
	if first != contract.CellTenant {
		original = first
		c.p1[first] = c.activate(first, "p1", "own", "rollback")
		c.in(first, "s-old")
	}
	c.open(first, original, first)
	c.delegate(&contract.Operator{Principal: "alice"})
	for _, env := range []string{"prod", "test"} {
		c.create("acme", "shop", env)
		c.p1["acme_shop_"+env] = c.activate("acme_shop_"+env, "p1", "own of "+env, "call")
	}
	for _, tenant := range []string{prod, test, contract.CellTenant} {
		c.in(tenant, "s-"+tenant)
	}
	if original != "" {
		c.in(original, "s-new")
	}
	c.event(org, "policy", contract.EventBudgetChanged, canonical(`{"now":"2026-01-02T03:04:05.000Z"}`))
	return c
}

type canonical string

func (canonical) Canonical(*canon.Codec) {}

// event stores an event without a session. The key of an event about a tenant is that of
// the tenant's aggregate. An event of policy that changes the mesh as a whole follows the
// call that causes it.
func (c *cell) event(tenant, service, name string, d canon.Document) {
	cause := ""
	if tenant == contract.CellTenant && service == "policy" && causes[name] != "" {
		cause = c.claim(contract.CellTenant, causes[name])
	}
	c.causedBy(cause, tenant, service, name, d)
}

// claim stores an allowed and a denied call of a kind in a tenant, in a session of their
// own, and returns the id of the claim of the allowed one.
func (c *cell) claim(tenant, kind string) string {
	before, session := c.kind, fmt.Sprint("s-op-", c.lamport)
	c.kind = kind
	c.in(tenant, session)
	c.kind = before
	return "s-c-1-" + session
}

// causedBy stores an event without a session, with the id of the event that caused it, or
// "".
func (c *cell) causedBy(cause, tenant, service, name string, d canon.Document) {
	c.tenant = tenant
	var data []byte
	if raw, ok := d.(canonical); ok {
		data = []byte(raw)
	} else {
		data = contract.Bytes(d)
	}
	e := c.put(service, name, "k", data, nil)
	e.Version = contract.VersionOf(name)
	if slices.Contains(aboutTenant, name) {
		tenant, err := tenantOf(e)
		if err != nil {
			c.t.Fatal(err)
		}
		e.Key = "tenant-" + tenant
	}
	e.Cause = cause
	c.store(e)
}

// delegate stores a document for an operator, signed by the root key.
func (c *cell) delegate(o *contract.Operator) {
	o.Issued, o.SignerKID = contract.Time(c.now), c.root.KID
	o.Sig = c.root.Sign(sign.DomainOperator, contract.Bytes(o))
	name := contract.EventOperatorDelegated
	if o.Withdrawn {
		name = contract.EventOperatorWithdrawn
	}
	c.event(contract.CellTenant, "provision", name, o)
}

// made returns the data of the event that creates the tenant acme_shop_x.
func made() *contract.TenantCreated {
	return &contract.TenantCreated{Admin: "ann", Organization: "acme", Project: "shop", Environment: "x", Tenant: "acme_shop_x"}
}

// by stores an allowed and a denied call of an actor in the cell's tenant.
func (c *cell) by(actor string) {
	c.actor = actor
	c.in(contract.CellTenant, "s-by")
	c.actor = "alice"
}

// in stores one call of a tenant that is allowed and one that is denied.
func (c *cell) in(tenant, session string) {
	c.tenant = tenant
	c.call(session, "c-1-"+session, true, false)
	c.call(session, "c-2-"+session, false, false)
}

func (c *cell) open(tenant, original, log string) {
	o := &contract.CellOpened{Cell: contract.CellTenant, Log: log, Tenant: original, SignerKID: c.root.KID}
	o.Sig = c.root.Sign(sign.DomainCell, contract.Bytes(o))
	c.event(tenant, "provision", contract.EventCellOpened, o)
}

func (c *cell) create(organization, project, environment string) {
	c.event(contract.CellTenant, "policy", contract.EventTenantCreated,
		&contract.TenantCreated{Admin: "ann", Organization: organization, Project: project, Environment: environment, Tenant: organization + "_" + project + "_" + environment})
}

// activate stores the activation of a policy and returns its digest.
func (c *cell) activate(tenant, layer, text, source string) string {
	a := &contract.Activated{Bundle: contract.NewContent(make([]byte, 16), []byte(text), "text/plain"), Digest: sign.Digest([]byte(text)), Layer: layer, Name: text, Source: source}
	c.event(tenant, "policy", contract.EventPolicyActivated, a)
	return a.Digest
}

// publish stores the publication of a key.
func (c *cell) publish(tenant, name, owner, use string) {
	c.trust(contract.EventKeyPublished, tenant, name, owner, use)
}

// revoke stores the revocation of a key.
func (c *cell) revoke(tenant, name, owner, use string) {
	c.trust(contract.EventKeyRevoked, tenant, name, owner, use)
}

// trust stores an event about a key.
func (c *cell) trust(event, tenant, name, owner, use string) {
	k := key(c.t, name)
	d := trust.Publish(c.root, contract.TrustKey{Algorithm: "ed25519", KID: k.KID, Owner: owner, PublicKey: base64.StdEncoding.EncodeToString(k.Public()), Revoked: event == contract.EventKeyRevoked, Tenant: tenant, Uses: []string{use}})
	c.event(tenant, "provision", event, &d)
}

// withP1 stores an allowed and a denied call of a tenant, whose decisions name a P1
// bundle.
func (c *cell) withP1(tenant, digest string) {
	before := c.pol
	c.pol.P1 = digest
	c.in(tenant, "s-p1")
	c.pol = before
}

func (c *cell) ledgerError() error {
	src := c.source("none")
	_, err := VerifyLedger(append(joinLines(c.ledger), LedgerTrailer(string(src.Checkpoint))...), c.root.KID)
	return err
}

// pack returns the pack of a tenant's session, with the system events that such a pack
// needs and, if keep is not nil, those for which it returns true.
func (c *cell) pack(tenant, session string, keep func(e *contract.Event) bool) []byte {
	c.tenant = tenant
	src := c.source(session)
	opened := false
	src.System = slices.DeleteFunc(src.System, func(s Stored) bool {
		e, err := contract.DecodeEvent(s.Bytes)
		if err != nil {
			c.t.Fatal(err)
		}
		before := !opened
		opened = opened || e.Name == contract.EventCellOpened
		return !(keep != nil && keep(e) || e.Name == contract.EventKeyPublished || e.Name == contract.EventCellOpened ||
			e.Name == contract.EventPolicyActivated && (e.Tenant == contract.CellTenant || e.Tenant == tenant || before && !strings.Contains(string(e.Data), "rollback")))
	})
	return build(c.t, src, c.keys["audit"])
}

func (c *cell) packError(tenant, session string, keep func(e *contract.Event) bool) error {
	_, err := Verify(c.pack(tenant, session, keep), c.root.KID)
	return err
}

func check(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// TestCell verifies a ledger of an older release that was continued with several tenants, and a
// new ledger, each with the packs of its sessions. Both also verify with decisions that name a
// bundle of one tenant, and the ledgers in log epoch 2.
func TestCell(t *testing.T) {
	for first, sessions := range map[string]map[string]string{
		"t":                 {"s-old": "t", "s-new": "t", "s-" + prod: prod, "s-" + test: test, "s-_cell": contract.CellTenant},
		contract.CellTenant: {"s-" + prod: prod, "s-" + test: test, "s-_cell": contract.CellTenant},
	} {
		c := newCell(t, first)
		check(t, first, c.ledgerError(), "")
		for session, tenant := range sessions {
			check(t, first+" "+session, c.packError(tenant, session, nil), "")
		}
		c.withP1(prod, c.p1[prod])
		check(t, first+" with a bundle of its own", c.ledgerError(), "")
		check(t, first+" with a bundle of its own", c.packError(prod, "s-p1", nil), "")
		c.origin += "/epoch-2"
		check(t, first+" in epoch 2", c.ledgerError(), "")
	}
}

// cellRules are changes to a ledger with several tenants. Each adds events or calls, or changes the
// log's origin.
var cellRules = map[string]struct {
	spoil        func(c *cell)
	ledger, pack string // parts of the errors of the ledger and of a pack; empty = verifies
}{
	"a service's key in a tenant": {func(c *cell) { c.publish(prod, "k", "judge", contract.UseReceipt) }, "is not in the cell's tenant", "is not in the cell's tenant"},
	"a witness in the original":   {func(c *cell) { c.publish("t", "k", "witness:w", contract.UseWitness) }, "is not in the cell's tenant", "is not in the cell's tenant"},
	"a key in the cell":           {func(c *cell) { c.publish(contract.CellTenant, "k", "judge", contract.UseReceipt) }, "", ""},
	"an approver of the tenant":   {func(c *cell) { c.publish(prod, "k", "approver:bob", contract.UseApproval) }, "", ""},
	"an approver revoked": {func(c *cell) {
		c.publish(prod, "k", "approver:bob", contract.UseApproval)
		c.revoke(prod, "k", "approver:bob", contract.UseApproval)
	}, "", ""},
	"an approver revoked by another tenant": {func(c *cell) {
		c.publish(prod, "k", "approver:bob", contract.UseApproval)
		c.revoke(test, "k", "approver:bob", contract.UseApproval)
	}, "revoked as a key of approver:acme_shop_test/bob, and belongs to approver:acme_shop_prod/bob", ""},
	"a key revoked for another service": {func(c *cell) {
		c.publish(contract.CellTenant, "k", "judge", contract.UseReceipt)
		c.revoke(contract.CellTenant, "k", "work", contract.UseReceipt)
	}, "revoked as a key of work, and belongs to judge", ""},
	"a key of the original revoked in the cell": {func(c *cell) {
		c.revoke(contract.CellTenant, "session-runner", "session-runner", contract.UseReceipt)
	}, "", ""},
	"an approver of another": {func(c *cell) { c.publish(test, "k", "approver:bob", contract.UseApproval) }, "", "belongs to tenant acme_shop_test; this pack is of acme_shop_prod"},
	"a signer of another":    {func(c *cell) { c.publish(test, "k", "bundle:ci", contract.UseBundle) }, "", "belongs to tenant acme_shop_test"},
	"opened again":           {func(c *cell) { c.open(contract.CellTenant, "t", "t") }, "the cell is already opened", "the cell is already opened"},
	"opened by policy": {func(c *cell) {
		c.event(contract.CellTenant, "policy", contract.EventCellOpened, &contract.CellOpened{Sig: "x"})
	}, "is not a system event", "is not a system event"},
	"a tenant twice":           {func(c *cell) { c.create("acme", "shop", "prod") }, "exists", ""},
	"a tenant of the original": {func(c *cell) { c.create("t", "shop", "prod") }, "that of the original tenant", ""},
	"a tenant without a name":  {func(c *cell) { c.create("", "org-acme", "x") }, "want 1 to 32", ""},
	"a tenant by another": {func(c *cell) {
		c.event(contract.CellTenant, "gateway", contract.EventTenantSuspended, &contract.TenantState{Reason: "x", Tenant: prod})
	}, "is not a system event", ""},
	"an unknown tenant suspended": {func(c *cell) {
		c.event(contract.CellTenant, "policy", contract.EventTenantSuspended, &contract.TenantState{Tenant: "x_y_z"})
	}, "does not exist", ""},
	"a tenant suspended": {func(c *cell) {
		c.event(contract.CellTenant, "policy", contract.EventTenantSuspended, &contract.TenantState{Reason: "x", Tenant: prod})
	}, "", ""},
	"a call of an unknown tenant": {func(c *cell) { c.in("x_y_z", "s-x") }, "tenant x_y_z does not exist", ""},
	"a call of another cell":      {func(c *cell) { c.in("_x", "s-x") }, "tenant _x does not exist", ""},
	"a call of a budget ledger":   {func(c *cell) { c.in(org, "s-x") }, "is for a budget ledger only", ""},
	"another event of a budget": {func(c *cell) {
		c.event(org, "policy", contract.EventMeshFrozen, canonical(`{"id":"f-1","reason":"x"}`))
	}, "is for a budget ledger only", ""},
	"a budget by another": {func(c *cell) { c.event(org, "gateway", contract.EventBudgetChanged, canonical(`{}`)) }, "is not known", ""},
	"another budget ledger": {func(c *cell) {
		c.event("_org-x", "policy", contract.EventBudgetChanged, canonical(`{"now":"2026-01-02T03:04:05.000Z"}`))
	}, "tenant _org-x does not exist", ""},
	"ceilings of a tenant":     {func(c *cell) { c.activate(prod, "p0", "own ceilings", "call") }, "", ""},
	"ceilings of the original": {func(c *cell) { c.activate("t", "p0", "own ceilings", "call") }, "", ""},
	"a call by a tenant's own ceilings": {func(c *cell) {
		c.pol.P0 = c.activate(prod, "p0", "own ceilings", "call")
		c.in(prod, "s-x")
	}, "a policy that was never activated", ""},
	"a call by ceilings of the original": {func(c *cell) {
		c.pol.P0 = c.activate("t", "p0", "own ceilings", "call")
		c.in("t", "s-x")
	}, "a policy that was never activated", ""},
	"a bundle of another":          {func(c *cell) { c.withP1(prod, c.p1[test]) }, "a policy that was never activated", ""},
	"a bundle of the original":     {func(c *cell) { c.withP1(prod, c.p1["t"]) }, "a policy that was never activated", ""},
	"the original's own bundle":    {func(c *cell) { c.withP1("t", c.p1["t"]) }, "", ""},
	"a bundle the cell has now":    {func(c *cell) { c.withP1(prod, c.activate(contract.CellTenant, "p1", "base", "call")) }, "", ""},
	"an overlay of the cell":       {func(c *cell) { c.pol.P2 = c.activate(contract.CellTenant, "p2", "o", "call"); c.in(prod, "s-x") }, "a policy that was never activated", ""},
	"an overlay of the tenant":     {func(c *cell) { c.pol.P2 = c.activate(prod, "p2", "o", "call"); c.in(prod, "s-x") }, "", ""},
	"a log of another name":        {func(c *cell) { c.origin = "binnacle/" + c.root.KID + "/_cell" }, "the checkpoint is of binnacle/", "checkpoint: the checkpoint is of binnacle/"},
	"a log of another root":        {func(c *cell) { c.origin = "binnacle/k-0/t" }, "the checkpoint is of", "the checkpoint is of"},
	"a log with a longer name":     {func(c *cell) { c.origin += "t" }, "the checkpoint is of", "the checkpoint is of"},
	"epoch 01":                     {func(c *cell) { c.origin += "/epoch-02" }, "the checkpoint is of", "the checkpoint is of"},
	"epoch 1 by name":              {func(c *cell) { c.origin += "/epoch-1" }, "the checkpoint is of", "the checkpoint is of"},
	"the mesh frozen by a tenant":  {func(c *cell) { c.kind = "policy.freeze"; c.in(prod, "s-x") }, "allows policy.freeze in tenant acme_shop_prod", ""},
	"a tenant created by a tenant": {func(c *cell) { c.kind = "tenant.create"; c.in("t", "s-x") }, "allows tenant.create in tenant t", ""},
	"a freeze by the original that failed": {func(c *cell) {
		c.kind, c.ends = "policy.freeze", contract.Failed
		c.in("t", "s-x")
	}, "", ""},
	"a freeze by the original without an outcome": {func(c *cell) {
		c.kind, c.ends = "policy.freeze", "-"
		c.in("t", "s-x")
	}, "", ""},
	"a tenant created for a call of the original that failed": {func(c *cell) {
		c.ends = contract.Failed
		c.causedBy(c.claim("t", "tenant.create"), contract.CellTenant, "policy", contract.EventTenantCreated, made())
	}, "(tenant_created): no call of the cell caused it", ""},
	"the mesh frozen for a call of the original that failed": {func(c *cell) {
		c.ends = contract.Failed
		c.causedBy(c.claim("t", "policy.freeze"), contract.CellTenant, "policy", contract.EventMeshFrozen, canonical(`{"id":"f-1","reason":"x"}`))
	}, "(mesh_frozen): no call of the cell caused it", ""},
	"ceilings of the cell for a call of the original": {func(c *cell) {
		a := &contract.Activated{Bundle: contract.NewContent(make([]byte, 16), []byte("p"), "text/plain"), Digest: sign.Digest([]byte("p")), Layer: "p0", Source: "call"}
		c.causedBy(c.claim("t", "policy.activate"), contract.CellTenant, "policy", contract.EventPolicyActivated, a)
	}, "(policy_activated): no call of the cell caused it", ""},
	"ceilings of the cell": {func(c *cell) {
		a := &contract.Activated{Bundle: contract.NewContent(make([]byte, 16), []byte("p"), "text/plain"), Digest: sign.Digest([]byte("p")), Layer: "p0", Source: "call"}
		c.causedBy(c.claim(contract.CellTenant, "policy.activate"), contract.CellTenant, "policy", contract.EventPolicyActivated, a)
	}, "", ""},
	"a tenant created for no call": {func(c *cell) {
		c.causedBy("", contract.CellTenant, "policy", contract.EventTenantCreated, made())
	}, "no call of the cell caused it", ""},
	"a tenant created for another call": {func(c *cell) {
		c.causedBy(c.claim(contract.CellTenant, "tenant.suspend"), contract.CellTenant, "policy", contract.EventTenantCreated, made())
	}, "no call of the cell caused it", ""},
	"a tenant created for a proposal": {func(c *cell) {
		c.causedBy("p"+c.claim(contract.CellTenant, "tenant.create")[1:], contract.CellTenant, "policy", contract.EventTenantCreated, made())
	}, "no call of the cell caused it", ""},
	"a tenant created before its call": {func(c *cell) {
		c.causedBy("s-c-1-s-late", contract.CellTenant, "policy", contract.EventTenantCreated, made())
		c.kind = "tenant.create"
		c.in(contract.CellTenant, "s-late")
	}, "no call of the cell caused it", ""},
	"a call of the cell by no operator": {func(c *cell) { c.by("bob") }, "allows a call of the cell by bob, who was not an operator at that time", ""},
	"an operator delegated too late": {func(c *cell) {
		c.by("bob")
		c.delegate(&contract.Operator{Principal: "bob"})
	}, "allows a call of the cell by bob", ""},
	"an operator whose time had ended": {func(c *cell) {
		c.delegate(&contract.Operator{Principal: "bob", NotAfter: contract.Time(c.now)})
		c.by("bob")
	}, "allows a call of the cell by bob", ""},
	"an operator for some time": {func(c *cell) {
		c.delegate(&contract.Operator{Principal: "bob", NotAfter: contract.Time(c.now.Add(time.Hour))})
		c.by("bob")
	}, "", ""},
	"an operator who was withdrawn": {func(c *cell) { // policy may not have read the withdrawal
		c.delegate(&contract.Operator{Principal: "bob"})
		c.delegate(&contract.Operator{Principal: "bob", Withdrawn: true})
		c.by("bob")
	}, "", ""},
	"the mesh frozen by the cell": {func(c *cell) { c.kind = "policy.freeze"; c.in(contract.CellTenant, "s-x") }, "", ""},
	"a limit set by a tenant":     {func(c *cell) { c.kind = "policy.set_limits"; c.in(prod, "s-x") }, "", ""},
}

// TestCellRules applies one change of cellRules at a time, and checks the error of the
// ledger and of a pack.
func TestCellRules(t *testing.T) {
	for name, x := range cellRules {
		c := newCell(t, "t")
		x.spoil(c)
		check(t, name+": ledger", c.ledgerError(), x.ledger)
		check(t, name+": pack", c.packError(prod, "s-"+prod, nil), x.pack)
	}
}

// TestCellPacks shows that a pack may not contain system events of other tenants, or the creation
// of a tenant, that no decision of a pack may name a bundle or ceilings that are not in force for
// its tenant, and that no pack is of a budget ledger's tenant.
func TestCellPacks(t *testing.T) {
	c := newCell(t, "t")
	of := func(name, tenant string) func(e *contract.Event) bool {
		return func(e *contract.Event) bool { return e.Name == name && e.Tenant == tenant }
	}
	check(t, "another's bundle", c.packError(prod, "s-"+prod, of(contract.EventPolicyActivated, test)), "belongs to tenant acme_shop_test; this pack is of acme_shop_prod and the cell")
	check(t, "a bundle that a person of the original activated", c.packError(prod, "s-"+prod, of(contract.EventPolicyActivated, "t")), "belongs to tenant t; this pack is of acme_shop_prod and the cell")
	check(t, "a tenant's creation", c.packError(prod, "s-"+prod, of(contract.EventTenantCreated, contract.CellTenant)), "a pack has no tenant_created")
	check(t, "a budget", c.packError(prod, "s-"+prod, of(contract.EventBudgetChanged, org)), "is not a system event")
	check(t, "the original's own bundle", c.packError("t", "s-new", of(contract.EventPolicyActivated, "t")), "")

	c.withP1(prod, c.p1["t"])
	check(t, "cites a bundle of the original", c.packError(prod, "s-p1", nil), "a policy that was never activated")
	c = newCell(t, "t")
	own := c.activate("t", "p0", "own ceilings", "call")
	check(t, "ceilings of the original", c.packError("t", "s-new", nil), "")
	check(t, "another's ceilings", c.packError(prod, "s-"+prod, of(contract.EventPolicyActivated, "t")), "belongs to tenant t; this pack is of acme_shop_prod and the cell")
	c.pol.P0 = own
	c.in("t", "s-p0")
	check(t, "by ceilings of the original", c.packError("t", "s-p0", nil), "a policy that was never activated")
	c = newCell(t, "t")
	c.in(org, "s-org")
	check(t, "of a budget ledger", c.packError(org, "s-org", nil), "a pack of a budget ledger's tenant")
}

// TestOneTenant shows that a ledger without cell_opened may have calls, keys and
// activations in any tenant, but cannot create a tenant; and that a ledger verifies in
// which a freeze was allowed before cell_opened.
func TestOneTenant(t *testing.T) {
	c := &cell{newWorld(t), nil}
	for e := range c.ledgerOfSystem() {
		c.store(e)
	}
	c.in("u", "s-u")
	c.pol.P2 = c.activate("u", "p2", "overlay", "call")
	c.in("t", "s-t")
	c.publish("u", "k", "approver:bob", contract.UseApproval)
	check(t, "ledger", c.ledgerError(), "")
	for session, tenant := range map[string]string{"s-u": "u", "s-t": "t"} {
		all := func(*contract.Event) bool { return true }
		check(t, session, c.packError(tenant, session, all), "")
	}
	c.create("acme", "shop", "prod")
	check(t, "a tenant before the cell is open", c.ledgerError(), "is not in the cell's tenant")
	check(t, "frozen before the cell was open", (&cell{worldFrozenBefore(t), nil}).ledgerError(), "")
}

// worldFrozenBefore returns a world in which a freeze by the original tenant was allowed
// before the cell was opened.
func worldFrozenBefore(t testing.TB) *world {
	c := &cell{newWorld(t), map[string]string{}}
	c.origin, c.kind = "binnacle/"+c.root.KID+"/t", "policy.freeze"
	for e := range c.ledgerOfSystem() {
		c.store(e)
	}
	c.in("t", "s-t")
	c.open("t", "t", "t")
	return c.world
}

// cells returns valid and invalid packs of ledgers with several tenants, for the
// published set.
func cells(t testing.TB) map[string]struct {
	ok   bool
	pack []byte
} {
	out := map[string]struct {
		ok   bool
		pack []byte
	}{}
	add := func(ok bool, name string, pack []byte) {
		out[name] = struct {
			ok   bool
			pack []byte
		}{ok, pack}
	}
	c := newCell(t, "t")
	for session, tenant := range map[string]string{"s-old": "t", "s-new": "t", "s-" + prod: prod, "s-_cell": contract.CellTenant} {
		add(true, "an older ledger, session "+session, c.pack(tenant, session, nil))
	}
	c = newCell(t, contract.CellTenant)
	add(true, "a new ledger", c.pack(prod, "s-"+prod, nil))
	for name, x := range cellRules {
		c := newCell(t, "t")
		if x.spoil(c); x.pack != "" {
			add(false, name, c.pack(prod, "s-"+prod, nil))
		}
	}
	for tenant, session := range map[string]string{prod: "s-" + prod, "t": "s-new"} {
		c := newCell(t, "t")
		own := c.activate(tenant, "p0", "own ceilings", "call")
		add(true, "ceilings of "+tenant, c.pack(tenant, session, nil))
		c.pol.P0 = own
		c.in(tenant, "s-p0")
		add(false, "a decision by ceilings of "+tenant, c.pack(tenant, "s-p0", nil))
	}
	for name, of := range map[string][2]string{"another's bundle": {contract.EventPolicyActivated, test}, "a bundle of a person of the original": {contract.EventPolicyActivated, "t"},
		"a creation": {contract.EventTenantCreated, contract.CellTenant}, "a budget": {contract.EventBudgetChanged, org}} {
		add(false, name, newCell(t, "t").pack(prod, "s-"+prod, func(e *contract.Event) bool { return e.Name == of[0] && e.Tenant == of[1] }))
	}
	for name, from := range map[string]string{"a decision by another's bundle": test, "a decision by a bundle of the original": "t"} {
		c := newCell(t, "t")
		c.withP1(prod, c.p1[from])
		add(false, name, c.pack(prod, "s-p1", nil))
	}
	c = newCell(t, "t")
	c.in(org, "s-org")
	add(false, "a budget ledger", c.pack(org, "s-org", nil))
	return out
}
