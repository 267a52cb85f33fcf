package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// TestNew shows that the error for an invalid configuration begins with the invalid
// member. It also shows which defaults New sets, and that Locals returns the provider of
// a local kind.
func TestNew(t *testing.T) {
	home := Kind{Name: "home", Base: "http://127.0.0.1/v1/", APIs: []*dialect.API{testAPI}, Prepare: func(c *Config) error {
		if c.Region == "nowhere" {
			return fmt.Errorf("region: there is none")
		}
		return nil
	}}
	r := NewRegistry(home, Kind{Name: "other", APIs: []*dialect.API{testAPI}}, Kind{Name: "here", Local: &Local{Models: []string{"m"}}})
	for want, c := range map[string]Config{
		`kind: "x": want home or other`:                {Kind: "x"},
		`kind: "here": want home or other`:             {Kind: "here"},
		`region: there is none`:                        {Kind: "home", Region: "nowhere"},
		`base_url: want http:// or https://`:           {},
		`base_url: want http:// or https:// without`:   {BaseURL: "http://user:secret@host"},
		`base_url: want http:// or https:// withou`:    {BaseURL: "ftp://host"},
		`apis: "x" is unknown`:                         {Kind: "home", APIs: []string{"x"}},
		`limit: -1: want a number from 0 to 1000000`:   {Kind: "home", Limit: -1},
		`first_byte_ms: -1: want a number from 0 to `:  {Kind: "home", FirstMS: -1},
		`idle_ms: 86400001: want a number from 0 to 8`: {Kind: "home", IdleMS: 86_400_001},
		`secrets: "key": the names of provider keys `:  {Kind: "home", Secrets: []string{"key"}},
	} {
		if _, err := r.New(c, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
	p, err := r.New(Config{Name: "n", BaseURL: "http://host/v1/"}, nil)
	if err != nil || p.Kind != "other" || p.BaseURL != "http://host/v1" || p.TraceName() != "n" || !p.OldBound() || p.Limit != defaultLimit {
		t.Errorf("%+v %v", p, err)
	}
	if l := r.Locals(); len(l) != 1 || l[0].Name != "here" || l[0].Local() == nil {
		t.Errorf("%+v", l)
	}
}

// TestRegistry shows that NewRegistry panics if two kinds, or two different APIs, have
// the same name.
func TestRegistry(t *testing.T) {
	for name, kinds := range map[string][]Kind{
		"one name twice":     {{Name: "a"}, {Name: "a"}},
		"one name, two APIs": {{Name: "a", APIs: []*dialect.API{{Name: "x"}}}, {Name: "b", APIs: []*dialect.API{{Name: "x"}}}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is a list", name)
				}
			}()
			NewRegistry(kinds...)
		}()
	}
}

// TestChoice shows which API of a provider is selected for a call.
func TestChoice(t *testing.T) {
	chat, last, vectors := &dialect.API{Name: "chat", Kind: "k", Rank: 1}, &dialect.API{Name: "last", Rank: 5}, &dialect.API{Name: "vectors", Embed: &dialect.Embedding{}}
	r := NewRegistry(Kind{Name: "k", Base: "http://h", APIs: []*dialect.API{last, chat, vectors}})
	p, err := r.New(Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.Native("k") != chat || p.Native("other") != nil || p.Translated() != chat || p.Embeds() != vectors {
		t.Error("the first fit is not taken")
	}
	if p, err = r.New(Config{APIs: []string{"last"}}, nil); err != nil || p.Native("k") != nil || p.Translated() != last || p.Embeds() != nil {
		t.Errorf("the configuration's own list: %v", err)
	}
}

// TestFailures shows which failure is returned for various ways in which a request can
// fail, whether the attempt is free (see Failure.Free), and that the failure does not
// contain the key.
func TestFailures(t *testing.T) {
	deep := strings.Repeat("[", canon.MaxDepth+1) + strings.Repeat("]", canon.MaxDepth+1)
	var reply atomic.Pointer[http.HandlerFunc]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*reply.Load())(w, r) }))
	defer srv.Close()
	p, err := reg.New(Config{Name: "p", BaseURL: srv.URL, FirstMS: 100, IdleMS: 100}, srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "it says the-key")
		}
	}
	flush := func(text string, then func(r *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, text)
			w.(http.Flusher).Flush()
			then(r)
		}
	}
	wait := func(r *http.Request) { <-r.Context().Done() }
	abort := func(*http.Request) { panic(http.ErrAbortHandler) }
	for name, c := range map[string]struct {
		reply http.HandlerFunc
		code  string
		retry time.Duration
		free  bool
	}{
		"a limit":            {status(429, "Retry-After", "2"), fault.RateLimited, 2 * time.Second, true},
		"a limit in ms":      {status(429, "Retry-After-Ms", "1500", "Retry-After", "9"), fault.RateLimited, 1500 * time.Millisecond, true},
		"a date gone by":     {status(503, "Retry-After", "Mon, 02 Jan 2006 15:04:05 GMT"), fault.Upstream, 0, true},
		"a limit for ever":   {status(429, "Retry-After", "1e300"), fault.RateLimited, 365 * 24 * time.Hour, true},
		"an infinite limit":  {status(429, "Retry-After-Ms", "inf"), fault.RateLimited, 365 * 24 * time.Hour, true},
		"an odd time":        {status(503, "Retry-After", "soon"), fault.Upstream, 0, true},
		"a bad key":          {status(401), fault.CredentialInvalid, 0, true},
		"a redirect":         {status(304), fault.Upstream, 0, true},
		"their timeout":      {status(504), fault.Timeout, 0, false},
		"silence":            {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body); wait(r) }, fault.Timeout, 0, false},
		"silence within":     {flush("{", wait), fault.Timeout, 0, false},
		"a cut":              {flush("{", abort), fault.Cut, 0, false},
		"a broken line":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, fault.Unreachable, 0, false},
		"an answer too deep": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, deep) }, fault.Malformed, 0, false},
	} {
		reply.Store(&c.reply)
		_, err := p.Do(t.Context(), &Call{API: testAPI, Body: []byte("{}"), Key: "the-key", Egress: &Egress{}})
		var f *Failure
		if !errors.As(err, &f) || f.Code != c.code || f.Retry != c.retry || f.Free() != c.free || !strings.HasPrefix(f.Error(), "provider p ") && !strings.HasPrefix(f.Error(), "provider p:") {
			t.Errorf("%s: %+v, want %s", name, err, c.code)
			continue
		}
		if strings.Contains(f.Message+string(f.Body), "the-key") || f.Fault != nil && strings.Contains(f.Fault.Message, "the-key") {
			t.Errorf("%s: the key is in the failure", name)
		}
	}
	unreachable, err := reg.New(Config{Name: "p", BaseURL: "http://127.0.0.1:1"}, srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	_, err = unreachable.Do(t.Context(), &Call{API: testAPI, Egress: &Egress{}})
	var f *Failure
	if !errors.As(err, &f) || f.Code != fault.Unreachable || !f.Free() {
		t.Errorf("a connection that was refused: %+v", err)
	}
	said := p.Said(&ir.Fault{Status: 429, Message: "slow down", RetryMS: 70})
	if said.Code != fault.RateLimited || said.Retry != 70*time.Millisecond || said.Free() {
		t.Errorf("an error in a stream: %+v", said)
	}
}

