package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// post sends a request with exactly this body to the mesh or to a provider. It returns the
// response, whose body is closed at the end of the test, or nil if the request failed and
// ctx is done.
func post(ctx context.Context, t *testing.T, url string, header map[string]string, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// all reads the body of a response to its end and returns it.
func all(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// bearer returns the header fields for a request in a session with the administrator's
// token.
func bearer(m *harness.Mesh, session string) map[string]string {
	return map[string]string{"Authorization": "Bearer " + m.Token, "X-Binnacle-Session": session}
}

// outcomes returns the data of the effect_recorded events of a session.
func outcomes(t *testing.T, m *harness.Mesh, session string) []map[string]any {
	return recorded(t, m, session, "effect_recorded")
}

// recorded returns the data of the events of a session that have this name.
func recorded(t *testing.T, m *harness.Mesh, session, name string) []map[string]any {
	t.Helper()
	out, err := m.CLI("events", "list", "--session", session, "--type", name, "--json")
	if err != nil {
		t.Fatal(out, err)
	}
	var docs []map[string]any
	d := json.NewDecoder(strings.NewReader(out))
	for d.More() {
		var x any
		if err := d.Decode(&x); err != nil {
			t.Fatal(err, out)
		}
		list, ok := x.([]any)
		if !ok {
			list = []any{x}
		}
		for _, e := range list {
			docs = append(docs, e.(map[string]any)["event"].(map[string]any)["data"].(map[string]any))
		}
	}
	return docs
}

// eventually polls ok and fails the test unless it returns true within the given time.
func eventually(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// TestFidelity sends the same requests directly and through the mesh, and compares the
// bytes that the provider and the caller receive in both cases. It also checks that
// ambiguous and incomplete requests are rejected.
func TestFidelity(t *testing.T) {
	p, doc := harness.NewProviders(t, nil)
	m := harness.One(t, harness.Options{LLM: doc})
	auth := map[string]map[string]string{"openai": {"Authorization": "Bearer " + p.Keys["llm.openai"]}, "anthropic": {"X-Api-Key": p.Keys["llm.anthropic"], "Anthropic-Version": "2023-06-01"}}
	odd := `"x_unknown":{"deep":[1.0,1e2,12345678901234567890,"\u00e9\/",null]},"reasoning_effort":"xhigh","max_completion_tokens":10,"seed":9223372036854775807 , "logit_bias":{"50256":-100}`
	for _, c := range []struct{ provider, path, body string }{
		{"openai", "/v1/chat/completions", `{ "model" : "MODEL",  "messages":[{"role":"user","content":[{"type":"text","text":"a <b> & \"c\""},{"type":"file","file":{"file_id":"f1"}},{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]}],` + odd + `}`},
		{"openai", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},"model":"MODEL",` + odd + `}`},
		{"openai", "/v1/responses", `{"model":"MODEL","input":[{"role":"user","content":"hi"}],"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k",` + odd + `}`},
		{"openai", "/v1/responses", `{"model":"MODEL","input":"hi","stream":true,` + odd + `}`},
		{"openai", "/v1/embeddings", `{"model":"MODEL","input":["a","b"],` + odd + `}`},
		{"openai", "/v1/completions", `{"model":"MODEL","prompt":"hi","stream":true,` + odd + `}`},
		{"anthropic", "/v1/messages", `{"model":"MODEL","max_tokens":50,"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral","ttl":"1h"}}]}],"thinking":{"type":"disabled"},"service_tier":"auto"}`},
		{"anthropic", "/v1/messages", `{"model":"MODEL","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hi"}]}`},
		{"anthropic", "/v1/messages/count_tokens", `{"model":"MODEL","messages":[{"role":"user","content":"hi"}]}`},
	} {
		direct := strings.Replace(c.body, "MODEL", "m-good", 1)
		base := p.URL + "/" + c.provider
		want := all(t, post(t.Context(), t, base+c.path, auth[c.provider], direct))
		h := bearer(m, "s-fidelity")
		h["Anthropic-Beta"] = "tools-1,cache-2"
		got := post(t.Context(), t, "http://"+m.Addr+c.path, h, strings.Replace(c.body, "MODEL", c.provider+"/m-good", 1))
		if text := all(t, got); text != want {
			t.Errorf("%s: the answer differs\nthrough %s\ndirect  %s", c.path, text, want)
		}
		seen := p.Requests("")
		a, b := seen[len(seen)-2], seen[len(seen)-1]
		if !bytes.Equal(a.Body, b.Body) {
			t.Errorf("%s: the request differs\nthrough %s\ndirect  %s", c.path, b.Body, a.Body)
		}
		if c.provider == "anthropic" && b.Header.Get("Anthropic-Beta") != "tools-1,cache-2" {
			t.Errorf("beta header: %q", b.Header.Get("Anthropic-Beta"))
		}
		if id := got.Header.Get("X-Request-Id"); !strings.HasPrefix(id, "c-") {
			t.Errorf("x-request-id %q", id)
		}
	}
	// Usage that the mesh requested, and the caller did not, is recorded on the ledger
	// and not returned to the caller.
	body := `{"model":"%s","messages":[{"role":"user","content":"hi"}],"stream":true}`
	want := all(t, post(t.Context(), t, p.URL+"/openai/v1/chat/completions", auth["openai"], fmt.Sprintf(body, "m-good")))
	if got := all(t, post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, "s-usage"), fmt.Sprintf(body, "openai/m-good"))); got != want {
		t.Errorf("stream without usage differs\nthrough %s\ndirect  %s", got, want)
	}
	if u := outcomes(t, m, "s-usage")[0]["effect"].(map[string]any)["usage"].(map[string]any); u["output_tokens"] != 9.0 || u["cached_tokens"] != 5.0 {
		t.Errorf("usage %v", u)
	}
	// Ambiguous JSON and incomplete requests are rejected.
	for _, twice := range []string{`{"model":"openai/m-good","model":"openai/m-missing","messages":[{"role":"user","content":"x"}]}`,
		`{"model":"openai/m-good","MODEL":"m-missing","messages":[{"role":"user","content":"x"}]}`,
		`{"model":"openai/m-good","mod\u0065l":"x","messages":[{"role":"user","content":"x"}]}`,
		`{"model":"openai/m-good","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"good","name":"evil"}}]}`,
		`{"model":"openai/m-good","messages":[{"role":"user","content":"x"}]} {}`, `{"model":"openai/m-good","messages":[]}`, `{"messages":[{"role":"user","content":"x"}]}`, `[]`, ``} {
		if r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, "s-twice"), twice); r.StatusCode != 400 {
			t.Errorf("%s: %d", twice, r.StatusCode)
		}
	}
}

// TestClientLeaves shows that if the client disconnects, the request to the provider is
// cancelled at once, the call and the attempt are recorded as cancelled, and the tokens
// of a stream that were received until then are charged.
func TestClientLeaves(t *testing.T) {
	p, doc := harness.NewProviders(t, map[string]any{"prices": map[string]any{"version": "v1", "models": []any{map[string]any{"model": "openai/m-pace", "input": 1000000, "output": 2000000}}}})
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{LLM: doc})
			for i, c := range []struct {
				name, body string
				after      string // the client disconnects after it has received this text; empty = once the provider has received the request
			}{
				{"mid-stream", `{"model":"openai/m-pace","stream":true,"messages":[{"role":"user","content":"x"}]}`, `"word `},
				{"before the first byte of a stream", `{"model":"openai/m-hang","stream":true,"messages":[{"role":"user","content":"x"}]}`, ""},
				{"before the first byte of an answer", `{"model":"openai/m-hang","messages":[{"role":"user","content":"x"}]}`, ""},
			} {
				session := fmt.Sprintf("s-leave-%d", i)
				ctx, cancel := context.WithCancel(t.Context())
				before := len(p.Requests(""))
				done := make(chan struct{})
				read := make(chan struct{})
				go func() {
					defer close(done)
					r := post(ctx, t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, session), c.body)
					if r == nil {
						return
					}
					sc := bufio.NewScanner(r.Body)
					for sc.Scan() {
						if c.after != "" && strings.Contains(sc.Text(), c.after) {
							close(read)
							c.after = ""
						}
					}
				}()
				if c.after != "" {
					<-read
				} else {
					eventually(t, "the request reaches the provider", 5*time.Second, func() bool { return len(p.Requests("")) > before })
				}
				left := time.Now()
				cancel()
				<-done
				var gone time.Time
				eventually(t, c.name+": the provider is let go", 5*time.Second, func() bool {
					gone = p.Requests("")[before].Gone
					return !gone.IsZero()
				})
				if d := gone.Sub(left); d > 250*time.Millisecond { // less than 50 ms on a machine with nothing else to do
					t.Errorf("%s: the provider was let go after %v", c.name, d)
				} else {
					t.Logf("%s: %v", c.name, d)
				}
				eventually(t, "the outcome is recorded", 5*time.Second, func() bool { return len(outcomes(t, m, session)) == 1 })
				eff := outcomes(t, m, session)[0]["effect"].(map[string]any)
				if eff["status"] != "cancelled" {
					t.Errorf("%s: status %v", c.name, eff["status"])
				}
				at := recorded(t, m, session, "attempt_finished")[0]
				if at["status"] != "cancelled" {
					t.Errorf("%s: attempt %v", c.name, at)
				}
				if i == 0 {
					if u := eff["usage"].(map[string]any); u["output_tokens"] == nil || u["usd_micros"] == nil || at["estimated"] != true || at["price_version"] != "v1" {
						t.Errorf("%s: what passed is not billed: %v %v", c.name, u, at)
					}
				}
			}
		})
	}
}

