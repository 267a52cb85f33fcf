package llmrouter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// upstreams is a server that simulates providers: requests to /<name>/ get the replies
// for that name in order; the last reply is repeated.
type upstreams struct {
	*httptest.Server
	mu      sync.Mutex
	replies map[string][]http.HandlerFunc
	bodies  map[string][]string
	keys    []string
}

func newUpstreams(t *testing.T, replies map[string][]http.HandlerFunc) *upstreams {
	u := &upstreams{replies: replies, bodies: map[string][]string{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		n := len(u.bodies[name])
		u.bodies[name] = append(u.bodies[name], string(body))
		u.keys = append(u.keys, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		reply := u.replies[name][min(n, len(u.replies[name])-1)]
		u.mu.Unlock()
		reply(w, r)
	}))
	t.Cleanup(u.CloseClientConnections)
	t.Cleanup(u.Close)
	return u
}

func says(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// streams returns a handler that sends events. Then it breaks the connection if end is
// cut, sends nothing more if end is silent, or else ends the response.
func streams(end string, data ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, d := range data {
			_, _ = io.WriteString(w, "data: "+d+"\n\n")
		}
		w.(http.Flusher).Flush()
		switch end {
		case "cut":
			panic(http.ErrAbortHandler)
		case "silent":
			<-r.Context().Done()
		}
	}
}

