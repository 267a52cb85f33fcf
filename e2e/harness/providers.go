package harness

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Providers is a local server that speaks each provider's wire, in the formats
// their documentation records, and refuses what they refuse. What it answers
// depends on the last part of the model's name:
//
//	good        an answer; a call of every tool offered, where tools are, until results come
//	think       the same, with thinking before it
//	agent       calls the tool "upper" alone, however it is prefixed
//	json        an object, where the request asks for a schema
//	cut         a stream that breaks off after some words
//	early       a stream that breaks off after its lifecycle frames, before any content
//	fault       a stream with the provider's own error event after some words
//	garbage     a stream with an event that cannot be read
//	limited     rate limit, with the headers of it
//	overloaded  the provider's way of saying so
//	broken      an internal error
//	slow        first byte after 400 ms
//	pace        a word every 20 ms, 200 of them
//	flood       4 KiB at a time, 16 MiB in all
//	hang        nothing at all, until the caller leaves
//	flaky       broken the first time, good the second
type Providers struct {
	*httptest.Server
	Keys map[string]string // secret name to value

	mu    sync.Mutex
	seen  []Seen
	flaky map[string]int
	flood atomic.Int64
	down  map[string]bool
}

// Seen is one request that came.
type Seen struct {
	Provider, Path, Model string
	Header                http.Header
	Body                  []byte
	At                    time.Time
	Gone                  time.Time // when the caller left before the end; zero: it stayed
	done                  bool
}

// bedrockKey is the key pair that requests are signed under (SigV4).
const bedrockKey = `{"access_key_id":"AKIDEXAMPLE0123456789","secret_access_key":"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}`

// NewProviders starts the server and writes an llm document with a provider for
// every wire. more is merged into the document's top level.
func NewProviders(t testing.TB, more map[string]any) (*Providers, string) {
	p := &Providers{flaky: map[string]int{}, down: map[string]bool{}, Keys: map[string]string{
		"llm.openai": "sk-openai-0123456789", "llm.openai.2": "sk-openai-second-key", "llm.anthropic": "sk-ant-0123456789", "llm.gemini": "AIza-gemini-0123456789", "llm.azure": "azure-0123456789abcdef",
		"llm.bedrock": bedrockKey, "llm.openrouter": "sk-or-0123456789"}}
	mux := http.NewServeMux()
	mux.HandleFunc("/openai/v1/", p.openai("openai", "llm.openai", "llm.openai.2"))
	mux.HandleFunc("/openrouter/api/v1/", p.openai("openrouter", "llm.openrouter"))
	mux.HandleFunc("/ollama/v1/", p.openai("ollama"))
	mux.HandleFunc("/vllm/v1/", p.openai("vllm"))
	mux.HandleFunc("/azure/openai/", p.azure)
	mux.HandleFunc("/anthropic/v1/", p.anthropic)
	mux.HandleFunc("/gemini/v1beta/", p.gemini)
	mux.HandleFunc("/bedrock/model/", p.bedrock)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	prov := func(name, kind, path string, extra map[string]any) map[string]any {
		d := map[string]any{"name": name, "kind": kind, "base_url": p.URL + path}
		if p.Keys["llm."+name] != "" {
			d["secrets"] = []string{"llm." + name}
		}
		for k, v := range extra {
			d[k] = v
		}
		return d
	}
	doc := map[string]any{"breaker": map[string]any{"failures": 1000}, "retry": map[string]any{"base_ms": 10, "max_ms": 2500}, "providers": []any{
		prov("openai", "openai", "/openai/v1", nil), prov("openrouter", "openrouter", "/openrouter/api/v1", nil), prov("ollama", "ollama", "/ollama/v1", nil),
		prov("vllm", "compatible", "/vllm/v1", map[string]any{"models": []string{"local"}}), prov("azure", "azure", "/azure", nil), prov("anthropic", "anthropic", "/anthropic/v1", nil),
		prov("gemini", "gemini", "/gemini/v1beta", nil), prov("bedrock", "bedrock", "/bedrock", map[string]any{"region": "us-east-1"}),
		prov("twokeys", "openai", "/openai/v1", map[string]any{"secrets": []string{"llm.openai", "llm.openai.2"}}),
	}}
	for k, v := range more {
		doc[k] = v
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "llm.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	WriteSecrets(t, path, p.Keys)
	return p, path
}

// Flooded is how many bytes the flood has written so far.
func (p *Providers) Flooded() int64 { return p.flood.Load() }

// Requests is what came for a model; "" for all.
func (p *Providers) Requests(model string) []Seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Seen
	for _, s := range p.seen {
		if model == "" || s.Model == model {
			out = append(out, s)
		}
	}
	return out
}

// SetKey changes the value that a provider takes for a secret's name.
func (p *Providers) SetKey(name, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Keys[name] = value
}

func (p *Providers) key(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Keys[name]
}

// see records a request, and when its caller leaves.
func (p *Providers) see(r *http.Request, provider, model string, body []byte) (n int) {
	p.mu.Lock()
	n = len(p.seen)
	p.seen = append(p.seen, Seen{Provider: provider, Path: r.URL.RequestURI(), Model: provider + "/" + model, Header: r.Header.Clone(), Body: body, At: time.Now()})
	p.mu.Unlock()
	go func() {
		<-r.Context().Done()
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.seen[n].done {
			p.seen[n].Gone = time.Now()
		}
	}()
	return n
}

func (p *Providers) finished(r *http.Request, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[n].done = r.Context().Err() == nil
}

