package mcpapi_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestElicitedApproval checks, for clients without a session, that a client which can elicit input
// receives an elicitation when its call is escalated, with the page for approvers if it can open
// URLs, that the repeated request returns the outcome of the same call, that a declined elicitation
// cancels the call, and that no other principal can continue or cancel it.
func TestElicitedApproval(t *testing.T) {
	m := edgetest.New(t, gateway.Config{ApprovalPage: "https://console.example/approvals/{call}?from=mcp"}, "tool.a")
	var proposed []*edgetest.Call
	m.Execute = func(c *edgetest.Call) { proposed = append(proposed, c); c.Escalate() }
	alice, bob := m.Token("alice", token.Tools), m.Token("bob", token.Tools)
	type reply struct {
		Result struct {
			IsError       bool
			ResultType    string
			RequestState  string
			InputRequests map[string]struct {
				Params struct{ Mode, URL, Message string }
			}
			Content []struct{ Text string }
		}
		Error struct{ Message string }
	}
	call := func(who, caps, args, more string) (r reply) {
		meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":` + caps + `}`
		res := m.Do("POST", "/mcp", who, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":`+args+more+`,`+meta+`}}`,
			"Content-Type: application/json", "Accept: application/json, text/event-stream", "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: a")
		text := res.Body.String()
		if i := strings.Index(text, "data: "); i >= 0 {
			text = text[i+len("data: "):]
		}
		_ = json.NewDecoder(strings.NewReader(text)).Decode(&r)
		return r
	}
	const both, form = `{"elicitation":{"form":{},"url":{}}}`, `{"elicitation":{}}`
	answered := func(state, action string) string {
		return `,"requestState":"` + state + `","inputResponses":{"binnacle-approval":{"action":"` + action + `"}}`
	}
	first := call(alice, both, `{"text":"x"}`, "")
	id := proposed[0].ID
	asked := first.Result.InputRequests["binnacle-approval"].Params
	if first.Result.ResultType != "input_required" || asked.Mode != "url" || asked.URL != "https://console.example/approvals/"+id+"?from=mcp" || !strings.Contains(asked.Message, "tool.a") {
		t.Fatalf("%+v", first)
	}
	state := first.Result.RequestState
	for what, r := range map[string]reply{"another principal": call(bob, both, `{"text":"x"}`, answered(state, "accept")), "no call": call(alice, both, `{"text":"x"}`, answered("binnacle-approval:c-none", "accept")),
		"another principal declines": call(bob, both, `{"text":"x"}`, answered(state, "decline"))} {
		if !strings.Contains(r.Error.Message, "requestState") {
			t.Errorf("%s: %+v", what, r)
		}
	}
	proposed[0].Succeed([]byte(`{"text":"approved"}`))
	if r := call(alice, both, `{"text":"y"}`, answered(state, "accept")); !r.Result.IsError || strings.Contains(r.Result.Content[0].Text, "approved") {
		t.Errorf("with other arguments: %+v", r)
	}
	if r := call(alice, both, `{"text":"x"}`, answered(state, "accept")); r.Result.IsError || len(r.Result.Content) == 0 || !strings.Contains(r.Result.Content[0].Text, "approved") {
		t.Errorf("after the approval: %+v", r)
	}
	if len(proposed) != 1 {
		t.Errorf("%d calls were proposed", len(proposed))
	}
	second := call(alice, form, `{}`, "")
	asked = second.Result.InputRequests["binnacle-approval"].Params
	if asked.Mode != "form" || asked.URL != "" || !strings.Contains(asked.Message, "binnacle approvals show "+proposed[1].ID) {
		t.Fatalf("%+v", second)
	}
	if r := call(alice, form, `{}`, answered(second.Result.RequestState, "decline")); !r.Result.IsError || !strings.Contains(r.Result.Content[0].Text, contract.CodeCancelled) {
		t.Errorf("declined: %+v", r)
	}
	if got := m.Events(proposed[1].ID); !slices.Contains(got, contract.EventCancelRequested) {
		t.Errorf("events %v", got)
	}
	if slices.Contains(m.Events(id), contract.EventCancelRequested) {
		t.Error("the call is cancelled for another principal")
	}
}
