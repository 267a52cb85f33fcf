package trust_test

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// ledger applies events to a Cell, and holds the registry of the keys that sign them.
type ledger struct {
	t       *testing.T
	root    *sign.Key
	reg     trust.Registry
	cell    trust.Cell
	lamport uint64
}

// newLedger returns a ledger whose first event publishes the root key in the tenant.
func newLedger(t *testing.T, tenant string) *ledger {
	l := &ledger{t: t, root: key(t, "root")}
	l.reg.Root = l.root.KID
	d := doc(l.root, l.root, "provision", false, contract.UseRoot)
	d.Tenant = tenant
	d = trust.Publish(l.root, d)
	if err := l.reg.Apply(d, 1); err != nil {
		t.Fatal(err)
	}
	if err := l.apply("provision", contract.EventKeyPublished, tenant, &d); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *ledger) apply(service, name, tenant string, d canon.Document) error {
	l.lamport++
	return l.cell.Apply(&contract.Event{ID: "e-1", Source: service + "/" + service + "-1", Name: name, Tenant: tenant, Lamport: l.lamport, Time: "2026-03-03T12:00:00.000Z", Data: contract.Bytes(d)}, l.reg.At)
}

// want applies an event and fails unless the error contains want, or is nil if want is "".
// It also fails if a rejected event changes the Cell, or if the Cell's bytes do not restore
// it.
func (l *ledger) want(want, service, name, tenant string, d canon.Document) {
	l.t.Helper()
	before := string(contract.Bytes(&l.cell))
	err := l.apply(service, name, tenant, d)
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		l.t.Fatalf("%s: %v, want %q", name, err, want)
	}
	after := string(contract.Bytes(&l.cell))
	if err != nil && before != after {
		l.t.Errorf("%s: a rejected event changed %s to %s", name, before, after)
	}
	var again trust.Cell
	if err := contract.Decode([]byte(after), &again); err != nil || string(contract.Bytes(&again)) != after {
		l.t.Errorf("%s: %v, restored %s, want %s", name, err, contract.Bytes(&again), after)
	}
}

func (l *ledger) opening(tenant, log string, signer *sign.Key) *contract.CellOpened {
	o := &contract.CellOpened{Cell: contract.CellTenant, Log: log, Tenant: tenant, SignerKID: signer.KID}
	o.Sig = signer.Sign(sign.DomainCell, contract.Bytes(o))
	return o
}

func (l *ledger) open(tenant, log string) {
	l.t.Helper()
	l.want("", "provision", contract.EventCellOpened, log, l.opening(tenant, log, l.root))
}

func created(org, project, env string) *contract.TenantCreated {
	return &contract.TenantCreated{Admin: "ann", Organization: org, Project: project, Environment: env, Tenant: org + "_" + project + "_" + env}
}

// TestCellOpened shows which events open the cell, on a ledger whose first tenant is
// contract.CellTenant and on others, and checks the results of methods of the Cell before and
// after.
func TestCellOpened(t *testing.T) {
	for _, c := range []struct {
		first, original, log string
		signer               string
		cell                 string
		want                 string
	}{
		{"default", "default", "default", "root", "_cell", ""},
		{"a_b_c", "a_b_c", "a_b_c", "root", "_cell", ""},
		{"_cell", "", "_cell", "root", "_cell", ""},
		{"_cell", "default", "_cell", "root", "_cell", ""},
		{"default", "other", "default", "root", "_cell", "the original tenant is not the ledger's tenant"},
		{"default", "", "default", "root", "_cell", "the original tenant is not the ledger's tenant"},
		{"default", "default", "_cell", "root", "_cell", "names another log"},
		{"_cell", "default", "default", "root", "_cell", "names another log"},
		{"default", "default", "default", "root", "cell", "opens another cell"},
		{"default", "default", "default", "evil", "_cell", "is not in the trust registry"},
		{"_x", "_x", "_x", "root", "_cell", "reserved"},
		{"_cell", "_x", "_cell", "root", "_cell", "reserved, or malformed"},
		{"_cell", "a.b", "_cell", "root", "_cell", "reserved, or malformed"},
	} {
		l := newLedger(t, c.first)
		if l.cell.Opened() || l.cell.Tenant() != c.first || l.cell.Log() != c.first {
			t.Errorf("%+v: before: cell %s, log %s", c, l.cell.Tenant(), l.cell.Log())
		}
		if _, ok := l.cell.Of(c.first); ok == (c.first == contract.CellTenant) || l.cell.Tenants() != nil {
			t.Errorf("%+v: before: %v", c, ok)
		}
		o := l.opening(c.original, c.log, key(t, c.signer))
		if c.cell != contract.CellTenant {
			o.Cell, o.Sig = c.cell, ""
			o.Sig = l.root.Sign(sign.DomainCell, contract.Bytes(o))
		}
		l.want(c.want, "provision", contract.EventCellOpened, c.first, o)
		if c.want != "" {
			continue
		}
		if _, ok := l.cell.Of(c.original); !l.cell.Opened() || l.cell.Tenant() != contract.CellTenant || l.cell.Original() != c.original || l.cell.Log() != c.log || ok != (c.original != "") {
			t.Errorf("%+v: %s", c, contract.Bytes(&l.cell))
		}
		l.want("the cell is already opened", "provision", contract.EventCellOpened, contract.CellTenant, o)
	}
	l := newLedger(t, "default")
	l.want("", "policy", contract.EventCellOpened, "default", l.opening("default", "default", l.root))
	if l.cell.Opened() {
		t.Error("another service than provision opened the cell")
	}
	l.want("is not in the cell's tenant", "provision", contract.EventCellOpened, "other", l.opening("default", "default", l.root))
	forged := l.opening("default", "default", l.root)
	forged.Sig = l.root.Sign(sign.DomainTrust, []byte("x"))
	l.want("signature", "provision", contract.EventCellOpened, "default", forged)
	var late trust.Cell // begins with the event that opens the cell
	e := &contract.Event{ID: "e-1", Source: "provision/p-1", Name: contract.EventCellOpened, Tenant: "default", Lamport: 2, Data: contract.Bytes(l.opening("default", "default", l.root))}
	if err := late.Apply(e, l.reg.At); err != nil || late.Original() != "default" || late.Log() != "default" {
		t.Errorf("%v: %s", err, contract.Bytes(&late))
	}
}