// TestRouting checks aliases, virtual models, fallbacks, retries, the choice of keys,
// and circuit breakers.
func TestRouting(t *testing.T) {
	p, doc := harness.NewProviders(t, map[string]any{
		"breaker": map[string]any{"failures": 3, "open_ms": 1500},
		"aliases": map[string]string{"fast": "openai/alias-good"},
		"virtual": []any{
			map[string]any{"name": "cheap", "strategy": "cost", "targets": []any{map[string]any{"model": "openai/dear-good"}, map[string]any{"model": "vllm/cheap-good"}}},
			map[string]any{"name": "spread", "strategy": "weighted", "targets": []any{map[string]any{"model": "openai/a-good", "weight": 3}, map[string]any{"model": "vllm/b-good", "weight": 1}}},
			map[string]any{"name": "stay", "strategy": "weighted", "sticky": true, "targets": []any{map[string]any{"model": "openai/c-good"}, map[string]any{"model": "vllm/d-good"}}},
			map[string]any{"name": "quick", "strategy": "latency", "targets": []any{map[string]any{"model": "openai/l-slow"}, map[string]any{"model": "vllm/l-good"}}},
		},
		"fallbacks": []any{
			map[string]any{"primary": "openai/f-broken", "fallbacks": []string{"anthropic/f-overloaded", "gemini/f-good"}},
			map[string]any{"primary": "openai/f-limited", "fallbacks": []string{"vllm/only-timeouts-good"}, "triggers": []string{"timeout"}},
			map[string]any{"primary": "vllm/f-limited", "fallbacks": []string{"anthropic/g-good"}, "triggers": []string{"rate_limit"}},
			map[string]any{"primary": "ollama/f-early", "fallbacks": []string{"bedrock/g-good"}},
			map[string]any{"primary": "ollama/f-cut", "fallbacks": []string{"bedrock/never-good"}},
		},
		"prices": map[string]any{"version": "2026-11", "models": []any{map[string]any{"model": "openai/dear-good", "input": 10000000, "output": 30000000}, map[string]any{"model": "vllm/cheap-good", "input": 100000, "cached_input": 50000, "output": 200000}}},
	})
	m := harness.One(t, harness.Options{LLM: doc})
	ask := func(model, session string, stream bool) (*http.Response, string) {
		t.Helper()
		r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, session), fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"which way"}]}`, model, stream))
		return r, all(t, r)
	}
	served := func(r *http.Response) string { return r.Header.Get("X-Binnacle-Model") }

	if r, body := ask("fast", "s-route", false); served(r) != "openai/alias-good" || r.StatusCode != 200 {
		t.Errorf("alias: %d %s %s", r.StatusCode, served(r), body)
	}
	if r, body := ask("cheap", "s-cost", false); served(r) != "vllm/cheap-good" {
		t.Errorf("cost: %s %s", served(r), body)
	}
	// 25 input tokens, of which 5 cached, and 12 output tokens: 20*0.1 + 5*0.05 + 12*0.2
	// = 4.65 micro-dollars, recorded as 5.
	if a := recorded(t, m, "s-cost", "attempt_finished")[0]; a["usd_micros"] != 5.0 || a["price_version"] != "2026-11" || a["requested"] != "cheap" {
		t.Errorf("price: %v", a)
	}
	count := map[string]int{}
	for range 200 {
		r, _ := ask("spread", "s-spread", false)
		count[served(r)]++
	}
	if n := count["openai/a-good"]; n < 120 || n > 180 || n+count["vllm/b-good"] != 200 {
		t.Errorf("weighted: %v", count)
	}
	sticky := map[string]int{}
	for i := range 16 {
		first, _ := ask("stay", fmt.Sprintf("s-stay-%d", i), false)
		again, _ := ask("stay", fmt.Sprintf("s-stay-%d", i), false)
		if served(first) != served(again) {
			t.Errorf("session %d moved from %s to %s", i, served(first), served(again))
		}
		sticky[served(first)]++
	}
	if len(sticky) != 2 {
		t.Errorf("sticky: %v", sticky)
	}
	ask("openai/l-slow", "s-lat", false)
	ask("vllm/l-good", "s-lat", false)
	if r, _ := ask("quick", "s-lat", false); served(r) != "vllm/l-good" {
		t.Errorf("latency: %s", served(r))
	}
	for _, stream := range []bool{false, true} {
		r, body := ask("openai/f-broken", fmt.Sprintf("s-fall-%v", stream), stream)
		if served(r) != "gemini/f-good" || !strings.Contains(body, "way") {
			t.Errorf("fallback: %d %s %s", r.StatusCode, served(r), body)
		}
		var path []string
		for _, a := range recorded(t, m, fmt.Sprintf("s-fall-%v", stream), "attempt_finished") {
			path = append(path, fmt.Sprint(a["provider"], " ", a["status"], " ", a["rule"]))
		}
		want := "openai failed <nil>,openai failed <nil>,anthropic failed fallback:openai/f-broken,anthropic failed fallback:openai/f-broken,gemini succeeded fallback:openai/f-broken"
		if got := strings.Join(path, ","); got != want {
			t.Errorf("attempts:\n got %s\nwant %s", got, want)
		}
		time.Sleep(1600 * time.Millisecond) // longer than the circuit breakers stay open
	}
	if r, body := ask("openai/f-limited", "s-trig", false); r.StatusCode != 429 || r.Header.Get("Retry-After") != "3" || r.Header.Get("X-Ratelimit-Remaining-Requests") != "0" {
		t.Errorf("a trigger that does not match: %d %v %s", r.StatusCode, r.Header, body)
	}
	if r, _ := ask("vllm/f-limited", "s-trig2", false); served(r) != "anthropic/g-good" {
		t.Errorf("rate_limit trigger: %s", served(r))
	}
	// The router buffers the events of a stream that precede its first content, so that
	// it can use the next provider if the stream fails before that content.
	if r, body := ask("ollama/f-early", "s-early", true); served(r) != "bedrock/g-good" || sseText(t, []byte(body)) != "You said: which way" || !strings.HasSuffix(body, "[DONE]\n\n") {
		t.Errorf("before content: %s %s", served(r), body)
	}
	// If the stream fails after its first content, the caller receives the content so
	// far and an explicit error.
	if _, body := ask("ollama/f-cut", "s-cut", true); !strings.Contains(body, "You ") || !strings.Contains(body, `"error"`) || strings.Contains(body, "[DONE]") || len(p.Requests("bedrock/never-good")) > 0 {
		t.Errorf("after content: %s", body)
	}
	if o := outcomes(t, m, "s-cut")[0]; o["effect"].(map[string]any)["error_code"] != "upstream_cut" || !strings.Contains(fmt.Sprint(o["output"]), "You said") {
		t.Errorf("a cut stream's record: %v", o)
	}
	// A request that fails once is retried.
	if r, _ := ask("vllm/x-flaky", "s-flaky", false); r.StatusCode != 200 {
		t.Errorf("retry: %d", r.StatusCode)
	}
	// Each of the two keys is used for half of the calls. After one of them has been
	// replaced at the provider and in the vault, calls succeed without a restart.
	keys := map[string]int{}
	for range 10 {
		ask("twokeys/k-good", "s-keys", false)
	}
	for _, a := range recorded(t, m, "s-keys", "attempt_finished") {
		keys[fmt.Sprint(a["provider_key"])]++
	}
	if keys["llm.openai"] != 5 || keys["llm.openai.2"] != 5 {
		t.Errorf("rotation: %v", keys)
	}
	p.SetKey("llm.openai.2", "sk-a-new-value-0001")
	if out, err := m.CLIStdin("sk-a-new-value-0001", "secret", "put", "llm.openai.2"); err != nil {
		t.Fatal(out, err)
	}
	for i := range 10 {
		if r, body := ask("twokeys/k-good", "s-keys2", false); r.StatusCode != 200 {
			t.Errorf("rotated key, call %d: %d %s", i, r.StatusCode, body)
		}
	}
	// While a circuit breaker is open, calls fail immediately; it closes after the
	// configured time.
	for range 3 {
		ask("azure/z-broken", "s-break", false)
	}
	n := len(p.Requests("azure/z-good"))
	if r, body := ask("azure/z-good", "s-break", false); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || len(p.Requests("azure/z-good")) != n {
		t.Errorf("open breaker: %d %s", r.StatusCode, body)
	}
	time.Sleep(1600 * time.Millisecond)
	if r, body := ask("azure/z-good", "s-break", false); r.StatusCode != 200 {
		t.Errorf("breaker does not close: %d %s", r.StatusCode, body)
	}
	if r, _ := ask("unknown/x", "s-none", false); r.StatusCode != 404 {
		t.Errorf("unknown provider: %d", r.StatusCode)
	}
	if r, _ := ask("nothing", "s-none", false); r.StatusCode != 400 {
		t.Errorf("no such name: %d", r.StatusCode)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}

// TestHedge shows that if a provider does not respond in time, the request is also sent
// to the next one; only the first response is returned, and the slower request is
// cancelled and recorded.
func TestHedge(t *testing.T) {
	p, doc := harness.NewProviders(t, map[string]any{"hedge_ms": 100, "fallbacks": []any{
		map[string]any{"primary": "openai/h-hang", "fallbacks": []string{"anthropic/h-good"}}, map[string]any{"primary": "openai/h-slow", "fallbacks": []string{"anthropic/h-hang"}}}})
	m := harness.One(t, harness.Options{LLM: doc})
	for i, c := range []struct{ primary, winner, loser string }{{"openai/h-hang", "anthropic/h-good", "openai/h-hang"}, {"openai/h-slow", "openai/h-slow", "anthropic/h-hang"}} {
		for _, stream := range []bool{false, true} {
			session := fmt.Sprintf("s-hedge-%d-%v", i, stream)
			n := len(p.Requests(c.loser))
			r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, session), fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"hi"}]}`, c.primary, stream))
			body := all(t, r)
			if r.StatusCode != 200 || r.Header.Get("X-Binnacle-Model") != c.winner || strings.Contains(body, `"error"`) {
				t.Fatalf("%s: %d %s %s", c.primary, r.StatusCode, r.Header.Get("X-Binnacle-Model"), body)
			}
			eventually(t, "the loser is let go", 2*time.Second, func() bool { seen := p.Requests(c.loser); return len(seen) > n && !seen[len(seen)-1].Gone.IsZero() })
			var got []string
			for _, a := range recorded(t, m, session, "attempt_finished") {
				got = append(got, fmt.Sprint(a["provider"], " ", a["status"]))
			}
			if len(got) != 2 || !strings.Contains(strings.Join(got, ","), "succeeded") || !strings.Contains(strings.Join(got, ","), "cancelled") {
				t.Errorf("attempts %v", got)
			}
			if o := outcomes(t, m, session)[0]["effect"].(map[string]any); o["status"] != "succeeded" {
				t.Errorf("%v", o)
			}
		}
	}
}