const (
	completion = `{"id":"x1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"mail ada@example.org"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}`
	first      = `{"id":"x1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`
	hello      = `{"id":"x1","choices":[{"index":0,"delta":{"content":"hello"}}]}`
	stop       = `{"id":"x1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	used       = `{"id":"x1","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5}}`
	done       = `[DONE]`
	question   = `{"model":"a/m","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`
)

// plays returns a service with the providers a and b, each of them a server with
// OpenAI's API and one key, and with b/m as the fallback of a/m.
func plays(t *testing.T, u *upstreams, change func(*Config)) *Service {
	t.Helper()
	s := &Service{env: &run.Env{Tracer: &tracing.Tracer{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
	s.Config = Config{Retry: Retry{BaseMS: 1, MaxMS: 50}, Table: route.Table{Fallbacks: []route.Rule{{Primary: "a/m", Fallbacks: []string{"b/m"}}}, Prices: route.Prices{Version: "v", Models: []route.Price{{Model: "a/m", Input: 1_000_000, Output: 2_000_000}}}}}
	for _, name := range []string{"a", "b"} {
		s.Providers = append(s.Providers, provider.Config{Name: name, BaseURL: u.URL + "/" + name, Secrets: []string{"llm." + name}, IdleMS: 300})
	}
	if change != nil {
		change(&s.Config)
	}
	if err := s.configure(); err != nil {
		t.Fatal(err)
	}
	return s
}

// made is a call, with the events that it recorded, the keys that it fetched and the
// response that the caller received.
type made struct {
	*call
	mu      sync.Mutex
	facts   []events.AttemptFinished
	fetched []string
}

func (m *made) shown() string { return string(*m.out.tee) }

// trace returns one entry for each attempt: provider, status or error code, and rule.
func (m *made) trace() string {
	var out []string
	for _, f := range m.facts {
		what := f.Status
		if f.ErrorCode != "" {
			what = f.ErrorCode
		}
		out = append(out, strings.TrimSpace(fmt.Sprint(f.Provider, ":", what, " ", f.Rule)))
	}
	return strings.Join(out, ", ")
}

func (s *Service) made(t *testing.T, ctx context.Context, kind, body string) *made {
	t.Helper()
	args, _, err := llm.Peek(kind, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	m := &made{}
	w := &execute.Work{Event: &contract.Event{Tenant: "t", Actor: "alice"}, Call: &contract.Call{ID: "c-1", Kind: kind, Stream: true}}
	w.Fact = func(name string, data []byte) {
		var f events.AttemptFinished
		if err := contract.Decode(data, &f); err != nil || name != events.AttemptFinishedName {
			t.Errorf("%s: %s: %v", name, data, err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.facts = append(m.facts, f)
	}
	w.Secret = func(_ context.Context, name string) (string, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.fetched = append(m.fetched, name)
		return fmt.Sprint("key-", name, "-", len(m.fetched)), nil
	}
	m.call = &call{s: s, w: w, api: callerOf(kind), args: *args, body: []byte(body), inPrompt: scan.Seen{}, now: time.Unix(1_700_000_000, 0)}
	m.out = &out{ctx: ctx, w: w, under: &s.under, tee: &[]byte{}}
	return m
}

func (m *made) run(t *testing.T, ctx context.Context) *provider.Failure {
	t.Helper()
	plan, f := m.plan()
	if f != nil {
		t.Fatal(f)
	}
	return m.follow(ctx, plan)
}

// TestFollow shows which candidates are tried after various failures, and which attempts
// are recorded.
func TestFollow(t *testing.T) {
	ok, limit, broken := says(200, completion), says(429, `{"error":{"message":"slow down"}}`), says(500, `{"error":{"message":"broke"}}`)
	list := func(h ...http.HandlerFunc) []http.HandlerFunc { return h }
	for name, c := range map[string]struct {
		a, b   []http.HandlerFunc
		change func(*Config)
		want   string // attempts, in the format of made.trace
		code   string
	}{
		"an answer":                  {list(ok), list(ok), nil, "a:succeeded", ""},
		"a limit":                    {list(says(429, "", "Retry-After-Ms", "1"), ok), list(ok), nil, "a:rate_limited, a:rate_limited, b:succeeded fallback:a/m", ""},
		"a limit for too long":       {list(says(429, "", "Retry-After", "60")), list(ok), nil, "a:rate_limited, b:succeeded fallback:a/m", ""},
		"a failure, and again":       {list(broken, ok), list(ok), nil, "a:upstream_error, a:succeeded", ""},
		"two failures":               {list(broken), list(ok), nil, "a:upstream_error, a:upstream_error, b:succeeded fallback:a/m", ""},
		"one try":                    {list(broken), list(ok), func(c *Config) { c.Retry.Attempts = 1 }, "a:upstream_error, b:succeeded fallback:a/m", ""},
		"failures everywhere":        {list(broken), list(limit), nil, "a:upstream_error, a:upstream_error, b:rate_limited fallback:a/m, b:rate_limited fallback:a/m", "rate_limited"},
		"another trigger":            {list(broken), list(ok), func(c *Config) { c.Fallbacks[0].Triggers = []string{route.Timeout} }, "a:upstream_error, a:upstream_error", "upstream_error"},
		"the trigger":                {list(limit), list(ok), func(c *Config) { c.Fallbacks[0].Triggers = []string{route.RateLimit}; c.Retry.Attempts = 1 }, "a:rate_limited, b:succeeded fallback:a/m", ""},
		"a key that was replaced":    {list(says(401, ""), ok), list(ok), nil, "a:credential_invalid, a:succeeded", ""},
		"a key that may not":         {list(says(403, "")), list(ok), nil, "a:credential_invalid, b:succeeded fallback:a/m", ""},
		"a refusal":                  {list(says(400, "")), list(ok), nil, "a:upstream_refused, b:succeeded fallback:a/m", ""},
		"no such model":              {list(says(404, "")), list(says(404, "")), nil, "a:model_not_found, b:model_not_found fallback:a/m", "model_not_found"},
		"no JSON":                    {list(says(200, "<html>"), ok), list(ok), nil, "a:upstream_malformed, a:succeeded", ""},
		"an answer without a choice": {list(says(200, completion+"{}")), list(ok), nil, "a:upstream_malformed, a:upstream_malformed, b:succeeded fallback:a/m", ""},
		"what is blocked":            {list(ok), list(ok), func(c *Config) { c.Guards.Output = map[string]string{"email": "block"} }, "a:content_blocked", "content_blocked"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstreams(t, map[string][]http.HandlerFunc{"a": c.a, "b": c.b})
			s := plays(t, u, c.change)
			m := s.made(t, t.Context(), llm.Chat, question)
			m.reply, _ = guardOf(s.Guards.Output)
			f := m.run(t, t.Context())
			if got := m.trace(); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			if (f == nil) != (c.code == "") || f != nil && f.Code != c.code {
				t.Errorf("%+v, want %q", f, c.code)
			}
			if f == nil && (m.shown() != completion || string(m.output) != completion) {
				t.Errorf("the caller got %s, recorded is %s", m.shown(), m.output)
			}
			for i, x := range m.facts {
				if x.Attempt != int64(i+1) || x.API != llm.Chat || x.Requested != "a/m" || x.ProviderKey != "llm."+x.Provider && x.ErrorCode != fault.RateLimited { // no key is recorded if the only key is at its rate limit
					t.Errorf("%+v", x)
				}
			}
		})
	}
}

// TestAccount shows the usage and cost of a call with two attempts, that a key that the
// provider rejected is fetched again, and which header fields the caller receives.
func TestAccount(t *testing.T) {
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(401, ""), says(200, completion, "X-Request-Id", "r7", "X-Ratelimit-Limit-Requests", "9", "Set-Cookie", "c")}, "b": {says(200, completion)}})
	s := plays(t, u, nil)
	m := s.made(t, t.Context(), llm.Chat, question)
	if f := m.run(t, t.Context()); f != nil {
		t.Fatal(f)
	}
	last := m.facts[1]
	if last.InputTokens != 10 || last.OutputTokens != 5 || last.USDMicros != 20 || last.PriceVersion != "v" || last.Estimated || last.HTTPStatus != 200 || last.ResponseID != "x1" || last.ProviderRequestID != "r7" {
		t.Errorf("%+v", last)
	}
	if m.usage.InputTokens != 10 || m.usage.OutputTokens != 5 || m.usage.USDMicros != 20 || m.usage.Cents != 1 || m.usage.EgressBytes < 2*int64(len(u.bodies["a"][0])) {
		t.Errorf("%+v", m.usage)
	}
	if !slices.Equal(m.fetched, []string{"llm.a", "llm.a"}) || !slices.Equal(u.keys, []string{"key-llm.a-1", "key-llm.a-2"}) {
		t.Errorf("fetched %v, sent %v", m.fetched, u.keys)
	}
	h := m.out.said.Headers
	if h["X-Ratelimit-Limit-Requests"] != "9" || h["X-Provider-Request-Id"] != "r7" || h["Set-Cookie"] != "" || h[headerModel] != "a/m" || h[headerType] != typeJSON {
		t.Errorf("%v", h)
	}
	if got := gjson.Get(u.bodies["a"][1], "model").Str; got != "m" {
		t.Errorf("the provider is sent model %q", got)
	}
}

// TestReserved shows that an attempt that could exceed the reservation is not sent, and
// that the call then ends with the preceding failure. It also shows that attempts that
// are not billed leave the reservation to the next one.
func TestReserved(t *testing.T) {
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(504, "")}, "b": {says(200, completion)}})
	s := plays(t, u, nil)
	m := s.made(t, t.Context(), llm.Chat, question)
	in, free := m.args.Most(s.Limits("a/m"))
	m.room = &amounts{tokens: in + free} // enough for one attempt that may be billed
	f := m.run(t, t.Context())
	if f == nil || f.Code != fault.Timeout || m.trace() != "a:upstream_timeout, a:budget_exceeded" || len(u.bodies["b"]) != 0 {
		t.Errorf("%v: %s", f, m.trace())
	}
	u.mu.Lock()
	u.replies["a"] = []http.HandlerFunc{says(429, "")} // status 429 is not billed
	u.mu.Unlock()
	m = s.made(t, t.Context(), llm.Chat, question)
	m.room = &amounts{tokens: in + free}
	if f := m.run(t, t.Context()); f != nil || !strings.HasSuffix(m.trace(), "b:succeeded fallback:a/m") {
		t.Errorf("%v: %s", f, m.trace())
	}
}

