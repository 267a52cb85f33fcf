package tenant

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// key returns the root key of the tests.
func key(t *testing.T) *sign.Key {
	t.Helper()
	k, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// mesh is a cell with the original tenant "default", and the events about its tenants.
type mesh struct {
	t       *testing.T
	cell    trust.Cell
	lamport uint64
	events  map[string][]*contract.Event // by the key of their aggregate
}

func newMesh(t *testing.T) *mesh {
	m := &mesh{t: t, events: map[string][]*contract.Event{}}
	root := key(t)
	o := &contract.CellOpened{Cell: contract.CellTenant, Log: contract.CellTenant, SignerKID: root.KID, Tenant: "default"}
	o.Sig = root.Sign(sign.DomainCell, contract.Bytes(o))
	if err := m.apply("provision", contract.EventCellOpened, contract.Bytes(o)); err != nil {
		t.Fatal(err)
	}
	return m
}

// apply applies an event to the cell.
func (m *mesh) apply(service, name string, data []byte) error {
	m.lamport++
	return m.cell.Apply(&contract.Event{ID: "e", Source: service + "/" + service + "-1", Name: name, Tenant: contract.CellTenant, Time: "2026-01-01T00:00:00.000Z", Data: data, Lamport: m.lamport},
		func(string, string, string, uint64) ([]byte, error) { return key(m.t).Public(), nil })
}

// do decides a call and applies its event. It returns the event's name and data, or the
// error.
func (m *mesh) do(kind, args string) string {
	m.t.Helper()
	c, err := Parse(kind, []byte(args))
	if err != nil {
		return err.Error()
	}
	name, data, err := c.Decide(m.events[contract.TenantKey(c.Tenant)], m.cell.Original())
	if err != nil {
		var typed *Error
		if !errors.As(err, &typed) {
			m.t.Errorf("%s %s: %v is not an *Error", kind, args, err)
		}
		return err.Error()
	}
	body := contract.Bytes(data)
	if err := m.apply("policy", name, body); err != nil {
		m.t.Errorf("%s %s: the cell rejects the event: %v", kind, args, err)
	}
	m.events[contract.TenantKey(c.Tenant)] = append(m.events[contract.TenantKey(c.Tenant)], &contract.Event{Name: name, Data: body})
	return name + " " + string(body)
}

const (
	notListed = ": name a tenant that `binnacle tenant list` shows"
	unknown   = " does not exist: name one that `binnacle tenant list` shows, or create it with `binnacle tenant create`"
	noName    = " is not a name: want 1 to 32 of [a-z0-9-], with a letter or digit at both ends"
	reserved  = " is reserved for the mesh"
	forMesh   = reserved + ": choose a name of letters, digits and hyphens"
	unchanged = reserved + ", and is not changed by calls" + notListed
	negative  = " is negative: give a positive number, or omit the member for no limit"
)

// TestDecide makes calls one after the other, and shows which are accepted, with their
// events, and which are rejected, with the argument that is the reason. trust.Cell accepts
// every event.
func TestDecide(t *testing.T) {
	m := newMesh(t)
	for _, c := range []struct{ kind, args, want string }{
		{KindCreate, `{"organization":"acme","project":"web","environment":"prod","admin":"ann"}`,
			`tenant_created {"admin":"ann","environment":"prod","organization":"acme","project":"web","tenant":"acme_web_prod"}`},
		{KindCreate, `{"organization":"acme","project":"web","environment":"prod","admin":"bob"}`, "environment: tenant acme_web_prod exists: choose another name"},
		{KindCreate, `{"organization":"acme","project":"web","environment":"test","admin":"bob","quota":{"in_flight":3}}`,
			`tenant_created {"admin":"bob","environment":"test","organization":"acme","project":"web","quota":{"in_flight":3},"tenant":"acme_web_test"}`},
		{KindCreate, `{"organization":"acme","project":"web","environment":"dev","admin":"bob","quota":{}}`,
			`tenant_created {"admin":"bob","environment":"dev","organization":"acme","project":"web","tenant":"acme_web_dev"}`},
		{KindCreate, `{"organization":"default","project":"web","environment":"dev","admin":"bob"}`,
			"organization: default is that of the original tenant, which has a budget ledger of its own: choose another name"},
		{KindCreate, `{"organization":"_cell","project":"web","environment":"dev","admin":"bob"}`, `organization: "_cell"` + forMesh},
		{KindCreate, `{"organization":"a","project":"_org-x","environment":"dev","admin":"bob"}`, `project: "_org-x"` + forMesh},
		{KindCreate, `{"organization":"Acme","project":"web","environment":"dev","admin":"bob"}`, `organization: "Acme"` + noName},
		{KindCreate, `{"organization":"a","project":"web_x","environment":"dev","admin":"bob"}`, `project: "web_x"` + noName},
		{KindCreate, `{"organization":"a","project":"b","environment":"*.>","admin":"bob"}`, `environment: "*.>"` + noName},
		{KindCreate, `{"organization":"a","project":"b"}`, `environment: ""` + noName},
		{KindCreate, `{"organization":"a","project":"b","environment":"c","admin":" "}`, "admin: name the principal that is to administer the tenant"},
		{KindCreate, `{"organization":"a","project":"b","environment":"c","admin":"ann","quota":{"body_bytes":-1}}`, "quota/body_bytes: -1" + negative},
		{KindCreate, `{"organisation":"a"}`, `json: unknown field "organisation"`},

		{KindResume, `{"tenant":"acme_web_prod","reason":"x"}`, "tenant: acme_web_prod is not suspended"},
		{KindSuspend, `{"tenant":"acme_web_prod","reason":" "}`, "reason: is required"},
		{KindSuspend, `{"tenant":"acme_web_prod","reason":"unpaid"}`, `tenant_suspended {"reason":"unpaid","tenant":"acme_web_prod"}`},
		{KindSuspend, `{"tenant":"acme_web_prod","reason":"unpaid"}`, "tenant: acme_web_prod is suspended already"},
		{KindSetQuota, `{"tenant":"acme_web_prod","quota":{"artifact_bytes":5}}`, `tenant_quota_set {"quota":{"artifact_bytes":5},"tenant":"acme_web_prod"}`},
		{KindSetQuota, `{"tenant":"acme_web_prod","quota":{"calls_per_second":5}}`, `tenant_quota_set {"quota":{"calls_per_second":5},"tenant":"acme_web_prod"}`},
		{KindResume, `{"tenant":"acme_web_prod","reason":"paid"}`, `tenant_resumed {"reason":"paid","tenant":"acme_web_prod"}`},
		{KindSuspend, `{"tenant":"acme_web_prod","reason":"again"}`, `tenant_suspended {"reason":"again","tenant":"acme_web_prod"}`},
		{KindCreate, `{"organization":"acme","project":"web","environment":"prod","admin":"ann"}`, "environment: tenant acme_web_prod exists: choose another name"},

		{KindSuspend, `{"tenant":"default","reason":"moved"}`, `tenant_suspended {"reason":"moved","tenant":"default"}`},
		{KindResume, `{"tenant":"default","reason":"back"}`, `tenant_resumed {"reason":"back","tenant":"default"}`},
		{KindSetQuota, `{"tenant":"default","quota":{}}`, `tenant_quota_set {"quota":{},"tenant":"default"}`},
		{KindSetQuota, `{"tenant":"default","quota":{"artifact_bytes":-1}}`, "quota/artifact_bytes: -1" + negative},
		{KindSetQuota, `{"tenant":"default","quota":{"in_flight":-2}}`, "quota/in_flight: -2" + negative},

		{KindSuspend, `{"tenant":"_cell","reason":"x"}`, `tenant: "_cell"` + unchanged},
		{KindSetQuota, `{"tenant":"_org-acme","quota":{}}`, `tenant: "_org-acme"` + unchanged},
		{KindSuspend, `{"tenant":"a.b","reason":"x"}`, "tenant: \"a.b\" is not the id of a tenant: name one that `binnacle tenant list` shows"},
		{KindSuspend, `{"tenant":"other","reason":"x"}`, "tenant: other" + unknown},
		{KindResume, `{"tenant":"acme_web_old","reason":"x"}`, "tenant: acme_web_old" + unknown},
		{KindSetQuota, `{"tenant":"acme_web_old","quota":{}}`, "tenant: acme_web_old" + unknown},
		{"tenant.remove", `{}`, "kind tenant.remove: want tenant.create, tenant.suspend, tenant.resume or tenant.set_quota"},
	} {
		if got := m.do(c.kind, c.args); got != c.want {
			t.Errorf("%s %s:\n%s, want\n%s", c.kind, c.args, got, c.want)
		}
	}
	for id, want := range map[string]trust.Tenant{"acme_web_prod": {Suspended: true, Quota: contract.Quota{CallsPerSecond: 5}}, "acme_web_test": {Quota: contract.Quota{InFlight: 3}}, "default": {}} {
		if got, ok := m.cell.Of(id); !ok || got.Suspended != want.Suspended || got.Quota != want.Quota {
			t.Errorf("%+v %v, want %+v", got, ok, want)
		}
	}
}

// TestGoverns shows that Governs returns true for the kinds that Parse decodes, and false
// for two others.
func TestGoverns(t *testing.T) {
	for _, kind := range []string{KindCreate, KindSuspend, KindResume, KindSetQuota} {
		if !Governs(kind) {
			t.Error(kind)
		}
	}
	if Governs("tenant.remove") || Governs("policy.freeze") {
		t.Error("Governs returns true for other kinds")
	}
}

// TestQuotaMembers shows that a quota with a negative member is rejected with an *Error that
// names the member.
func TestQuotaMembers(t *testing.T) {
	var members map[string]int64
	if err := json.Unmarshal(contract.Bytes(&contract.Quota{ArtifactBytes: 1, BodyBytes: 1, CallsPerSecond: 1, InFlight: 1}), &members); err != nil || len(members) != reflect.TypeFor[contract.Quota]().NumField() {
		t.Fatal(members, err)
	}
	for name := range members {
		var q contract.Quota
		if err := json.Unmarshal([]byte(`{"`+name+`":-1}`), &q); err != nil {
			t.Fatal(err)
		}
		var typed *Error
		if err := valid(&q); !errors.As(err, &typed) || typed.Field != "quota/"+name {
			t.Error(name, err)
		}
	}
}
