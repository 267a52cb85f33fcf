package llmrouter

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// TestRotation shows that keys are used in round-robin order, that a rate limit excludes
// a key for one model and failures exclude it for all, that one request at a time probes
// a key after its open period, and that the failure contains the time to wait until a
// key may be usable again.
func TestRotation(t *testing.T) {
	now := time.Now()
	r := newRotation([]string{"k1", "k2"}, route.Break{Failures: 1, OpenMS: 1000})
	next := func(model string) string {
		t.Helper()
		name, f := r.pick(now, "t", model)
		if f != nil {
			return fmt.Sprint(f.Code, " ", f.Retry)
		}
		return name
	}
	fails := func(b *route.Breaker) { b.Failure(now) }
	for i, want := range []string{"k1", "k2", "k1"} {
		if got := next("m"); got != want {
			t.Fatalf("%d: %s, want %s", i, got, want)
		}
	}
	r.rest(tenantKey{"t", "k2"}, "m", now.Add(5*time.Second))
	if a, b := next("m"), next("m"); a != "k1" || b != "k1" {
		t.Errorf("a key that rests is used: %s %s", a, b)
	}
	if a, b := next("other"), next("other"); a == b {
		t.Errorf("a key rests for another model: %s %s", a, b)
	}
	r.rest(tenantKey{"t", "k1"}, "m", now.Add(3*time.Second))
	if got := next("m"); got != "rate_limited 3s" {
		t.Error(got)
	}
	r.report(tenantKey{"t", "k1"}, fails)
	r.report(tenantKey{"t", "k2"}, fails)
	if got := next("other"); got != "provider_unavailable 1s" {
		t.Error(got)
	}
	now = now.Add(1500 * time.Millisecond)
	if a, b := next("other"), next("other"); a == b || strings.Contains(a+b, "unavailable") {
		t.Errorf("one probe for each key: %s %s", a, b)
	}
	if got := next("other"); got != "provider_unavailable 1s" {
		t.Errorf("a second probe: %s", got)
	}
	r.report(tenantKey{"t", "k1"}, (*route.Breaker).Success)
	if got := next("other"); got != "k1" {
		t.Error(got)
	}
	if name, f := newRotation(nil, route.Break{}).pick(now, "t", "m"); name != "" || f != nil {
		t.Errorf("a provider without keys: %q %v", name, f)
	}
}

func TestLatencies(t *testing.T) {
	var l latencies
	if l.of("a/m") != 0 {
		t.Error("a latency without a measurement")
	}
	l.add("a/m", time.Millisecond)
	if l.of("a/m") != 1000 {
		t.Error(l.of("a/m"))
	}
	l.add("a/m", 6*time.Millisecond)
	if l.of("a/m") != 2000 || l.of("b/m") != 0 {
		t.Errorf("%d: not a fifth of the way", l.of("a/m"))
	}
}

// TestCache shows that the cache evicts the least recently used responses if they exceed
// its limit, but not the newest one, that it replaces a response under the same key, and
// that it returns no response that has expired.
func TestCache(t *testing.T) {
	var c cache
	now := time.Now()
	put := func(key string, size int) {
		c.put(&kept{key: key, body: make([]byte, size), until: now.Add(time.Minute)}, 3*(1000+entrySize))
	}
	has := func() (out string) {
		for _, k := range []string{"a", "b", "c", "d"} {
			if c.get(k, now) != nil {
				out += k
			}
		}
		return out
	}
	put("a", 1000)
	put("b", 1000)
	put("c", 1000)
	if c.get("a", now) == nil {
		t.Fatal("an answer is lost")
	}
	put("d", 1000)
	if got := has(); got != "acd" {
		t.Errorf("%s: the one that was not used longest goes first", got)
	}
	put("a", 10)
	if k := c.get("a", now); k == nil || len(k.body) != 10 {
		t.Error("an answer is not replaced")
	}
	put("b", 1<<20)
	if got := has(); got != "b" || c.size != 1<<20+entrySize {
		t.Errorf("%s, %d bytes: an answer above the limit", got, c.size)
	}
	if c.get("b", now.Add(2*time.Minute)) != nil || has() != "" || c.size != 0 {
		t.Errorf("an answer outlives its time: %d bytes", c.size)
	}
}