// TestStreaming shows that another candidate is tried if a stream fails before its first
// content, and that the call fails if the stream fails later. The content that was
// received until then is recorded. The router requests the usage, but the caller, which
// did not request it, does not receive it.
func TestStreaming(t *testing.T) {
	whole := streams("", first, hello, stop, used, done)
	for name, c := range map[string]struct {
		a      http.HandlerFunc
		want   string
		code   string
		output string // text in the recorded output
	}{
		"whole":                 {whole, "a:succeeded", "", "hello"},
		"cut before content":    {streams("cut", first), "a:upstream_cut, a:upstream_cut, b:succeeded fallback:a/m", "", "hello"},
		"cut after content":     {streams("cut", first, hello), "a:upstream_cut", "upstream_cut", "hello"},
		"silent before content": {streams("silent", first), "a:upstream_timeout, a:upstream_timeout, b:succeeded fallback:a/m", "", "hello"},
		"silent after it":       {streams("silent", hello), "a:upstream_timeout", "upstream_timeout", "hello"},
		"an error before it":    {streams("", first, `{"error":{"message":"overloaded","code":503}}`), "a:upstream_error, a:upstream_error, b:succeeded fallback:a/m", "", "hello"},
		"an error after it":     {streams("", hello, `{"error":{"message":"overloaded"}}`), "a:upstream_error", "upstream_error", "hello"},
		"not JSON":              {streams("", `{"choices":`), "a:upstream_malformed, a:upstream_malformed, b:succeeded fallback:a/m", "", "hello"},
		"without any content":   {streams("", stop, used, done), "a:succeeded", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {c.a}, "b": {whole}})
			m := plays(t, u, nil).made(t, t.Context(), llm.Chat, strings.TrimSuffix(question, "}")+`,"stream":true}`)
			f := m.run(t, t.Context())
			if got := m.trace(); got != c.want || (f == nil) != (c.code == "") || f != nil && f.Code != c.code {
				t.Errorf("%s %+v\nwant %s", got, f, c.want)
			}
			if got := gjson.GetBytes(m.output, "choices.0.message.content").Str; got != c.output {
				t.Errorf("recorded is %s", m.output)
			}
			if f == nil && !strings.HasSuffix(m.shown(), "data: [DONE]\n\n") {
				t.Errorf("the caller got %s", m.shown())
			}
			if strings.Contains(m.shown(), "usage") || !gjson.Get(u.bodies["a"][0], "stream_options.include_usage").Bool() {
				t.Errorf("usage is requested for the record alone: sent %s, shown %s", u.bodies["a"][0], m.shown())
			}
			if last := m.facts[len(m.facts)-1]; f == nil && (last.InputTokens != 10 || last.Estimated) || f != nil && !last.Estimated {
				t.Errorf("%+v", last)
			}
		})
	}
}

