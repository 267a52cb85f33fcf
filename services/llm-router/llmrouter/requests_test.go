package llmrouter

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

var update = flag.Bool("update", false, "rewrite testdata/requests.golden")

// capture is an http.RoundTripper that writes each request to out, and returns an error
// instead of sending the request.
type capture struct{ out *bytes.Buffer }

// signed matches the parts of a signature that depend on the time.
var signed = regexp.MustCompile(`(Credential=AKID)/\d+(/.*Signature=)[0-9a-f]+`)

func (c capture) RoundTrip(r *http.Request) (*http.Response, error) {
	fmt.Fprintf(c.out, "%s %s\n", r.Method, r.URL)
	var names []string
	for name := range r.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		value := strings.Join(r.Header[name], " | ")
		if name == "X-Amz-Date" {
			value = "(time)"
		}
		fmt.Fprintf(c.out, "%s: %s\n", name, signed.ReplaceAllString(value, "$1/(day)$2(signature)"))
	}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(c.out, "%s\n", body)
	}
	return nil, fmt.Errorf("captured")
}

// bodies holds one request for each kind of call.
var bodies = map[string]string{
	llm.Chat: `{"model":"p/m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"look","cache_control":{"type":"ephemeral"}},{"type":"image_url","image_url":{"url":"data:image/png;base64,QUJD","detail":"low"}}]},` +
		`{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"upper","arguments":"{\"text\":\"a\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"A"}],` +
		`"tools":[{"type":"function","function":{"name":"upper","description":"d","parameters":{"type":"object"},"strict":true}},{"type":"custom","custom":{"name":"free"}}],"tool_choice":{"type":"function","function":{"name":"upper"}},"parallel_tool_calls":false,` +
		`"max_completion_tokens":4000,"temperature":1.5,"top_p":0.9,"stop":["x","y"],"seed":7,"presence_penalty":0.1,"frequency_penalty":0.2,"reasoning_effort":"low","user":"u","metadata":{"k":"v"},"prompt_cache_key":"ck",` +
		`"response_format":{"type":"json_schema","json_schema":{"name":"answer","description":"e","schema":{"type":"object"},"strict":true}},"service_tier":"flex","x_odd":[1]}`,
	llm.Responses: `{"model":"p/m","instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"look"},{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,QUJD"}]},` +
		`{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"seal"},{"type":"function_call","call_id":"c1","name":"upper","namespace":"ns","arguments":"{\"text\":\"a\"}"},{"type":"function_call_output","call_id":"c1","output":"A"}],` +
		`"tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"upper","parameters":{"type":"object"}}]},{"type":"web_search"}],"tool_choice":"required","max_output_tokens":2000,"reasoning":{"effort":"medium"},"text":{"format":{"type":"json_schema","name":"answer","schema":{"type":"object"}}},"store":false}`,
	llm.Messages: `{"model":"p/m","max_tokens":3000,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QUJD"}}]},` +
		`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"seal"},{"type":"redacted_thinking","data":"zz"},{"type":"tool_use","id":"c1","name":"upper","input":{"text":"a"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"A","is_error":true}]}],` +
		`"tools":[{"name":"upper","input_schema":{"type":"object"}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":1500},"metadata":{"user_id":"u"},"stop_sequences":["x"]}`,
	llm.CountTokens: `{"model":"p/m","messages":[{"role":"user","content":"hello"}]}`,
	llm.Embeddings:  `{"model":"p/m","input":["a","b"],"dimensions":3}`,
	llm.Completions: `{"model":"p/m","prompt":"a","max_tokens":5}`,
}

// TestRequests compares the requests that each kind of provider receives for each kind
// of call and for its list of models, with address, header fields and body, to a golden
// file.
func TestRequests(t *testing.T) {
	var out bytes.Buffer
	client := &http.Client{Transport: capture{&out}}
	configs := []provider.Config{
		{Name: "openai", Kind: "openai"}, {Name: "anthropic", Kind: "anthropic"}, {Name: "gemini", Kind: "gemini"},
		{Name: "azure", Kind: "azure", BaseURL: "https://x.openai.azure.com"}, {Name: "bedrock", Kind: "bedrock", Region: "us-east-1"},
		{Name: "signed", Kind: "bedrock", Region: "eu-west-1"}, {Name: "openrouter", Kind: "openrouter"}, {Name: "ollama", Kind: "ollama"},
		{Name: "vllm", BaseURL: "http://127.0.0.1:8000/v1", Headers: map[string]string{"X-Title": "t"}},
		{Name: "relay", BaseURL: "http://127.0.0.1:8000/v1", APIs: []string{"messages", "count_tokens"}},
		{Name: "both", Kind: "anthropic", APIs: []string{"chat", "responses"}},
	}
	models := map[string]string{"openai": "gpt-9", "anthropic": "claude-opus-4-1", "gemini": "gemini-2.5-flash", "azure": "my deployment", "bedrock": "us.anthropic.claude-opus-5-5", "signed": "us.amazon.nova-2-lite-v1:0"}
	kinds := []string{llm.Chat, llm.Responses, llm.Messages, llm.CountTokens, llm.Embeddings, llm.Completions}
	for _, c := range configs {
		p, err := registry.New(c, client)
		if err != nil {
			t.Fatal(err)
		}
		model := models[c.Name]
		if model == "" {
			model = "local"
		}
		key := "the-key"
		if c.Name == "signed" {
			key = `{"access_key_id":"AKID","secret_access_key":"s","session_token":"t"}`
		}
		for _, kind := range kinds {
			for _, stream := range []bool{false, true} {
				body := []byte(bodies[kind])
				if stream {
					body = append(bytes.TrimSuffix(body, []byte("}")), `,"stream":true}`...)
				}
				args, _, err := llm.Peek(kind, body)
				if err != nil {
					t.Fatal(kind, err)
				}
				args.Beta = []string{"b1", "b2"}
				a := &attempt{up: &upstream{Provider: p}, c: &call{s: &Service{}, api: callerOf(kind), args: *args, body: body, w: &execute.Work{Call: &contract.Call{Kind: kind}}}}
				a.cand, a.api = route.Candidate{Provider: c.Name, Model: model}, apiFor(p, callerOf(kind))
				name := ""
				if a.api != nil {
					name = a.api.Name
				}
				fmt.Fprintf(&out, "# %s, %s, stream %v: %s\n", c.Name, kind, stream, name)
				if a.api == nil || a.api == estimate {
					continue
				}
				sent, err := a.request(t.Context())
				if err != nil {
					fmt.Fprintln(&out, "error:", err)
					continue
				}
				_, _ = p.Do(t.Context(), &provider.Call{API: a.api, Model: model, Body: sent, Stream: stream, Key: key, Beta: args.Beta, Trace: "00-a-b-01", Egress: &provider.Egress{}})
			}
		}
		fmt.Fprintf(&out, "# %s, its models\n", c.Name)
		_, _ = p.List(t.Context(), key, &provider.Egress{})
	}
	if *update {
		if err := os.WriteFile("testdata/requests.golden", out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/requests.golden")
	if err != nil {
		t.Fatal(err)
	}
	got, expected := strings.Split(out.String(), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(got), len(expected)) {
		if got[i] != expected[i] {
			t.Fatalf("line %d of testdata/requests.golden:\n got %s\nwant %s", i+1, got[i], expected[i])
		}
	}
	if len(got) != len(expected) {
		t.Errorf("%d lines, want %d", len(got), len(expected))
	}
}
