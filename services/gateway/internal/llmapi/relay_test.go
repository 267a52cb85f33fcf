package llmapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

const (
	chat   = `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`
	stream = `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}],"stream":true}`
	events = "text/event-stream"
)

func head(status int, media string) *llm.Head {
	return &llm.Head{Status: status, Headers: map[string]string{"Content-Type": media}, Instance: "ll1"}
}

// answered records that a call succeeded with n frames.
func answered(c *edgetest.Call, n int64) {
	out, _ := blob.Refer([]byte(`{"id":"resp_1"}`), "application/json")
	c.End("llm-router", contract.Effect{Status: contract.Succeeded, Frames: n}, &out, contract.Allow, contract.ReasonRuleScopedCall)
}

// failed records that a call failed after n frames with the error code.
func failed(c *edgetest.Call, n int64, code string) {
	c.End("llm-router", contract.Effect{Status: contract.Failed, Frames: n, ErrorCode: code, ErrorMessage: "no luck"}, nil, contract.Allow, contract.ReasonRuleScopedCall)
}

// TestRelay checks the status, the body and the time of the response for different
// frames and outcomes of a call, and that the response names the call and the receipt.
func TestRelay(t *testing.T) {
	for name, c := range map[string]struct {
		path, body string
		do         func(c *edgetest.Call)
		status     int
		want       string // text that the body must contain
		never      string
		took       time.Duration
	}{
		"plain": {"/v1/chat/completions", chat, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, "application/json"), Data: []byte(`{"a"`)})
			c.Send(llm.Frame{Data: []byte(`:1}`)})
			answered(c, 2)
		}, 200, `{"a":1}`, "", 0},
		"stream": {"/v1/chat/completions", stream, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, events), Data: []byte("data: 1\n\n")})
			c.Send(llm.Frame{Data: []byte("data: 2\n\n"), End: []byte("data: [DONE]\n\n")})
			answered(c, 2)
		}, 200, "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n", "", 0},
		"the end of a stream waits for its outcome": {"/v1/chat/completions", stream, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, events), Data: []byte("data: 1\n\n"), End: []byte("data: [DONE]\n\n")})
		}, 200, "data: 1\n\ndata: {\"error\":", "[DONE]", 10*time.Minute + 5*time.Second},
		"stream fails midway": {"/v1/chat/completions", stream, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, events), Data: []byte("data: 1\n\n"), End: []byte("data: [DONE]\n\n")})
			failed(c, 1, "upstream")
		}, 200, "data: 1\n\ndata: {\"error\":", "[DONE]", 0},
		"stream of Anthropic's fails midway": {"/v1/messages", `{"model":"demo/echo","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":true}`, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, events), Data: []byte("event: ping\n\n")})
			failed(c, 1, "upstream")
		}, 200, "event: ping\n\nevent: error\ndata: {\"error\":", "", 0},
		"stream of a response fails midway": {"/v1/responses", `{"model":"demo/echo","input":"hi","stream":true}`, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, events), Data: []byte("event: x\n\n")})
			failed(c, 1, "upstream")
		}, 200, "event: x\n\nevent: error\ndata: {\"message\":\"no luck\",\"code\":\"upstream\"", "", 0},
		"frames are lost": {"/v1/chat/completions", stream, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, events), Data: []byte("data: 1\n\n")})
			synctest.Wait()
			c.Lose()
		}, 200, "data: 1\n\ndata: {\"error\":", "", 0},
		"a malformed frame": {"/v1/chat/completions", chat, func(c *edgetest.Call) { c.SendBytes([]byte{9}) }, http.StatusBadGateway, "stream_broken", "", 0},
		"a malformed frame in a stream": {"/v1/chat/completions", stream, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(200, events), Data: []byte("data: 1\n\n")})
			c.SendBytes([]byte{9})
		}, 200, "data: 1\n\ndata: {\"error\":", "", 0},
		"a frame is missing at the end": {"/v1/chat/completions", chat, func(c *edgetest.Call) { answered(c, 1) }, http.StatusBadGateway, "stream_broken", "", 3 * time.Second},
		"a provider's own error": {"/v1/chat/completions", chat, func(c *edgetest.Call) {
			c.Send(llm.Frame{Head: head(429, "application/json"), Data: []byte(`{"error":{"message":"slow down"}}`)})
			failed(c, 1, "rate_limited")
		}, 429, `{"error":{"message":"slow down"}}`, "", 0},
		"a fault in the words of the API": {"/v1/messages", `{"model":"demo/echo","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, func(c *edgetest.Call) {
			h := head(404, "application/json")
			h.Fault = &llm.Fault{Code: "model_not_found", Param: "/model", Message: "no such model"}
			c.Send(llm.Frame{Head: h})
			failed(c, 1, "model_not_found")
		}, 404, `"type":"not_found_error"`, "", 0},
		"denied":           {"/v1/chat/completions", chat, func(c *edgetest.Call) { c.Deny(contract.ReasonModelNotAllowed) }, 403, contract.ReasonModelNotAllowed, "", 0},
		"no outcome":       {"/v1/chat/completions", chat, func(*edgetest.Call) {}, http.StatusGatewayTimeout, "outcome_pending", "", 10*time.Minute + 5*time.Second},
		"waits for people": {"/v1/chat/completions", chat, func(c *edgetest.Call) { c.Escalate() }, http.StatusForbidden, "approval_pending", "", 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := edgetest.New(t, gateway.Config{}, "llm.chat", "llm.messages", "llm.responses")
				m.Execute = func(x *edgetest.Call) { go c.do(x) }
				began := time.Now()
				r := m.Do("POST", c.path, m.Token("alice", token.LLM), c.body)
				if r.Code != c.status || time.Since(began) != c.took {
					t.Errorf("%d after %s, want %d after %s", r.Code, time.Since(began), c.status, c.took)
				}
				if got := r.Body.String(); !strings.Contains(got, c.want) || c.never != "" && strings.Contains(got, c.never) {
					t.Errorf("%s\nwant %s, never %q", got, c.want, c.never)
				}
				if r.Header().Get("X-Binnacle-Call-Id") == "" || r.Header().Get("X-Binnacle-Receipt-Id") == "" {
					t.Error("headers", r.Header())
				}
			})
		})
	}
}

// TestCallerOfModelLeaves checks that a call to a model is cancelled if its client
// disconnects, before or after the first frame.
func TestCallerOfModelLeaves(t *testing.T) {
	for _, begun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := edgetest.New(t, gateway.Config{}, "llm.chat")
			var c *edgetest.Call
			m.Execute = func(x *edgetest.Call) {
				if c = x; begun {
					go c.Send(llm.Frame{Head: head(200, events), Data: []byte("data: 1\n\n")})
				}
			}
			ctx, leave := context.WithCancel(t.Context())
			go func() { time.Sleep(time.Second); leave() }()
			m.DoIn(ctx, "POST", "/v1/chat/completions", m.Token("alice", token.LLM), stream)
			synctest.Wait()
			if !slices.Contains(m.Events(c.ID), contract.EventCancelRequested) {
				t.Error("begun", begun, m.Events(c.ID))
			}
		})
	}
}

// TestSuspension checks that a stream ends with an error event, and that its call is
// cancelled, if its caller or the caller's tenant is suspended.
func TestSuspension(t *testing.T) {
	for code, suspend := range map[string]func(m *edgetest.Mesh){
		contract.CodePrincipalSuspended: func(m *edgetest.Mesh) {
			m.Record("policy", contract.EventPrincipalSuspended, "alice", contract.Bytes(&policy.PrincipalSuspended{Principal: "alice", Reason: "x"}), nil)
		},
		contract.CodeTenantSuspended: func(m *edgetest.Mesh) { m.Tenants.Suspend(edgetest.Tenant, true) },
	} {
		t.Run(code, func(t *testing.T) { suspension(t, code, suspend) })
	}
}

func suspension(t *testing.T, code string, suspend func(*edgetest.Mesh)) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "llm.chat")
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) {
			c = x
			go func() {
				c.Send(llm.Frame{Head: head(200, events), Data: []byte("data: 1\n\n")})
				time.Sleep(time.Second)
				suspend(m)
			}()
		}
		r := m.Do("POST", "/v1/chat/completions", m.Token("alice", token.LLM), stream)
		if !strings.HasPrefix(r.Body.String(), "data: 1\n\ndata: {\"error\":") || !strings.Contains(r.Body.String(), `"code":"`+code+`"`) {
			t.Error(r.Body)
		}
		if !slices.Contains(m.Events(c.ID), contract.EventCancelRequested) {
			t.Error(m.Events(c.ID))
		}
	})
}

// TestCredit checks that an executor that sends many bytes receives a credit for each
// half of llm.Window that was written.
func TestCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "llm.chat")
		part := make([]byte, llm.Window/4)
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) {
			c = x
			go func() {
				for i := range 8 {
					f := llm.Frame{Data: part}
					if i == 0 {
						f.Head = head(200, events)
					}
					c.Send(f)
				}
				answered(c, 8)
			}()
		}
		if r := m.Do("POST", "/v1/chat/completions", m.Token("alice", token.LLM), stream); r.Body.Len() != 8*len(part) {
			t.Error("received", r.Body.Len())
		}
		if got := m.Posted(); len(got) != 4 || !strings.HasPrefix(got[3], llm.CreditID(c.ID)+" ") {
			t.Error("credit", got)
		}
	})
}

// TestRepeatedModel checks that a repeated Idempotency-Key returns the first response
// again, unless that was a stream or has been deleted, and that a different request
// under the key is rejected.
func TestRepeatedModel(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "llm.chat", "llm.responses")
	n := 0
	m.Execute = func(c *edgetest.Call) {
		n++
		go func() {
			c.Send(llm.Frame{Head: head(200, "application/json"), Data: []byte(`{"id":"resp_1"}`)})
			answered(c, 1)
		}()
	}
	deleted := false
	m.Answers["llm-router stored_response"] = func(json.RawMessage) (any, error) {
		return llmrouter.StoredResponse{Call: "c-1", Actor: "alice", Deleted: deleted}, nil
	}
	alice := m.Token("alice", token.LLM)
	do := func(path, body, key string) *edgetest.Response {
		return m.Do("POST", path, alice, body, "Idempotency-Key: "+key)
	}
	a, b := do("/v1/chat/completions", chat, "k1"), do("/v1/chat/completions", chat, "k1")
	if n != 1 || a.Body.String() != b.Body.String() || b.Code != 200 {
		t.Error(n, "calls", a.Body, b.Body)
	}
	if r := do("/v1/chat/completions", strings.Replace(chat, "hi", "ho", 1), "k1"); r.Code != http.StatusConflict {
		t.Error("another request", r.Code, r.Body)
	}
	do("/v1/chat/completions", stream, "k2")
	if r := do("/v1/chat/completions", stream, "k2"); r.Code != http.StatusConflict || !strings.Contains(r.Body.String(), "a stream cannot be repeated") {
		t.Error("a stream", r.Code, r.Body)
	}
	const response = `{"model":"demo/echo","input":"hi"}`
	if a, b := do("/v1/responses", response, "k3"), do("/v1/responses", response, "k3"); a.Code != 200 || a.Body.String() != b.Body.String() {
		t.Error(a.Body, b.Body)
	}
	deleted = true
	if r := do("/v1/responses", response, "k3"); r.Code != http.StatusNotFound {
		t.Error("a deleted response", r.Code, r.Body)
	}
}

// TestCreditFails checks that a response ends with an error if no credit can be sent,
// because its executor then sends no more.
func TestCreditFails(t *testing.T) {
	for media, want := range map[string]string{events: "data: {\"error\":", "application/json": "stream_broken"} {
		synctest.Test(t, func(t *testing.T) {
			m := edgetest.New(t, gateway.Config{}, "llm.chat")
			m.PostErr = errors.New("connection closed")
			m.Execute = func(c *edgetest.Call) {
				go c.Send(llm.Frame{Head: head(200, media), Data: make([]byte, llm.Window)})
			}
			r := m.Do("POST", "/v1/chat/completions", m.Token("alice", token.LLM), stream)
			if got := strings.TrimLeft(r.Body.String(), "\x00"); !strings.Contains(got, want) || !strings.Contains(got, "stream_broken") {
				t.Errorf("%s: %d %s", media, r.Code, got)
			}
		})
	}
}

// contentKeys provides content keys; err is the error of its method Key.
type contentKeys struct{ err error }

func (contentKeys) Current(context.Context, string, string) (string, []byte, error) {
	return "k", make([]byte, 32), nil
}

func (k *contentKeys) Key(context.Context, string, string) ([]byte, error) {
	return make([]byte, 32), k.err
}

// TestRepeatUnreadable checks that a request under a repeated Idempotency-Key fails with
// 503, and not because the key was used for another call, while the first call cannot be
// read. A request counts as equal to a first request that was erased.
func TestRepeatUnreadable(t *testing.T) {
	m := edgetest.New(t, gateway.Config{Capture: llm.CaptureEncrypted}, "llm.chat")
	keys := &contentKeys{}
	m.Blobs.Keys = keys
	m.Execute = func(c *edgetest.Call) {
		go func() {
			c.Send(llm.Frame{Head: head(200, "application/json"), Data: []byte(`{"id":"resp_1"}`)})
			answered(c, 1)
		}()
	}
	alice := m.Token("alice", token.LLM)
	do := func() *edgetest.Response {
		return m.Do("POST", "/v1/chat/completions", alice, chat, "Idempotency-Key: k")
	}
	if r := do(); r.Code != 200 {
		t.Fatal(r.Code, r.Body)
	}
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{{errors.New("vault-broker does not respond"), 503, contract.CodeUnavailable}, {contract.ErrErased, 200, ""}, {nil, 200, ""}} {
		keys.err = c.err
		if r := do(); r.Code != c.status || r.Error() != c.code {
			t.Errorf("content key: %v: %d %s", c.err, r.Code, r.Body)
		}
	}
	for _, query := range []string{"audit call", "audit proposal"} {
		m.Answers[query] = func(json.RawMessage) (any, error) { return nil, errors.New("no running instance") }
		if r := do(); r.Code != 503 || r.Error() != contract.CodeUnavailable {
			t.Error(query, r.Code, r.Body)
		}
		delete(m.Answers, query)
	}
}

// TestModelRequests checks that the args of a call reflect the headers of its request
// for caching and beta features. An invalid value for caching is rejected; names of beta
// features that are too long or too many are omitted. If the args of POST /api/v1/calls
// are a request to a model with an invalid member, the error names that member.
func TestModelRequests(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "llm.chat", "llm.messages")
	var args llm.Args
	m.Execute = func(c *edgetest.Call) {
		args = llm.Args{}
		if err := contract.Decode(c.Args, &args); err != nil {
			t.Error(err)
		}
		c.Deny(contract.ReasonPolicyViolation)
	}
	alice := m.Token("alice", token.LLM)
	const path = "/v1/chat/completions"
	if m.Do("POST", path, alice, chat); args.Cache != "" || args.Capture != llm.CapturePlain || args.Model != "demo/echo" {
		t.Errorf("%+v", args)
	}
	if m.Do("POST", path, alice, chat, "X-Binnacle-Cache: use"); args.Cache != "use" {
		t.Error(args.Cache)
	}
	if m.Do("POST", path, alice, chat, "X-Binnacle-Cache: no"); args.Cache != "" {
		t.Error(args.Cache)
	}
	if r := m.Do("POST", path, alice, chat, "X-Binnacle-Cache: maybe"); r.Code != 400 || r.Param() != "X-Binnacle-Cache" {
		t.Error(r.Body)
	}
	many := strings.Repeat("b,", 40)
	if m.Do("POST", "/v1/messages", alice, `{"model":"demo/echo","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, "Anthropic-Beta: one, two , ,"+strings.Repeat("x", 200)+","+many); !slices.Equal(args.Beta[:2], []string{"one", "two"}) || len(args.Beta) != 32 {
		t.Error(args.Beta)
	}
	if r := m.Do("POST", "/api/v1/calls", alice, `{"kind":"llm.chat","args":{"model":7}}`); r.Param() != "/args/model" {
		t.Error(r.Body)
	}
}

