package llmapi_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// respond makes alice's stored response resp_1 and returns its call. The call ends only
// if end is set.
func respond(m *edgetest.Mesh, body string, end bool) *edgetest.Call {
	m.Helper()
	made := make(chan *edgetest.Call, 1)
	m.Execute = func(c *edgetest.Call) {
		made <- c
		if end {
			go func() {
				c.Send(llm.Frame{Head: head(200, "application/json"), Data: []byte(`{"id":"resp_1"}`)})
				answered(c, 1)
			}()
		}
	}
	headers := []string{}
	if !end {
		headers = append(headers, "X-Binnacle-Timeout: 1")
	}
	m.Do("POST", "/v1/responses", m.Token("alice", token.LLM), body, headers...)
	call := <-made
	m.Answers["llm-router stored_response"] = func(raw json.RawMessage) (any, error) {
		if strings.Contains(string(raw), "resp_1") {
			return llmrouter.StoredResponse{Call: call.ID, Actor: "alice", Tokens: 7}, nil
		}
		return llmrouter.StoredResponse{}, nil
	}
	return call
}

// TestStored checks that a stored response is returned only to the actor that requested
// it, and that a response that was not stored is not found.
func TestStored(t *testing.T) {
	for name, c := range map[string]struct {
		body, who, id string
		status        int
	}{
		"its maker":  {`{"model":"demo/echo","input":"hi"}`, "alice", "resp_1", 200},
		"another":    {`{"model":"demo/echo","input":"hi"}`, "bob", "resp_1", 404},
		"unknown":    {`{"model":"demo/echo","input":"hi"}`, "alice", "resp_2", 404},
		"not stored": {`{"model":"demo/echo","input":"hi","store":false}`, "alice", "resp_1", 404},
	} {
		t.Run(name, func(t *testing.T) {
			m := edgetest.New(t, gateway.Config{}, "llm.responses")
			respond(m, c.body, true)
			r := m.Do("GET", "/v1/responses/"+c.id, m.Token(c.who, token.LLM), "")
			if r.Code != c.status || c.status == 200 && r.Doc["id"] != "resp_1" {
				t.Error(r.Code, r.Body)
			}
		})
	}
}

// TestStoredErased checks that a response is not found if the args of its call were
// erased.
func TestStoredErased(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "llm.responses")
	call := respond(m, `{"model":"demo/echo","input":"hi"}`, true)
	erased := call.Call
	erased.Args.Salt, erased.Args.Text = "", ""
	e := *call.Proposal
	e.Data = contract.Bytes(&erased)
	m.Answers["audit proposal"] = func(json.RawMessage) (any, error) {
		b, err := e.Encode()
		return json.RawMessage(b), err
	}
	if r := m.Do("GET", "/v1/responses/resp_1", m.Token("alice", token.LLM), ""); r.Code != http.StatusNotFound {
		t.Error(r.Code, r.Body)
	}
}

// TestStoredBeforeItsOutcome checks that a request for a response whose call has no
// outcome yet waits by reading the ledger, and not by repeated queries to audit.
func TestStoredBeforeItsOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "llm.responses")
		call := respond(m, `{"model":"demo/echo","input":"hi"}`, false)
		synctest.Wait() // until another goroutine has stored the proposal
		m.Queried()
		go func() { time.Sleep(3 * time.Second); answered(call, 0) }()
		began := time.Now()
		r := m.Do("GET", "/v1/responses/resp_1", m.Token("alice", token.LLM), "")
		if r.Code != 200 || time.Since(began) != 3*time.Second {
			t.Error(r.Code, r.Body, time.Since(began))
		}
		if q := m.Queried(); len(q) != 3 {
			t.Error("queries:", q)
		}
	})
}