// ask is a request as every wire means it.
type ask struct {
	model   string // last part
	stream  bool
	last    string // text of the last user turn
	results []string
	tools   []string
	schema  bool
	images  int
	usage   bool
}

// reply is what is answered.
type reply struct {
	think string
	words []string
	calls []string
	in    int
	out   int
}

func (a *ask) behave() string { return a.model[strings.LastIndex(a.model, "-")+1:] }

func (a *ask) reply() reply {
	text := "You said: " + a.last
	if a.images > 0 {
		text += fmt.Sprintf(" (with %d image)", a.images)
	}
	r := reply{in: 25}
	if a.behave() == "agent" {
		a.tools = slices.DeleteFunc(a.tools, func(t string) bool { return !strings.Contains(t, "upper") })
	}
	switch {
	case len(a.results) > 0:
		text = "The tool said: " + strings.Join(a.results, ", ")
	case a.schema:
		text = `{"answer":"yes"}`
	case len(a.tools) > 0:
		r.calls, text = a.tools, ""
	}
	if a.behave() == "think" {
		r.think = "Let me think about it."
	}
	if a.behave() == "pace" {
		text = strings.TrimSpace(strings.Repeat("word ", 200))
	}
	if text != "" {
		r.words = strings.SplitAfter(text, " ")
	}
	r.out = 3*len(r.words) + 7*len(r.calls)
	return r
}

// before does what happens before an answer; true: there is none.
func (p *Providers) before(w http.ResponseWriter, r *http.Request, a *ask, fail func(status int)) bool {
	switch a.behave() {
	case "limited":
		w.Header().Set("Retry-After", "3")
		w.Header().Set("X-Ratelimit-Limit-Requests", "60")
		w.Header().Set("X-Ratelimit-Remaining-Requests", "0")
		w.Header().Set("X-Ratelimit-Reset-Requests", "3s")
		fail(429)
		return true
	case "overloaded":
		fail(529)
		return true
	case "broken":
		fail(500)
		return true
	case "missing":
		fail(404)
		return true
	case "flaky":
		p.mu.Lock()
		p.flaky[r.URL.Path+a.model]++
		first := p.flaky[r.URL.Path+a.model]%2 == 1
		p.mu.Unlock()
		if first {
			fail(500)
			return true
		}
	case "slow":
		select {
		case <-time.After(400 * time.Millisecond):
		case <-r.Context().Done():
			return true
		}
	case "hang":
		<-r.Context().Done()
		return true
	}
	return false
}

// events writes server-sent events.
type sseOut struct {
	w http.ResponseWriter
	r *http.Request
}

func (s sseOut) send(name string, doc any) {
	b, _ := json.Marshal(doc)
	if name != "" {
		fmt.Fprintf(s.w, "event: %s\n", name)
	}
	fmt.Fprintf(s.w, "data: %s\n\n", b)
	s.w.(http.Flusher).Flush()
}

// stopAt reports whether a stream ends badly behind word i, having done so.
func (s sseOut) stopAt(a *ask, i int, fault func()) bool {
	if i != 2 {
		if a.behave() == "pace" {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-s.r.Context().Done():
				return true
			}
		}
		return false
	}
	switch a.behave() {
	case "cut":
		panic(http.ErrAbortHandler)
	case "fault":
		fault()
		return true
	case "garbage":
		fmt.Fprint(s.w, "data: {not json\n\n")
		s.w.(http.Flusher).Flush()
		return true
	}
	return false
}

func jsonOut(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc)
}

func known(body []byte, names ...string) string {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return err.Error()
	}
	for k := range m {
		if !slices.Contains(names, k) {
			return k + ": Extra inputs are not permitted"
		}
	}
	return ""
}

// --- OpenAI, and what is compatible with it

func (p *Providers) openai(name string, secrets ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "req_"+name)
		ok := len(secrets) == 0
		for _, s := range secrets {
			ok = ok || r.Header.Get("Authorization") == "Bearer "+p.key(s)
		}
		if !ok {
			wireError(w, 401, "Incorrect API key provided: "+r.Header.Get("Authorization"), "invalid_api_key")
			return
		}
		p.openaiCall(w, r, name, "")
	}
}