// withheld records that a call succeeded with one frame and an output of which only the
// commitment is recorded, as for the capture modes hashed and off.
func withheld(c *edgetest.Call) {
	out, _ := blob.Withheld([]byte(`{"id":"resp_1"}`), "application/json")
	c.End("llm-router", contract.Effect{Status: contract.Succeeded, Frames: 1}, &out, contract.Allow, contract.ReasonRuleScopedCall)
}

// TestRepeatNotStored checks that a request under a repeated Idempotency-Key fails with
// 410, and names the call and the receipt, if the response was not stored. A request that
// differs from the first only in its prompt, so that both have the same summary, does not
// receive the response either: it fails with 409 in mode hashed, and with 410 in mode
// off. POST /api/v1/calls, which responds with the recorded output, proposes no call
// whose output would not be recorded.
func TestRepeatNotStored(t *testing.T) {
	for capture, other := range map[string]int{llm.CaptureHashed: http.StatusConflict, llm.CaptureOff: http.StatusGone} {
		t.Run(capture, func(t *testing.T) {
			m := edgetest.New(t, gateway.Config{Capture: capture}, "llm.chat")
			n := 0
			m.Execute = func(c *edgetest.Call) {
				n++
				go func() {
					c.Send(llm.Frame{Head: head(200, "application/json"), Data: []byte(`{"id":"resp_1"}`)})
					withheld(c)
				}()
			}
			alice := m.Token("alice", token.LLM)
			do := func(body string) *edgetest.Response {
				return m.Do("POST", "/v1/chat/completions", alice, body, "Idempotency-Key: k")
			}
			first := do(chat)
			call := first.Header().Get("X-Binnacle-Call-Id")
			if first.Code != 200 || call == "" {
				t.Fatal(first.Code, first.Body)
			}
			r := do(chat)
			e, _ := r.Doc["error"].(map[string]any)
			if r.Code != http.StatusGone || r.Error() != contract.CodeOutputNotStored || e["call_id"] != call || e["receipt_id"] != contract.IDReceipt+call {
				t.Error(r.Code, r.Body)
			}
			if r := do(strings.Replace(chat, "hi", "ho", 1)); r.Code != other {
				t.Errorf("another prompt: %d %s, want %d", r.Code, r.Body, other)
			}
			if n != 1 {
				t.Error(n, "calls")
			}
			m.Execute = func(c *edgetest.Call) { n++; withheld(c) }
			if r := m.Do("POST", "/api/v1/calls", alice, `{"kind":"llm.chat","args":`+chat+`}`); r.Code != 400 || r.Param() != "/kind" || n != 1 {
				t.Error(n, "calls;", r.Code, r.Body)
			}
		})
	}
}

