package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestStreamsEnd shows that when the caller's authority ends, a streamed response ends
// with an error event within three seconds, at either of two gateways, and that the call
// is recorded as cancelled, with its usage.
func TestStreamsEnd(t *testing.T) {
	_, doc := harness.NewProviders(t, nil)
	m := harness.Processes(t, harness.Options{LLM: doc})
	second := m.As(m.Token)
	second.Addr = m.StartGateway("gateway-b")
	revoked := m.TokenFor("gone", "llm:call")
	suspended := m.TokenFor("idle", "llm:call")
	cli(t, m, "principals", "register", "idle", "agent")
	for name, x := range map[string]struct {
		actor, token string
		end          func()
	}{
		"revoked":   {"gone", revoked, func() { cli(t, m, "token", "revoke", revoked, "--reason", "test") }},
		"suspended": {"idle", suspended, func() { cli(t, m, "principals", "suspend", "idle", "--reason", "test") }},
		"expired":   {"admin", "", func() {}},
	} {
		t.Run(name, func(t *testing.T) {
			if x.token == "" {
				r, err := m.Do(t.Context(), "POST", "/api/v1/keys", "", `{"id":"short-lived","scopes":["llm:call"],"ttl_ms":2500}`)
				if err != nil || r.Status >= 300 {
					t.Fatal(err, r)
				}
				var key struct{ Key string }
				r.JSON(t, &key)
				x.token = key.Key
			}
			ends := make(chan string, 2)
			for i, gw := range []*harness.Mesh{m, second} {
				session := "s-" + name + []string{"-a", "-b"}[i]
				r := post(t.Context(), t, "http://"+gw.Addr+"/v1/chat/completions", bearer(m.As(x.token), session), `{"model":"vllm/m-pace","stream":true,"messages":[{"role":"user","content":"x"}]}`)
				if r.StatusCode != http.StatusOK {
					t.Fatalf("%d", r.StatusCode)
				}
				br := bufio.NewReader(r.Body)
				if _, err := br.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				go func() {
					b, _ := io.ReadAll(br)
					ends <- string(b)
				}()
			}
			x.end()
			for range 2 {
				select {
				case b := <-ends:
					if strings.Contains(b, "[DONE]") || !strings.Contains(b, `"error"`) {
						t.Errorf("the stream ends with %q", b[max(0, len(b)-300):])
					}
				case <-time.After(3 * time.Second):
					t.Fatal("the stream goes on")
				}
			}
			for _, suffix := range []string{"-a", "-b"} {
				id := harness.SessionID(x.actor, "s-"+name+suffix)
				eventually(t, "the call has an outcome", 10*time.Second, func() bool { return len(outcomes(t, m, id)) == 1 })
				if e := outcomes(t, m, id)[0]["effect"].(map[string]any); e["status"] != "cancelled" || e["usage"] == nil {
					t.Errorf("outcome: %v", e)
				}
			}
		})
	}
}

// TestFrozenDecide shows that no gateway hands out an intent while the mesh is frozen:
// neither the intent of a new call, nor that of a call which was allowed before the
// freeze, nor one that was handed out before. The same holds after a gateway has
// restarted.
func TestFrozenDecide(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	second := m.As(m.Token)
	second.Addr = m.StartGateway("gateway-b")
	cli(t, m, "roles", "grant", "ann", "approver")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "principals", "register", "careful", "agent")
	cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask","scope":"agent","subject":"careful","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED"}]}`))
	careful := m.TokenFor("careful", "tools:call", "calls:decide")
	r, err := m.As(careful).DoHeader(context.Background(), "POST", "/api/v1/decide", `{"kind":"tool.noop","tool":"noop","args":{},"report_within_ms":600000}`, map[string]string{"Prefer": "respond-async"})
	var waits intent
	if err != nil || r.Status != 202 || json.Unmarshal(r.Body, &waits) != nil {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	key := map[string]string{"Idempotency-Key": "out"}
	out := handOut(t, m, "s-out", 10*time.Minute, key)
	if out, err := m.As(m.TokenFor("ann", "approvals:vote")).CLI("approvals", "grant", waits.CallID, "--reason", "seen"); err != nil {
		t.Fatal(out, err)
	}
	eventually(t, "the call is allowed", 10*time.Second, func() bool { return stateOf(t, m, waits.CallID) == "allowed" })
	cli(t, m, "freeze", "--reason", "drill")
	try := func(when string) {
		t.Helper()
		for _, gw := range []*harness.Mesh{m, second} {
			for what, f := range map[string]func() (*harness.Response, error){
				"decided before": func() (*harness.Response, error) {
					x := gw.As(careful)
					x.Addr = gw.Addr
					return x.Do(context.Background(), "POST", "/api/v1/decide", "", `{"call_id":"`+waits.CallID+`"}`)
				},
				"handed out before": func() (*harness.Response, error) {
					return gw.DoHeader(context.Background(), "POST", "/api/v1/decide", `{"kind":"tool.noop","tool":"noop","args":{"n":1},"report_within_ms":600000}`,
						map[string]string{"Idempotency-Key": "out", "X-Binnacle-Session": "s-out"})
				},
				"new": func() (*harness.Response, error) {
					return gw.Do(context.Background(), "POST", "/api/v1/decide", "s-new", `{"kind":"tool.noop","tool":"noop","args":{},"report_within_ms":60000}`)
				},
			} {
				r, err := f()
				if err == nil && (r.Status == 200 || strings.Contains(string(r.Body), `"intent_id"`)) {
					t.Errorf("%s: an intent %s is handed out: %s", when, what, r.Body)
				}
			}
		}
	}
	try("frozen")
	m.Kill("gateway")
	m.Restart("gateway")
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		try("after a restart")
	}
	cli(t, m, "unfreeze", "--reason", "over")
	m.WaitReady()
	if again := handOut(t, second, "s-out", 10*time.Minute, key); again.IntentID != out.IntentID || !again.Before {
		t.Errorf("what was handed out before: %+v", again)
	}
	x := handOut(t, m, "s-new", time.Minute, nil)
	if r := x.report(t, second, ""); r.Status != 200 {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	proves(t, m)
}