func (p *Providers) openaiCall(w http.ResponseWriter, r *http.Request, name, deployment string) {
	if strings.HasSuffix(r.URL.Path, "/models") {
		jsonOut(w, 200, map[string]any{"object": "list", "data": []any{map[string]any{"id": "listed-live", "object": "model", "created": 1, "owned_by": name}}})
		return
	}
	body, _ := io.ReadAll(r.Body)
	var q struct {
		Model    string
		Stream   bool
		Input    json.RawMessage
		Prompt   string
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct {
			Type     string
			Name     string
			Function struct{ Name string }
			Tools    []struct{ Name string }
		}
		Text struct {
			Format struct{ Type string }
		}
		ResponseFormat struct{ Type string } `json:"response_format"`
		StreamOptions  struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		EncodingFormat string `json:"encoding_format"`
		Unknown        any    `json:"refuse_me"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		wireError(w, 400, "We could not parse the JSON body of your request: "+err.Error(), "invalid_json")
		return
	}
	if deployment != "" {
		q.Model = deployment
	}
	n := p.see(r, name, q.Model, body)
	defer p.finished(r, n)
	if q.Unknown != nil {
		wireError(w, 400, "Unrecognized request argument supplied: refuse_me", "unknown_parameter")
		return
	}
	a := &ask{model: q.Model, stream: q.Stream, schema: q.Text.Format.Type == "json_schema" || q.ResponseFormat.Type == "json_schema", usage: q.StreamOptions.Usage, last: q.Prompt}
	for _, t := range q.Tools {
		switch {
		case t.Type == "namespace":
			for _, in := range t.Tools {
				a.tools = append(a.tools, t.Name+"\x00"+in.Name)
			}
		case t.Function.Name != "":
			a.tools = append(a.tools, t.Function.Name)
		case t.Type == "function" || t.Type == "custom":
			a.tools = append(a.tools, t.Name)
		}
	}
	for _, m := range q.Messages {
		text, images := flatten(m.Content)
		switch m.Role {
		case "user":
			a.last, a.images, a.results = text, images, nil
		case "tool":
			a.results = append(a.results, text)
		}
	}
	if len(q.Input) > 0 {
		a.input(q.Input)
	}
	if p.before(w, r, a, func(status int) {
		code := map[int]string{429: "rate_limit_exceeded", 500: "server_error", 529: "overloaded", 404: "model_not_found"}[status]
		if status == 529 {
			status = 503
		}
		wireError(w, status, "The server says: "+code, code)
	}) {
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/chat/completions"):
		p.chatWire(w, r, a)
	case strings.HasSuffix(r.URL.Path, "/responses"):
		p.responsesWire(w, r, a)
	case strings.HasSuffix(r.URL.Path, "/embeddings"):
		vec := []float32{0.25, -1, 3}
		var e any = vec
		if q.EncodingFormat == "base64" {
			var raw []byte
			for _, f := range vec {
				raw, _ = binary.Append(raw, binary.LittleEndian, f)
			}
			e = base64.StdEncoding.EncodeToString(raw)
		}
		jsonOut(w, 200, map[string]any{"object": "list", "model": q.Model, "data": []any{map[string]any{"object": "embedding", "index": 0, "embedding": e}}, "usage": map[string]int{"prompt_tokens": 3, "total_tokens": 3}})
	case strings.HasSuffix(r.URL.Path, "/completions"):
		re := a.reply()
		if !a.stream {
			jsonOut(w, 200, map[string]any{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": q.Model,
				"choices": []any{map[string]any{"text": strings.Join(re.words, ""), "index": 0, "logprobs": nil, "finish_reason": "stop"}}, "usage": map[string]int{"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}})
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		s := sseOut{w, r}
		for _, word := range re.words {
			s.send("", map[string]any{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": q.Model, "choices": []any{map[string]any{"text": word, "index": 0, "logprobs": nil, "finish_reason": nil}}})
		}
		s.send("", map[string]any{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": q.Model, "choices": []any{map[string]any{"text": "", "index": 0, "logprobs": nil, "finish_reason": "stop"}}})
		fmt.Fprint(w, "data: [DONE]\n\n")
	default:
		wireError(w, 404, "Invalid URL (POST "+r.URL.Path+")", "")
	}
}

// flatten is a content's text, and how many images it holds.
func flatten(raw json.RawMessage) (string, int) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, 0
	}
	var parts []struct {
		Type, Text string
		Content    json.RawMessage
	}
	_ = json.Unmarshal(raw, &parts)
	images := 0
	for _, p := range parts {
		if strings.Contains(p.Type, "image") {
			images++
		}
		s += p.Text
	}
	return s, images
}

func (a *ask) input(raw json.RawMessage) {
	if json.Unmarshal(raw, &a.last) == nil {
		return
	}
	var items []struct {
		Type, Role      string
		Content, Output json.RawMessage
	}
	_ = json.Unmarshal(raw, &items)
	for _, it := range items {
		switch {
		case it.Role == "user":
			a.last, a.images = flatten(it.Content)
			a.results = nil
		case strings.HasSuffix(it.Type, "call_output"):
			t, _ := flatten(it.Output)
			a.results = append(a.results, t)
		}
	}
}

const toolArgs = `{"text":"x"}`

func (p *Providers) chatWire(w http.ResponseWriter, r *http.Request, a *ask) {
	re := a.reply()
	use := map[string]any{"prompt_tokens": re.in, "completion_tokens": re.out, "total_tokens": re.in + re.out, "prompt_tokens_details": map[string]int{"cached_tokens": 5}, "completion_tokens_details": map[string]int{"reasoning_tokens": len(re.think)}}
	finish := "stop"
	if len(re.calls) > 0 {
		finish = "tool_calls"
	}
	call := func(i int, args string) map[string]any {
		return map[string]any{"id": fmt.Sprint("call_", i+1), "type": "function", "function": map[string]string{"name": re.calls[i], "arguments": args}}
	}
	if !a.stream {
		m := map[string]any{"role": "assistant", "content": strings.Join(re.words, ""), "refusal": nil, "annotations": []any{}}
		if len(re.calls) > 0 {
			m["content"] = nil
			calls := []any{}
			for i := range re.calls {
				calls = append(calls, call(i, toolArgs))
			}
			m["tool_calls"] = calls
		}
		if re.think != "" {
			m["reasoning_content"] = re.think
		}
		jsonOut(w, 200, map[string]any{"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": a.model, "service_tier": "default", "system_fingerprint": "fp_1",
			"choices": []any{map[string]any{"index": 0, "message": m, "logprobs": nil, "finish_reason": finish}}, "usage": use})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	chunk := func(choices []any, u any) {
		d := map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": a.model, "service_tier": "default", "system_fingerprint": "fp_1", "choices": choices}
		if a.usage {
			d["usage"] = u
		}
		s.send("", d)
	}
	delta := func(d map[string]any, fin any) {
		chunk([]any{map[string]any{"index": 0, "delta": d, "logprobs": nil, "finish_reason": fin}}, nil)
	}
	delta(map[string]any{"role": "assistant", "content": "", "refusal": nil}, nil)
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	if re.think != "" {
		delta(map[string]any{"reasoning_content": re.think}, nil)
	}
	if a.behave() == "flood" {
		word := strings.Repeat("x", 4<<10)
		for range 4 << 10 {
			if r.Context().Err() != nil {
				return
			}
			delta(map[string]any{"content": word}, nil)
			p.flood.Add(int64(len(word)))
		}
	}
	for i, word := range re.words {
		if s.stopAt(a, i, func() {
			s.send("", map[string]any{"error": map[string]any{"message": "The server had an error while processing your request", "type": "server_error", "param": nil, "code": nil}})
		}) {
			return
		}
		delta(map[string]any{"content": word}, nil)
	}
	for i := range re.calls {
		c := call(i, "")
		c["index"] = i
		delta(map[string]any{"tool_calls": []any{c}}, nil)
		for _, part := range []string{toolArgs[:4], toolArgs[4:]} {
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]string{"arguments": part}}}}, nil)
		}
	}
	delta(map[string]any{}, finish)
	if a.usage {
		chunk([]any{}, use)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (p *Providers) responsesWire(w http.ResponseWriter, r *http.Request, a *ask) {
	re := a.reply()
	var items []map[string]any
	if re.think != "" {
		items = append(items, map[string]any{"type": "reasoning", "id": "rs_1", "summary": []any{map[string]any{"type": "summary_text", "text": re.think}}, "encrypted_content": "sealed"})
	}
	for i, c := range re.calls {
		it := map[string]any{"type": "function_call", "id": fmt.Sprint("fc_", i+1), "call_id": fmt.Sprint("call_", i+1), "name": c, "arguments": toolArgs, "status": "completed"}
		if ns, name, ok := strings.Cut(c, "\x00"); ok {
			it["namespace"], it["name"] = ns, name
		}
		items = append(items, it)
	}
	if len(re.words) > 0 {
		items = append(items, map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": strings.Join(re.words, ""), "annotations": []any{}, "logprobs": []any{}}}})
	}
	doc := func(status string, output any, usage any) map[string]any {
		return map[string]any{"id": "resp_fixture", "object": "response", "created_at": 1700000000, "status": status, "background": false, "error": nil, "incomplete_details": nil, "instructions": nil,
			"max_output_tokens": nil, "model": a.model, "output": output, "parallel_tool_calls": true, "previous_response_id": nil, "reasoning": map[string]any{"effort": nil, "summary": nil},
			"store": true, "temperature": 1, "text": map[string]any{"format": map[string]string{"type": "text"}}, "tool_choice": "auto", "tools": []any{}, "top_p": 1, "truncation": "disabled", "usage": usage, "metadata": map[string]any{}}
	}
	use := map[string]any{"input_tokens": re.in, "input_tokens_details": map[string]int{"cached_tokens": 5}, "output_tokens": re.out, "output_tokens_details": map[string]int{"reasoning_tokens": 0}, "total_tokens": re.in + re.out}
	if !a.stream {
		jsonOut(w, 200, doc("completed", items, use))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	seq := 0
	send := func(kind string, d map[string]any) {
		d["type"], d["sequence_number"] = kind, seq
		seq++
		s.send(kind, d)
	}
	send("response.created", map[string]any{"response": doc("in_progress", []any{}, nil)})
	send("response.in_progress", map[string]any{"response": doc("in_progress", []any{}, nil)})
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	for i, it := range items {
		begun := map[string]any{}
		for k, v := range it {
			begun[k] = v
		}
		at := func(d map[string]any) map[string]any { d["output_index"], d["item_id"] = i, it["id"]; return d }
		switch it["type"] {
		case "message":
			begun["status"], begun["content"] = "in_progress", []any{}
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
			send("response.content_part.added", at(map[string]any{"content_index": 0, "part": map[string]any{"type": "output_text", "text": "", "annotations": []any{}, "logprobs": []any{}}}))
			for n, word := range re.words {
				if s.stopAt(a, n, func() {
					send("response.failed", map[string]any{"response": func() map[string]any {
						d := doc("failed", []any{}, nil)
						d["error"] = map[string]string{"code": "server_error", "message": "The model failed to generate a response."}
						return d
					}()})
				}) {
					return
				}
				send("response.output_text.delta", at(map[string]any{"content_index": 0, "delta": word, "logprobs": []any{}}))
			}
			send("response.output_text.done", at(map[string]any{"content_index": 0, "text": strings.Join(re.words, ""), "logprobs": []any{}}))
			send("response.content_part.done", at(map[string]any{"content_index": 0, "part": it["content"].([]any)[0]}))
		case "function_call":
			begun["status"], begun["arguments"] = "in_progress", ""
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
			for _, part := range []string{toolArgs[:4], toolArgs[4:]} {
				send("response.function_call_arguments.delta", at(map[string]any{"delta": part}))
			}
			send("response.function_call_arguments.done", at(map[string]any{"arguments": toolArgs, "name": it["name"]}))
		default:
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
		}
		send("response.output_item.done", map[string]any{"output_index": i, "item": it})
	}
	send("response.completed", map[string]any{"response": doc("completed", items, use)})
}

// azure serves /azure/openai/deployments/{deployment}/….
func (p *Providers) azure(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Api-Key") != p.key("llm.azure") {
		jsonOut(w, 401, map[string]any{"error": map[string]string{"code": "401", "message": "Access denied due to invalid subscription key or wrong API endpoint."}})
		return
	}
	if r.URL.Query().Get("api-version") == "" {
		jsonOut(w, 404, map[string]any{"error": map[string]string{"code": "404", "message": "Resource not found"}})
		return
	}
	w.Header().Set("Apim-Request-Id", "apim-1")
	deployment := ""
	if _, rest, ok := strings.Cut(r.URL.Path, "/deployments/"); ok {
		deployment, _, _ = strings.Cut(rest, "/")
	}
	p.openaiCall(w, r, "azure", deployment)
}

// --- Anthropic

func (p *Providers) anthropic(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Request-Id", "req_anthropic")
	fail := func(status int, kind, message string) {
		jsonOut(w, status, map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}, "request_id": "req_anthropic"})
	}
	if r.Header.Get("X-Api-Key") != p.key("llm.anthropic") {
		fail(401, "authentication_error", "invalid x-api-key")
		return
	}
	if r.Header.Get("Anthropic-Version") == "" {
		fail(400, "invalid_request_error", "anthropic-version: header is required")
		return
	}
	if strings.HasSuffix(r.URL.Path, "/models") {
		jsonOut(w, 200, map[string]any{"data": []any{map[string]any{"type": "model", "id": "claude-listed", "display_name": "x"}}, "has_more": false})
		return
	}
	body, _ := io.ReadAll(r.Body)
	type msg struct {
		Role    string
		Content json.RawMessage
	}
	var q struct {
		Model    string
		Stream   bool
		Max      int `json:"max_tokens"`
		Messages []msg
		Tools    []struct {
			Name   string
			Schema json.RawMessage `json:"input_schema"`
		}
		Output *struct{ Type string } `json:"output_format"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		fail(400, "invalid_request_error", err.Error())
		return
	}
	n := p.see(r, "anthropic", q.Model, body)
	defer p.finished(r, n)
	if strings.HasSuffix(r.URL.Path, "/count_tokens") {
		jsonOut(w, 200, map[string]int{"input_tokens": 42})
		return
	}
	if bad := known(body, "model", "messages", "max_tokens", "system", "stream", "temperature", "top_p", "top_k", "stop_sequences", "tools", "tool_choice", "thinking", "metadata", "service_tier", "output_format", "output_config", "context_management", "container", "mcp_servers"); bad != "" {
		fail(400, "invalid_request_error", bad)
		return
	}
	if q.Max <= 0 || len(q.Messages) == 0 {
		fail(400, "invalid_request_error", "max_tokens: Field required")
		return
	}
	a := &ask{model: q.Model, stream: q.Stream, schema: q.Output != nil}
	for _, t := range q.Tools {
		a.tools = append(a.tools, t.Name)
	}
	calls := map[string]bool{}
	for i, m := range q.Messages {
		if m.Role != "user" && m.Role != "assistant" {
			fail(400, "invalid_request_error", fmt.Sprintf("messages.%d.role: Input should be 'user' or 'assistant'", i))
			return
		}
		var blocks []struct {
			Type, Text, ID string
			ToolUseID      string `json:"tool_use_id"`
			Content        json.RawMessage
			Input          json.RawMessage
			Signature      string
			Source         *struct{ Type, MediaType, Data, URL string }
		}
		var text string
		if json.Unmarshal(m.Content, &text) != nil {
			if err := json.Unmarshal(m.Content, &blocks); err != nil {
				fail(400, "invalid_request_error", err.Error())
				return
			}
		}
		if m.Role == "user" {
			a.last, a.images, a.results = text, 0, nil
		}
		for _, b := range blocks {
			switch b.Type {
			case "text":
				if b.Text == "" {
					fail(400, "invalid_request_error", "messages: text content blocks must be non-empty")
					return
				}
				if m.Role == "user" {
					a.last += b.Text
				}
			case "image":
				a.images++
			case "tool_use":
				if len(b.Input) == 0 || b.Input[0] != '{' {
					fail(400, "invalid_request_error", "tool_use.input: Input should be a valid dictionary")
					return
				}
				calls[b.ID] = true
			case "tool_result":
				if !calls[b.ToolUseID] {
					fail(400, "invalid_request_error", "messages: unexpected `tool_use_id` found in `tool_result` blocks: "+b.ToolUseID)
					return
				}
				t, _ := flatten(b.Content)
				a.results = append(a.results, t)
			case "thinking":
				if b.Signature == "" {
					fail(400, "invalid_request_error", "messages: thinking.signature: Field required")
					return
				}
			}
		}
	}
	if p.before(w, r, a, func(status int) {
		kind := map[int]string{429: "rate_limit_error", 500: "api_error", 529: "overloaded_error", 404: "not_found_error"}[status]
		w.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "0")
		fail(status, kind, "Anthropic says: "+kind)
	}) {
		return
	}
	re := a.reply()
	use := map[string]int{"input_tokens": re.in - 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5, "output_tokens": re.out}
	stop := "end_turn"
	if len(re.calls) > 0 {
		stop = "tool_use"
	}
	message := func(content any, stop any, u any) map[string]any {
		return map[string]any{"id": "msg_fixture", "type": "message", "role": "assistant", "model": q.Model, "content": content, "stop_reason": stop, "stop_sequence": nil, "usage": u}
	}
	if !a.stream {
		content := []any{}
		if re.think != "" {
			content = append(content, map[string]string{"type": "thinking", "thinking": re.think, "signature": "sig-anthropic"})
		}
		if len(re.words) > 0 {
			content = append(content, map[string]string{"type": "text", "text": strings.Join(re.words, "")})
		}
		for i, c := range re.calls {
			content = append(content, map[string]any{"type": "tool_use", "id": fmt.Sprint("toolu_", i+1), "name": c, "input": json.RawMessage(toolArgs)})
		}
		jsonOut(w, 200, message(content, stop, use))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	send := func(kind string, d map[string]any) { d["type"] = kind; s.send(kind, d) }
	first := map[string]int{"input_tokens": re.in - 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5, "output_tokens": 1}
	send("message_start", map[string]any{"message": message([]any{}, nil, first)})
	send("ping", map[string]any{})
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	index := 0
	block := func(begin map[string]any, deltas ...map[string]any) {
		send("content_block_start", map[string]any{"index": index, "content_block": begin})
		for _, d := range deltas {
			send("content_block_delta", map[string]any{"index": index, "delta": d})
		}
		send("content_block_stop", map[string]any{"index": index})
		index++
	}
	if re.think != "" {
		block(map[string]any{"type": "thinking", "thinking": "", "signature": ""}, map[string]any{"type": "thinking_delta", "thinking": re.think}, map[string]any{"type": "signature_delta", "signature": "sig-anthropic"})
	}
	if len(re.words) > 0 {
		send("content_block_start", map[string]any{"index": index, "content_block": map[string]any{"type": "text", "text": ""}})
		for i, word := range re.words {
			if s.stopAt(a, i, func() {
				send("error", map[string]any{"error": map[string]string{"type": "overloaded_error", "message": "Overloaded"}})
			}) {
				return
			}
			send("content_block_delta", map[string]any{"index": index, "delta": map[string]any{"type": "text_delta", "text": word}})
		}
		send("content_block_stop", map[string]any{"index": index})
		index++
	}
	for i, c := range re.calls {
		block(map[string]any{"type": "tool_use", "id": fmt.Sprint("toolu_", i+1), "name": c, "input": map[string]any{}},
			map[string]any{"type": "input_json_delta", "partial_json": ""}, map[string]any{"type": "input_json_delta", "partial_json": toolArgs[:4]}, map[string]any{"type": "input_json_delta", "partial_json": toolArgs[4:]})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]int{"output_tokens": re.out}})
	send("message_stop", map[string]any{})
}