// TestCacheKey shows that requests that differ in the tenant, the caller, the key, the
// kind, one byte of the body, a beta feature or the action on a class of findings have
// different cache keys.
func TestCacheKey(t *testing.T) {
	seen := map[string]string{}
	type request struct {
		tenant, kind, actor, key, body string
		beta                           []string
		reply                          scan.Guard
	}
	for _, x := range []request{{"u", "k", "alice", "", "body", nil, nil}, {"tk", "", "alice", "", "body", nil, nil}, {"t", "k", "alice", "", "body", nil, nil}, {"t", "k", "bob", "", "body", nil, nil}, {"t", "k", "alice", "key", "body", nil, nil}, {"t", "l", "alice", "", "body", nil, nil}, {"t", "k", "alice", "", "body ", nil, nil},
		{"t", "k", "alicek", "", "body", nil, nil}, {"t", "k", "alice", "k", "body", nil, nil}, {"t", "", "kalice", "", "body", nil, nil}, {"t", "k", "alice", "", "body", []string{"a"}, nil}, {"t", "k", "alice", "", "body", []string{"a", "b"}, nil},
		{"t", "k", "alice", "", "body", []string{"ab"}, nil}, {"t", "k", "alice", "", "body", nil, scan.Guard{"email": "flag"}}, {"t", "k", "alice", "", "body", nil, scan.Guard{"email": "redact"}}, {"t", "k", "alice", "", "body", nil, scan.Guard{"iban": "redact"}},
		{"t", "k", "alice", "", "body", nil, scan.Guard{"email": "redact", "iban": "redact"}}, {"t", "k", "alice", "", "body", []string{"email", "redact"}, nil}} {
		c := &call{w: &execute.Work{Event: &contract.Event{Tenant: x.tenant, Actor: x.actor}, Call: &contract.Call{Kind: x.kind}}, body: []byte(x.body), reply: x.reply}
		c.args.Beta, c.key.id = x.beta, x.key
		k := c.cacheKey()
		if k != c.cacheKey() || seen[k] != "" {
			t.Errorf("%+v and %s have one key", x, seen[k])
		}
		seen[k] = fmt.Sprint(x)
	}
}

// TestKept shows that an identical request, but not one with another body or a beta
// feature, gets the same response from the cache in memory, and is recorded as a cache
// hit.
func TestKept(t *testing.T) {
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(200, completion), says(500, "")}})
	s := plays(t, u, func(c *Config) { c.Fallbacks = nil })
	m := s.made(t, t.Context(), llm.Chat, question)
	if f := m.run(t, t.Context()); f != nil || m.out.said.Headers[headerCache] != "miss" {
		t.Fatalf("%v %v", f, m.out.said.Headers)
	}
	m.keep(t.Context(), *m.out.tee, m.out.said)
	again := s.made(t, t.Context(), llm.Chat, question)
	again.out.tee = nil // a cached response is not cached again
	r, hit := again.cached(t.Context())
	if !hit || r.EffectType != "llm.cache_hit" || string(r.Output) != completion || again.out.said.Headers[headerCache] != "hit" || again.out.said.Headers[headerModel] != "a/m" {
		t.Errorf("%v %+v %v", hit, r, again.out.said)
	}
	if again.trace() != "cache:succeeded cache" {
		t.Error(again.trace())
	}
	other := s.made(t, t.Context(), llm.Chat, strings.Replace(question, "hi", "ho", 1))
	if _, hit := other.cached(t.Context()); hit {
		t.Error("another request is answered")
	}
	beta := s.made(t, t.Context(), llm.Chat, question)
	beta.args.Beta = []string{"context-1m"}
	if _, hit := beta.cached(t.Context()); hit {
		t.Error("a request with a beta feature gets the response without it")
	}
}

