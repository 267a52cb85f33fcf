package mcpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestHELM checks that the manifest lists the packs, that executing a tool through this
// API returns the outcome of a call, and that an error names the invalid param.
func TestHELM(t *testing.T) {
	m := edgetest.New(t, gateway.Config{Version: "9"}, "tool.a")
	who := m.Token("alice", token.Tools)
	r := m.Do("GET", "/mcp/v1/capabilities", who, "")
	if tools, _ := r.Doc["tools"].([]any); len(tools) != 1 || r.Doc["version"] != "9" || r.Doc["catalog_digest"] == "" {
		t.Error(r.Body)
	}
	r = m.Do("POST", "/mcp/v1/execute", who, `{"method":"a","params":{"text":"x"}}`)
	if r.Code != 200 || r.Doc["receipt_id"] == nil || !strings.Contains(r.Body.String(), `"structured_content":{"text":"x"}`) {
		t.Error(r.Body)
	}
	m.Execute = func(c *edgetest.Call) { c.Fail(contract.Failed, "invalid_input", "text: no") }
	if r := m.Do("POST", "/mcp/v1/execute", who, `{"method":"a","params":{"text":"x"}}`); r.Param() != "/params/text" {
		t.Error(r.Body)
	}
}

// rpc sends a JSON-RPC request to /mcp. It returns the result, the id of the MCP session
// that the request opened, and the HTTP status.
func rpc(m *edgetest.Mesh, bearer, session, method, params string) (result map[string]any, opened string, status int) {
	m.Helper()
	headers := []string{"Content-Type: application/json", "Accept: application/json, text/event-stream"}
	if session != "" {
		headers = append(headers, "Mcp-Session-Id: "+session)
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	if strings.HasPrefix(method, "notifications/") {
		body = `{"jsonrpc":"2.0","method":"` + method + `"}`
	}
	r := m.Do("POST", "/mcp", bearer, body, headers...)
	text := r.Body.String()
	if i := strings.Index(text, "data: "); i >= 0 {
		text = text[i+len("data: "):]
	}
	var doc struct{ Result map[string]any }
	_ = json.NewDecoder(strings.NewReader(text)).Decode(&doc)
	return doc.Result, r.Header().Get("Mcp-Session-Id"), r.Code
}

// open initializes an MCP session with the bearer token who, and checks that one tool is
// listed in it. It returns the session's id.
func open(t *testing.T, m *edgetest.Mesh, who string) string {
	t.Helper()
	_, session, status := rpc(m, who, "", "initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	if status != 200 || session == "" {
		t.Fatal(status)
	}
	rpc(m, who, session, "notifications/initialized", "")
	if list, _, _ := rpc(m, who, session, "tools/list", `{}`); len(list["tools"].([]any)) != 1 {
		t.Error(list)
	}
	return session
}

// TestMCP checks that tools can be listed and called over MCP. Failed calls return results that a
// model can read, and so do calls of unknown tools, which are proposed too. An MCP session accepts
// only the credential with which it was opened, and ends when it is deleted.
func TestMCP(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	who := m.Token("alice", token.Tools)
	session := open(t, m, who)
	var proposed *edgetest.Call
	m.Execute = func(c *edgetest.Call) { proposed = c; c.Succeed(c.Args) }
	r, _, _ := rpc(m, who, session, "tools/call", `{"name":"a","arguments":{"text":"x"}}`)
	meta, _ := r["_meta"].(map[string]any)
	if r["isError"] == true || meta["binnacle/receipt_id"] != contract.IDReceipt+proposed.ID || !strings.HasPrefix(proposed.SessionName, "s-mcp-") {
		t.Error(r, proposed.SessionName)
	}
	m.Execute = func(c *edgetest.Call) { proposed = c; c.Deny(contract.ReasonUnknownTool) }
	if r, _, _ := rpc(m, who, session, "tools/call", `{"name":"none","arguments":{}}`); r["isError"] != true || proposed.Kind != "tool.none" {
		t.Error("a name outside the catalog:", r, proposed.Kind)
	}
	m.Execute = func(c *edgetest.Call) { c.Deny(contract.ReasonArgsUnknownField) }
	r, _, _ = rpc(m, who, session, "tools/call", `{"name":"a","arguments":{"tex":"x"}}`)
	meta, _ = r["_meta"].(map[string]any)
	if names, _ := meta["binnacle/did_you_mean"].([]any); r["isError"] != true || meta["binnacle/error_code"] != contract.CodeInvalidInput || meta["binnacle/pointer"] != "/args/tex" || len(names) != 1 || meta["binnacle/hint"] == nil {
		t.Error("an unknown argument:", r)
	}
	m.Execute = func(c *edgetest.Call) { c.Fail(contract.Failed, "exit_1", "exit status 1") }
	r, _, _ = rpc(m, who, session, "tools/call", `{"name":"a"}`)
	if text, _ := json.Marshal(r["content"]); r["isError"] != true || !strings.Contains(string(text), "exit_1") {
		t.Error("a failure:", r)
	}
	if _, _, status := rpc(m, m.Token("bob", token.Tools), session, "tools/list", `{}`); status != http.StatusNotFound {
		t.Error("another credential in the session:", status)
	}
	if r := m.Do("DELETE", "/mcp", who, "", "Mcp-Session-Id: "+session); r.Code >= 300 {
		t.Error("its end:", r.Code, r.Body)
	}
	if _, _, status := rpc(m, who, session, "tools/list", `{}`); status != http.StatusNotFound {
		t.Error("after its end:", status)
	}
}

// TestMCPProposesAll checks that a tools/call is proposed whether the tool is listed in
// the MCP session or not: even if the tool was registered after the MCP session opened,
// is not approved, has a document that MCP does not permit, or is unknown. A call with a
// name that is too long is not proposed; its result is an error.
func TestMCPProposesAll(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a", "tool.drifted")
	register := func(kind, description, input string) {
		m.Record(edgetest.Executor, contract.EventToolRegistered, "-", contract.Bytes(&contract.Tool{Kind: kind, Tool: strings.TrimPrefix(kind, "tool."), Executor: edgetest.Executor,
			Version: "1", Description: description, InputSchema: []byte(input), OutputSchema: []byte(`{"type":"object"}`)}), nil)
	}
	register("tool.drifted", "another description", `{"type":"object"}`)
	register("tool.list", "args that are not an object", `{"type":"array"}`)
	who := m.Token("alice", token.Tools)
	session := open(t, m, who)
	m.Register("tool.late")
	var proposed *edgetest.Call
	m.Execute = func(c *edgetest.Call) { proposed = c; c.Deny(contract.ReasonPolicyViolation) }
	for _, name := range []string{"a", "late", "drifted", "list", "none"} {
		proposed = nil
		if r, _, _ := rpc(m, who, session, "tools/call", `{"name":"`+name+`","arguments":{}}`); r["isError"] != true || proposed == nil || proposed.Kind != "tool."+name {
			t.Errorf("%s: %v; proposed %v", name, r, proposed)
		}
	}
	r, _, _ := rpc(m, who, session, "tools/call", `{"name":"`+strings.Repeat("x", 129)+`","arguments":{}}`)
	if text, _ := json.Marshal(r["content"]); r["isError"] != true || !strings.Contains(string(text), contract.CodeInvalidInput) {
		t.Error("a long name:", r)
	}
}

// TestMCPQuota checks that a tool call over MCP counts in the quota of its tenant, and that
// the model receives the error. A quota of another tenant has no effect.
func TestMCPQuota(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	who := m.Token("alice", token.Tools)
	session := open(t, m, who)
	call := func() string {
		r, _, _ := rpc(m, who, session, "tools/call", `{"name":"a","arguments":{}}`)
		text, _ := json.Marshal(r["content"])
		if r["isError"] != true {
			return ""
		}
		return string(text)
	}
	m.Tenants.SetQuota(edgetest.Other, contract.Quota{CallsPerSecond: 1})
	for range 2 {
		if e := call(); e != "" {
			t.Error(e)
		}
	}
	m.Tenants.SetQuota(edgetest.Tenant, contract.Quota{InFlight: 1, CallsPerSecond: 1})
	first, second := call(), call()
	if first != "" || !strings.Contains(second, contract.CodeQuotaExceeded) {
		t.Errorf("first %q, second %q", first, second)
	}
}

// TestMCPSuspended checks that the event stream of an MCP session ends when the tenant is
// suspended, that the session rejects requests meanwhile, and that it continues after
// the suspension.
func TestMCPSuspended(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	who := m.Token("alice", token.Tools)
	session := open(t, m, who)
	m.Tenants.Suspend(edgetest.Other, true)
	began := time.Now()
	go func() { time.Sleep(100 * time.Millisecond); m.Tenants.Suspend(edgetest.Tenant, true) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	m.DoIn(ctx, "GET", "/mcp", who, "", "Accept: text/event-stream", "Mcp-Session-Id: "+session)
	if d := time.Since(began); d < 100*time.Millisecond || d > 2*time.Second {
		t.Error("the stream ends after", d)
	}
	if _, _, status := rpc(m, who, session, "tools/list", `{}`); status != 403 {
		t.Error("during the suspension:", status)
	}
	m.Tenants.Suspend(edgetest.Tenant, false)
	if list, _, _ := rpc(m, who, session, "tools/list", `{}`); len(list["tools"].([]any)) != 1 {
		t.Error("after the suspension:", list)
	}
}

// TestMCPReferences checks that a call that names too many contents fails with the code
// invalid_input, and that a call that names a content fails with the code unavailable if
// audit cannot be queried.
func TestMCPReferences(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	who := m.Token("alice", token.Tools)
	_, session, _ := rpc(m, who, "", "initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	rpc(m, who, session, "notifications/initialized", "")
	call := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, " sha256:%064x", i)
		}
		r, _, _ := rpc(m, who, session, "tools/call", `{"name":"a","arguments":{"text":"`+text.String()+`"}}`)
		out, _ := json.Marshal(r["content"])
		return string(out)
	}
	if got := call(257); !strings.Contains(got, contract.CodeInvalidInput) {
		t.Error(got)
	}
	m.Answers["audit makers"] = func(json.RawMessage) (any, error) { return nil, errors.New("no running instance") }
	if got := call(1); !strings.Contains(got, contract.CodeUnavailable) {
		t.Error(got)
	}
}