// TestTranslated shows that a response of a provider with the chat API is translated
// into the messages API and into the responses API, with its text and its end, as a
// document and as a stream.
func TestTranslated(t *testing.T) {
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(200, completion)}, "b": {streams("", first, hello, stop, used, done)}})
	s := plays(t, u, func(c *Config) { c.Fallbacks = nil })
	for kind, x := range map[string]struct{ body, plain, end string }{
		llm.Messages:  {`{"model":"MODEL","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, `"stop_reason":"end_turn"`, "event: message_stop\n"},
		llm.Responses: {`{"model":"MODEL","input":"hi"}`, `"status":"completed"`, "event: response.completed\n"},
	} {
		m := s.made(t, t.Context(), kind, strings.Replace(x.body, "MODEL", "a/m", 1))
		if f := m.run(t, t.Context()); f != nil || !strings.Contains(m.shown(), x.plain) || !strings.Contains(m.shown(), "mail ada@example.org") || m.shown() != string(m.output) {
			t.Errorf("%s: %v %s", kind, f, m.shown())
		}
		m = s.made(t, t.Context(), kind, strings.TrimSuffix(strings.Replace(x.body, "MODEL", "b/m", 1), "}")+`,"stream":true}`)
		if f := m.run(t, t.Context()); f != nil || !strings.Contains(m.shown(), x.end) || !strings.Contains(m.shown(), "hello") || !strings.Contains(string(m.output), x.plain) {
			t.Errorf("%s: %v %s", kind, f, m.shown())
		}
		if id := m.facts[0].ResponseID; !strings.HasPrefix(id, m.api.IDPrefix) && id != "x1" {
			t.Errorf("%s: id %s", kind, id)
		}
	}
}

// TestGuardedStream shows that a finding that is split over two events is redacted,
// recorded only, or ends the call, as its action requires.
func TestGuardedStream(t *testing.T) {
	piece := func(s string) string { return `{"id":"x1","choices":[{"index":0,"delta":{"content":"` + s + `"}}]}` }
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {streams("", piece("mail ada@exa"), piece("mple.org now"), stop, used, done)}, "b": {says(500, "")}})
	for action, c := range map[string]struct{ want, text string }{"redact": {"a:succeeded", "mail [redacted:email] now"}, "flag": {"a:succeeded", "mail ada@example.org now"}, "block": {"a:content_blocked", ""}} {
		s := plays(t, u, nil)
		m := s.made(t, t.Context(), llm.Chat, strings.TrimSuffix(question, "}")+`,"stream":true}`)
		m.reply = scan.Guard{"email": action}
		_ = m.run(t, t.Context())
		text := gjson.GetBytes(m.output, "choices.0.message.content").Str
		if m.trace() != c.want || c.text != "" && text != c.text || action != "flag" && strings.Contains(m.shown(), "example.org") {
			t.Errorf("%s: %s, recorded %q, shown %s", action, m.trace(), text, m.shown())
		}
		if !slices.Contains(m.facts[0].Findings, "output.email:1") {
			t.Errorf("%s: findings %v", action, m.facts[0].Findings)
		}
	}
}

// TestLeft shows that a call whose caller disconnects is recorded as cancelled, that no
// other candidate is tried, and that the state of the key does not change.
func TestLeft(t *testing.T) {
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {streams("silent", first, hello)}, "b": {says(200, completion)}})
	s := plays(t, u, func(c *Config) { c.Breaker.Failures = 1; c.Providers[0].IdleMS = 60_000 })
	ctx, cancel := context.WithCancel(t.Context())
	m := s.made(t, ctx, llm.Chat, strings.TrimSuffix(question, "}")+`,"stream":true}`)
	time.AfterFunc(200*time.Millisecond, cancel)
	if f := m.run(t, ctx); f == nil || f.Code != fault.Cancelled || m.facts[0].Status != contract.Cancelled || len(u.bodies["b"]) != 0 {
		t.Errorf("%+v %+v", f, m.facts)
	}
	if name, rests := s.providers["a"].keys.pick(time.Now(), "t", "m"); rests != nil || name != "llm.a" {
		t.Errorf("the key is held responsible: %v", rests)
	}
}

// TestRace shows that the call is also sent to the second candidate if the first sends
// nothing for some time, that the second then supplies the response, and that both
// attempts are recorded.
func TestRace(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {slow}, "b": {says(200, completion)}})
	s := plays(t, u, func(c *Config) { c.HedgeMS = 20 })
	m := s.made(t, t.Context(), llm.Chat, question)
	if f := m.run(t, t.Context()); f != nil || m.shown() != completion {
		t.Fatalf("%v %s", f, m.shown())
	}
	if len(m.facts) != 2 || m.facts[0].Provider != "b" || m.facts[0].Rule != "hedge:a/m" || m.facts[0].Status != contract.Succeeded || m.facts[1].Status != contract.Cancelled {
		t.Errorf("%s", m.trace())
	}
}

// TestFailed shows the response that a caller receives after a failure: the status, the
// retry time, and the body of the provider's response unless it is about the router's
// key or not JSON. A response that has begun keeps its status.
func TestFailed(t *testing.T) {
	s := plays(t, newUpstreams(t, nil), nil)
	own := `{"error":{"message":"theirs"}}`
	for name, c := range map[string]struct {
		f      provider.Failure
		status int
		body   string
		fault  string
	}{
		"theirs":     {provider.Failure{Code: fault.RateLimited, Status: 429, Body: []byte(own), Message: "ours", Retry: 1200 * time.Millisecond}, 429, own, ""},
		"not JSON":   {provider.Failure{Code: fault.Upstream, Status: 529, Overloaded: true, Body: []byte("<html>"), Message: "ours"}, 503, "", "ours"},
		"about keys": {provider.Failure{Code: fault.CredentialInvalid, Status: 401, Body: []byte(own), Message: "ours"}, 502, "", "ours"},
		"ours":       {provider.Failure{Code: fault.InvalidInput, Message: "ours"}, 400, "", "ours"},
	} {
		m := s.made(t, t.Context(), llm.Chat, question)
		r := m.failed(&c.f)
		h := m.out.said
		if r.Status != contract.Failed || r.ErrorCode != c.f.Code || h.Status != c.status || m.shown() != c.body || c.fault != "" && (h.Fault == nil || h.Fault.Message != c.fault) {
			t.Errorf("%s: %+v %+v %s", name, r, h, m.shown())
		}
		if c.f.Retry > 0 && h.Headers["Retry-After"] != "2" {
			t.Errorf("%s: %v", name, h.Headers)
		}
	}
	m := s.made(t, t.Context(), llm.Chat, question)
	if err := m.out.claim(&attempt{}, &llm.Head{Status: 200, Headers: map[string]string{}}); err != nil {
		t.Fatal(err)
	}
	if r := m.failed(&provider.Failure{Code: fault.Cut}); r.ErrorCode != fault.Cut || m.out.said.Status != 200 {
		t.Error("a caller that has content gets another head")
	}
}

// TestPlanned shows that a call fails with the correct code, and names the member model,
// if the provider is unknown or the name does not have the form provider/model.
func TestPlanned(t *testing.T) {
	s := plays(t, newUpstreams(t, nil), nil)
	for model, want := range map[string]string{"x/m": fault.ModelNotFound, "alias": fault.InvalidInput, "/m": fault.InvalidInput} {
		c := &call{s: s, w: &execute.Work{Event: &contract.Event{}}, args: llm.Args{Model: model}}
		if _, f := c.plan(); f == nil || f.Code != want || f.Fault.Param != "/model" {
			t.Errorf("%s: %+v, want %s", model, f, want)
		}
	}
}

// TestWait shows that the wait before a retry is at least the time that the provider
// requires and at most retry.max_ms, after any number of tries, that there is no retry
// if the provider requires more, and that invalid limits are rejected.
func TestWait(t *testing.T) {
	const ms = time.Millisecond
	r := Retry{BaseMS: 200, MaxMS: 5000}
	for _, c := range []struct {
		try                 int
		after, least, limit time.Duration
		ok                  bool
	}{
		{1, 0, 0, 200 * ms, true}, {2, 0, 0, 400 * ms, true}, {37, 0, 0, 5000 * ms, true}, {64, 0, 0, 5000 * ms, true}, {1000, 0, 0, 5000 * ms, true},
		{1, 300 * ms, 300 * ms, 500 * ms, true}, {9, 4900 * ms, 4900 * ms, 5000 * ms, true}, {1, 5000 * ms, 5000 * ms, 5000 * ms, true}, {1, 5001 * ms, 0, 0, false},
	} {
		var most time.Duration
		for range 300 {
			wait, ok := r.wait(c.try, c.after)
			if ok != c.ok || wait < c.least || wait > c.limit {
				t.Fatalf("%+v: %v %v", c, wait, ok)
			}
			most = max(most, wait)
		}
		if most < c.least+(c.limit-c.least)/2 {
			t.Errorf("%+v: at most %v", c, most)
		}
	}
	for _, r := range []Retry{{Attempts: -1}, {BaseMS: -1}, {MaxMS: -1}, {MaxMS: 1 << 60}} {
		if err := (&Service{env: &run.Env{Tracer: &tracing.Tracer{}}, Config: Config{Retry: r}}).configure(); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
}

// TestBrokenAttempt shows that a stream with a negative index is malformed, in the chat
// API and in Gemini's, and that an attempt that panics fails alone: it is recorded, the
// next candidate is tried, and the key that it probed can be used again.
func TestBrokenAttempt(t *testing.T) {
	whole := streams("", first, hello, stop, used, done)
	streamed := strings.TrimSuffix(question, "}") + `,"stream":true}`
	retried := func(c *Config) { c.Retry.Attempts = 1 }
	for name, c := range map[string]struct{ kind, event string }{
		"answer":    {"compatible", `{"choices":[{"index":-1,"delta":{"content":"x"}}]}`},
		"tool call": {"compatible", `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":-1,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}`},
		"candidate": {"gemini", `{"candidates":[{"index":-1,"content":{"parts":[{"text":"x"}]}}]}`},
	} {
		u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {streams("", c.event, done)}, "b": {whole}})
		m := plays(t, u, func(cfg *Config) { retried(cfg); cfg.Providers[0].Kind = c.kind }).made(t, t.Context(), llm.Chat, streamed)
		if f := m.run(t, t.Context()); f != nil || m.trace() != "a:upstream_malformed, b:succeeded fallback:a/m" {
			t.Errorf("%s: %v %s", name, f, m.trace())
		}
	}
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(500, ""), whole}, "b": {whole}})
	s := plays(t, u, func(c *Config) { retried(c); c.Breaker = route.Break{Failures: 1, OpenMS: 1}; c.HedgeMS = 60_000 })
	m := s.made(t, t.Context(), llm.Chat, streamed)
	if f := m.run(t, t.Context()); f != nil || !strings.HasPrefix(m.trace(), "a:upstream_error") {
		t.Fatalf("%v %s", f, m.trace())
	}
	time.Sleep(10 * time.Millisecond)                      // wait until the breaker's open period has ended
	s.keys.refused(tenantKey{"t", "llm.a"}, "key-llm.a-1") // remove the cached key, so that the next call fetches it
	m = s.made(t, t.Context(), llm.Chat, streamed)
	m.w.Secret = func(context.Context, string) (string, error) { panic("a defect") }
	f := m.run(t, t.Context())
	if f != nil || m.trace() != "a:internal, b:succeeded fallback:a/m" || m.facts[0].ProviderKey != "llm.a" || m.usage.InputTokens == 0 {
		t.Errorf("%v %s %+v", f, m.trace(), m.facts)
	}
	if name, rests := s.providers["a"].keys.pick(time.Now(), "t", "m"); rests != nil || name != "llm.a" {
		t.Errorf("the key is locked: %v", rests)
	}
}

