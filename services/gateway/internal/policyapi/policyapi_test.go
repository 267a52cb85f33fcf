package policyapi_test

import (
	"encoding/json"
	"strings"
	"testing"

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