// TestInputItems checks the list of a response's input items, in both orders and in
// several pages, for input that is a list or a string. Invalid parameters are rejected.
func TestInputItems(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "llm.responses")
	call := respond(m, `{"model":"demo/echo","input":[{"role":"user","content":"one"},{"role":"assistant","content":"two","id":"m2"},{"type":"function_call_output","call_id":"x","output":"three"}]}`, true)
	alice := m.Token("alice", token.LLM)
	first := "item_" + strings.TrimPrefix(call.ID, contract.IDCall) + "_0"
	for query, want := range map[string]string{
		"":                                       "2 m2 " + first,
		"?order=asc":                             first + " m2 2",
		"?order=asc&limit=1":                     first + " more",
		"?order=asc&after=m2":                    "2",
		"?order=desc&after=m2":                   first,
		"?order=asc&after=" + first + "&limit=1": "m2 more",
	} {
		r := m.Do("GET", "/v1/responses/resp_1/input_items"+query, alice, "")
		var got []string
		for _, it := range r.Doc["data"].([]any) {
			got = append(got, it.(map[string]any)["id"].(string))
		}
		if r.Doc["has_more"] == true {
			got = append(got, "more")
		}
		if text := strings.ReplaceAll(strings.Join(got, " "), strings.TrimSuffix(first, "0")+"2", "2"); text != want {
			t.Errorf("%q: %s, want %s", query, text, want)
		}
	}
	for query, param := range map[string]string{"limit=0": "limit", "limit=101": "limit", "order=up": "order", "after=none": "after"} {
		if r := m.Do("GET", "/v1/responses/resp_1/input_items?"+query, alice, ""); r.Code != 400 || r.Param() != param {
			t.Errorf("%s: %d %s", query, r.Code, r.Body)
		}
	}
	m2 := edgetest.New(t, gateway.Config{}, "llm.responses")
	respond(m2, `{"model":"demo/echo","input":"hi"}`, true)
	r := m2.Do("GET", "/v1/responses/resp_1/input_items", m2.Token("alice", token.LLM), "")
	if !strings.Contains(r.Body.String(), `"content":[{"text":"hi","type":"input_text"}]`) || !strings.Contains(r.Body.String(), `"status":"completed"`) {
		t.Error(r.Body)
	}
}

// TestDelete checks that the deletion of a response is a call, and that only the actor
// that requested the response can propose it.
func TestDelete(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "llm.responses", "llm.delete_response")
	respond(m, `{"model":"demo/echo","input":"hi"}`, true)
	var args string
	m.Execute = func(c *edgetest.Call) { args = c.Kind + string(c.Args); c.Succeed([]byte(`{"deleted":true}`)) }
	if r := m.Do("DELETE", "/v1/responses/resp_1", m.Token("bob", token.LLM), ""); r.Code != 404 || args != "" {
		t.Error("another's:", r.Code, args)
	}
	if r := m.Do("DELETE", "/v1/responses/resp_1", m.Token("alice", token.LLM), ""); r.Code != 200 || args != `llm.delete_response{"id":"resp_1"}` {
		t.Error(r.Body, args)
	}
}

// TestContinued checks that the args of a request that continues a response include that
// response's tokens, unless the response is another actor's. If the llm-router does not
// run, the request fails with 503.
func TestContinued(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "llm.responses")
	respond(m, `{"model":"demo/echo","input":"hi"}`, true)
	var args llm.Args
	m.Execute = func(c *edgetest.Call) {
		args = llm.Args{}
		if err := contract.Decode(c.Args, &args); err != nil {
			t.Error(err)
		}
		c.Deny(contract.ReasonPolicyViolation)
	}
	const next = `{"model":"demo/echo","input":"more","previous_response_id":"resp_1"}`
	if m.Do("POST", "/v1/responses", m.Token("alice", token.LLM), next); args.History != 7 || args.Previous != "resp_1" {
		t.Errorf("%+v", args)
	}
	if m.Do("POST", "/v1/responses", m.Token("bob", token.LLM), next); args.History != 0 {
		t.Errorf("another's tokens count: %+v", args)
	}
	m.Answers["llm-router stored_response"] = func(json.RawMessage) (any, error) { return nil, errors.New("no running instance") }
	if r := m.Do("POST", "/v1/responses", m.Token("alice", token.LLM), next); r.Code != http.StatusServiceUnavailable {
		t.Error(r.Code, r.Body)
	}
}

