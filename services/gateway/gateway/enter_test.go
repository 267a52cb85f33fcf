package gateway

import (
	"bufio"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth/authtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// edge serves a gateway without other services, and with a ledger for its readiness only, which
// suffices for the checks before a handler runs. It returns the gateway, its address, and a
// function that mints tokens for it.
func edge(t *testing.T, limits body.Limits) (*Service, string, func(actor string, scopes ...string) string) {
	seed := make([]byte, ed25519.SeedSize)
	key, _ := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	s := &Service{Config: Config{TokenKeys: token.Fixed(key), Bodies: limits}}
	env := &run.Env{Log: slog.Default()}
	out := outsideOf(env, nil)
	out.Tenants, out.Queries = authtest.New("default"), &rpc.Client{}
	s.build(env, out)
	s.health.Ledger = &memlog.Log{} // read outside the handler's goroutine, where a panic is not recovered
	srv := httptest.NewServer(s.routes())
	t.Cleanup(srv.Close)
	return s, srv.Listener.Addr().String(), func(actor string, scopes ...string) string {
		raw, err := token.Mint(seed, "default", actor, "-", scopes, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
}

// begin sends the head of a request with the given Content-Length, followed by body,
// which may be shorter than that. It returns the connection.
func begin(t *testing.T, addr, method, path, bearer string, length int, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_, err = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, addr, bearer, length, body)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answer reads a response within d and returns its status and error code.
func answer(t *testing.T, c net.Conn, d time.Duration) (int, string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(d))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct{ Error struct{ Code string } }
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(resp.Status, err)
	}
	return resp.StatusCode, doc.Error.Code
}

// TestScopeBeforeBody checks that every route verifies the credential and the scope that
// it requires before it reads the body, and that every route with a method other than
// GET requires a scope, except the routes of logins. The requests of this test never
// send their bodies.
func TestScopeBeforeBody(t *testing.T) {
	s, addr, mint := edge(t, body.Limits{})
	health := "bearer " + mint("probe", token.Health)
	began, n := time.Now(), 0
	for _, r := range s.table() {
		if r.method != http.MethodGet && len(r.need.Scopes) == 0 && !r.need.Calls && !strings.HasPrefix(r.path, "/oauth/") && !strings.HasPrefix(r.path, "/auth/") {
			t.Errorf("%s %s needs no scope", r.method, r.path)
		}
		if r.need.Caller {
			n++
			if status, code := answer(t, begin(t, addr, r.method, r.path, "none", 1000, ""), 5*time.Second); status != 401 || code != "token_missing" {
				t.Errorf("%s %s without a token: %d %s", r.method, r.path, status, code)
			}
		}
		if r.need.Caller && (len(r.need.Scopes) > 0 || r.need.Calls) {
			if status, code := answer(t, begin(t, addr, r.method, r.path, health, 1000, ""), 5*time.Second); status != 403 || code != "scope_missing" {
				t.Errorf("%s %s with health:read: %d %s", r.method, r.path, status, code)
			}
		}
	}
	if d := time.Since(began); d > time.Duration(n)*time.Second { // if the gateway waited for the bodies, each route would take at least 2 s
		t.Errorf("%d routes took %s", n, d)
	}
}

// TestBodies checks that the depth, size, rate, total time and encoding of a body are
// checked before any handler runs.
func TestBodies(t *testing.T) {
	_, addr, mint := edge(t, body.Limits{Rate: 1000, Window: 500 * time.Millisecond, Total: 2 * time.Second})
	all := "BEARER " + mint("alice", token.All...)
	post := func(length int, body string) net.Conn {
		return begin(t, addr, "POST", "/api/v1/judgements", all, length, body)
	}
	deep := strings.Repeat("[", 1<<20)
	if status, code := answer(t, post(len(deep), deep), 5*time.Second); status != 400 || code != "invalid_input" {
		t.Error("deep", status, code)
	}
	if status, code := answer(t, post(body.Max+1, ""), 5*time.Second); status != 413 || code != "body_too_large" {
		t.Error("announced as too large", status, code)
	}
	began := time.Now()
	if status, code := answer(t, post(100, `{"a":`), 5*time.Second); status != 408 || code != "body_too_slow" || time.Since(began) > 2*time.Second {
		t.Error("stopped", status, code, time.Since(began))
	}
	// Half of the minimum rate is too slow: the request fails about one window after its
	// start.
	c, began := post(100_000, "{"), time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := c.Write([]byte(strings.Repeat(" ", 50))); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	if status, code := answer(t, c, 5*time.Second); status != 408 || code != "body_too_slow" || time.Since(began) > 1900*time.Millisecond {
		t.Error("slow", status, code, time.Since(began))
	}
	c.Close()
	<-done
	// Twice the minimum rate is fast enough, until the total time has passed.
	c, began = post(100_000, "{"), time.Now()
	go func() {
		for {
			if _, err := c.Write([]byte(strings.Repeat(" ", 200))); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	if status, code := answer(t, c, 5*time.Second); status != 408 || code != "body_too_slow" || time.Since(began) < 1900*time.Millisecond {
		t.Error("total", status, code, time.Since(began))
	}
	c.Close()
	req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/api/v1/judgements", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", all)
	req.Header.Set("Content-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnsupportedMediaType {
		t.Error("gzip", resp.Status)
	}
}

// TestBodyBudget checks that the total size of one caller's bodies and of all callers'
// bodies is limited, and that bodies of ended requests no longer count.
func TestBodyBudget(t *testing.T) {
	s, addr, mint := edge(t, body.Limits{Caller: 1000, All: 2500})
	send := func(actor string, n int) net.Conn {
		c := begin(t, addr, "POST", "/api/v1/judgements", "Bearer "+mint(actor, token.All...), n+1, strings.Repeat(" ", n))
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) { // wait until a body is counted and then 20 ms more, in which this body is counted, too
			all, _ := s.gate.Bodies.Held()
			if all > 0 {
				time.Sleep(20 * time.Millisecond)
				break
			}
		}
		return c
	}
	send("a", 900)
	if status, code := answer(t, send("a", 200), 5*time.Second); status != 429 || code != "body_budget_exceeded" {
		t.Error("caller's budget", status, code)
	}
	send("b", 900)
	c := send("c", 600)
	if status, code := answer(t, send("d", 500), 5*time.Second); status != 429 || code != "body_budget_exceeded" {
		t.Error("gateway's budget", status, code)
	}
	c.Close()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		all, callers := s.gate.Bodies.Held()
		if all == 1800 && callers == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what ended is still counted", all, callers)
		}
	}
}

// TestSlowBodiesBlockNobody checks that 200 requests whose bodies stall do not block
// other requests, and that the gateway ends them.
func TestSlowBodiesBlockNobody(t *testing.T) {
	s, addr, mint := edge(t, body.Limits{Rate: 1000, Window: time.Second})
	all := "Bearer " + mint("slow", token.All...)
	var conns []net.Conn
	for range 200 {
		conns = append(conns, begin(t, addr, "POST", "/api/v1/calls", all, body.Max, "{"))
	}
	if status, _ := answer(t, begin(t, addr, "POST", "/api/v1/calls", "Bearer "+mint("fast", token.All...), 2, "[]"), 900*time.Millisecond); status != 400 {
		t.Error("another's request", status)
	}
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			if status, code := answer(t, c, 10*time.Second); status != 408 || code != "body_too_slow" {
				t.Error(status, code)
			}
		})
	}
	wg.Wait()
	if all, _ := s.gate.Bodies.Held(); all != 0 {
		t.Error("still held:", all)
	}
}
