package mcpapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/mcpapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestChallenges checks the challenges of responses to requests without a valid credential or a
// scope that allows calls, and that the metadata which they name describes the URL of MCP, for the
// URL of the request and for a public one.
func TestChallenges(t *testing.T) {
	for public, base := range map[string]string{"": "http://example.com", "https://mesh.example/": "https://mesh.example"} {
		m := edgetest.New(t, gateway.Config{PublicURL: public}, "tool.a")
		at := base + mcpapi.MetadataPath
		for _, x := range []struct {
			path, bearer string
			status       int
			want         string
		}{
			{"/mcp", "", 401, `Bearer resource_metadata="` + at + `", scope="tools:call"`},
			{"/mcp", "wrong", 401, `Bearer resource_metadata="` + at + `", scope="tools:call", error="invalid_token"`},
			{"/mcp", m.Token("alice", token.Audit), 403, `Bearer resource_metadata="` + at + `", scope="tools:call", error="insufficient_scope"`},
			{"/api/v1/calls", "", 401, "Bearer"},
			{"/api/v1/calls", m.Token("alice", token.Audit), 403, ""},
			{"/mcp", m.Token("alice", token.Tools), 415, ""},
		} {
			r := m.Do("POST", x.path, x.bearer, `{}`)
			if got := r.Header().Get("WWW-Authenticate"); r.Code != x.status || got != x.want {
				t.Errorf("%s %.10s: %d %s, want %d %s", x.path, x.bearer, r.Code, got, x.status, x.want)
			}
		}
		var doc mcpapi.ResourceMetadata
		r := m.Do("GET", mcpapi.MetadataPath, "", "")
		if err := json.Unmarshal(r.Body.Bytes(), &doc); err != nil || doc.Resource != base+"/mcp" || len(doc.Servers) != 1 || doc.Servers[0] != base {
			t.Fatal(r.Code, r.Body, err)
		}
		var server struct{ Issuer string }
		r = m.Do("GET", strings.TrimPrefix(doc.Servers[0], base)+"/.well-known/oauth-authorization-server", "", "")
		if err := json.Unmarshal(r.Body.Bytes(), &server); err != nil || server.Issuer != doc.Servers[0] {
			t.Errorf("the authorization server of the metadata: %s, %v", r.Body, err)
		}
	}
}