// --- Gemini

func (p *Providers) gemini(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, kind, message string, details ...any) {
		jsonOut(w, status, map[string]any{"error": map[string]any{"code": status, "message": message, "status": kind, "details": details}})
	}
	if r.Header.Get("X-Goog-Api-Key") != p.key("llm.gemini") {
		fail(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.")
		return
	}
	if strings.HasSuffix(r.URL.Path, "/models") {
		jsonOut(w, 200, map[string]any{"models": []any{map[string]any{"name": "models/gemini-listed"}}})
		return
	}
	_, rest, _ := strings.Cut(r.URL.Path, "/models/")
	model, verb, _ := strings.Cut(rest, ":")
	body, _ := io.ReadAll(r.Body)
	n := p.see(r, "gemini", model, body)
	defer p.finished(r, n)
	if verb == "batchEmbedContents" {
		jsonOut(w, 200, map[string]any{"embeddings": []any{map[string]any{"values": []float32{0.25, -1, 3}}}})
		return
	}
	if bad := known(body, "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"); bad != "" {
		fail(400, "INVALID_ARGUMENT", "Invalid JSON payload received. Unknown name: "+bad)
		return
	}
	var q struct {
		Contents []struct {
			Role  string
			Parts []struct {
				Text             *string
				InlineData       *struct{ MimeType, Data string }
				FunctionCall     *struct{ Name string }
				FunctionResponse *struct {
					Name     string
					Response json.RawMessage
				}
				ThoughtSignature string
			}
		}
		Tools []struct {
			FunctionDeclarations []struct{ Name string }
		}
		GenerationConfig struct {
			ResponseMimeType string
		}
	}
	if err := json.Unmarshal(body, &q); err != nil {
		fail(400, "INVALID_ARGUMENT", err.Error())
		return
	}
	a := &ask{model: model, stream: verb == "streamGenerateContent", schema: q.GenerationConfig.ResponseMimeType == "application/json"}
	for _, t := range q.Tools {
		for _, f := range t.FunctionDeclarations {
			a.tools = append(a.tools, f.Name)
		}
	}
	for _, c := range q.Contents {
		if c.Role == "user" {
			a.last, a.images, a.results = "", 0, nil
		}
		for _, part := range c.Parts {
			switch {
			case part.FunctionResponse != nil:
				if part.FunctionResponse.Name == "" || part.FunctionResponse.Response[0] != '{' {
					fail(400, "INVALID_ARGUMENT", "function_response.name: cannot be empty")
					return
				}
				var o struct{ Output string }
				_ = json.Unmarshal(part.FunctionResponse.Response, &o)
				if o.Output == "" {
					o.Output = string(part.FunctionResponse.Response)
				}
				a.results = append(a.results, o.Output)
			case part.FunctionCall != nil && a.behave() == "think" && part.ThoughtSignature != "sig-gemini":
				fail(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature")
				return
			case part.InlineData != nil:
				a.images++
			case part.Text != nil && c.Role == "user":
				a.last += *part.Text
			}
		}
	}
	if p.before(w, r, a, func(status int) {
		switch status {
		case 429:
			w.Header().Del("Retry-After") // this provider says it in the body
			fail(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota", map[string]any{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"})
		case 529:
			fail(503, "UNAVAILABLE", "The model is overloaded. Please try again later.")
		case 404:
			fail(404, "NOT_FOUND", "models/"+model+" is not found")
		default:
			fail(status, "INTERNAL", "An internal error has occurred.")
		}
	}) {
		return
	}
	re := a.reply()
	use := map[string]int{"promptTokenCount": re.in, "candidatesTokenCount": re.out - len(re.think), "thoughtsTokenCount": len(re.think), "cachedContentTokenCount": 5, "totalTokenCount": re.in + re.out}
	if re.out < len(re.think) {
		use["candidatesTokenCount"], use["thoughtsTokenCount"] = re.out, 0
	}
	chunk := func(parts []any, fin string) map[string]any {
		c := map[string]any{"content": map[string]any{"role": "model", "parts": parts}, "index": 0}
		if fin != "" {
			c["finishReason"] = fin
		}
		return map[string]any{"candidates": []any{c}, "usageMetadata": use, "modelVersion": model, "responseId": "gem-1"}
	}
	var parts []any
	if re.think != "" {
		parts = append(parts, map[string]any{"text": re.think, "thought": true})
	}
	for _, c := range re.calls {
		part := map[string]any{"functionCall": map[string]any{"name": c, "args": json.RawMessage(toolArgs)}}
		if re.think != "" {
			part["thoughtSignature"] = "sig-gemini"
		}
		parts = append(parts, part)
	}
	if !a.stream {
		if len(re.words) > 0 {
			parts = append(parts, map[string]any{"text": strings.Join(re.words, "")})
		}
		jsonOut(w, 200, chunk(parts, "STOP"))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	if a.behave() == "early" {
		s.send("", chunk([]any{}, ""))
		panic(http.ErrAbortHandler)
	}
	if len(parts) > 0 {
		s.send("", chunk(parts, ""))
	}
	for i, word := range re.words {
		if s.stopAt(a, i, func() {
			s.send("", map[string]any{"error": map[string]any{"code": 503, "message": "The service is currently unavailable.", "status": "UNAVAILABLE"}})
		}) {
			return
		}
		s.send("", chunk([]any{map[string]any{"text": word}}, ""))
	}
	s.send("", chunk([]any{map[string]any{"text": ""}}, "STOP"))
}

// --- Bedrock

func (p *Providers) bedrock(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Amzn-Requestid", "amzn-1")
	fail := func(status int, kind, message string) {
		w.Header().Set("X-Amzn-Errortype", kind+":http://internal.amazon.com/coral/")
		jsonOut(w, status, map[string]string{"message": message})
	}
	body, _ := io.ReadAll(r.Body)
	if why := signedV4(r, body); why != "" {
		fail(403, "InvalidSignatureException", why)
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/bedrock/model/"), "/")
	model, verb := parts[0], parts[len(parts)-1]
	n := p.see(r, "bedrock", model, body)
	defer p.finished(r, n)
	if bad := known(body, "messages", "system", "inferenceConfig", "toolConfig", "additionalModelRequestFields", "guardrailConfig"); bad != "" {
		fail(400, "ValidationException", bad)
		return
	}
	type block struct {
		Text       *string
		Image      *struct{ Format string }
		ToolUse    *struct{ ToolUseId, Name string }
		ToolResult *struct {
			ToolUseId string
			Content   []struct{ Text string }
		}
	}
	var q struct {
		Messages []struct {
			Role    string
			Content []block
		}
		ToolConfig struct {
			Tools []struct {
				ToolSpec *struct {
					Name        string
					InputSchema struct{ JSON json.RawMessage }
				}
			}
		}
	}
	if err := json.Unmarshal(body, &q); err != nil {
		fail(400, "ValidationException", err.Error())
		return
	}
	a := &ask{model: model, stream: verb == "converse-stream"}
	for _, t := range q.ToolConfig.Tools {
		if t.ToolSpec != nil {
			a.tools = append(a.tools, t.ToolSpec.Name)
		}
	}
	calls := map[string]bool{}
	for _, m := range q.Messages {
		if m.Role == "user" {
			a.last, a.images, a.results = "", 0, nil
		}
		for _, b := range m.Content {
			switch {
			case b.ToolUse != nil:
				calls[b.ToolUse.ToolUseId] = true
			case b.ToolResult != nil:
				if !calls[b.ToolResult.ToolUseId] {
					fail(400, "ValidationException", "The toolResult blocks contain an id without a toolUse")
					return
				}
				text := ""
				for _, c := range b.ToolResult.Content {
					text += c.Text
				}
				a.results = append(a.results, text)
			case b.Image != nil:
				a.images++
			case b.Text != nil && m.Role == "user":
				a.last += *b.Text
			}
		}
	}
	if p.before(w, r, a, func(status int) {
		kind := map[int]string{429: "ThrottlingException", 500: "InternalServerException", 529: "ServiceUnavailableException", 404: "ResourceNotFoundException"}[status]
		if status == 529 {
			status = 503
		}
		fail(status, kind, "Bedrock says: "+kind)
	}) {
		return
	}
	re := a.reply()
	use := map[string]int{"inputTokens": re.in - 5, "cacheReadInputTokens": 5, "outputTokens": re.out, "totalTokens": re.in + re.out}
	stop := "end_turn"
	if len(re.calls) > 0 {
		stop = "tool_use"
	}
	if !a.stream {
		content := []any{}
		if re.think != "" {
			content = append(content, map[string]any{"reasoningContent": map[string]any{"reasoningText": map[string]string{"text": re.think, "signature": "sig-bedrock"}}})
		}
		if len(re.words) > 0 {
			content = append(content, map[string]string{"text": strings.Join(re.words, "")})
		}
		for i, c := range re.calls {
			content = append(content, map[string]any{"toolUse": map[string]any{"toolUseId": fmt.Sprint("tooluse_", i+1), "name": c, "input": json.RawMessage(toolArgs)}})
		}
		jsonOut(w, 200, map[string]any{"output": map[string]any{"message": map[string]any{"role": "assistant", "content": content}}, "stopReason": stop, "usage": use, "metrics": map[string]int{"latencyMs": 12}})
		return
	}
	w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
	send := func(name string, doc any) {
		b, _ := json.Marshal(doc)
		_, _ = w.Write(awsEvent(map[string]string{":message-type": "event", ":event-type": name, ":content-type": "application/json"}, b))
		w.(http.Flusher).Flush()
	}
	send("messageStart", map[string]string{"role": "assistant"})
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	index := 0
	if re.think != "" {
		send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]any{"reasoningContent": map[string]string{"text": re.think}}})
		send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]any{"reasoningContent": map[string]string{"signature": "sig-bedrock"}}})
		send("contentBlockStop", map[string]any{"contentBlockIndex": index})
		index++
	}
	s := sseOut{w, r}
	for i, word := range re.words {
		if a.behave() == "garbage" && i == 2 {
			_, _ = w.Write(append(awsEvent(map[string]string{":message-type": "event", ":event-type": "contentBlockDelta"}, []byte("{}"))[:20], bytes.Repeat([]byte{7}, 40)...))
			return
		}
		if s.stopAt(a, i, func() {
			_, _ = w.Write(awsEvent(map[string]string{":message-type": "exception", ":exception-type": "modelStreamErrorException"}, []byte(`{"message":"The model stream failed"}`)))
			w.(http.Flusher).Flush()
		}) {
			return
		}
		send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]string{"text": word}})
	}
	if len(re.words) > 0 {
		send("contentBlockStop", map[string]any{"contentBlockIndex": index})
		index++
	}
	for i, c := range re.calls {
		send("contentBlockStart", map[string]any{"contentBlockIndex": index, "start": map[string]any{"toolUse": map[string]string{"toolUseId": fmt.Sprint("tooluse_", i+1), "name": c}}})
		for _, part := range []string{toolArgs[:4], toolArgs[4:]} {
			send("contentBlockDelta", map[string]any{"contentBlockIndex": index, "delta": map[string]any{"toolUse": map[string]string{"input": part}}})
		}
		send("contentBlockStop", map[string]any{"contentBlockIndex": index})
		index++
	}
	send("messageStop", map[string]string{"stopReason": stop})
	send("metadata", map[string]any{"usage": use, "metrics": map[string]int{"latencyMs": 12}})
}