// TestTenants shows which tenants events of policy in the cell's tenant can create, and checks
// the state of a tenant after events that suspend, resume and limit it. A tenant that does not
// exist can be neither suspended nor limited. It also shows that Of does not allocate.
func TestTenants(t *testing.T) {
	l := newLedger(t, "default")
	l.want("or not opened yet", "policy", contract.EventTenantCreated, "default", created("acme", "shop", "prod"))
	l.open("default", "default")
	quota := created("acme", "shop", "test")
	quota.Quota = &contract.Quota{InFlight: 7}
	cell := contract.CellTenant
	l.want("", "policy", contract.EventTenantCreated, cell, created("acme", "shop", "prod"))
	l.want("", "policy", contract.EventTenantCreated, cell, quota)
	l.want("", "policy", contract.EventTenantCreated, cell, created("aa", "shop", "prod"))
	l.want("exists", "policy", contract.EventTenantCreated, cell, created("acme", "shop", "prod"))
	l.want("exists", "policy", contract.EventTenantCreated, cell, created("aa", "shop", "prod"))
	l.want("is not in the cell's tenant", "policy", contract.EventTenantCreated, "default", created("acme", "shop", "dev"))
	l.want("that of the original tenant", "policy", contract.EventTenantCreated, cell, created("default", "shop", "prod"))
	l.want("want 1 to 32", "policy", contract.EventTenantCreated, cell, created("", "org-acme", "prod"))
	other := created("acme", "shop", "dev")
	other.Tenant = "acme_shop_prod2"
	l.want("is not the id of its organization, project and environment", "policy", contract.EventTenantCreated, cell, other)
	l.want("", "gateway", contract.EventTenantCreated, cell, created("b", "b", "b")) // ignored: the event's producer is not policy
	if _, ok := l.cell.Of("b_b_b"); ok {
		t.Error("another service than policy created a tenant")
	}

	suspended := func(id string) bool { got, ok := l.cell.Of(id); return ok && got.Suspended }
	state := &contract.TenantState{Reason: "unpaid", Tenant: "acme_shop_prod"}
	l.want("", "policy", contract.EventTenantSuspended, cell, state)
	if !suspended("acme_shop_prod") || suspended("acme_shop_test") || suspended("default") {
		t.Errorf("%s", contract.Bytes(&l.cell))
	}
	l.want("", "policy", contract.EventTenantResumed, cell, state)
	if suspended("acme_shop_prod") {
		t.Error("a resumed tenant is suspended")
	}
	l.want("", "policy", contract.EventTenantSuspended, cell, &contract.TenantState{Tenant: "default"})
	l.want("does not exist", "policy", contract.EventTenantSuspended, cell, &contract.TenantState{Tenant: "b_b_b"})
	l.want("does not exist", "policy", contract.EventTenantQuotaSet, cell, &contract.TenantQuotaSet{Tenant: cell})
	l.want("", "policy", contract.EventTenantQuotaSet, cell, &contract.TenantQuotaSet{Tenant: "aa_shop_prod", Quota: contract.Quota{BodyBytes: 9}})

	want := []trust.Tenant{{ID: "aa_shop_prod", Quota: contract.Quota{BodyBytes: 9}}, {ID: "acme_shop_prod"}, {ID: "acme_shop_test", Quota: contract.Quota{InFlight: 7}}, {ID: "default", Suspended: true}}
	got := l.cell.Tenants()
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if want[i].Since = "2026-03-03T12:00:00.000Z"; got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	if n := testing.AllocsPerRun(10, func() { l.cell.Of("acme_shop_test") }); n != 0 {
		t.Errorf("Of allocates %v times", n)
	}
}

