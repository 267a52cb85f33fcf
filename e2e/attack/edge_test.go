package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// head opens a connection and sends the header of a request and the first bytes of its
// body. If token is empty, the request has no Authorization field.
func head(t *testing.T, m *harness.Mesh, method, path, token string, length int, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	auth := ""
	if token != "" {
		auth = "Authorization: Bearer " + token + "\r\n"
	}
	_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", method, path, auth, length, body)
	return c
}

// reply returns the status and the error code of the response, or an error if none is
// received within d.
func reply(c net.Conn, d time.Duration) (int, string, error) {
	_ = c.SetReadDeadline(time.Now().Add(d))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var doc struct{ Error struct{ Code string } }
	_ = json.NewDecoder(resp.Body).Decode(&doc)
	return resp.StatusCode, doc.Error.Code, nil
}

// mint returns a new token, signed with the mesh's key.
func mint(t *testing.T, m *harness.Mesh, actor string, scopes ...string) string {
	t.Helper()
	args := []string{"token", "create", "--actor", actor}
	for _, s := range scopes {
		args = append(args, "--scope", s)
	}
	out, err := m.CLI(args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// entrances returns the paths of all POST routes in the mesh's OpenAPI document, with
// values in place of the parameters name, call and id.
func entrances(t *testing.T, m *harness.Mesh) []string {
	t.Helper()
	r, err := m.Do(context.Background(), http.MethodGet, "/openapi.json", "", "")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	r.JSON(t, &doc)
	var out []string
	for path, ops := range doc.Paths {
		if ops["post"] != nil {
			out = append(out, strings.NewReplacer("{name}", "noop", "{call}", "c-none", "{id}", "none").Replace(path))
		}
	}
	if len(out) < 12 {
		t.Fatal("the mesh lists only", out)
	}
	return out
}

// forms are the paths of the POST routes whose body is a form, not JSON.
var forms = []string{"/oauth/token", "/oauth/device", "/oauth/register", "/oauth/revoke", "/oauth/introspect", "/auth/login", "/auth/logout", "/auth/consent", "/auth/device", "/auth/oidc", "/auth/passkeys", "/auth/approvals"}

// In an earlier version, a request whose token had only the scope health:read could send
// 16 MB of open brackets, which crashed the process. The scope is now checked before the
// body is read.
var _ = register("12.1 body of the unentitled", func(t *testing.T, m *harness.Mesh) {
	probe := mint(t, m, "probe-121", "health:read")
	var slow sync.WaitGroup
	defer slow.Wait()
	// late sends a request without its body, and checks that the response has the status 408.
	late := func(path, token string) {
		c := head(t, m, "POST", path, token, 1000, "")
		slow.Go(func() {
			if status, code, err := reply(c, 40*time.Second); status != http.StatusRequestTimeout {
				t.Errorf("%s with a body that never comes: %d %s %v", path, status, code, err)
			}
		})
	}
	for _, path := range entrances(t, m) {
		if strings.HasPrefix(path, "/auth/") { // pages, whose forms browsers send with their origin
			if status, _, err := reply(head(t, m, "POST", path, probe, 1000, ""), 10*time.Second); status != 403 {
				t.Errorf("%s without an origin and a body that never comes: %d %v", path, status, err)
			}
			continue
		}
		if slices.Contains(forms, path) { // these routes require no scope, and only /oauth/introspect requires a token
			late(path, probe)
			if path != "/oauth/introspect" {
				late(path, "")
				continue
			}
		} else if status, code, err := reply(head(t, m, "POST", path, probe, 1000, ""), 10*time.Second); status != 403 || code != "scope_missing" {
			t.Errorf("%s with health:read and a body that never comes: %d %s %v", path, status, code, err)
		}
		if status, code, err := reply(head(t, m, "POST", path, "", 1000, ""), 10*time.Second); status != 401 || code != "token_missing" {
			t.Errorf("%s without a token and a body that never comes: %d %s %v", path, status, code, err)
		}
	}
})

// hostile returns bodies, by name, that crash or exhaust careless JSON parsers or are not
// valid JSON.
func hostile() map[string]string {
	const n = 16<<20 - 100
	deep := `{"model":"demo/echo","input":"x","messages":`
	inner := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	text := inner
	for range 3 { // encode JSON as a string in JSON, three times
		b, _ := json.Marshal(map[string]string{"a": text})
		text = string(b)
	}
	return map[string]string{
		"brackets":       strings.Repeat("[", n),
		"in a member":    deep + strings.Repeat("[", n-len(deep)),
		"objects":        strings.Repeat(`{"a":`, n/5),
		"mixed, closed":  strings.Repeat(`[{"a":`, 100_000) + "1" + strings.Repeat("}]", 100_000),
		"129":            `{"kind":"tool.noop","args":{"a":` + strings.Repeat("[", 127) + strings.Repeat("]", 127) + `}}`,
		"behind a quote": `{"a":"\\\"` + strings.Repeat("[", 1000) + `\\","b":` + strings.Repeat("[", 1<<20),
		"in strings":     `{"kind":"tool.noop","args":` + text + `}`,
		"wide":           `{"kind":"tool.noop","args":{"a":[` + strings.Repeat("0,", 1<<20) + `0]}}`,
		"truncated":      `{"kind":"tool.noop","args":{"a":"`,
		"no UTF-8":       "{\"kind\":\"tool.noop\",\"args\":{\"a\":\"\xff\xfe\xc0\x80\"}}",
		"lone surrogate": `{"kind":"tool.noop","args":{"a":"\ud800"}}`,
		"huge number":    `{"kind":"tool.noop","args":{"a":1` + strings.Repeat("0", 1<<20) + `}}`,
		"nothing":        "\x00",
	}
}

var _ = register("12.1 nested bodies at every entrance", func(t *testing.T, m *harness.Mesh) {
	bodies := hostile()
	for _, path := range entrances(t, m) {
		caller := m
		if path == "/log/cosignatures" {
			caller = m.Operator()
		}
		for name, body := range bodies {
			kind := "application/json"
			if slices.Contains(forms, path) {
				kind = "application/x-www-form-urlencoded"
			}
			r, err := caller.DoHeader(context.Background(), http.MethodPost, path, body, map[string]string{"Content-Type": kind, "Accept": "application/json, text/event-stream"})
			if slices.Contains(forms, path) {
				// The server may close the connection when the client has sent 64 KiB.
				if err == nil && (r.Status >= 500 || r.Status == http.StatusOK && len(body) > 64<<10 && path != "/oauth/introspect") || err != nil && len(body) <= 64<<10 {
					t.Errorf("%s %s: %v %v", path, name, r, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s %s: %v", path, name, err)
			}
			if r.Status >= 500 && r.Status != http.StatusBadGateway && r.Status != http.StatusServiceUnavailable {
				t.Errorf("%s %s: %d %.200s", path, name, r.Status, r.Body)
			}
			switch name {
			case "brackets", "in a member", "objects", "mixed, closed", "129", "behind a quote":
				if path == "/api/v1/evidence/verify" { // this route expects a tar file, so its verdict on each of these bodies is FAIL
					if !strings.Contains(string(r.Body), `"verdict":"FAIL"`) {
						t.Errorf("%s %s: %d %.200s", path, name, r.Status, r.Body)
					}
					continue
				}
				if path == "/api/v1/artifacts" { // this route stores any bytes
					if r.Status != http.StatusOK {
						t.Errorf("%s %s: %d %.200s", path, name, r.Status, r.Body)
					}
					continue
				}
				if r.Status != http.StatusBadRequest || !strings.Contains(string(r.Body), "nesting deeper than 128") {
					t.Errorf("%s %s: %d %.200s", path, name, r.Status, r.Body)
				}
			}
		}
	}
	r, err := m.Do(context.Background(), http.MethodPost, "/api/v1/packs/noop", "s-attack-121", `{"say":"alive"}`)
	if err != nil || r.Status != http.StatusOK {
		t.Fatal("an ordinary call after all this:", r, err)
	}
})

var _ = register("12.1 compressed body", func(t *testing.T, m *harness.Mesh) {
	for _, enc := range []string{"gzip", "br", "deflate, gzip"} {
		r, err := m.DoHeader(context.Background(), http.MethodPost, "/api/v1/calls", "\x1f\x8b\x08\x00", map[string]string{"Content-Encoding": enc})
		if err != nil || r.Status != http.StatusUnsupportedMediaType {
			t.Errorf("%s: %v %v", enc, r, err)
		}
	}
})

// rss returns the resident memory, in bytes, of the process that serves HTTP, or 0 if
// the test cannot read it.
func rss(m *harness.Mesh) int64 {
	name := map[string]string{"one": "binnacle", "processes": "gateway"}[m.Name]
	if name == "" {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.PID(name)))
	if err != nil {
		return 0
	}
	var size, resident int64
	_, _ = fmt.Sscan(string(b), &size, &resident)
	return resident * int64(os.Getpagesize())
}

var _ = register("12.12 slow bodies", func(t *testing.T, m *harness.Mesh) {
	token, before := mint(t, m, "slow-1212", "tools:call"), rss(m)
	var conns []net.Conn
	for range 200 { // each request declares a body of 16 MiB and sends one byte of it
		conns = append(conns, head(t, m, "POST", "/api/v1/calls", token, 16<<20, "{"))
	}
	stop := make(chan struct{})
	var drip sync.WaitGroup
	for _, c := range conns {
		drip.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
					if _, err := c.Write([]byte(" ")); err != nil {
						return
					}
				}
			}
		})
	}
	for range 20 {
		began := time.Now()
		r, err := m.Do(context.Background(), http.MethodPost, "/api/v1/packs/noop", "s-attack-1212", "{}")
		if err != nil || r.Status != http.StatusOK {
			t.Fatal("an ordinary call beside slow bodies:", r, err)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("an ordinary call beside slow bodies took %s", d)
		}
	}
	if grown := rss(m) - before; grown > 96<<20 {
		t.Errorf("200 bodies of one byte took %d MiB", grown>>20)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for _, c := range conns {
		wg.Go(func() {
			status, code, err := reply(c, 30*time.Second)
			mu.Lock()
			defer mu.Unlock()
			if err != nil { // no response: the gateway closed the connection, or reading timed out
				seen["closed"]++
				var ne net.Error
				if errors.As(err, &ne) && ne.Timeout() {
					seen["open"]++
				}
				return
			}
			seen[fmt.Sprint(status, " ", code)]++
		})
	}
	wg.Wait()
	close(stop)
	drip.Wait()
	if seen["open"] > 0 || seen["408 body_too_slow"]+seen["closed"] != 200 || seen["408 body_too_slow"] < 100 {
		t.Errorf("slow bodies ended as %v", seen)
	}
})

