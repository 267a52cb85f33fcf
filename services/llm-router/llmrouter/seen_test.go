package llmrouter

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// received holds the parts of a request that a lenient provider could read: members of
// several APIs, with names in any case.
type received struct {
	tools   map[string]bool
	bounds  []int64 // limits on the number of output tokens of an answer
	answers int64
	budget  int64
	letters int64 // number of bytes in the longer texts; a token has at least two bytes
}

// member returns the values of those members of an object that have one of the names, in
// any case.
func member(o map[string]any, names ...string) (out []any) {
	for k, v := range o {
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, k) }) {
			out = append(out, v)
		}
	}
	return out
}

// read adds the tools, limits, number of answers and texts of doc to r. doc is a request
// in the API named wire.
func (r *received) read(wire string, doc map[string]any) {
	for _, t := range member(doc, "tools", "functions", "mcp_servers") {
		r.offered(t, "")
	}
	for _, c := range member(doc, "toolConfig") {
		for _, t := range member(c.(map[string]any), "tools") {
			r.offered(t, "")
		}
	}
	if slices.Contains([]string{"embeddings", "count_tokens"}, wire) {
		return
	}
	own := map[string][]string{"chat": {"max_tokens", "max_completion_tokens"}, "completions": {"max_tokens"}, "messages": {"max_tokens"}, "responses": {"max_output_tokens"}}[wire]
	r.answers = 1
	number := func(v any) int64 { f, _ := v.(float64); return int64(f) }
	for _, n := range own {
		for _, v := range member(doc, n) {
			if x := number(v); x > 0 {
				r.bounds = append(r.bounds, x)
			}
		}
	}
	inner := func(names ...string) map[string]any {
		for _, v := range member(doc, names...) {
			if o, ok := v.(map[string]any); ok {
				return o
			}
		}
		return nil
	}
	switch wire {
	case "gemini":
		g := inner("generationConfig")
		for _, v := range member(g, "maxOutputTokens") {
			r.bounds = append(r.bounds, number(v))
		}
		for _, v := range member(g, "candidateCount") {
			r.answers = max(r.answers, number(v))
		}
		for _, v := range member(g, "thinkingConfig") {
			for _, b := range member(v.(map[string]any), "thinkingBudget") {
				r.budget = max(r.budget, number(b))
			}
		}
	case "converse":
		for _, v := range member(inner("inferenceConfig"), "maxTokens") {
			r.bounds = append(r.bounds, number(v))
		}
		more := inner("additionalModelRequestFields")
		for _, v := range member(more, "max_tokens", "max_completion_tokens", "max_gen_len", "maxTokens", "max_tokens_to_sample") {
			r.bounds = append(r.bounds, number(v))
		}
		for _, v := range member(more, "thinking") {
			for _, b := range member(v.(map[string]any), "budget_tokens") {
				r.budget = max(r.budget, number(b))
			}
		}
	case "messages":
		for _, b := range member(inner("thinking"), "budget_tokens") {
			r.budget = max(r.budget, number(b))
		}
	}
	for _, v := range member(doc, "n", "best_of") {
		r.answers = max(r.answers, number(v))
	}
	if wire == "completions" {
		for _, v := range member(doc, "prompt") {
			if list, ok := v.([]any); ok && len(list) > 0 {
				if _, one := list[0].(float64); !one {
					r.answers *= int64(len(list))
				}
			}
		}
	}
	r.texts(doc, "")
}

// offered records the tools in a value, under any member name that a reader could
// accept.
func (r *received) offered(v any, namespace string) {
	list, ok := v.([]any)
	if !ok {
		return
	}
	for _, t := range list {
		o, ok := t.(map[string]any)
		if !ok {
			continue
		}
		named := false
		name := func(v any) {
			if s, ok := v.(string); ok && s != "" {
				named = true
				r.tools[namespace+s] = true
			}
		}
		nested := member(o, "tools")
		for _, v := range member(o, "functionDeclarations", "function_declarations") {
			r.offered(v, namespace)
			named = true
		}
		for _, v := range member(o, "function", "custom", "toolSpec", "tool_spec") {
			if in, ok := v.(map[string]any); ok {
				for _, n := range member(in, "name") {
					name(n)
				}
			}
		}
		typ, _ := o["type"].(string)
		for _, n := range member(o, "name") {
			if len(nested) > 0 {
				for _, in := range nested {
					r.offered(in, n.(string)+".")
				}
				named = true
			} else if typ != "url" { // the name of an MCP server is not that of a tool
				name(n)
			}
		}
		if typ == "mcp" {
			for _, l := range member(o, "allowed_tools") {
				for _, n := range l.([]any) {
					r.tools[fmt.Sprint("mcp.", o["server_label"], ".", n)] = true
				}
			}
		}
		if !named && typ != "url" && len(member(o, "cachePoint")) == 0 {
			name(typ)
		}
	}
}