// TestOriginalOrganization shows that no tenant can be created in the organization of an
// original tenant whose id has three parts.
func TestOriginalOrganization(t *testing.T) {
	l := newLedger(t, "a_b_c")
	l.open("a_b_c", "a_b_c")
	l.want("that of the original tenant", "policy", contract.EventTenantCreated, contract.CellTenant, created("a", "x", "y"))
	l.want("", "policy", contract.EventTenantCreated, contract.CellTenant, created("b", "b", "c"))
}

// TestOperators shows that the newest document that a root key signed determines whether
// a principal is an operator, that an older document cannot be applied again, and that a
// delegation ends.
func TestOperators(t *testing.T) {
	l := newLedger(t, contract.CellTenant)
	signed := func(signer *sign.Key, issued, end string, withdrawn bool) *contract.Operator {
		o := &contract.Operator{Issued: issued, NotAfter: end, Principal: "olga", SignerKID: signer.KID, Withdrawn: withdrawn}
		o.Sig = signer.Sign(sign.DomainOperator, contract.Bytes(o))
		return o
	}
	const day1, day2, day3, day4 = "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z", "2026-01-03T00:00:00.000Z", "2026-01-04T00:00:00.000Z"
	first := signed(l.root, day1, "", false)
	l.want("or not opened yet", "provision", contract.EventOperatorDelegated, contract.CellTenant, first)
	l.open("", contract.CellTenant)
	is := func(want bool, now string) {
		t.Helper()
		if l.cell.Operator("olga", now) != want || l.cell.Operator("olga2", now) || l.cell.Operator("ann", now) {
			t.Errorf("operator at %s: %v", now, !want)
		}
	}
	is(false, day1)
	l.want("", "provision", contract.EventOperatorDelegated, contract.CellTenant, first)
	is(true, day4)
	l.want("is not newer", "provision", contract.EventOperatorDelegated, contract.CellTenant, first)
	l.want("does not match its name", "provision", contract.EventOperatorWithdrawn, contract.CellTenant, signed(l.root, day2, "", false))
	l.want("does not match its name", "provision", contract.EventOperatorDelegated, contract.CellTenant, signed(l.root, day2, "", true))
	l.want("is not in the trust registry", "provision", contract.EventOperatorWithdrawn, contract.CellTenant, signed(key(t, "evil"), day2, "", true))
	l.want("", "provision", contract.EventOperatorWithdrawn, contract.CellTenant, signed(l.root, day2, "", true))
	is(false, day1)
	l.want("is not newer", "provision", contract.EventOperatorDelegated, contract.CellTenant, first)
	l.want("time", "provision", contract.EventOperatorDelegated, contract.CellTenant, signed(l.root, "tomorrow", "", false))
	l.want("time", "provision", contract.EventOperatorDelegated, contract.CellTenant, signed(l.root, day3, "never", false))
	l.want("", "provision", contract.EventOperatorDelegated, contract.CellTenant, signed(l.root, day3, day3, false))
	is(true, day3)
	is(false, day4)
	bad := signed(l.root, day4, "", false)
	bad.Principal = "mallory"
	l.want("signature", "provision", contract.EventOperatorDelegated, contract.CellTenant, bad)
	if got := l.cell.Operators(); len(got) != 1 || got[0].Issued != day3 {
		t.Errorf("%+v", got)
	}
}

// TestOwner shows that approvers and signers of bundles with one name in two tenants are
// two owners, and that the tenant is not part of other owners.
func TestOwner(t *testing.T) {
	r, root, _ := registry(t)
	for _, c := range []struct{ seed, owner, use, tenant, in string }{
		{"a", contract.OwnerApprover + "bob", contract.UseApproval, "a_b_c", "approver:a_b_c/bob"},
		{"b", contract.OwnerApprover + "bob", contract.UseApproval, "t", "approver:t/bob"},
		{"c", contract.OwnerBundle + "ci", contract.UseBundle, "t", "bundle:t/ci"},
		{"d", "witness:w", contract.UseWitness, "t", "witness:w"},
	} {
		d := doc(root, key(t, c.seed), c.owner, false, c.use)
		d.Tenant = c.tenant
		d = trust.Publish(root, d)
		if err := r.Apply(d, 6); err != nil {
			t.Fatal(err)
		}
		if got := trust.Owner(&d); got != c.in {
			t.Errorf("%s, want %s", got, c.in)
		}
		if _, err := r.At(d.KID, c.in, c.use, 6); err != nil {
			t.Error(err)
		}
		for _, other := range []string{"approver:u/bob", "approver:bob", "bundle:u/ci", "bundle:ci", "witness:t/w"} {
			if _, err := r.At(d.KID, other, c.use, 6); err == nil {
				t.Errorf("the key of %s counts as that of %s", c.in, other)
			}
		}
	}
	if n := len(r.Publics("approver:t/bob", contract.UseApproval, 6)); n != 1 {
		t.Errorf("%d keys of bob in tenant t", n)
	}
}