// TestColdKeys shows that secrets that are fetched concurrently for one call are not
// mixed up: a hedged request whose keys are not cached yet succeeds, and a list of the
// models of several providers with keys is complete. Both together take at most five
// seconds.
func TestColdKeys(t *testing.T) {
	_, doc := harness.NewProviders(t, map[string]any{"hedge_ms": 60, "fallbacks": []any{map[string]any{"primary": "openai/h-slow", "fallbacks": []string{"anthropic/h-good"}}}})
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{LLM: doc})
			began := time.Now()
			cold := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, "s-cold"), `{"model":"openai/h-slow","messages":[{"role":"user","content":"hi"}]}`)
			if body := all(t, cold); cold.StatusCode != 200 || strings.Contains(body, `"error"`) {
				t.Errorf("a hedge with cold keys: %d %s", cold.StatusCode, body)
			}
			r, err := m.Do(t.Context(), "GET", "/v1/models", "", "")
			if err != nil || r.Status != 200 {
				t.Fatal(err, r)
			}
			for _, model := range []string{"openai/listed-live", "anthropic/claude-listed", "gemini/gemini-listed", "openrouter/listed-live", "twokeys/listed-live"} {
				if !strings.Contains(string(r.Body), `"`+model+`"`) {
					t.Errorf("%s is not listed: %s", model, r.Body)
				}
			}
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}
