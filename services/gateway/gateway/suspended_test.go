package gateway_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/decide"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

const model = `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}],"max_tokens":9}`

// proposing holds, for each route that admits suspended callers, a request: its path
// if that differs from the route's, and its body.
var proposing = map[string][2]string{
	"POST /v1/chat/completions":          {"", model},
	"POST /v1/completions":               {"", `{"model":"demo/echo","prompt":"hi"}`},
	"POST /v1/embeddings":                {"", `{"model":"demo/echo","input":"hi"}`},
	"POST /v1/messages":                  {"", model},
	"POST /v1/messages/count_tokens":     {"", model},
	"POST /v1/responses":                 {"", `{"model":"demo/echo","input":"hi"}`},
	"POST /api/v1/packs/:name":           {"/api/v1/packs/a", `{}`},
	"POST /api/v1/calls":                 {"", `{"kind":"tool.a"}`},
	"POST /api/v1/keys":                  {"", `{"id":"k","scopes":["llm:call"]}`},
	"POST /api/v1/keys/:id/consent":      {"/api/v1/keys/k/consent", `{"maker":"alice","scopes":["llm:call"]}`},
	"DELETE /api/v1/keys/:id/consent":    {"/api/v1/keys/k/consent", ``},
	"POST /api/v1/devices":               {"", `{"code":"BCD-FGH-JKM"}`},
	"POST /api/v1/tokens/revocations":    {"", `{"id":"j","reason":"x"}`},
	"POST /api/v1/judgements":            {"", `{"session":"s-x","rubric":"x"}`},
	"POST /api/v1/approvals/:call/votes": {"/api/v1/approvals/c-x/votes", `{"vote":"grant","reason":"x"}`},
	"POST /mcp/v1/execute":               {"", `{"method":"a","params":{}}`},
	"POST /api/v1/decide":                {"", `{"kind":"tool.a","report_within_ms":1000}`},
	"POST /api/v1/pipelines/runs":        {"", `{"pipeline":"scrape-deck"}`},
	"POST /api/v1/artifacts/:id/link":    {"/api/v1/artifacts/ar-x/link", ``}, // makes no proposal here, because the gateway has no signing key
	"POST /api/v1/secrets":               {"", ``},                            // no body, because nothing would be proposed without the vault-broker's key
	"DELETE /v1/responses/:id":           {"/v1/responses/resp_1", ``},        // makes no proposal here, because no response is stored
	"POST /api/v1/intents/:id/outcome":   {"/api/v1/intents/i-x/outcome", ``}, // makes no proposal; it records the effect of a call that was allowed before
}

// lender is a lender that no call of the tests reaches, because none is allowed.
type lender struct{ decide.Lender }

// suspensions maps the code of the error that requests of mallory receive to the function
// that causes it: it suspends mallory or its tenant.
var suspensions = map[string]func(m *edgetest.Mesh){
	contract.CodePrincipalSuspended: func(m *edgetest.Mesh) {
		m.Record("policy", contract.EventPrincipalSuspended, "mallory", contract.Bytes(&policy.PrincipalSuspended{Principal: "mallory", Reason: "x"}), nil)
	},
	contract.CodeTenantSuspended: func(m *edgetest.Mesh) { m.Tenants.Suspend(edgetest.Tenant, true) },
}

// TestSuspendedCallers checks, for every route that requires a credential, that the route
// admits a suspended principal, and a principal of a suspended tenant, if and only if it
// is listed in proposing. Each request in proposing that has a body must become a call,
// so that policy can deny it. A principal with the same name in another tenant is not
// rejected. Once the suspension has ended, the principal is admitted again.
func TestSuspendedCallers(t *testing.T) {
	for code, suspend := range suspensions {
		t.Run(code, func(t *testing.T) { suspendedCallers(t, code, suspend) })
	}
}

func suspendedCallers(t *testing.T, code string, suspend func(*edgetest.Mesh)) {
	m := edgetest.NewWith(t, gateway.Config{}, lender{}, "tool.a", "llm.chat")
	proposed := ""
	m.Execute = func(c *edgetest.Call) { proposed = c.Proposal.Actor; c.Deny(contract.ReasonPrincipalSuspended) }
	suspend(m)
	who := m.Token("mallory", token.All...)
	for route, admitted := range m.Service.Admitted() {
		method, path, _ := strings.Cut(route, " ")
		q, calls := proposing[route]
		if calls != admitted {
			t.Errorf("%s admits suspended callers: %t, want %t", route, admitted, calls)
		}
		if q[0] != "" {
			path = q[0]
		}
		proposed = ""
		r := m.Do(method, path, who, q[1])
		if refused := r.Code == 403 && r.Error() == code && proposed == ""; refused == calls {
			t.Errorf("%s: %d %s", route, r.Code, r.Body)
		}
		if q[1] != "" && proposed != "mallory" {
			t.Errorf("%s: %d %s; no proposal", route, r.Code, r.Body)
		}
	}
	if r := m.Do("GET", "/api/v1/packs", m.TokenIn(edgetest.Other, "mallory", token.All...), ""); r.Code != 200 {
		t.Errorf("request of the namesake in the other tenant: %d %s", r.Code, r.Body)
	}
	m.Record("policy", contract.EventPrincipalResumed, "mallory", contract.Bytes(&policy.PrincipalResumed{Principal: "mallory", Reason: "x"}), nil)
	m.Tenants.Suspend(edgetest.Tenant, false)
	if r := m.Do("GET", "/api/v1/packs", who, ""); r.Code != 200 {
		t.Errorf("after the suspension: %d %s", r.Code, r.Body)
	}
}

// TestSuspendedRepeats checks that a suspended principal, or a principal of a suspended
// tenant, receives neither the output nor the intent of a call that it proposed before the
// suspension.
func TestSuspendedRepeats(t *testing.T) {
	for code, suspend := range suspensions {
		t.Run(code, func(t *testing.T) { suspendedRepeats(t, code, suspend) })
	}
}

func suspendedRepeats(t *testing.T, code string, suspend func(*edgetest.Mesh)) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.NewWith(t, gateway.Config{}, lender{}, "tool.a", "llm.chat")
		m.Execute = func(c *edgetest.Call) {
			if c.ReportWithin == 0 {
				c.Succeed([]byte(`{"text":"output"}`))
			}
		}
		who := m.Token("mallory", token.All...)
		const call, key = `{"kind":"tool.a"}`, "Idempotency-Key: k"
		if r := m.Do("POST", "/api/v1/calls", who, call, key); r.Code != 200 {
			t.Fatal(r.Code, r.Body)
		}
		r := m.Do("POST", "/api/v1/decide", who, `{"kind":"tool.a","report_within_ms":60000}`, "X-Binnacle-Timeout: 1", "Idempotency-Key: d")
		decided := r.Header().Get("X-Binnacle-Call-Id")
		suspend(m)
		for what, r := range map[string]*edgetest.Response{
			"a repeated call":        m.Do("POST", "/api/v1/calls", who, call, key),
			"a repeated decision":    m.Do("POST", "/api/v1/decide", who, `{"kind":"tool.a","report_within_ms":60000}`, "X-Binnacle-Timeout: 1", "Idempotency-Key: d"),
			"the intent, by call id": m.Do("POST", "/api/v1/decide", who, `{"call_id":"`+decided+`"}`, "X-Binnacle-Timeout: 1"),
		} {
			if r.Code != 403 || r.Error() != code {
				t.Errorf("%s: %d %s", what, r.Code, r.Body)
			}
		}
	})
}
