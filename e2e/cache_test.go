package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestCache shows that a caller that opts in to caching receives the cached response to
// an identical request, and that another caller does not receive it. A response cached
// as an object is still returned after the llm-router was killed, and one cached in
// memory is not returned after its time to live.
func TestCache(t *testing.T) {
	for store, ttl := range map[string]int{"memory": 3000, "object": 60000} {
		t.Run(store, func(t *testing.T) {
			p, doc := harness.NewProviders(t, map[string]any{"cache": map[string]any{"store": store, "ttl_ms": ttl}})
			m := harness.Processes(t, harness.Options{LLM: doc})
			ask := func(session, model string, stream bool, header, token string) (string, string) {
				t.Helper()
				h := map[string]string{"Authorization": "Bearer " + token, "X-Binnacle-Session": session}
				if header != "" {
					h["X-Binnacle-Cache"] = header
				}
				r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", h, fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"hello"}]}`, model, stream))
				body := all(t, r)
				if r.StatusCode != 200 {
					t.Fatalf("%d %s", r.StatusCode, body)
				}
				return r.Header.Get("X-Binnacle-Cache"), body
			}
			for _, stream := range []bool{false, true} {
				session := fmt.Sprintf("s-cache-%v", stream)
				n := len(p.Requests("vllm/c-good"))
				first, body := ask(session, "vllm/c-good", stream, "use", m.Token)
				if first != "miss" {
					t.Errorf("first: %q", first)
				}
				eventually(t, "the answer is kept", 2*time.Second, func() bool {
					hit, again := ask(session, "vllm/c-good", stream, "use", m.Token)
					if hit == "hit" && again != body {
						t.Errorf("kept %s, was %s", again, body)
					}
					return hit == "hit"
				})
				if got := len(p.Requests("vllm/c-good")) - n; store == "memory" && got != 1 {
					t.Errorf("%d requests reached the provider", got)
				}
				if hit, _ := ask(session, "vllm/c-good", stream, "", m.Token); hit != "" {
					t.Errorf("unasked for: %q", hit)
				}
				o := outcomes(t, m, session)
				var kinds []string
				for _, x := range o {
					kinds = append(kinds, x["effect"].(map[string]any)["effect_type"].(string))
				}
				if !strings.Contains(strings.Join(kinds, " "), "llm.cache_hit") {
					t.Errorf("effects %v", kinds)
				}
			}
			// Another caller does not receive the cached response.
			out, err := m.AgreedKey("other", "eve", "--cache")
			if err != nil {
				t.Fatal(out, err)
			}
			key := strings.TrimSpace(out)
			if hit, _ := ask("s-other", "vllm/c-good", false, "", key); hit != "miss" {
				t.Errorf("another's: %q", hit)
			}
			eventually(t, "a key that opts in is answered", 2*time.Second, func() bool { hit, _ := ask("s-other", "vllm/c-good", false, "", key); return hit == "hit" })
			if store == "object" { // the cached response is still available after the llm-router that cached it was killed
				m.Kill("llm-router")
				m.Restart("llm-router")
				m.WaitReady()
				if hit, _ := ask("s-other", "vllm/c-good", false, "", key); hit != "hit" {
					t.Errorf("after a restart: %q", hit)
				}
			}
			if store == "memory" {
				time.Sleep(3200 * time.Millisecond)
				if hit, _ := ask("s-other", "vllm/c-good", false, "", key); hit != "miss" {
					t.Errorf("after its time: %q", hit)
				}
			}
			if out, err := m.CLI("replay"); err != nil {
				t.Fatal(out, err)
			}
		})
	}
}
