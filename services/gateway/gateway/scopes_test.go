package gateway

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// openRoutes lists the operations that require no bearer token. The link of an artifact is a
// credential itself; the pages below /auth check the cookie of the browser.
var openRoutes = []string{"GET /.well-known/jwks.json", "GET /.well-known/oauth-authorization-server", "GET /.well-known/oauth-protected-resource/mcp", "GET /a/{link}", "GET /auth/approvals", "GET /auth/callback", "GET /auth/consent", "GET /auth/device", "GET /auth/login", "GET /auth/passkeys", "GET /healthz", "GET /oauth/authorize", "GET /openapi.json", "GET /readyz", "GET /version",
	"POST /auth/approvals", "POST /auth/consent", "POST /auth/device", "POST /auth/login", "POST /auth/logout", "POST /auth/oidc", "POST /auth/passkeys", "POST /oauth/device", "POST /oauth/register", "POST /oauth/revoke", "POST /oauth/token"}

// TestScopes shows that every operation except those in openRoutes requires exactly one scope, in
// token.All or of those that only auth.Need.Scope returns, and that the OpenAPI document states
// it. Without a credential the response has status 401, and with a credential that lacks the scope
// it has status 403, unless every credential has the scope; GET /metrics, which is open to peers
// on the same host, is not requested. Each response has the headers for browsers and permits no
// other origin.
func TestScopes(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]struct {
			Security []map[string][]string
		}
	}
	if err := json.Unmarshal(openapiDoc, &doc); err != nil {
		t.Fatal(err)
	}
	_, addr, mint := edge(t, body.Limits{})
	status := func(method, path, bearer string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Access-Control-Allow-Origin") != "" || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s %s: headers %v", method, path, resp.Header)
		}
		return resp.StatusCode
	}
	lacking := map[string]string{
		auth.ScopeAny: "", auth.ScopeCalls: mint("alice", token.Audit, token.Health), auth.ScopeLog: mint("alice", token.LLM, token.Health),
	}
	var open []string
	all := Scopes()
	for _, at := range slices.Sorted(maps.Keys(all)) {
		scope := all[at]
		method, path, _ := strings.Cut(at, " ")
		security := doc.Paths[path][strings.ToLower(method)].Security
		if scope == "" {
			if open = append(open, at); len(security) != 0 {
				t.Errorf("%s requires no scope; the document has %v", at, security)
			}
			continue
		}
		without, implied := lacking[scope]
		if !implied {
			if !slices.Contains(token.All, scope) {
				t.Errorf("%s requires the scope %q, which does not exist", at, scope)
			}
			without = mint("alice", slices.DeleteFunc(slices.Clone(token.All), func(s string) bool {
				return s == scope || scope == token.CellAudit && s == token.Audit // which suffices before the cell is opened
			})...)
		}
		if len(security) != 1 || !slices.Equal(security[0]["bearer"], []string{scope}) {
			t.Errorf("%s requires %s; the document has %v", at, scope, security)
		}
		if at == "GET /metrics" { // open to peers on the gateway's own host
			continue
		}
		path = strings.NewReplacer("{", "", "}", "").Replace(path)
		if got := status(method, path, ""); got != http.StatusUnauthorized {
			t.Errorf("%s without a credential: %d", at, got)
		}
		if without == "" {
			continue
		}
		if got := status(method, path, without); got != http.StatusForbidden {
			t.Errorf("%s without %s: %d", at, scope, got)
		}
	}
	if !slices.Equal(open, openRoutes) {
		t.Errorf("open operations %v, want %v", open, openRoutes)
	}
}
