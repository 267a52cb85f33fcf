package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestDeep shows that requests, responses, events and errors that are nested deeply enough to
// overflow the stack of a recursive parser result in typed errors, that a response with tool
// arguments of this depth is returned or fails with an error, and that the mesh continues to serve
// calls.
func TestDeep(t *testing.T) {
	p, doc := harness.NewProviders(t, nil)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{LLM: doc})
			send := func(path, body string) (int, string) {
				r := post(t.Context(), t, "http://"+m.Addr+path, bearer(m, "s-deep"), body)
				return r.StatusCode, all(t, r)
			}
			for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/completions"} {
				for _, open := range []string{"[", `{"a":`} {
					body := `{"model":"demo/echo","messages":` + strings.Repeat(open, 15<<20/len(open))
					if status, text := send(path, body); status != http.StatusBadRequest || !strings.Contains(text, `nest`) {
						t.Errorf("%s: %d %.300s", path, status, text)
					}
				}
			}
			apis := map[string]string{"/v1/chat/completions": `"messages":[{"role":"user","content":"x"}]`, "/v1/messages": `"max_tokens":9,"messages":[{"role":"user","content":"x"}]`, "/v1/responses": `"input":"x"`}
			for path, said := range apis {
				for _, provider := range []string{"openai", "vllm", "anthropic", "gemini", "bedrock"} {
					for _, c := range []struct{ model, stream, code string }{{"m-deep", "false", "upstream_malformed"}, {"m-deep", "true", "upstream_malformed"}, {"m-deepfault", "false", "upstream_error"}} {
						status, text := send(path, fmt.Sprintf(`{"model":"%s/%s","stream":%s,%s}`, provider, c.model, c.stream, said))
						if status != http.StatusBadGateway || !strings.Contains(text, c.code) && !strings.Contains(text, `"api_error"`) {
							t.Errorf("%s %s %s stream %s: %d %.300s", path, provider, c.model, c.stream, status, text)
						}
					}
				}
			}
			tools := `,"tools":[{"name":"f","input_schema":{"type":"object"}}]`
			for _, stream := range []string{"false", "true"} {
				if status, text := send("/v1/messages", `{"model":"vllm/m-deepargs","stream":`+stream+`,`+apis["/v1/messages"]+tools+`}`); status >= 500 && !strings.Contains(text, `"error"`) || status == 0 {
					t.Errorf("arguments, stream %s: %d %.300s", stream, status, text)
				}
			}
			for _, n := range m.Names() {
				if !m.Runs(n) {
					t.Errorf("%s has ended", n)
				}
			}
			if status, text := send("/v1/chat/completions", `{"model":"openai/m-good","messages":[{"role":"user","content":"x"}]}`); status != 200 {
				t.Errorf("the mesh does not serve any more: %d %s", status, text)
			}
			if len(p.Requests("bedrock/m-deep")) == 0 {
				t.Error("the hostile provider received no request")
			}
		})
	}
}