// TestHiddenFailure shows that neither the response nor the result of a call contains a
// provider's message about the router's key, and that the log contains the message
// without the key.
func TestHiddenFailure(t *testing.T) {
	const told = `{"error":{"message":"Incorrect API key provided: sk-pr***wxyz of org-7, key-llm.a-1","code":401}}`
	for name, reply := range map[string]http.HandlerFunc{"401": says(401, told), "403": says(403, told), "in a stream": streams("", first, told)} {
		u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {reply}})
		s := plays(t, u, func(c *Config) { c.Fallbacks, c.Retry.Attempts, c.Providers[0].Kind = nil, 1, "gemini" })
		var logged bytes.Buffer
		s.env.Log = slog.New(slog.NewTextHandler(&logged, nil))
		m := s.made(t, t.Context(), llm.Chat, strings.TrimSuffix(question, "}")+`,"stream":true}`)
		m.w.Hide("llm.a", "key-llm.a-1") // as the executor does when it fetches the key
		f := m.run(t, t.Context())
		if f == nil || f.Code != fault.CredentialInvalid {
			t.Fatalf("%s: %v", name, f)
		}
		r := m.failed(f)
		for where, text := range map[string]string{"the outcome": r.ErrorMessage, "the response": m.out.said.Fault.Message + m.shown()} {
			if !strings.HasPrefix(r.ErrorMessage, "provider a ") || strings.Contains(text, "sk-pr") || strings.Contains(text, "org-7") {
				t.Errorf("%s: %s has %s", name, where, text)
			}
		}
		if l := logged.String(); !strings.Contains(l, "sk-pr***wxyz of org-7") || !strings.Contains(l, "provider=a key=llm.a") || strings.Contains(l, "key-llm.a-1") {
			t.Errorf("%s: logged %s", name, l)
		}
	}
}

