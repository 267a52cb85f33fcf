package mcpapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// publish registers the document of a virtual server.
func publish(m *edgetest.Mesh, name string, v *mcpdoc.Virtual) {
	m.Helper()
	schema, err := v.Schema()
	if err != nil {
		m.Fatal(err)
	}
	kind := mcpdoc.VirtualKind(name)
	m.Record(mcpdoc.Executor, contract.EventToolRegistered, "-", contract.Bytes(&contract.Tool{Kind: kind, Tool: kind, Executor: mcpdoc.Executor, Version: "v1",
		InputSchema: []byte(`{"type":"object"}`), OutputSchema: schema}), nil)
}

// modernRPC sends a request of protocol version 2026-07-28 to a path. It returns the result,
// the message of the error, and the HTTP status.
func modernRPC(m *edgetest.Mesh, path, bearer, method, name, params string) (result map[string]any, message string, status int) {
	m.Helper()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	if params != "" {
		params += ","
	}
	headers := []string{"Content-Type: application/json", "Accept: application/json, text/event-stream", "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: " + method}
	if name != "" {
		headers = append(headers, "Mcp-Name: "+name)
	}
	r := m.Do("POST", path, bearer, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+meta+`}}`, headers...)
	text := r.Body.String()
	if i := strings.Index(text, "data: "); i >= 0 {
		text = text[i+len("data: "):]
	}
	var doc struct {
		Result map[string]any
		Error  struct{ Message string }
	}
	_ = json.NewDecoder(strings.NewReader(text)).Decode(&doc)
	return doc.Result, doc.Error.Message, r.Code
}

// namesOf returns the names of the tools in a result.
func namesOf(result map[string]any) (out []string) {
	tools, _ := result["tools"].([]any)
	for _, t := range tools {
		out = append(out, fmt.Sprint(t.(map[string]any)["name"]))
	}
	return out
}

// TestVirtualServer checks that a virtual server lists only its tools, to clients with and
// without a session; that a client without a session can call these tools, and that its call
// of another tool is not proposed; that an MCP session belongs to its virtual server; and that
// a virtual server which is unknown or has changed cannot be used.
func TestVirtualServer(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a.one", "tool.a.two", "tool.b.one", "tool.c")
	publish(m, "small", &mcpdoc.Virtual{Tools: []string{"a.*", "c"}})
	who := m.Token("alice", token.Tools)
	proposed := 0
	m.Execute = func(c *edgetest.Call) { proposed++; c.Succeed(c.Args) }
	const at = "/mcp?server=small"
	r, _, _ := modernRPC(m, at, who, "tools/list", "", "")
	if got := namesOf(r); !slices.Equal(got, []string{"a.one", "a.two", "c"}) {
		t.Errorf("tools %v", got)
	}
	if r, e, _ := modernRPC(m, at, who, "tools/call", "a.two", `"name":"a.two","arguments":{"text":"x"}`); r["isError"] == true || proposed != 1 {
		t.Error("a tool of the virtual server:", r, e, proposed)
	}
	if r, e, _ := modernRPC(m, at, who, "tools/call", "b.one", `"name":"b.one","arguments":{}`); r["isError"] != true || proposed != 1 || !strings.Contains(fmt.Sprint(r), "does not offer the tool b.one") {
		t.Error("a tool of the mesh that it does not offer:", r, e, proposed)
	}
	if _, _, status := modernRPC(m, "/mcp?server=none", who, "tools/list", "", ""); status != 404 {
		t.Error("an unknown virtual server:", status)
	}
	// With a session, the header names the virtual server.
	h := []string{"Content-Type: application/json", "Accept: application/json, text/event-stream", "X-Binnacle-MCP-Server: small"}
	opened := m.Do("POST", "/mcp", who, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, h...)
	session := opened.Header().Get("Mcp-Session-Id")
	if r := m.Do("POST", at, who, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, append(h, "Mcp-Session-Id: "+session)...); !strings.Contains(r.Body.String(), "a.one") || strings.Contains(r.Body.String(), "b.one") {
		t.Error("in a session:", r.Body)
	}
	if _, _, status := rpc(m, who, session, "tools/list", `{}`); status != 404 {
		t.Error("the session without its virtual server:", status)
	}
	if r := m.Do("POST", "/mcp?server=other", who, `{}`, h...); r.Code != 400 {
		t.Error("two names:", r.Code, r.Body)
	}
	publish(m, "small", &mcpdoc.Virtual{Tools: []string{"*"}})
	if _, _, status := modernRPC(m, at, who, "tools/list", "", ""); status != 404 {
		t.Error("a changed virtual server:", status)
	}
	if r := m.Do("POST", at, who, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"b.one"}}`, append(h, "Mcp-Session-Id: "+session)...); r.Code != 404 || proposed != 1 {
		t.Error("a session of a changed virtual server:", r.Code, r.Body)
	}
}

// TestSearch checks that a virtual server with search lists only search_tools and call_tool,
// that search_tools finds tools of the virtual server by words, and that call_tool calls one of
// them, and no other tool.
func TestSearch(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.gh.createIssue", "tool.gh.close_issue", "tool.gh.list_repositories", "tool.web.fetch")
	publish(m, "find", &mcpdoc.Virtual{Tools: []string{"gh.*"}, Search: true})
	who := m.Token("alice", token.Tools)
	var proposed []string
	m.Execute = func(c *edgetest.Call) { proposed = append(proposed, c.Kind+string(c.Args)); c.Succeed(c.Args) }
	call := func(name, args string) map[string]any {
		r, e, status := modernRPC(m, "/mcp?server=find", who, "tools/call", name, `"name":"`+name+`","arguments":`+args)
		if r == nil {
			t.Fatal(name, e, status)
		}
		return r
	}
	list, _, _ := modernRPC(m, "/mcp?server=find", who, "tools/list", "", "")
	if got := namesOf(list); !slices.Equal(got, []string{"call_tool", "search_tools"}) {
		t.Errorf("tools %v", got)
	}
	found, _ := call("search_tools", `{"query":"create issues"}`)["structuredContent"].(map[string]any)
	if got := namesOf(found); len(got) != 2 || got[0] != "gh.createIssue" || got[1] != "gh.close_issue" || found["total"] != 2.0 {
		t.Errorf("found %v", found)
	}
	if found, _ := call("search_tools", `{"query":"issue","limit":1}`)["structuredContent"].(map[string]any); len(namesOf(found)) != 1 || found["total"] != 2.0 {
		t.Errorf("found %v", found)
	}
	if found, _ := call("search_tools", `{"query":"fetch"}`)["structuredContent"].(map[string]any); len(namesOf(found)) != 0 {
		t.Errorf("a tool of the mesh that is not offered is found: %v", found)
	}
	if r := call("call_tool", `{"name":"gh.createIssue","arguments":{"text":"x"}}`); r["isError"] == true || !slices.Equal(proposed, []string{`tool.gh.createIssue{"text":"x"}`}) {
		t.Errorf("%v; proposed %v", r, proposed)
	}
	for _, bad := range []struct{ name, args, want string }{
		{"call_tool", `{"name":"web.fetch"}`, "does not offer"}, {"call_tool", `{"name":"call_tool","arguments":{"name":"web.fetch"}}`, "does not offer"}, {"web.fetch", `{}`, "does not offer"},
		{"call_tool", `{}`, "arguments.name"}, {"call_tool", `{"name":7}`, "arguments.name"}, {"call_tool", `{"name":"gh.createIssue","arguments":[]}`, "arguments.arguments"},
		{"search_tools", `{}`, "arguments.query"}, {"search_tools", `{"query":" "}`, "arguments.query"}, {"search_tools", `{"query":"x","limit":51}`, "arguments.limit"}, {"search_tools", `{"query":"x","limit":-1}`, "arguments.limit"},
	} {
		if r := call(bad.name, bad.args); r["isError"] != true || !strings.Contains(fmt.Sprint(r["content"]), bad.want) {
			t.Errorf("%s %s: %v, want %s", bad.name, bad.args, r, bad.want)
		}
	}
	if len(proposed) != 1 {
		t.Errorf("proposed %v", proposed)
	}
}

// TestOverlaysFilterLists checks that a list lacks the tools that an overlay denies to the caller,
// that it has the tools that are escalated or denied to others, and that search finds only tools
// of the list.
func TestOverlaysFilterLists(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a.one", "tool.a.two", "tool.b.one")
	publish(m, "find", &mcpdoc.Virtual{Tools: []string{"*"}, Search: true})
	alice, bob := m.Token("alice", token.Tools), m.Token("bob", token.Tools)
	activate := func(tenant string, o *guard.Overlay, retired bool) {
		content, object := blob.Refer(contract.Bytes(o), "application/json")
		if object != nil {
			t.Fatal("the overlay is not inline")
		}
		m.RecordIn(tenant, "policy", contract.EventPolicyActivated, "policies", contract.Bytes(&contract.Activated{Layer: "p2", Name: o.ID, Bundle: content, Digest: content.Commitment, Retired: retired}))
	}
	list := func(who string) string {
		r, e, status := modernRPC(m, "/mcp", who, "tools/list", "", "")
		if r == nil {
			t.Fatal(e, status)
		}
		return strings.Join(namesOf(r), " ")
	}
	only := &guard.Overlay{ID: "only", Scope: "agent", Subject: "alice", Only: []string{"tool.a.*"}}
	activate(edgetest.Tenant, only, false)
	activate(edgetest.Tenant, &guard.Overlay{ID: "deny", Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{
		{Kinds: []string{"tool.a.one"}, Verdict: contract.Escalate, Reason: "R"}, {Kinds: []string{"tool.a.*"}, Verdict: contract.Deny, Reason: "R"}}}, false)
	activate(edgetest.Tenant, &guard.Overlay{ID: "old", Scope: "tenant", Subject: edgetest.Tenant, Only: []string{"none"}, Expires: "2020-01-01T00:00:00.000Z"}, false)
	activate(edgetest.Other, &guard.Overlay{ID: "theirs", Scope: "agent", Subject: "bob", Only: []string{"none"}}, false)
	if got := list(alice); got != "a.one" {
		t.Errorf("alice lists %q", got)
	}
	if got := list(bob); got != "a.one a.two b.one" {
		t.Errorf("bob lists %q", got)
	}
	r, _, _ := modernRPC(m, "/mcp?server=find", alice, "tools/call", "search_tools", `"name":"search_tools","arguments":{"query":"one two"}`)
	if found, _ := r["structuredContent"].(map[string]any); strings.Join(namesOf(found), " ") != "a.one" || found["total"] != 1.0 {
		t.Errorf("alice finds %v", found)
	}
	activate(edgetest.Tenant, only, true)
	if got := list(alice); got != "a.one b.one" {
		t.Errorf("alice lists %q after the end of an overlay", got)
	}
	activate(edgetest.Tenant, &guard.Overlay{ID: "s", Scope: "session", Subject: "s-quiet", Only: []string{"none"}}, false)
	if got := list(bob); got != "a.one a.two b.one" {
		t.Errorf("bob lists %q outside the session of an overlay", got)
	}
}
