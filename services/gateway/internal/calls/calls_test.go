package calls_test

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

const (
	path = "/api/v1/calls"
	echo = `{"kind":"tool.echo","args":{"text":"hi"}}`
)

// TestOutcomes checks, for an outcome of each status, the response's status, error code,
// Retry-After and ids, and that the ledger contains exactly two events of the call: its
// proposal and its outcome.
func TestOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		execute func(c *edgetest.Call)
		status  int
		code    string
		retry   string
	}{
		"succeeds": {nil, 200, "", ""},
		"without output": {func(c *edgetest.Call) {
			c.End(edgetest.Executor, contract.Effect{Status: contract.Succeeded}, nil, contract.Allow, contract.ReasonRuleScopedCall)
		}, 200, "", ""},
		"invalid input":   {func(c *edgetest.Call) { c.Fail(contract.Failed, "invalid_input", "text: too long") }, 400, "invalid_input", ""},
		"not found":       {func(c *edgetest.Call) { c.Fail(contract.Failed, "not_found", "gone") }, 404, "not_found", ""},
		"conflict":        {func(c *edgetest.Call) { c.Fail(contract.Failed, "conflict", "taken") }, 409, "conflict", ""},
		"no sandbox":      {func(c *edgetest.Call) { c.Fail(contract.Failed, "sandbox_unavailable", "none") }, 503, "sandbox_unavailable", ""},
		"a tool's own":    {func(c *edgetest.Call) { c.Fail(contract.Failed, "exit_1", "exit status 1") }, 502, "exit_1", ""},
		"internal":        {func(c *edgetest.Call) { c.Fail(contract.Failed, "internal", "a bug") }, 500, "internal", ""},
		"timed out":       {func(c *edgetest.Call) { c.Fail(contract.TimedOut, "timed_out", "too slow") }, 504, "timed_out", ""},
		"cancelled":       {func(c *edgetest.Call) { c.Fail(contract.Cancelled, "cancelled", "no more") }, 499, "cancelled", ""},
		"frozen":          {func(c *edgetest.Call) { c.Fail(contract.Cancelled, "system_frozen", "frozen") }, 503, "system_frozen", "2"},
		"expired":         {func(c *edgetest.Call) { c.Fail(contract.Expired, "expired", "late") }, 503, "expired", "2"},
		"unknown":         {func(c *edgetest.Call) { c.Fail(contract.Unknown, "unknown", "crashed") }, 500, "unknown", ""},
		"dead lettered":   {func(c *edgetest.Call) { c.Fail(contract.DeadLettered, "dead_lettered", "again and again") }, 500, "dead_lettered", ""},
		"denied":          {func(c *edgetest.Call) { c.Deny(contract.ReasonPolicyViolation) }, 403, "denied", ""},
		"breaks a schema": {func(c *edgetest.Call) { c.Deny(contract.ReasonSchemaViolation) }, 400, "invalid_input", ""},
		"unknown field":   {func(c *edgetest.Call) { c.Deny(contract.ReasonArgsUnknownField) }, 400, "invalid_input", ""},
		"a bundle's own":  {func(c *edgetest.Call) { c.Deny("OUR_RULE") }, 403, "denied", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := edgetest.New(t, gateway.Config{}, "tool.echo")
			m.Execute = c.execute
			r := m.Do("POST", path, m.Token("alice", token.Tools), echo)
			if r.Code != c.status || r.Error() != c.code || r.Header().Get("Retry-After") != c.retry {
				t.Fatalf("%d %s, Retry-After %q: %s", r.Code, r.Error(), r.Header().Get("Retry-After"), r.Body)
			}
			call := r.Header().Get("X-Binnacle-Call-Id")
			if got := m.Events(call); !slices.Equal(got, []string{contract.EventCallProposed, contract.EventEffectRecorded}) {
				t.Error("the ledger holds", got)
			}
			if r.Header().Get("X-Binnacle-Receipt-Id") != contract.IDReceipt+call || r.Header().Get("X-Binnacle-Decision-Id") != contract.IDDecision+call || r.Header().Get("X-Binnacle-Verdict") == "" {
				t.Error("headers", r.Header())
			}
			if e, ok := r.Doc["error"].(map[string]any); ok && (e["call_id"] != call || e["receipt_id"] != contract.IDReceipt+call) {
				t.Error("the error names", e)
			}
			if c.status == 200 && r.Doc["call_id"] != call {
				t.Error("the response names", r.Doc)
			}
		})
	}
}