// TestRepeatAfterReload checks that, under one Idempotency-Key, an equal request
// succeeds and a different one is rejected, even if the capture mode has changed since
// the first request.
func TestRepeatAfterReload(t *testing.T) {
	modes := []string{llm.CapturePlain, llm.CaptureEncrypted, llm.CaptureHashed}
	for _, before := range modes {
		for _, after := range append(modes, llm.CaptureOff) {
			t.Run(before+" "+after, func(t *testing.T) {
				m := edgetest.New(t, gateway.Config{Capture: before}, "llm.chat")
				m.Blobs.Keys = &contentKeys{}
				m.Execute = func(c *edgetest.Call) {
					go func() {
						c.Send(llm.Frame{Head: head(200, "application/json"), Data: []byte(`{"id":"resp_1"}`)})
						answered(c, 1)
					}()
				}
				alice := m.Token("alice", token.LLM)
				do := func(body string) int {
					return m.Do("POST", "/v1/chat/completions", alice, body, "Idempotency-Key: k").Code
				}
				first := do(chat)
				m.Service.Reload(&config.Config{Gateway: config.Gateway{Capture: after}})
				if again, other := do(chat), do(strings.Replace(chat, "hi", "ho", 1)); first != 200 || again != 200 || other != http.StatusConflict {
					t.Error(first, again, other)
				}
			})
		}
	}
}

