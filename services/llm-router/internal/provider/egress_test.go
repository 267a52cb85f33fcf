package provider

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// testAPI describes an API whose requests need no translation. reg contains one kind of
// provider, which offers only that API.
var (
	testAPI = &dialect.API{Name: "plain", Path: dialect.To("/plain"), Fault: func(status int, _ func(string) string, body []byte) *ir.Fault {
		return &ir.Fault{Status: status, Message: string(body)}
	}}
	reg = NewRegistry(Kind{Name: "test", APIs: []*dialect.API{testAPI}, Lists: true})
)

// tally is a listener that counts the bytes that its connections receive.
type tally struct {
	net.Listener
	n atomic.Int64
}

func (l *tally) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &tallied{c, &l.n}, err
}

type tallied struct {
	net.Conn
	n *atomic.Int64
}

func (c *tallied) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func serve(t testing.TB, h http.HandlerFunc) (*Provider, *tally) {
	srv := httptest.NewUnstartedServer(h)
	l := &tally{Listener: srv.Listener}
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	p, err := reg.New(Config{Name: "p", BaseURL: srv.URL + "/v1", Headers: map[string]string{"X-Title": "a title", "Host": "not.this"}}, &http.Client{Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	return p, l
}

// TestEgress shows that the count equals the bytes that a provider receives, for
// requests that succeed, requests that fail, and the list of models.
func TestEgress(t *testing.T) {
	var status atomic.Int64
	p, l := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	})
	var want int64
	check := func(what string, e *Egress) {
		t.Helper()
		want += e.End()
		if got := l.n.Load(); got != want || e.End() == 0 {
			t.Errorf("%s: counted %d, received %d", what, want, got)
		}
	}
	for _, code := range []int{200, 429, 500} {
		status.Store(int64(code))
		for _, size := range []int{1, 999, 100_000, 3 << 20} {
			var e Egress
			a, err := p.Do(t.Context(), &Call{API: testAPI, Model: "m", Key: "key", Trace: "00-a-b-01", Body: bytes.Repeat([]byte("x"), size), Egress: &e})
			if (err == nil) != (code == 200) {
				t.Fatal(code, err)
			}
			if a != nil {
				a.Close()
			}
			check("a request", &e)
		}
	}
	status.Store(200)
	var e Egress
	if models, err := p.List(t.Context(), "key", &e); err != nil || len(models) != 1 {
		t.Fatal(models, err)
	}
	check("a list", &e)
}

// TestEgressRefused shows that a request that exceeds the budget is not sent, and that
// the transport cannot get the body again if sending it again would exceed the budget.
func TestEgressRefused(t *testing.T) {
	p, l := serve(t, func(http.ResponseWriter, *http.Request) {})
	e := Egress{Afford: func(n int64) bool { return n < 1000 }}
	body := []byte(strings.Repeat("x", 1000))
	_, err := p.Do(t.Context(), &Call{API: testAPI, Body: body, Egress: &e})
	var f *Failure
	if !errors.As(err, &f) || f.Code != fault.OverBudget || !f.Free() || l.n.Load() != 0 || e.End() != 0 {
		t.Fatalf("%v; %d received", err, l.n.Load())
	}
	if _, err := p.List(t.Context(), "", &Egress{Afford: func(int64) bool { return false }}); err == nil || l.n.Load() != 0 {
		t.Fatalf("%v; %d received", err, l.n.Load())
	}
	checks := 0
	e = Egress{Afford: func(int64) bool { checks++; return checks == 1 }}
	req, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !e.afford(e.carry(req, body)) {
		t.Fatal("the first time is refused")
	}
	if _, err := req.GetBody(); err == nil {
		t.Error("the transport may send a request again that cannot be afforded")
	}
}

// TestEgressEnds shows that a body cannot be read after the attempt has ended, and that
// a provider that does not respond receives no uncounted bytes.
func TestEgressEnds(t *testing.T) {
	var late Egress
	req, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	late.carry(req, []byte("abc"))
	if n, err := io.ReadFull(req.Body, make([]byte, 2)); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	before := late.End()
	if n, err := req.Body.Read(make([]byte, 1)); n != 0 || err == nil || late.End() != before {
		t.Errorf("after the end %d bytes are sent: %v", n, err)
	}
	release := make(chan struct{})
	p, l := serve(t, func(w http.ResponseWriter, r *http.Request) { <-release; _, _ = io.Copy(io.Discard, r.Body) })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var e Egress
	body := make([]byte, 64<<20)
	if _, err := p.Do(ctx, &Call{API: testAPI, Body: body, Egress: &e}); err == nil {
		t.Fatal("it answered")
	}
	counted := e.End()
	close(release)
	time.Sleep(200 * time.Millisecond)
	if got := l.n.Load(); got > counted || counted >= int64(len(body)) || counted != e.End() {
		t.Errorf("counted %d, then %d; received %d", counted, e.End(), got)
	}
}

func BenchmarkEgress(b *testing.B) {
	p, err := reg.New(Config{Name: "p", BaseURL: "http://127.0.0.1:1/v1"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 80<<10)
	buf := make([]byte, 32<<10)
	req, err := p.request(b.Context(), &Call{API: testAPI, Model: "m", Key: "key", Trace: "00-a-b-01", Body: body})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var e Egress
		e.carry(req, body)
		for {
			if _, err := req.Body.Read(buf); err != nil {
				break
			}
		}
	}
}
