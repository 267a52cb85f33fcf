package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// gateways starts n servers, each of which responds with its number, and a balancer for
// them.
func gateways(t *testing.T, n int) (servers []*httptest.Server, addr string, p *pool) {
	var addrs []string
	for i := range n {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte{byte('0' + i)})
		}))
		t.Cleanup(s.Close)
		servers, addrs = append(servers, s), append(addrs, s.Listener.Addr().String())
	}
	p = newPool(func(context.Context) ([]string, error) { return append([]string{}, addrs...), nil })
	p.round(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = serve(t.Context(), l, p) }()
	return servers, l.Addr().String(), p
}

func get(t *testing.T, addr string) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	r, err := c.Get("http://" + addr + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestBalancerOneDies checks that connections are distributed over all gateways, and
// that connections made after one gateway has stopped are forwarded to the others, even
// before the next probe.
func TestBalancerOneDies(t *testing.T) {
	servers, addr, p := gateways(t, 3)
	seen := map[string]int{}
	for range 9 {
		seen[get(t, addr)]++
	}
	if len(seen) != 3 || seen["0"] != 3 {
		t.Errorf("9 connections went to %v", seen)
	}
	servers[1].Close()
	for range 9 {
		if got := get(t, addr); got == "1" {
			t.Error("a closed gateway answered")
		}
	}
	if !p.any() {
		t.Error("two gateways are left, and none is known to answer")
	}
}

// TestBalancerLeavesOutHung checks that, after a probe, a gateway that accepts
// connections but does not respond is tried last, and that a draining gateway does not
// count as ready.
func TestBalancerLeavesOutHung(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	var draining atomic.Bool
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if draining.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer good.Close()
	p := newPool(func(context.Context) ([]string, error) {
		return []string{hung.Addr().String(), good.Listener.Addr().String()}, nil
	})
	p.round(t.Context())
	for range 4 {
		if got := p.order()[0]; got != good.Listener.Addr().String() {
			t.Errorf("the first to try is %s, which does not answer", got)
		}
	}
	draining.Store(true)
	p.round(t.Context())
	if p.any() {
		t.Error("a gateway that drains and one that hangs count as answering")
	}
}

// TestBalancerKeepsHalves checks that a client that has closed its sending half receives
// the rest of the response.
func TestBalancerKeepsHalves(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b, _ := io.ReadAll(c) // returns when the client has closed its sending half
		_, _ = c.Write(append(b, '!'))
		c.Close()
	}()
	p := newPool(func(context.Context) ([]string, error) { return []string{l.Addr().String()}, nil })
	p.all, p.alive = []string{l.Addr().String()}, map[string]bool{l.Addr().String(): true}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = serve(t.Context(), front, p) }()
	c, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = c.Write([]byte("all"))
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "all!" {
		t.Errorf("received %q, %v", b, err)
	}
}

// TestBalancerProbesTLS checks that gateways with TLS are probed over TLS, so that
// draining is detected and at most one failed handshake is logged, and that the next
// probe detects a change from TLS to plain text.
func TestBalancerProbesTLS(t *testing.T) {
	var draining atomic.Bool
	var plain atomic.Int64
	serve := func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			plain.Add(1)
		}
		if draining.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	var failed atomic.Int64
	secure := httptest.NewUnstartedServer(http.HandlerFunc(serve))
	secure.Config.ErrorLog = log.New(writer(func(b []byte) { failed.Add(1) }), "", 0)
	secure.StartTLS()
	defer secure.Close()
	bare := httptest.NewServer(http.HandlerFunc(serve))
	defer bare.Close()
	addr := secure.Listener.Addr().String()
	p := newPool(func(context.Context) ([]string, error) { return []string{addr}, nil })
	for range 5 {
		p.round(t.Context())
		if !p.any() {
			t.Fatal("a gateway under TLS is not known to answer")
		}
	}
	if n := failed.Load(); n > 1 {
		t.Errorf("%d probes failed their handshake", n)
	}
	draining.Store(true)
	if p.round(t.Context()); p.any() {
		t.Error("a gateway under TLS that drains counts as answering")
	}
	draining.Store(false)
	addr = bare.Listener.Addr().String()
	if p.round(t.Context()); !p.any() || plain.Load() == 0 {
		t.Error("a gateway without TLS is not known to answer")
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }
