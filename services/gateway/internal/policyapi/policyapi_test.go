package policyapi_test

import (
	"encoding/json"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestReads: what governs is read with audit:read, at a point of the past where one is
// named; the trust registry with any credential.
func TestReads(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	m.Answers["policy policies"] = []map[string]any{{"layer": "P0"}}
	m.Answers["policy limits"] = map[string]any{"limits": []any{}}
	m.Answers["policy identities"] = func(raw json.RawMessage) (any, error) { return json.RawMessage(raw), nil }
	auditor, alice := m.Token("auditor", token.Audit), m.Token("alice", token.Tools)
	for path, want := range map[string]string{"policies": `[{"layer":"P0"}]`, "limits": `{"limits":[]}`, "identities": `{"at":0}`, "identities?at=7": `{"at":7}`} {
		if r := m.Do("GET", "/api/v1/"+path, auditor, ""); r.Code != 200 || r.Body.String() != want {
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