// texts adds up the bytes of the longer texts in a request, except for data and URLs.
func (r *received) texts(v any, under string) {
	switch x := v.(type) {
	case string:
		if !slices.Contains([]string{"data", "url", "image_url", "file_data", "bytes", "fileUri", "thoughtSignature"}, under) && len(x) > 40 {
			r.letters += int64(len(x))
		}
	case []any:
		for _, e := range x {
			r.texts(e, under)
		}
	case map[string]any:
		for k, e := range x {
			r.texts(e, k)
		}
	}
}

// hostile returns a request with random members, among them some that could hide a tool
// or remove a limit.
func hostile(r *rand.Rand) (kind, body string) {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	kind = pick(llm.Chat, llm.Responses, llm.Messages, llm.Completions)
	var tool func(depth int) string
	tool = func(depth int) string {
		n := pick("safe", "rm_rf", "bash", "a.b", "mcp__x")
		switch r.IntN(14) {
		case 0, 1:
			return fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":"d","parameters":{"type":"object","properties":{"Name":{}}}}}`, n)
		case 2, 3:
			return fmt.Sprintf(`{"type":"function","name":%q,"parameters":{}}`, n)
		case 4:
			return fmt.Sprintf(`{"name":%q,"input_schema":{"type":"object"}}`, n)
		case 5:
			return fmt.Sprintf(`{"type":%q,"name":%q}`, pick("bash_20250124", "web_search_20250305", "computer_20250124", "custom", "web_search"), n)
		case 6:
			return fmt.Sprintf(`{"type":%q}`, pick("web_search", "code_interpreter", "computer_use_preview", "file_search", "local_shell"))
		case 7:
			return fmt.Sprintf(`{"type":"function","function":{"name":"safe"},%q:%q}`, pick("name", "Name", "NAME", "x_name"), n)
		case 8:
			return fmt.Sprintf(`{"type":"function",%q:{"name":%q},"name":"safe"}`, pick("Function", "custom", "function", "functİon", "x"), n)
		case 9:
			return fmt.Sprintf(`{"type":%q,"custom":{"name":%q,%q:"other"}}`, pick("custom", "function"), n, pick("Name", "name", "x"))
		case 10:
			if depth < 2 {
				return fmt.Sprintf(`{"type":%q,"name":"ns","tools":[%s]}`, pick("namespace", "function", "Namespace"), tool(depth+1))
			}
			return `{"type":"function"}`
		case 11:
			return fmt.Sprintf(`{"functionDeclarations":[{"name":%q}]}`, n)
		case 12:
			return fmt.Sprintf(`{"type":"mcp","server_label":"l","server_url":"http://x","allowed_tools":[%q]}`, n)
		}
		return fmt.Sprintf(`{"type":"custom","name":%q,"format":{"type":"text"}}`, n)
	}
	list := func() string {
		var out []string
		for range 1 + r.IntN(3) {
			out = append(out, tool(0))
		}
		return "[" + strings.Join(out, ",") + "]"
	}
	text := pick("hi", strings.Repeat("7", 90), strings.Repeat("€!", 40), strings.Repeat("q z ", 30), strings.Repeat("word and word ", 30))
	members := []string{`"model":"m"`}
	if kind == llm.Completions {
		members = append(members, `"prompt":`+pick(`"`+text+`"`, `["a","b"]`, `[[1,2],[3],[4]]`, `[1,2,3]`))
	} else if kind == llm.Responses {
		members = append(members, `"input":`+pick(`"`+text+`"`, `[{"role":"user","content":"`+text+`"}]`, `[{"role":"user","content":[{"type":"input_text","text":"`+text+`"}]}]`))
	} else {
		members = append(members, `"messages":[{"role":"user","content":`+pick(`"`+text+`"`, `[{"type":"text","text":"`+text+`"}]`)+`}]`)
	}
	number := func() string { return pick("0", "1", "7", "100", "2000", "9000", "40000", "1e3") }
	for range r.IntN(6) {
		members = append(members, pick(
			`"tools":`+list(), `"tools":`+list(), `"Tools":`+list(), `"functions":[{"name":"old"}]`, `"toolConfig":{"tools":[{"toolSpec":{"name":"rm_rf"}}]}`, `"mcp_servers":[{"type":"url","name":"m","url":"u"}]`,
			`"max_tokens":`+number(), `"max_completion_tokens":`+number(), `"max_output_tokens":`+number(), `"Max_Tokens":`+number(), `"maxTokens":`+number(), `"max_gen_len":`+number(), `"max_new_tokens":`+number(),
			`"generationConfig":{"maxOutputTokens":`+number()+`,"candidateCount":4}`, `"inferenceConfig":{"maxTokens":`+number()+`}`, `"additionalModelRequestFields":{"max_tokens":`+number()+`}`,
			`"n":`+pick("1", "3", "null"), `"best_of":`+pick("5", "20"), `"N":9`, `"reasoning_effort":`+pick(`"low"`, `"xhigh"`), `"reasoning":{"effort":"high"}`, `"thinking":{"type":"enabled","budget_tokens":`+number()+`}`,
			`"output_config":{"effort":"xhigh"}`, `"thinkingConfig":{"thinkingBudget":9000}`, `"tool_choice":"auto"`, `"temperature":0.5`, `"x_odd":{"Name":[1]}`, `"stream":false`))
	}
	return kind, "{" + strings.Join(members, ",") + "}"
}

