package mesh

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// lines is a buffer for a log, one JSON object per line. It is safe for concurrent use.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// requests returns the lines of the access log with a method and route.
func (l *lines) requests(t *testing.T, method, route string) (found []map[string]any) {
	l.mu.Lock()
	text := l.b.String()
	l.mu.Unlock()
	for _, raw := range strings.Split(strings.TrimSpace(text), "\n") {
		var line map[string]any
		if err := json.Unmarshal([]byte(raw), &line); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		if line["msg"] == "request" && line["method"] == method && line["route"] == route {
			found = append(found, line)
		}
	}
	return found
}

// bearing is a transport that adds a bearer token to requests.
type bearing struct{ token string }

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

// TestAccessLog checks that each of several API requests, and a call over MCP, is logged
// on one line with route, status and duration and, where the request has them, tenant,
// actor, call id and error code. No line contains a token, argument, query, path parameter
// or unknown path, and a health probe is not logged at level info.
func TestAccessLog(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var log lines
	slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
	m, err := Start(t.Context(), Config{Dir: t.TempDir(), Addr: "127.0.0.1:0", Noop: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Stop() }()
	client := &http.Client{Transport: bearing{m.Token}}
	do := func(client *http.Client, method, path, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, m.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp
	}
	// one waits for the line of a request, checks that there is only one and that it has
	// the given values, and returns its call id.
	one := func(method, route string, status float64, actor, code string) string {
		t.Helper()
		var found []map[string]any
		for end := time.Now().Add(5 * time.Second); len(found) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			found = log.requests(t, method, route)
		}
		if len(found) != 1 {
			t.Fatalf("%s %s: %d lines", method, route, len(found))
		}
		l := found[0]
		text := func(name string) string { s, _ := l[name].(string); return s }
		if ms, ok := l["ms"].(float64); !ok || ms <= 0 || l["status"] != status || text("actor") != actor || text("error") != code || l["service"] != "gateway" || (text("tenant") == "default") != (actor != "") {
			t.Errorf("%s %s: %v", method, route, l)
		}
		return text("call")
	}
	allowed := do(client, "POST", "/api/v1/calls", `{"kind":"tool.noop","tool":"noop","args":{"n":"secret-argument"}}`)
	if id := one("POST", "/api/v1/calls", 200, "admin", ""); id == "" || id != allowed.Header.Get("X-Binnacle-Call-Id") {
		t.Errorf("the line names call %q", id)
	}
	denied := do(client, "POST", "/api/v1/packs/secret-tool", `{}`)
	if id := one("POST", "/api/v1/packs/:name", 403, "admin", "denied"); id == "" || id != denied.Header.Get("X-Binnacle-Call-Id") {
		t.Errorf("the line of a denial names call %q", id)
	}
	do(&http.Client{Transport: bearing{"secret-token"}}, "GET", "/api/v1/packs?q=secret-query", "")
	one("GET", "/api/v1/packs", 401, "", "token_invalid")
	do(client, "GET", "/secret-path", "")
	one("GET", "other", 404, "", "not_found")
	do(client, "GET", "/healthz", "")

	session, err := mcp.NewClient(&mcp.Implementation{Name: "t"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: m.URL() + "/mcp", HTTPClient: client, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "noop", Arguments: map[string]any{}}); err != nil || r.IsError {
		t.Fatal(r, err)
	}
	if id := one("tools/call", "/mcp", 200, "admin", ""); !strings.HasPrefix(id, "c-") {
		t.Errorf("the line of a call over MCP names call %q", id)
	}
	if len(log.requests(t, "GET", "/healthz")) > 0 {
		t.Error("a probe is logged at level info")
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if strings.Contains(log.b.String(), "secret-") || strings.Contains(log.b.String(), m.Token) {
		t.Error("the log holds what belongs to a request")
	}
}