// TestKeptGuarded shows that a response is not returned from the cache to a call whose
// decision requires another action on its findings, and that the findings in the prompt
// of a cache hit are recorded.
func TestKeptGuarded(t *testing.T) {
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(200, completion)}})
	s := plays(t, u, nil)
	const asked = `{"model":"a/m","max_tokens":50,"messages":[{"role":"user","content":"who is bob@example.org"}]}`
	fresh := func(obliged ...string) *made {
		m := s.made(t, t.Context(), llm.Chat, asked)
		m.w.Intent = &contract.ExecutionIntent{Obliged: obliged}
		if err := m.oblige(); err != nil {
			t.Fatal(err)
		}
		if f := m.clean(); f != nil && f.Code != fault.ContentBlocked {
			t.Fatal(f)
		}
		return m
	}
	for i, obliged := range [][]string{nil, {"content.flag:email"}, {"content.redact:email"}, {"content.block:phone"}} {
		m := fresh(obliged...)
		if _, hit := m.cached(t.Context()); hit {
			t.Fatalf("%v: a response that another guard was applied to", obliged)
		}
		if f := m.run(t, t.Context()); f != nil {
			t.Fatal(f)
		}
		m.keep(t.Context(), *m.out.tee, m.out.said)
		again := fresh(obliged...)
		again.out.tee = nil
		r, hit := again.cached(t.Context())
		if !hit || string(r.Output) != string(m.output) || len(u.bodies["a"]) != i+1 {
			t.Errorf("%v: %v %s", obliged, hit, r.Output)
		}
		if got := slices.Contains(again.facts[0].Findings, "prompt.email:1"); got != (i == 1 || i == 2) {
			t.Errorf("%v: findings %v", obliged, again.facts[0].Findings)
		}
	}
	if _, hit := fresh("content.block:email").cached(t.Context()); hit {
		t.Error("a response with content that is blocked now")
	}
}

// TestAccepted shows that a name that may be routed to several providers accepts only
// the labels that all of them accept, that a name without such labels gets the label
// "-", and that the demo accepts every label.
func TestAccepted(t *testing.T) {
	s := &Service{}
	s.Config = Config{Providers: []provider.Config{{Name: "a", Accepts: []string{"user_file", "secret"}}, {Name: "b", Accepts: []string{"secret", "secret"}}, {Name: "c"}, {Name: "d", Accepts: []string{"*"}}},
		Table: route.Table{Aliases: map[string]string{"one": "a/m", "none": "c/m"}, Virtual: []route.Virtual{{Name: "both", Targets: []route.Target{{Model: "a/m"}, {Model: "b/m"}, {Model: "d/m"}}}},
			Fallbacks: []route.Rule{{Primary: "d/m", Fallbacks: []string{"a/m"}}}}}
	got := map[string]string{}
	for _, m := range s.accepted().Models {
		got[m.Model] = strings.Join(m.Accepts, ",")
	}
	want := map[string]string{"a/": "secret,user_file", "b/": "secret", "d/": "*", "demo/": "*", "one": "secret,user_file", "none": "-", "both": "secret", "d/m": "secret,user_file"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %v\nwant %v", got, want)
	}
	if !bytes.Equal(contract.Bytes(s.accepted()), contract.Bytes(s.accepted())) {
		t.Error("the same configuration is recorded otherwise")
	}
}

func TestSends(t *testing.T) {
	s := &Service{}
	s.Retry.Attempts = 3
	if s.sends() != 3 {
		t.Error(s.sends())
	}
	if s.HedgeMS = 10; s.sends() != 6 {
		t.Errorf("%d: a hedge sends again", s.sends())
	}
}