// TestRaceBroken shows that a hedged call ends with the failure of the attempt whose
// response had begun, without waiting for a response to the other attempt, which is
// cancelled and recorded.
func TestRaceBroken(t *testing.T) {
	begun := make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	breaks := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: "+hello+"\n\n")
		w.(http.Flusher).Flush()
		<-begun
		panic(http.ErrAbortHandler)
	}
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {slow}, "b": {breaks}})
	s := plays(t, u, func(c *Config) { c.HedgeMS = 20; c.Providers[0].FirstMS = 2000 })
	m := s.made(t, t.Context(), llm.Chat, strings.TrimSuffix(question, "}")+`,"stream":true}`)
	go func() {
		for !m.out.begun() {
			time.Sleep(time.Millisecond)
		}
		close(begun)
	}()
	since := time.Now()
	f := m.run(t, t.Context())
	if f == nil || f.Code != fault.Cut || time.Since(since) > time.Second {
		t.Errorf("%v after %v", f, time.Since(since))
	}
	if len(m.facts) != 2 || !strings.HasPrefix(m.trace(), "b:upstream_cut hedge:a/m, a:") || m.facts[1].Status != contract.Cancelled || gjson.GetBytes(m.output, "choices.0.message.content").Str != "hello" {
		t.Errorf("%s, recorded %s", m.trace(), m.output)
	}
}

