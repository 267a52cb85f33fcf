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

// Providers is a local server that speaks each provider's wire, in the formats
// their documentation records, and refuses what they refuse. What it answers
// depends on the last part of the model's name:
//
//	good        an answer; a call of every tool offered, where tools are, until results come
//	braid       the same, with the pieces of the calls braided, where the wire is chat
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
//	endless     the same, for ever
//	hang        nothing at all, until the caller leaves
//	flaky       broken the first time, good the second
//	own         the same as good, under ids of its own, where the wire is responses
//	deep        11 MiB of nested lists, as an answer or an event
//	deepfault   an internal error in such words
//	deepargs    a call whose arguments are text of nested objects, where the wire is chat
type Providers struct {
	*httptest.Server
	Keys map[string]string // secret name to value

	mu    sync.Mutex
	seen  []Seen
	flaky map[string]int
	flood atomic.Int64
	made  atomic.Int64 // responses with ids of their own
	down  map[string]bool
}

// Seen is one received request.
type Seen struct {
	Provider, Path, Model string
	Header                http.Header
	Body                  []byte
	At                    time.Time
	Gone                  time.Time // when the client disconnected before the end; zero if it did not
	done                  bool
}

// bedrockKey is the key pair of SigV4 signatures.
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

// Flooded returns the bytes that the model flood has written so far.
func (p *Providers) Flooded() int64 { return p.flood.Load() }

// Requests returns the requests for a model, or all if model is "".
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

// SetKey changes the API key that a provider accepts for a secret's name.
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

// see records a request, and the time when its client disconnects.
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

// ask is a request, independent of its wire format.
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

// reply is a response, independent of its wire format.
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

// before handles models that delay or fail; it returns true if it has sent the response.
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

// nested writes 11 MiB of open brackets, which overflow a recursive parser's stack.
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

// args are the arguments of every tool call in responses.
func (a *ask) args() string {
	if a.behave() == "deepargs" {
		const depth = 1 << 20
		return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
	}
	return toolArgs
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

// stopAt ends a stream after word i where the model demands a bad end, and reports
// whether it did.
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