// TestExpiry checks that the expiry of the caller's credential ends an open stream and
// cancels its call, but has no effect on a plain request, and that the revocation of the
// credential ends both and cancels their calls.
func TestExpiry(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		revoke bool
		want   string
		cancel bool
	}{
		"stream expires":          {stream, false, contract.CodeTokenInvalid, true},
		"stream is revoked":       {stream, true, contract.ReasonCredentialRevoked, true},
		"plain request expires":   {chat, false, `{"a":1}`, false},
		"plain request's revoked": {chat, true, contract.ReasonCredentialRevoked, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := edgetest.New(t, gateway.Config{}, "llm.chat")
				var call *edgetest.Call
				var executor sync.WaitGroup
				defer executor.Wait()
				m.Execute = func(x *edgetest.Call) {
					call = x
					executor.Go(func() {
						media := events
						if c.body == chat {
							media = "application/json"
						}
						x.Send(llm.Frame{Head: head(200, media), Data: []byte(`{"a"`)})
						if time.Sleep(time.Second); c.revoke {
							m.Record("policy", contract.EventTokenRevoked, "alice", contract.Bytes(&policy.TokenRevoked{Principal: "alice", Before: contract.Time(time.Now()), Reason: "x"}), nil)
						}
						time.Sleep(2 * time.Minute)
						x.Send(llm.Frame{Data: []byte(`:1}`)})
						answered(x, 2)
					})
				}
				alice := m.Token("alice", token.LLM) // the token is valid for an hour
				time.Sleep(59 * time.Minute)
				r := m.Do("POST", "/v1/chat/completions", alice, c.body)
				if !strings.Contains(r.Body.String(), c.want) {
					t.Errorf("%d %s, want %s", r.Code, r.Body, c.want)
				}
				if got := slices.Contains(m.Events(call.ID), contract.EventCancelRequested); got != c.cancel {
					t.Errorf("cancelled: %t", got)
				}
			})
		})
	}
}
