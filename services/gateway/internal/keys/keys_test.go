package keys_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestCreate checks that the response contains a key, that the call that creates the key
// contains only its digest, and that the gateway accepts the key when its maker receives
// it. Requests with an invalid id, or a scope that does not exist or that the maker
// lacks, are rejected.
func TestCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "policy.create_key", "llm.chat")
		var args string
		m.Execute = func(c *edgetest.Call) {
			if c.Kind != "policy.create_key" {
				c.Deny(contract.ReasonPolicyViolation)
				return
			}
			args = string(c.Args)
			var k struct{ Digest string }
			if err := json.Unmarshal(c.Args, &k); err != nil {
				t.Error(err)
			}
			c.Succeed([]byte(`{}`))
			go func() {
				time.Sleep(time.Second)
				m.Record("policy", contract.EventVirtualKeyCreated, "k1", contract.Bytes(&policy.VirtualKeyCreated{ID: "k1", Actor: "alice", Maker: "root", Digest: k.Digest, Scopes: []string{token.LLM}}), nil)
			}()
		}
		root := m.Token("root", token.Admin, token.LLM)
		began := time.Now()
		r := m.Do("POST", "/api/v1/keys", root, `{"id":"k1","actor":"alice"}`)
		key, _ := r.Doc["key"].(string)
		if r.Code != 200 || !strings.HasPrefix(key, auth.KeyPrefix) || time.Since(began) != time.Second {
			t.Fatal(r.Code, r.Body, time.Since(began))
		}
		if strings.Contains(args, key) || !strings.Contains(args, auth.DigestOf(key)) || !strings.Contains(args, `"scopes":["llm:call"]`) {
			t.Error("the call's args are", args)
		}
		if r := m.Do("POST", "/v1/chat/completions", key, `{"model":"m","messages":[{"role":"user","content":"x"}]}`); r.Error() != "denied" { // policy denied the call, so the gateway accepted the key
			t.Error(r.Body)
		}
		for body, param := range map[string]string{`{"id":"a b"}`: "/id", `{"id":"k","scopes":["root:all"]}`: "/scopes/0", `{"id":"k","scopes":["llm:call","audit:read"]}`: "/scopes/1"} {
			if r := m.Do("POST", "/api/v1/keys", root, body); r.Code != 400 || r.Param() != param {
				t.Errorf("%s: %d %s", body, r.Code, r.Body)
			}
		}
	})
}

// TestCreateWithoutNews checks that a request to create a key succeeds after two seconds
// even if the gateway has not received the key's event.
func TestCreateWithoutNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "policy.create_key")
		began := time.Now()
		if r := m.Do("POST", "/api/v1/keys", m.Token("root", token.Admin, token.LLM), `{"id":"k1"}`); r.Code != 200 || time.Since(began) != 2*time.Second {
			t.Error(r.Code, time.Since(began))
		}
	})
}

// TestGoverning checks that consents and revocations are proposed as calls, that the
// list is policy's response, and that the list requires the scope for administration.
func TestGoverning(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "policy.consent_key", "policy.withdraw_consent", "policy.revoke_token")
	m.Answers["policy keys"] = []map[string]any{{"id": "k1"}}
	var did string
	m.Execute = func(c *edgetest.Call) { did = c.Kind + " " + string(c.Args); c.Succeed([]byte(`{}`)) }
	root := m.Token("root", token.Admin)
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/api/v1/keys/k1/consent", `{"maker":"root","scopes":["llm:call"],"ttl_ms":1000}`, `policy.consent_key {"id":"k1","maker":"root","scopes":["llm:call"],"ttl_ms":1000}`},
		{"DELETE", "/api/v1/keys/k1/consent", "", `policy.withdraw_consent {"id":"k1"}`},
		{"POST", "/api/v1/tokens/revocations", `{"id":"j1","reason":"lost"}`, `policy.revoke_token {"id":"j1","reason":"lost"}`},
	} {
		if r := m.Do(c.method, c.path, root, c.body); r.Code != 200 || did != c.want {
			t.Errorf("%s %s: %d, did %s", c.method, c.path, r.Code, did)
		}
	}
	if r := m.Do("GET", "/api/v1/keys", root, ""); !strings.Contains(r.Body.String(), `"id":"k1"`) {
		t.Error(r.Body)
	}
	if r := m.Do("GET", "/api/v1/keys", m.Token("alice", token.LLM), ""); r.Error() != "scope_missing" {
		t.Error(r.Body)
	}
}