// TestConfigure shows that the error for an invalid configuration names the member, and
// that without a configuration retries have their defaults and demo is the only
// provider.
func TestConfigure(t *testing.T) {
	for want, c := range map[string]Config{
		`providers[0].name: "demo" is taken`:                       {Providers: []provider.Config{{Name: "demo", BaseURL: "http://h"}}},
		`providers[0].name: "a b"`:                                 {Providers: []provider.Config{{Name: "a b", BaseURL: "http://h"}}},
		`providers[1].name: "a" is taken`:                          {Providers: []provider.Config{{Name: "a", BaseURL: "http://h"}, {Name: "a", BaseURL: "http://h"}}},
		`providers[0].kind: "x": want `:                            {Providers: []provider.Config{{Name: "a", Kind: "x"}}},
		`guards.prompt: "emails" is neither`:                       {Guards: Guards{Prompt: map[string]string{"emails": "block"}}},
		`guards.output: "delete": want `:                           {Guards: Guards{Output: map[string]string{"email": "delete"}}},
		`cache.store: "disk": want memory or`:                      {Cache: CacheConfig{Store: "disk"}},
		`providers[0].limit: -1: want a number from 0 to 1000000`:  {Providers: []provider.Config{{Name: "a", BaseURL: "http://h", Limit: -1}}},
		`retry.attempts: -1: want a number from 0 to 1000`:         {Retry: Retry{Attempts: -1}},
		`retry.base_ms: -1: `:                                      {Retry: Retry{BaseMS: -1}},
		`retry.max_ms: 86400001: want a number from 0 to 86400000`: {Retry: Retry{MaxMS: 86_400_001}},
		`breaker.failures: -1: `:                                   {Breaker: route.Break{Failures: -1}},
		`breaker.open_ms: -1: `:                                    {Breaker: route.Break{OpenMS: -1}},
		`cache.ttl_ms: -1: `:                                       {Cache: CacheConfig{TTLMS: -1}},
		`cache.max_mb: 8796093022208: `:                            {Cache: CacheConfig{MaxMB: 1 << 43}},
		`hedge_ms: -1: `:                                           {HedgeMS: -1},
		`limit: -1: `:                                              {Limit: -1},
		`aliases.x: "y/m" is neither`:                              {Table: route.Table{Aliases: map[string]string{"x": "y/m"}}},
	} {
		s := &Service{Config: c}
		if err := s.configure(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	s := &Service{}
	if err := s.configure(); err != nil || s.Retry != (Retry{2, 200, 5000}) || !s.has("demo") || s.has("openai") {
		t.Errorf("%v %+v", err, s.Retry)
	}
	if got := s.list("t"); len(got) != 1 || got[0].ID != "demo/echo" || got[0].Object != "model" || got[0].OwnedBy != "binnacle-demo" {
		t.Errorf("%+v", got)
	}
}

// TestList shows that a model is listed once if both the configuration and the provider
// list it, and that lists are outdated until they have been fetched.
func TestList(t *testing.T) {
	s := &Service{Config: Config{Providers: []provider.Config{{Name: "a", Models: []string{"m", "n"}}, {Name: "b"}}, Table: route.Table{Aliases: map[string]string{"z": "a/m"}}}}
	s.models.set("t", map[string][]string{"a": {"n", "o"}, "b": {"m"}}, time.Time{})
	var ids []string
	for _, m := range s.list("t") {
		ids = append(ids, m.ID)
	}
	if !slices.Equal(ids, []string{"demo/echo", "z", "a/m", "a/n", "a/o", "b/m"}) {
		t.Error(ids)
	}
	if !s.models.of("t").stale() {
		t.Error("lists that were never read are fresh")
	}
	if s.models.set("t", nil, time.Now()); s.models.of("t").stale() {
		t.Error("fresh lists are stale")
	}
}

// TestTools shows the names of the service's tools, and that each kind in llm.Kinds has
// an API.
func TestTools(t *testing.T) {
	var kinds []string
	for _, x := range (&Service{}).tools() {
		kinds = append(kinds, x.Kind)
		if x.Kind != x.Tool || x.Executor != llm.Executor || x.Description == "" {
			t.Errorf("%+v", x)
		}
	}
	if want := []string{"llm.chat", "llm.responses", "llm.messages", "llm.count_tokens", "llm.embeddings", "llm.completions", "llm.models", "llm.delete_response", "llm.forward",
		"client.shell", "client.file.read", "client.file.write", "client.file.edit", "client.web.fetch", "client.web.search", "client.subagent", "client.session", "client.other", "client.mcp"}; !slices.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
	for _, k := range llm.Kinds {
		if callerOf(k) == nil {
			t.Errorf("calls of kind %s have no API", k)
		}
	}
}

// TestClientTool shows that a client's function becomes a tool with a schema, and that
// an invalid definition is rejected.
func TestClientTool(t *testing.T) {
	d := ClientTool{Type: "function", Class: "E1", Labels: []string{"l"}}
	d.Function.Name, d.Function.Parameters = "open", []byte(`{ "type":"object", "properties":{"a":{"type":"string"}} }`)
	x, err := d.tool()
	if err != nil || x.Kind != "client.open" || string(x.InputSchema) != `{"properties":{"a":{"type":"string"}},"type":"object"}` || x.Class != "E1" || len(x.Labels) != 1 {
		t.Errorf("%+v %v", x, err)
	}
	d.Function.Parameters = nil
	if x, err := d.tool(); err != nil || string(x.InputSchema) != `{"properties":{},"type":"object"}` {
		t.Errorf("%s %v", x.InputSchema, err)
	}
	d.Type = "custom"
	if x, err := d.tool(); err != nil || !strings.Contains(string(x.InputSchema), `"required":["input"]`) {
		t.Errorf("%s %v", x.InputSchema, err)
	}
	for _, change := range []func(*ClientTool){func(d *ClientTool) { d.Type = "file" }, func(d *ClientTool) { d.Function.Name = "a b" }, func(d *ClientTool) { d.Type, d.Function.Parameters = "function", []byte("{") }} {
		bad := d
		change(&bad)
		if x, err := bad.tool(); err == nil {
			t.Errorf("%+v", x)
		}
	}
}

// TestClientTools shows that a client's functions are registered after the service's own
// tools, and that a second function of the same name is rejected.
func TestClientTools(t *testing.T) {
	named := func(name string) ClientTool {
		d := ClientTool{Type: "function", Class: "E0"}
		d.Function.Name = name
		return d
	}
	s := &Service{Config: Config{ClientTools: []ClientTool{named("open"), named("shut")}}}
	tools, err := s.registered()
	if n := len(tools); err != nil || n != len(s.tools())+2 || tools[n-1].Kind != "client.shut" {
		t.Errorf("%d tools, %v", n, err)
	}
	s.ClientTools = append(s.ClientTools, named("open"))
	if _, err := s.registered(); err == nil || !strings.HasPrefix(err.Error(), `client_tools[2]: function.name: "open" is taken`) {
		t.Error(err)
	}
}

// TestGather shows that the delay of a frame is 10 ms with up to 100 calls, 50 ms with
// 500 or more, and proportional between.
func TestGather(t *testing.T) {
	for calls, want := range map[int64]time.Duration{0: 10 * time.Millisecond, 100: 10 * time.Millisecond, 250: 25 * time.Millisecond, 500: 50 * time.Millisecond, 9999: 50 * time.Millisecond} {
		if got := gather(calls); got != want {
			t.Errorf("%d calls: %v, want %v", calls, got, want)
		}
	}
}

// TestClaim shows that only one of two attempts is selected as the one whose response is
// sent.
func TestClaim(t *testing.T) {
	var under atomic.Int64
	o := newOut(t.Context(), &execute.Work{Call: &contract.Call{}, Instance: "i"}, nil, &under)
	a, b := &attempt{}, &attempt{said: 1}
	head := func() *llm.Head { return &llm.Head{Headers: map[string]string{}} }
	if o.begun() || o.claimedBy(a) || under.Load() != 1 {
		t.Error("it begins without a claim")
	}
	if err := o.claim(a, head()); err != nil || !o.begun() || !o.claimedBy(a) || o.said.Instance != "i" {
		t.Errorf("%v %+v", err, o.said)
	}
	if err := o.claim(a, head()); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := o.claim(b, head()); !errors.Is(err, errLost) || o.claimedBy(b) {
		t.Errorf("another attempt: %v", err)
	}
	if o.close(); under.Load() != 0 {
		t.Error("a call that has ended counts")
	}
}

// TestLocal shows that the demo can be used through the chat, responses and messages
// APIs, and returns an error for embeddings and for a model that it lacks.
func TestLocal(t *testing.T) {
	s := plays(t, newUpstreams(t, nil), nil)
	for kind, c := range map[string]struct{ body, shows, code string }{
		llm.Chat:        {`{"model":"demo/echo","messages":[{"role":"user","content":"one two"}]}`, `"content":"one two"`, ""},
		llm.Responses:   {`{"model":"demo/echo","input":"one two","stream":true}`, `event: response.completed`, ""},
		llm.Messages:    {`{"model":"demo/echo","max_tokens":1,"messages":[{"role":"user","content":"one two"}]}`, `"stop_reason":"max_tokens"`, ""},
		llm.Embeddings:  {`{"model":"demo/echo","input":"a"}`, "", fault.Unsupported},
		llm.Completions: {`{"model":"demo/other","prompt":"a","max_tokens":1}`, "", fault.ModelNotFound},
	} {
		m := s.made(t, t.Context(), kind, c.body)
		f := m.run(t, t.Context())
		if (f == nil) != (c.code == "") || f != nil && f.Code != c.code || !strings.Contains(m.shown(), c.shows) {
			t.Errorf("%s: %+v %s", kind, f, m.shown())
		}
		if x := m.facts[0]; f == nil && (x.Provider != "demo" || x.InputTokens == 0 || x.USDMicros != 0 || !strings.Contains(x.ResponseID, "-demo-") && !strings.Contains(x.ResponseID, "demo") && kind == llm.Chat) {
			t.Errorf("%+v", x)
		}
	}
}

// TestCount shows that tokens are estimated if a provider cannot count them, that
// vectors are returned as base64 if that is requested, and that input given as tokens is
// not translated.
func TestCount(t *testing.T) {
	s := plays(t, newUpstreams(t, nil), nil)
	m := s.made(t, t.Context(), llm.CountTokens, `{"model":"a/m","messages":[{"role":"user","content":"hello, hello"}]}`)
	if f := m.run(t, t.Context()); f != nil || m.shown() != fmt.Sprintf(`{"input_tokens":%d}`, len(m.body)/4+1) || !m.facts[0].Estimated || m.facts[0].HTTPStatus != 0 {
		t.Errorf("%v %s %+v", f, m.shown(), m.facts)
	}
	body, err := embeddingsAnswer([]byte(`{"encoding_format":"base64"}`), "p/m", [][]float32{{1, 0.5}})
	if err != nil || !strings.Contains(string(body), `"embedding":"AACAPwAAAD8="`) {
		t.Errorf("%s %v", body, err)
	}
	if body, err = embeddingsAnswer([]byte(`{}`), "p/m", nil); err != nil || !strings.Contains(string(body), `"data":[]`) {
		t.Errorf("%s %v", body, err)
	}
	var api *dialect.API
	for _, k := range providers.All.Kinds() {
		for _, a := range k.APIs {
			if a.Embed != nil {
				api = a
			}
		}
	}
	if out, err := embeddings(api, []byte(`{"input":"one"}`), "m"); err != nil || !strings.Contains(string(out), `"one"`) {
		t.Errorf("%s %v", out, err)
	}
	if _, err := embeddings(api, []byte(`{"input":[1,2]}`), "m"); err == nil || !strings.HasPrefix(err.Error(), "input: ") {
		t.Errorf("tokens: %v", err)
	}
}

// TestUsageView shows that views of the same events have the same digest, and that a
// response is found by its id and by the id of an item in it.
func TestUsageView(t *testing.T) {
	var a, b Usage
	e := &contract.Event{Name: events.AttemptFinishedName, Source: "llm-router/llm-router-1", Actor: "alice", CallID: "c-1", Time: contract.Time(time.Unix(1_700_000_000, 0)),
		Data: contract.Bytes(&events.AttemptFinished{API: llm.Responses, Model: "m", Provider: "p", ResponseID: "r1", ItemIds: []string{"i1"}, Status: contract.Succeeded, Requested: "p/m"})}
	if a.Digest() != b.Digest() {
		t.Error("two empty views differ")
	}
	empty := a.Digest()
	if err := a.Apply(e); err != nil || a.Digest() == empty {
		t.Fatalf("an attempt changes nothing: %v", err)
	}
	if err := b.Apply(e); err != nil || a.Digest() != b.Digest() {
		t.Errorf("two views of one event differ: %v", err)
	}
	if x := a.answer("", "r1"); x.Call != "c-1" || x.Actor != "alice" || a.item("", "i1").Call != "c-1" || a.item("", "r1").Call != "" {
		t.Errorf("%+v", x)
	}
}