// The memory for one caller's unfinished request bodies is limited, and requests of
// other callers are still served.
var _ = register("12.12 bodies held at once", func(t *testing.T, m *harness.Mesh) {
	hog, other := mint(t, m, "hog-1212", "tools:call"), mint(t, m, "other-1212", "tools:call")
	const n = 15 << 20
	filler := strings.Repeat(" ", n)
	var conns []net.Conn
	for range 2 {
		conns = append(conns, head(t, m, "POST", "/api/v1/calls", hog, n+1, filler))
	}
	time.Sleep(time.Second)
	third := head(t, m, "POST", "/api/v1/calls", hog, n+1, "")
	go func() { _, _ = io.WriteString(third, filler) }()
	if status, code, err := reply(third, 20*time.Second); err == nil && (status != 429 || code != "body_budget_exceeded") {
		t.Errorf("the third body of 15 MiB: %d %s", status, code)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+m.Addr+"/api/v1/packs/noop", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "bearer "+other)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error("another caller meanwhile:", resp.Status)
	}
	for _, c := range conns {
		c.Close()
	}
})

var _ = register("12.12 headers", func(t *testing.T, m *harness.Mesh) {
	c, err := net.Dial("tcp", m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: %s\r\n\r\n", strings.Repeat("a", 200<<10))
	if status, _, err := reply(c, 10*time.Second); err == nil && status != http.StatusRequestHeaderFieldsTooLarge {
		t.Error("200 kB of headers:", status)
	}
})