// TestProvidersSeeWhatPolicySaw encodes generated requests for providers of several
// kinds and reads the encoded requests as leniently as a provider might. It checks that
// policy read each tool in them, that policy reserved their bytes and their maximum
// cost, and that the caller's limit is not raised.
func TestProvidersSeeWhatPolicySaw(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	prices := route.Table{Prices: route.Prices{Version: "1"}}
	models := map[string]string{"openai": "gpt-9", "vllm": "local", "anthropic": "claude-opus-4-1", "newest": "claude-opus-5-5", "gemini": "gemini-2.5-flash", "third": "gemini-3-pro", "bedrock": "anthropic.claude-3-7-sonnet-v1:0", "nova": "us.amazon.nova-2-lite-v1:0"}
	kindOf := map[string]string{"openai": "openai", "vllm": "compatible", "anthropic": "anthropic", "newest": "anthropic", "gemini": "gemini", "third": "gemini", "bedrock": "bedrock", "nova": "bedrock"}
	const maxOutput = 64_000
	s := &Service{}
	providers := map[string]*upstream{}
	for name, kind := range kindOf {
		p, err := registry.New(provider.Config{Name: name, Kind: kind, BaseURL: "http://127.0.0.1:1", Region: "us-east-1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		providers[name] = &upstream{Provider: p}
		prices.Prices.Models = append(prices.Prices.Models, route.Price{Model: name + "/" + models[name], Input: 3_000_000, Output: 15_000_000, MaxOutput: maxOutput})
	}
	s.Table = prices
	sent, withTools, bounded := 0, 0, 0
	for range 30_000 {
		kind, body := hostile(r)
		args, _, err := llm.Peek(kind, []byte(body))
		if err != nil {
			continue
		}
		for name, up := range providers {
			a := &attempt{up: up, api: apiFor(up.Provider, callerOf(kind)), c: &call{s: s, api: callerOf(kind), args: *args, body: []byte(body), w: &execute.Work{Call: &contract.Call{Kind: kind}}}}
			a.cand = route.Candidate{Provider: name, Model: models[name]}
			if a.api == nil || a.api == estimate {
				continue
			}
			out, err := a.request(t.Context())
			if err != nil {
				continue
			}
			var doc map[string]any
			if err := json.Unmarshal(out, &doc); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			got := received{tools: map[string]bool{}}
			got.read(a.api.Name, doc)
			sent++
			if head := int64(1 << 10); head+int64(len(out)) > args.Egress(1) { // allowance for keys, trace header fields and paths
				t.Fatalf("seed %d: %s over %s gets %d bytes; %d are reserved\nfrom %s\nsent %s", seed, name, a.api.Name, len(out), args.Egress(1), body, out)
			}
			for tool := range got.tools {
				withTools++
				if !slices.ContainsFunc(args.Tools, func(n string) bool { return n == tool || strings.Replace(n, ".", "__", 1) == tool }) {
					t.Fatalf("seed %d: %s over %s gets the tool %q; policy saw %v\nfrom %s\nsent %s", seed, name, a.api.Name, tool, args.Tools, body, out)
				}
			}
			most := int64(maxOutput)
			if len(got.bounds) > 0 {
				bounded++
				most = slices.Max(got.bounds)
			}
			if got.budget > most || len(got.bounds) == 0 {
				most += got.budget
			}
			m := prices.Most(name + "/" + models[name])
			in, free := args.Most(m.Limits)
			reserved := (in*m.Input + free*m.Output + 999_999) / 1_000_000
			if worst := (got.letters/2*3_000_000 + most*got.answers*15_000_000) / 1_000_000; worst > reserved && a.api.Name != "embeddings" {
				t.Fatalf("seed %d: %s over %s may cost %d, reserved are %d: %+v\nfrom %s\nsent %s", seed, name, a.api.Name, worst, reserved, got, body, out)
			}
			if own := args.Hold - args.In; len(got.bounds) > 0 && !args.Unbound && slices.Max(got.bounds)*got.answers > own {
				t.Fatalf("seed %d: the caller's bound is raised: %s\nsent %s", seed, body, out)
			}
		}
	}
	if sent < 5000 || withTools < 2000 || bounded < 2000 {
		t.Fatalf("seed %d: %d sent, %d with tools, %d bounded: the requests are too odd", seed, sent, withTools, bounded)
	}
}