// awsEvent encodes one message of application/vnd.amazon.eventstream.
func awsEvent(headers map[string]string, payload []byte) []byte {
	var h bytes.Buffer
	for _, k := range slices.Sorted(mapsKeys(headers)) {
		h.WriteByte(byte(len(k)))
		h.WriteString(k)
		h.WriteByte(7) // string
		_ = binary.Write(&h, binary.BigEndian, uint16(len(headers[k])))
		h.WriteString(headers[k])
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(12+h.Len()+len(payload)+4))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Len()))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, h.Bytes()...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func mapsKeys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// signedV4 checks a request's AWS Signature Version 4, written from its
// documentation, and says what is wrong with it.
func signedV4(r *http.Request, body []byte) string {
	var k struct {
		ID     string `json:"access_key_id"`
		Secret string `json:"secret_access_key"`
	}
	_ = json.Unmarshal([]byte(bedrockKey), &k)
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return "Missing Authentication Token"
	}
	f := map[string]string{}
	for part := range strings.SplitSeq(auth, ", ") {
		name, v, _ := strings.Cut(part, "=")
		f[name] = v
	}
	scope := strings.SplitN(f["Credential"], "/", 2)
	if scope[0] != k.ID || len(scope) != 2 || !strings.HasSuffix(scope[1], "/us-east-1/bedrock/aws4_request") {
		return "The security token included in the request is invalid: " + f["Credential"]
	}
	names := strings.Split(f["SignedHeaders"], ";")
	sort.Strings(names)
	var canonical strings.Builder
	path := strings.ReplaceAll(r.URL.EscapedPath(), "%", "%25")
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.Method, path, r.URL.RawQuery)
	for _, n := range names {
		v := r.Header.Get(n)
		switch n {
		case "host":
			v = r.Host
		case "content-length":
			v = fmt.Sprint(r.ContentLength)
		}
		fmt.Fprintf(&canonical, "%s:%s\n", n, strings.TrimSpace(v))
	}
	sum := sha256.Sum256(body)
	fmt.Fprintf(&canonical, "\n%s\n%s", strings.Join(names, ";"), hex.EncodeToString(sum[:]))
	hashed := sha256.Sum256([]byte(canonical.String()))
	toSign := "AWS4-HMAC-SHA256\n" + r.Header.Get("X-Amz-Date") + "\n" + scope[1] + "\n" + hex.EncodeToString(hashed[:])
	mac := func(key []byte, s string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(s))
		return h.Sum(nil)
	}
	key := []byte("AWS4" + k.Secret)
	for _, s := range strings.Split(scope[1], "/") {
		key = mac(key, s)
	}
	if want := hex.EncodeToString(mac(key, toSign)); want != f["Signature"] {
		return "The request signature we calculated does not match the signature you provided. Canonical: " + canonical.String()
	}
	return ""
}