// TestPointers checks that the error names the place of the wrong argument in the
// request: an argument that does not match the tool's schema, or one that the executor's
// error names. The error names no place if the executor's error names an argument that
// was not given.
func TestPointers(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.echo")
	who := m.Token("alice", token.Tools)
	m.Execute = func(c *edgetest.Call) { c.Deny(contract.ReasonSchemaViolation) }
	if r := m.Do("POST", path, who, `{"kind":"tool.echo","args":{"text":7}}`); r.Param() != "/args/text" || !strings.Contains(r.Body.String(), "type") {
		t.Error(r.Body)
	}
	if r := m.Do("POST", "/api/v1/packs/echo", who, `{"text":7}`); r.Param() != "/text" {
		t.Error(r.Body)
	}
	m.Execute = func(c *edgetest.Call) { c.Deny(contract.ReasonArgsUnknownField) }
	near := m.Do("POST", path, who, `{"kind":"tool.echo","args":{"tex":"a"}}`)
	e, _ := near.Doc["error"].(map[string]any)
	if names, _ := e["did_you_mean"].([]any); near.Error() != contract.CodeInvalidInput || e["pointer"] != "/args/tex" || len(names) != 1 || names[0] != "text" || e["hint"] == nil || e["retryable"] != nil {
		t.Error(near.Body)
	}
	state := m.Do("GET", path+"/"+near.Header().Get("X-Binnacle-Call-Id"), who, "").Doc
	if names, _ := state["did_you_mean"].([]any); state["status"] != contract.Denied || state["error_code"] != contract.CodeInvalidInput || state["pointer"] != "/args/tex" || len(names) != 1 || state["hint"] != e["hint"] {
		t.Error("the state:", state)
	}
	m.Execute = func(c *edgetest.Call) { c.Fail(contract.Failed, "invalid_input", "text/2/x: wrong") }
	if r := m.Do("POST", path, who, echo); r.Param() != "/args/text/2/x" {
		t.Error(r.Body)
	}
	for _, code := range []string{contract.CodeSchemaMismatch, contract.CodeTimeout, contract.CodeResourceExhausted, contract.CodeHandlerFailed} {
		m.Execute = func(c *edgetest.Call) { c.Fail(contract.Failed, code, "text/0: gone") }
		if e, _ := m.Do("POST", path, who, echo).Doc["error"].(map[string]any); e["code"] != code || e["pointer"] != "/args/text/0" {
			t.Errorf("%s: %v", code, e)
		}
	}
	m.Execute = func(c *edgetest.Call) {
		c.Fail(contract.Failed, "invalid_input", "other: not an argument that was given")
	}
	if r := m.Do("POST", path, who, echo); r.Param() != "" {
		t.Error(r.Body)
	}
}