// TestUnknownBlock shows that a caller of the provider's own API receives blocks of an
// unknown type, and that a caller of another API receives the other blocks.
func TestUnknownBlock(t *testing.T) {
	events := []string{`{"type":"message_start","message":{"id":"msg_1","model":"m"}}`, `{"type":"content_block_start","index":0,"content_block":{"type":"hologram","data":"zz"}}`, `{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"hello"}}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}`, `{"type":"message_stop"}`}
	whole := `{"id":"msg_1","type":"message","content":[{"type":"hologram","data":"zz"},{"type":"text","text":"hello"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":5}}`
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {streams("", events...), says(200, whole), streams("", events...), says(200, whole)}})
	s := plays(t, u, func(c *Config) { c.Fallbacks, c.Providers[0].Kind = nil, "anthropic" })
	for _, c := range []struct {
		kind, more string
		odd        bool
	}{{llm.Messages, `,"stream":true}`, true}, {llm.Messages, "}", true}, {llm.Chat, `,"stream":true}`, false}, {llm.Chat, "}", false}} {
		m := s.made(t, t.Context(), c.kind, strings.TrimSuffix(question, "}")+c.more)
		f := m.run(t, t.Context())
		if f != nil || m.trace() != "a:succeeded" || !strings.Contains(m.shown(), "hello") || strings.Contains(m.shown(), `"hologram","data":"zz"`) != c.odd {
			t.Errorf("%s%s: %v %s %s", c.kind, c.more, f, m.trace(), m.shown())
		}
	}
}

