package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Providers is a local server with the APIs of several providers, in the formats of their
// documentation. It rejects some of the invalid requests that the providers reject. Its
// response depends on the part of the model's name after the last hyphen:
//
//	good        text; if the request offers tools and has no results yet, a call of each
//	braid       like good, with the chunks of the calls interleaved (chat API only)
//	think       like good, with reasoning before it
//	agent       like good, but calls only the tools whose name contains "upper"
//	json        an object, if the request has a response schema
//	cut         a stream that breaks off after some words
//	early       a stream that breaks off after its lifecycle frames, before any content
//	fault       a stream with the provider's own error event after some words
//	garbage     a stream with an event that cannot be read
//	limited     a rate limit error with its headers
//	overloaded  the provider's error for an overload
//	broken      an internal error
//	missing     the provider's error for an unknown model
//	slow        the first byte is sent after 400 ms
//	pace        200 words, in a stream one every 20 ms
//	flood       16 MiB in chunks of 4 KiB (streams of the chat API only)
//	endless     chunks of 4 KiB without an end (streams of the chat API only)
//	hang        no response until the client disconnects
//	flaky       like broken for the first request, like good for the second, and so on
//	own         like good, with response ids of its own (Responses API only)
//	deep        11 MiB of nested lists, as a response or an event
//	deepfault   an internal error whose text is 11 MiB of nested lists
//	deepargs    a tool call whose arguments are deeply nested objects (chat API only)
type Providers struct {
	*httptest.Server
	Keys map[string]string // API key that is accepted, by name of the secret

	mu    sync.Mutex
	seen  []Seen
	flaky map[string]int
	flood atomic.Int64
	made  atomic.Int64 // number of responses sent with an id of their own
	down  map[string]bool
}

// Seen is a request that the server received.
type Seen struct {
	Provider, Path, Model string
	Header                http.Header
	Body                  []byte
	At                    time.Time
	Gone                  time.Time // when the client disconnected before the end of the response; zero if it did not
	done                  bool
}

// bedrockKey is the key pair with which Bedrock requests must be signed (AWS Signature
// Version 4).
const bedrockKey = `{"access_key_id":"AKIDEXAMPLE0123456789","secret_access_key":"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}`

// NewProviders starts the server and writes an llm document with nine providers, at
// least one per API format. The members of more are added to the document, or replace
// its members. It returns the server and the path of the document.
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
		d := map[string]any{"name": name, "kind": kind, "base_url": p.URL + path, "accepts": []string{"user_file"}}
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

// Flooded returns the number of bytes of content that the models flood and endless have
// written so far.
func (p *Providers) Flooded() int64 { return p.flood.Load() }

// Requests returns the received requests for a model ("provider/model") in order, or all
// requests if model is "".
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

// SetKey changes the API key that the server accepts for the secret with the given name.
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

// see records a request, and the time at which its client disconnects if that is before
// the end of the response. It returns the index of the request in seen.
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

// ask is a received request in a form that does not depend on the provider's API.
type ask struct {
	model   string // last part of "provider/model"
	stream  bool
	last    string // text of the last user message
	results []string
	tools   []string
	schema  bool
	images  int
	usage   bool
}

// reply is a response in a form that does not depend on the provider's API.
type reply struct {
	think string
	words []string
	calls []string
	in    int
	out   int
}

// behave returns the part of the model's name after the last hyphen, which selects the
// behaviour in the table of Providers.
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

// before implements the behaviours that delay a request or replace the usual response.
// It reports whether the request needs no other response, because one was sent or the
// client has disconnected.
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
	case "deep", "deepfault":
		nested(w, a)
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

// nested writes 11 MiB of open brackets, which overflow the stack of a recursive parser.
func nested(w http.ResponseWriter, a *ask) {
	doc := []byte(`{"id":"x","error":` + strings.Repeat("[", 11<<20))
	switch {
	case a.behave() == "deepfault":
		w.WriteHeader(http.StatusInternalServerError)
	case a.stream && w.Header().Get("X-Amzn-Requestid") != "":
		doc = awsEvent(map[string]string{":message-type": "event", ":event-type": "contentBlockDelta"}, doc)
	case a.stream:
		w.Header().Set("Content-Type", "text/event-stream")
		doc = append(append([]byte("data: "), doc...), "\n\n"...)
	}
	_, _ = w.Write(doc)
}

// args returns the arguments that each tool call in the response has.
func (a *ask) args() string {
	if a.behave() == "deepargs" {
		const depth = 1 << 20
		return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
	}
	return toolArgs
}

// sseOut writes server-sent events.
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

// stopAt is called before word i of a stream, counted from 0, and reports whether the
// stream has ended. Before word 2 it ends the streams of the models fault and garbage,
// and panics for cut, which closes the connection. For pace it waits 20 ms before each
// of the other words, and returns true if the client has disconnected.
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
