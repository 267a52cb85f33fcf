package policyapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestReads checks that policies, limits and identities can be read only with
// audit:read, and the trust registry without it. It also checks that the parameter at is
// passed on to policy, and that an invalid one is rejected.
func TestReads(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	m.Answers["policy policies"] = []policy.PolicyDocument{{Layer: "P0"}}
	m.Answers["policy limits"] = policy.LimitsState{Limits: []guard.Limit{}, Accounts: []policy.Account{}}
	m.Answers["policy identities"] = func(raw json.RawMessage) (any, error) {
		var q policy.IdentitiesRequest
		err := json.Unmarshal(raw, &q)
		return policy.IdentitiesState{Identities: []policy.Identity{{FromLamport: q.At}}}, err
	}
	auditor, alice := m.Token("auditor", token.Audit), m.Token("alice", token.Tools)
	for path, want := range map[string]string{"policies": `"layer":"P0"`, "limits": `{"accounts":[],"limits":[]}`, "identities": `"from_lamport":0`, "identities?at=7": `"from_lamport":7`} {
		if r := m.Do("GET", "/api/v1/"+path, auditor, ""); r.Code != 200 || !strings.Contains(r.Body.String(), want) {
			t.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
		if r := m.Do("GET", "/api/v1/"+path, alice, ""); r.Error() != "scope_missing" {
			t.Errorf("%s without the scope: %s", path, r.Body)
		}
	}
	if r := m.Do("GET", "/api/v1/trust/keys?at=3", alice, ""); r.Code != 200 || r.Body.String() != "[]\n" {
		t.Error(r.Code, r.Body)
	}
	for _, at := range []string{"0", "-1", "soon"} {
		if r := m.Do("GET", "/api/v1/trust/keys?at="+at, alice, ""); r.Code != 400 || r.Param() != "at" {
			t.Error(at, r.Code, r.Body)
		}
	}
}

// TestTenants checks that operators receive the tenants of the mesh and single ones of
// them, and that an unknown one does not exist (404). Other callers are rejected; package
// auth tests which ones these are.
func TestTenants(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	m.Answers["policy tenants"] = []policy.Tenant{{Tenant: "acme_web_prod", Organization: "acme", Quota: contract.Quota{InFlight: 3}}, {Tenant: edgetest.Tenant, Original: true}}
	m.Tenants.Open("olga")
	olga := m.TokenIn(contract.CellTenant, "olga", token.CellAudit)
	for path, want := range map[string]string{
		"tenants":               `[{"organization":"acme","original":false,"quota":{"in_flight":3},"suspended":false,"tenant":"acme_web_prod"},{`,
		"tenants/acme_web_prod": `{"organization":"acme","original":false,"quota":{"in_flight":3},"suspended":false,"tenant":"acme_web_prod"}`,
		"tenants/t":             `"original":true`,
	} {
		if r := m.Do("GET", "/api/v1/"+path, olga, ""); r.Code != 200 || !strings.Contains(r.Body.String(), want) {
			t.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
		for _, who := range []string{m.TokenIn(contract.CellTenant, "mallory", token.All...), m.Token("olga", token.All...)} {
			if r := m.Do("GET", "/api/v1/"+path, who, ""); r.Code != 403 {
				t.Errorf("%s by a caller who is not an operator: %d %s", path, r.Code, r.Body)
			}
		}
	}
	if r := m.Do("GET", "/api/v1/tenants/none", olga, ""); r.Code != 404 {
		t.Errorf("an unknown tenant: %d %s", r.Code, r.Body)
	}
}