// TestImpossibleUsage shows that a usage with a negative or a huge amount is replaced by
// an estimate, so that no call has a negative cost.
func TestImpossibleUsage(t *testing.T) {
	for _, usage := range []string{`{"prompt_tokens":-1000,"completion_tokens":5}`, `{"prompt_tokens":10,"completion_tokens":9223372036854775807}`, `{"prompt_tokens":10,"completion_tokens":-1}`, `{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":-7}}`} {
		body := completion[:strings.Index(completion, `"usage":`)] + `"usage":` + usage + "}"
		u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(200, body), streams("", first, hello, stop, `{"id":"x1","choices":[],"usage":`+usage+`}`, done)}})
		s := plays(t, u, nil)
		for _, more := range []string{"}", `,"stream":true}`} {
			m := s.made(t, t.Context(), llm.Chat, strings.TrimSuffix(question, "}")+more)
			if f := m.run(t, t.Context()); f != nil {
				t.Fatal(f)
			}
			if x := m.facts[0]; x.InputTokens <= 0 || x.InputTokens > 100 || x.OutputTokens <= 0 || x.OutputTokens > 100 || x.CachedTokens != 0 || m.usage.USDMicros <= 0 {
				t.Errorf("%s%s: %+v %+v", usage, more, x, m.usage)
			}
		}
	}
}