// TestModels checks the list of models and one model in the shape of each API. A stale
// list is refreshed by a call, unless the caller may not call models.
func TestModels(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "llm.models")
	stale := false
	m.Answers["llm-router models"] = func(json.RawMessage) (any, error) {
		return map[string]any{"data": []map[string]any{{"id": "demo/echo", "object": "model"}, {"id": "demo/a/b", "object": "model"}}, "stale": stale}, nil
	}
	calls := 0
	m.Execute = func(c *edgetest.Call) { calls++; stale = false; c.Succeed([]byte(`{}`)) }
	alice := m.Token("alice", token.LLM)
	if r := m.Do("GET", "/v1/models", alice, ""); r.Doc["object"] != "list" || len(r.Doc["data"].([]any)) != 2 || calls != 0 {
		t.Error(r.Body, calls)
	}
	if r := m.Do("GET", "/v1/models/demo/a%2Fb", alice, ""); r.Doc["id"] != "demo/a/b" {
		t.Error(r.Body)
	}
	if r := m.Do("GET", "/v1/models/none", alice, ""); r.Code != 404 || r.Error() != "model_not_found" {
		t.Error(r.Body)
	}
	if r := m.Do("GET", "/v1/models", alice, "", "Anthropic-Version: 2023-06-01"); r.Doc["first_id"] != "demo/echo" || r.Doc["last_id"] != "demo/a/b" || r.Doc["has_more"] != false {
		t.Error(r.Body)
	}
	const anthropic = "Anthropic-Version: 2023-06-01"
	if r := m.Do("GET", "/v1/models/demo/a%2Fb", alice, "", anthropic); r.Code != 200 || r.Doc["type"] != "model" || r.Doc["id"] != "demo/a/b" || r.Doc["display_name"] != "demo/a/b" || r.Doc["created_at"] == nil || r.Doc["data"] != nil {
		t.Error(r.Code, r.Body)
	}
	if r := m.Do("GET", "/v1/models/none", alice, "", anthropic); r.Code != 404 || r.Doc["type"] != "error" || r.Doc["error"].(map[string]any)["type"] != "not_found_error" {
		t.Error(r.Code, r.Body)
	}
	stale = true
	if m.Do("GET", "/v1/models", m.Token("bob", token.Audit), ""); calls != 0 {
		t.Error("a caller who may not call models had the list refreshed")
	}
	if m.Do("GET", "/v1/models", alice, ""); calls != 1 {
		t.Error(calls, "calls")
	}
}

// TestUsage checks that the gateway passes the window and the groups of statistics to
// the llm-router, rejects invalid times, and returns the llm-router's error for invalid
// groups. If the llm-router does not run, the status is 503.
func TestUsage(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	auditor := m.Token("auditor", token.Audit)
	var query llmrouter.SpendRequest
	for _, verb := range []string{"stats", "spend"} {
		m.Answers["llm-router "+verb] = func(raw json.RawMessage) (any, error) {
			return []json.RawMessage{}, errors.Join(json.Unmarshal(raw, &query))
		}
	}
	if r := m.Do("GET", "/api/v1/llm/spend?from=2026-01-01T00:00:00Z&by=key,model", auditor, ""); r.Body.String() != `[]` || !slices.Equal(query.By, []string{"key", "model"}) || query.From != "2026-01-01T00:00:00Z" {
		t.Error(r.Body, query)
	}
	if r := m.Do("GET", "/api/v1/llm/stats?to=yesterday", auditor, ""); r.Code != 400 || r.Param() != "to" {
		t.Error(r.Body)
	}
	m.Answers["llm-router spend"] = func(json.RawMessage) (any, error) {
		return nil, &rpc.Error{Code: contract.CodeInvalidInput, Param: "by", Message: "by: colour is none of key, model"}
	}
	if r := m.Do("GET", "/api/v1/llm/spend?by=colour", auditor, ""); r.Code != 400 || r.Param() != "by" {
		t.Error(r.Body)
	}
	m.Answers["llm-router spend"] = func(json.RawMessage) (any, error) { return nil, errors.New("no running instance") }
	if r := m.Do("GET", "/api/v1/llm/spend", auditor, ""); r.Code != 503 {
		t.Error(r.Body)
	}
}
