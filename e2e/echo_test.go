package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/packs/spell"
)

// TestEchoedKeys uses a provider that returns the API key of the request in each
// encoding of package spell, in errors, responses, streams and headers. After the first
// call the llm-router has the key in its cache. The test checks that no encoding of the
// key occurs in a response, on the ledger or in a log.
func TestEchoedKeys(t *testing.T) {
	const key = "sk-echo/0123456789+ABCDEFGHIJ=z"
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Stream   bool
			Messages []struct{ Content string }
		}
		_ = json.NewDecoder(r.Body).Decode(&req)
		how, as, _ := strings.Cut(req.Messages[0].Content, "/")
		s := spell.In(how, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		w.Header().Set("X-Request-Id", s)
		w.Header().Set("X-Ratelimit-Limit-Requests", s)
		switch {
		case as == "error":
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"error":{"message":"your key %s is odd","type":"invalid_request_error","param":"%s","code":"odd"}}`, s, s)
		case as == "text":
			w.WriteHeader(500)
			fmt.Fprintf(w, "your key %s is odd", s)
		case req.Stream:
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"good\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"the key %s\"},\"finish_reason\":null}]}\n\n", s)
			fmt.Fprint(w, "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"good\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"id":"x-%s","object":"chat.completion","created":1,"model":"good","choices":[{"index":0,"message":{"role":"assistant","content":"the key %s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, s, s)
		}
	}))
	defer echo.Close()
	doc := filepath.Join(t.TempDir(), "llm.json")
	body := fmt.Sprintf(`{"providers":[{"name":"echo","base_url":%q,"secrets":["llm.echo"],"models":["good"]}]}`, echo.URL+"/v1")
	if err := os.WriteFile(doc, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.WriteSecrets(t, doc, map[string]string{"llm.echo": key})
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{LLM: doc})
			redacted := 0
			for _, how := range spell.Hows {
				s := spell.In(how, key)
				if how == "base64 1" || how == "base64 2" {
					s = s[4 : len(s)-5]
				}
				for _, as := range []string{"error", "text", "answer", "stream"} {
					r, err := m.Do(t.Context(), "POST", "/v1/chat/completions", "s-echo", fmt.Sprintf(`{"model":"echo/good","stream":%v,"messages":[{"role":"user","content":"%s/%s"}]}`, as == "stream", how, as))
					if err != nil {
						t.Fatal(err)
					}
					all := append([]byte(fmt.Sprint(r.Header)), r.Body...)
					if bytes.Contains(all, []byte(s)) || bytes.Contains(all, []byte(key)) {
						t.Errorf("%s as %s: %v %s", how, as, r.Header, r.Body)
					}
					if bytes.Contains(r.Body, []byte("[secret:")) {
						redacted++
					}
				}
				leaks(t, m, s)
			}
			if redacted < 3*len(spell.Hows) {
				t.Errorf("%d of %d responses say that a key was taken out", redacted, 4*len(spell.Hows))
			}
			leaks(t, m, key)
		})
	}
}