// TestStream shows that an event is returned before the stream has ended, that Next
// returns ErrDeep for JSON that is nested too deep, and that a time limit ends a silent
// stream.
func TestStream(t *testing.T) {
	var reply http.HandlerFunc
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reply(w, r) }))
	defer srv.Close()
	p, err := reg.New(Config{Name: "p", BaseURL: srv.URL, IdleMS: 100}, srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	reply = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: one\n\ndata: "+strings.Repeat("[", canon.MaxDepth+1)+"\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, err := p.Do(ctx, &Call{API: testAPI, Stream: true, Egress: &Egress{}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if e, err := a.Next(); err != nil || string(e.Data) != "one" {
		t.Errorf("%+v %v", e, err)
	}
	if _, err := a.Next(); !errors.Is(err, ErrDeep) {
		t.Errorf("%v, want %v", err, ErrDeep)
	}
	if _, err := a.Next(); err == nil {
		t.Error("a stream that fell silent goes on")
	}
}

func TestModels(t *testing.T) {
	for doc, want := range map[string]string{`{"data":[{"id":"a"},{"id":"b"}]}`: "[a b]", `{"models":[{"name":"models/a"},{"name":"b"}]}`: "[a b]", `{}`: "[]"} {
		if got, err := models([]byte(doc)); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v %v", doc, got, err)
		}
	}
	for _, doc := range []string{"", "[]", strings.Repeat("[", canon.MaxDepth+1)} {
		if got, err := models([]byte(doc)); err == nil {
			t.Errorf("%.9s: %v", doc, got)
		}
	}
}

// TestSlowBody shows that a body that is not a stream may take longer than the idle
// time, as long as it continues to arrive, and that silence within it ends the request.
func TestSlowBody(t *testing.T) {
	var pause time.Duration
	var status int
	p, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		tick := time.Tick(pause)
		w.WriteHeader(status)
		for range 10 {
			_, _ = io.WriteString(w, "[")
			w.(http.Flusher).Flush()
			select {
			case <-tick:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, "1"+strings.Repeat("]", 10))
	})
	p.IdleMS = 200
	for _, c := range []struct {
		status int
		pause  time.Duration
		code   string
	}{{200, 40 * time.Millisecond, ""}, {200, time.Second, fault.Timeout}, {500, 40 * time.Millisecond, fault.Upstream}} {
		status, pause = c.status, c.pause
		a, err := p.Do(t.Context(), &Call{API: testAPI, Body: []byte("{}"), Egress: &Egress{}})
		const whole = "[[[[[[[[[[1]]]]]]]]]]"
		var f *Failure
		switch {
		case c.code == "":
			if err != nil || string(a.Body) != whole {
				t.Errorf("%+v: %v", c, err)
			}
		case !errors.As(err, &f) || f.Code != c.code || c.status == 500 && f.Fault.Message != whole:
			t.Errorf("%+v: %+v", c, err)
		}
	}
}