// TestApproval checks that the response to a call that waits for approval has status
// 202, with Prefer: respond-async and without it. Without it, the response is sent after
// the call's timeout and Margin. The call's actor and holders of audit:read can read its
// state; another principal cannot.
func TestApproval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		var waits *edgetest.Call
		m.Execute = func(c *edgetest.Call) { waits = c; c.Escalate() }
		alice, audit := m.Token("alice", token.Tools), m.Token("mallory", token.Tools)
		r := m.Do("POST", path, alice, echo, "Prefer: respond-async")
		if r.Code != http.StatusAccepted || r.Doc["status"] != "pending_approval" || r.Header().Get("X-Binnacle-Verdict") != contract.Escalate {
			t.Fatal(r.Code, r.Body)
		}
		at := r.Header().Get("Location")
		if s := m.Do("GET", at, alice, ""); s.Doc["status"] != "pending_approval" || s.Header().Get("Retry-After") == "" {
			t.Error(s.Body)
		}
		if s := m.Do("GET", at, audit, ""); s.Code != http.StatusNotFound {
			t.Error("another principal reads the state:", s.Body)
		}
		waits.Succeed([]byte(`{"text":"yes"}`))
		s := m.Do("GET", at, m.Token("auditor", token.Audit), "")
		if out, _ := json.Marshal(s.Doc["output"]); s.Doc["status"] != contract.Succeeded || string(out) != `{"text":"yes"}` {
			t.Error(s.Body)
		}
		began := time.Now()
		if r := m.Do("POST", path, alice, echo, "X-Binnacle-Timeout: 7"); r.Code != http.StatusAccepted || time.Since(began) != 12*time.Second {
			t.Error(r.Code, time.Since(began))
		}
	})
}

// TestStates checks the state of a call after its proposal, its ALLOW, the expiry of its start, its
// claim and its outcome, and that an unknown call is not found.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) { c = x }
		alice := m.Token("alice", token.Tools)
		if r := m.Do("POST", path, alice, echo, "X-Binnacle-Timeout: 1"); r.Code != http.StatusGatewayTimeout || r.Error() != "outcome_pending" {
			t.Fatal(r.Code, r.Body)
		}
		synctest.Wait() // until another goroutine has stored the proposal
		state := func(want string) {
			t.Helper()
			if r := m.Do("GET", path+"/"+c.ID, alice, ""); r.Doc["status"] != want {
				t.Errorf("%s, want %s", r.Body, want)
			}
		}
		state("proposed")
		m.Record("policy", contract.EventAllowed, c.Proposal.Session, []byte(`{"decision":{"intent":{"executor":"session-runner"}}}`), c.Proposal)
		state("allowed")
		m.Record("policy", contract.EventStartExpired, c.Proposal.Session, []byte("{}"), c.Proposal)
		state("allowed")
		m.Record(edgetest.Executor, contract.EventEffectStarted, c.Proposal.Session, []byte("{}"), c.Proposal)
		state("running")
		c.Fail(contract.Failed, "exit_1", "exit status 1")
		state(contract.Failed)
		if r := m.Do("GET", path+"/c-none", alice, ""); r.Code != http.StatusNotFound {
			t.Error(r.Code)
		}
	})
}

// TestErased checks that a call whose output was erased is reported as such, and not as
// unavailable, to its caller, to a retry and to a reader of its state; and that a call
// whose output is withheld is reported as not stored, and has a state without an output.
func TestErased(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.echo")
	alice, key := m.Token("alice", token.Tools), "Idempotency-Key: k"
	var c *edgetest.Call
	end := func(change func(*contract.Content)) {
		m.Execute = func(x *edgetest.Call) {
			output, _ := blob.Refer([]byte(`{"text":"gone"}`), "application/json")
			change(&output)
			c = x
			x.End(edgetest.Executor, contract.Effect{Status: contract.Succeeded, OutputDigest: output.Commitment}, &output, contract.Allow, contract.ReasonRuleScopedCall)
		}
	}
	end(func(o *contract.Content) { o.Salt, o.Text = "", "" })
	for range 2 { // the second request is a retry
		r := m.Do("POST", path, alice, echo, key)
		if e, _ := r.Doc["error"].(map[string]any); r.Code != http.StatusGone || r.Error() != contract.CodeContentErased || r.Header().Get("Retry-After") != "" || e["call_id"] != c.ID || e["receipt_id"] != contract.IDReceipt+c.ID {
			t.Error(r.Code, r.Header(), r.Body)
		}
	}
	if r := m.Do("GET", path+"/"+c.ID, alice, ""); r.Code != http.StatusGone || r.Error() != contract.CodeContentErased {
		t.Error(r.Code, r.Body)
	}
	end(func(o *contract.Content) { o.Store, o.Salt, o.Text = contract.StoreWithheld, "", "" })
	if r := m.Do("POST", path, alice, echo); r.Code != http.StatusGone || r.Error() != contract.CodeOutputNotStored {
		t.Error(r.Code, r.Body)
	}
	if r := m.Do("GET", path+"/"+c.ID, alice, ""); r.Doc["status"] != contract.Succeeded || r.Doc["output"] != nil {
		t.Error(r.Code, r.Body)
	}
}

// TestIdempotency checks that an actor's Idempotency-Key identifies one call, whether the
// first request has ended or is in progress, and that a request for another call under
// the key is rejected. The same key of another actor, or of an actor of the same name in
// another tenant, identifies another call. While a request waits for a call in progress,
// the gateway queries no other service. After a denial, a request under the same key is a
// new call. A key of more than 128 bytes is rejected.
func TestIdempotency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo", "tool.other")
		alice := m.Token("alice", token.Tools)
		n := 0
		var first *edgetest.Call
		m.Execute = func(c *edgetest.Call) { first, n = c, n+1; c.Succeed(c.Args) }
		key := "Idempotency-Key: k1"
		a, b := m.Do("POST", path, alice, echo, key), m.Do("POST", path, alice, echo, key)
		if n != 1 || !same(a, b) || a.Code != 200 {
			t.Errorf("%d calls: %s %s", n, a.Body, b.Body)
		}
		for what, body := range map[string]string{"args": `{"kind":"tool.echo","args":{"text":"other"}}`, "kind": `{"kind":"tool.other","args":{"text":"hi"}}`} {
			if r := m.Do("POST", path, alice, body, key); r.Code != http.StatusConflict || r.Error() != "idempotency_conflict" {
				t.Error("other", what, r.Body)
			}
		}
		if r := m.Do("POST", path, m.Token("bob", token.Tools), echo, key); r.Code != 200 || r.Doc["call_id"] == a.Doc["call_id"] {
			t.Error("bob's key is alice's", r.Body)
		}
		of := m.TokenIn(edgetest.Other, "alice", token.Tools)
		if r := m.Do("POST", path, of, `{"kind":"tool.other","args":{"text":"theirs"}}`, key); r.Code != 200 || r.Doc["call_id"] == a.Doc["call_id"] || !strings.Contains(r.Body.String(), "theirs") {
			t.Error("the key of alice in another tenant is alice's", r.Body)
		}

		// The first request under key k2 is still in progress when the second one
		// arrives.
		m.Execute = func(c *edgetest.Call) { first = c }
		m.Queried()
		done := make(chan *edgetest.Response, 2)
		for range 2 {
			go func() { done <- m.Do("POST", path, alice, echo, "Idempotency-Key: k2") }()
			synctest.Wait()
		}
		time.Sleep(time.Second) // the second request may wait for its turn (fair.Turns)
		synctest.Wait()
		queried := m.Queried()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if again := m.Queried(); len(again) != 0 {
			t.Error("while calls were waited for, other services were queried:", again, "before", queried)
		}
		first.Succeed([]byte(`{"text":"late"}`))
		if a, b := <-done, <-done; !same(a, b) || !strings.Contains(a.Body.String(), "late") {
			t.Error(a.Body, b.Body)
		}

		// A denied call did not start, so a retry under its key is a new call.
		m.Execute = func(c *edgetest.Call) { c.Deny(contract.ReasonPolicyViolation) }
		denied := m.Do("POST", path, alice, echo, "Idempotency-Key: k3")
		m.Execute = nil
		if r := m.Do("POST", path, alice, echo, "Idempotency-Key: k3"); denied.Code != 403 || r.Code != 200 {
			t.Error(denied.Body, r.Body)
		}
		if r := m.Do("POST", path, alice, echo, "Idempotency-Key: "+strings.Repeat("x", 129)); r.Code != 400 {
			t.Error("a long key", r.Code)
		}
	})
}

// TestSameMoment checks that two simultaneous requests under one key make one call, and
// that both receive its outcome, although audit's index does not contain the call. Together
// they query audit at most four times while the call runs: the wait does not poll audit, and
// neither does the progress that a caller receives as server-sent events or over MCP. Two
// requests over MCP, which have no key, make two calls and query audit not at all.
func TestSameMoment(t *testing.T) {
	const mcp = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hi"},"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		calls      int
		queries    [2]int64 // fewest and most queries of audit
		progress   string   // part of a notice of progress; "" if the caller receives none
	}{
		"a document":         {path, echo, []string{"Idempotency-Key: k"}, 1, [2]int64{1, 4}, ""},
		"server-sent events": {path, echo, []string{"Idempotency-Key: k", "Accept: text/event-stream"}, 1, [2]int64{1, 4}, `"progress":{"percent":30,`},
		"MCP": {"/mcp", mcp, []string{"Content-Type: application/json", "Accept: application/json, text/event-stream", "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: echo"},
			2, [2]int64{0, 0}, `"progress":30,`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := edgetest.New(t, gateway.Config{}, "tool.echo")
				alice := m.Token("alice", token.Tools)
				var queried, reports atomic.Int64
				m.Answers["audit call"] = func(json.RawMessage) (any, error) {
					queried.Add(1)
					time.Sleep(time.Second)
					return nil, errNotFound
				}
				m.Answers[edgetest.Executor+" call_progress"] = func(json.RawMessage) (any, error) {
					reports.Add(1)
					return map[string]any{"percent": 30, "message": "page 3", "reported": true}, nil
				}
				made := make(chan *edgetest.Call, 2)
				m.Execute = func(c *edgetest.Call) {
					made <- c
					go func() {
						time.Sleep(2 * time.Second)
						m.Record(edgetest.Executor, contract.EventEffectStarted, c.Proposal.Session, []byte("{}"), c.Allow())
					}()
				}
				done := make(chan *edgetest.Response, 2)
				for range 2 {
					go func() { done <- m.Do("POST", c.path, alice, c.body, c.headers...) }()
				}
				time.Sleep(8 * time.Second)
				synctest.Wait()
				if n := queried.Load(); n < c.queries[0] || n > c.queries[1] {
					t.Errorf("audit was queried %d times for two requests, while the call ran for 8 s", n)
				}
				if n := reports.Load(); (n > 0) != (c.progress != "") {
					t.Errorf("the progress was queried %d times", n)
				}
				if len(made) != c.calls {
					t.Errorf("%d calls, want %d", len(made), c.calls)
				}
				for range c.calls {
					(<-made).Succeed([]byte(`{"text":"once"}`))
				}
				a, b := <-done, <-done
				for _, r := range []*edgetest.Response{a, b} {
					if text := r.Body.String(); r.Code != 200 || !strings.Contains(text, `"text":"once"`) || !strings.Contains(text, c.progress) {
						t.Errorf("%d %s", r.Code, text)
					}
				}
				if c.calls == 1 && a.Header().Get("X-Binnacle-Call-Id") != b.Header().Get("X-Binnacle-Call-Id") {
					t.Error("the responses are of two calls")
				}
			})
		})
	}
}

// TestCallerLeaves checks that a call is cancelled if its client disconnects, unless the
// call waits for approval.
func TestCallerLeaves(t *testing.T) {
	for name, escalated := range map[string]bool{"running": false, "escalated": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := edgetest.New(t, gateway.Config{}, "tool.echo")
				var c *edgetest.Call
				m.Execute = func(x *edgetest.Call) {
					if c = x; escalated {
						c.Escalate()
					}
				}
				ctx, leave := context.WithCancel(t.Context())
				go func() { time.Sleep(time.Second); leave() }()
				m.DoIn(ctx, "POST", path, m.Token("alice", token.Tools), echo)
				synctest.Wait()
				if got := slices.Contains(m.Events(c.ID), contract.EventCancelRequested); got == escalated {
					t.Errorf("cancelled: %t; %v", got, m.Events(c.ID))
				}
			})
		})
	}
}

// TestHeaders checks that the proposal contains the values of the request's headers for
// tracing, delegation and the session, and that the response names the session. A
// malformed trace context is omitted; malformed or too long values of other headers are
// rejected, and the error names the header.
func TestHeaders(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.echo")
	var c *edgetest.Call
	m.Execute = func(x *edgetest.Call) { c = x; x.Succeed(x.Args) }
	alice := m.Token("alice", token.Tools)
	const span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r := m.Do("POST", path, alice, echo, "Traceparent: "+span, "X-Binnacle-On-Behalf-Of: carol", "X-Binnacle-Delegation: g-1", "X-Binnacle-Session: s-notes")
	if r.Code != 200 || c.Proposal.TraceCtx != span || c.OnBehalfOf != "carol" || c.Delegation != "g-1" || c.SessionName != "s-notes" || c.Proposal.Session != contract.SessionID(edgetest.Tenant, "alice", "s-notes") {
		t.Errorf("%d %+v %+v", r.Code, c.Call, c.Proposal)
	}
	if r.Header().Get("X-Binnacle-Session") != "s-notes" || r.Header().Get("X-Binnacle-Session-Id") != c.Proposal.Session {
		t.Error(r.Header())
	}
	if m.Do("POST", path, alice, echo, "Traceparent: nonsense"); c.Proposal.TraceCtx != "" {
		t.Error("a malformed trace context was taken:", c.Proposal.TraceCtx)
	}
	for _, h := range []string{"X-Binnacle-Timeout: 0", "X-Binnacle-Timeout: 601", "X-Binnacle-Timeout: soon", "X-Binnacle-On-Behalf-Of: " + strings.Repeat("x", 129),
		"X-Binnacle-Delegation: " + strings.Repeat("x", 129), "X-Binnacle-Session: notes"} {
		name, _, _ := strings.Cut(h, ":")
		if r := m.Do("POST", path, alice, echo, h); r.Code != 400 || r.Param() != name {
			t.Errorf("%.40s: %d %s", h, r.Code, r.Body)
		}
	}
}

// TestJudgement checks that the name of the session to judge is resolved to its id, and
// that the proposal to judge another principal's session has Requested set, so that
// policy can deny it.
func TestJudgement(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "judge.score")
	var c *edgetest.Call
	m.Execute = func(x *edgetest.Call) { c = x; x.Succeed([]byte(`{}`)) }
	own := contract.SessionID(edgetest.Tenant, "alice", "s-notes")
	if r := m.Do("POST", "/api/v1/judgements", m.Token("alice", token.Judge), `{"session":"s-notes","rubric":"x"}`); r.Code != 200 || !strings.Contains(string(c.Args), own) {
		t.Error(r.Body, string(c.Args))
	}
	if r := m.Do("POST", "/api/v1/judgements", m.Token("bob", token.Judge), `{"session":"`+own+`","rubric":"x"}`); r.Code != 200 || c.Requested == "" {
		t.Error("bob reads alice's session:", r.Body, c.Requested)
	}
}

var errNotFound = rpc.Errorf(contract.CodeNotFound, "no such call")

// same reports whether two responses have the same call id and output.
func same(a, b *edgetest.Response) bool {
	return a.Doc["call_id"] == b.Doc["call_id"] && reflect.DeepEqual(a.Doc["output"], b.Doc["output"])
}
