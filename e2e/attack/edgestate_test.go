package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// outside sends a GET request that the gateway regards as coming from another host, and
// returns the status and body. On a mesh on this host it adds the header field that a
// proxy on this host would add; on compose none is needed.
func outside(t *testing.T, m *harness.Mesh, path, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+m.Addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "compose" {
		req.Header.Set("X-Forwarded-For", "192.0.2.1")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

var _ = register("12.15 state of the mesh for outsiders", func(t *testing.T, m *harness.Mesh) {
	if status, body := outside(t, m, "/readyz", ""); status != 200 || strings.TrimSpace(body) != `{"ready":true}` {
		t.Errorf("/readyz without a token: %d %s", status, body)
	}
	probe, other := m.OperatorToken, mint(t, m, "other-1215", "tools:call", "health:read")
	if status, body := outside(t, m, "/readyz", other); status != 200 || strings.TrimSpace(body) != `{"ready":true}` {
		t.Errorf("/readyz for a tenant: %d %s", status, body)
	}
	if status, body := outside(t, m, "/readyz", probe); status != 200 || !strings.Contains(body, `"durability"`) || !strings.Contains(body, `"lag"`) {
		t.Errorf("/readyz for an operator: %d %s", status, body)
	}
	for token, want := range map[string]int{"": 401, other: 403, probe: 200} {
		if status, body := outside(t, m, "/metrics", token); status != want || want == 200 && !strings.Contains(body, "binnacle_lag_events") {
			t.Errorf("/metrics: %d, want %d: %.200s", status, want, body)
		}
	}
	began := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				outside(t, m, "/readyz", "")
			}
		})
	}
	wg.Wait()
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("1000 requests of /readyz took %s", d)
	}
})

var _ = register("12.15 labels chosen by callers", func(t *testing.T, m *harness.Mesh) {
	for i := range 50 {
		for _, q := range []struct{ path, body string }{
			{"/api/v1/calls", fmt.Sprintf(`{"kind":"evil%d.label"}`, i)},
			{"/api/v1/calls", fmt.Sprintf(`{"kind":"tool.evil%d"}`, i)},
			{fmt.Sprintf("/evil%d/path", i), `{}`},
			{"/v1/chat/completions", fmt.Sprintf(`{"model":"evil%d/evil","messages":[{"role":"user","content":"x"}]}`, i)},
		} {
			if _, err := m.Do(context.Background(), http.MethodPost, q.path, "s-attack-1215", q.body); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, body := outside(t, m, "/metrics", m.OperatorToken)
	if i := strings.Index(body, "evil"); i >= 0 {
		t.Errorf("a caller's value is a label: %.300s", body[max(0, i-100):])
	}
	if n := strings.Count(body, "\n"); n > 5000 {
		t.Errorf("/metrics has %d lines", n)
	}
})

// mcp sends one MCP message and returns the status, the session id and the body of the
// response.
func mcp(t *testing.T, m *harness.Mesh, token, session, message string) (int, string, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+m.Addr+"/mcp", strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", "2025-06-18")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Mcp-Session-Id"), string(b)
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"attack","version":"1"}}}`

// openMCP opens an MCP session and returns its id.
func openMCP(t *testing.T, m *harness.Mesh, token string) string {
	t.Helper()
	status, id, body := mcp(t, m, token, "", initialize)
	if status != 200 || id == "" {
		t.Fatalf("initialize: %d %q %s", status, id, body)
	}
	if status, _, body := mcp(t, m, token, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); status/100 != 2 {
		t.Fatalf("initialized: %d %s", status, body)
	}
	return id
}

const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`

// key creates a virtual key for the administrator and returns its secret.
func key(t *testing.T, m *harness.Mesh, id string, scopes ...string) string {
	t.Helper()
	doc, _ := json.Marshal(map[string]any{"id": id, "actor": "admin", "scopes": scopes})
	r, err := m.Do(context.Background(), http.MethodPost, "/api/v1/keys", "", string(doc))
	if err != nil || r.Status != 200 {
		t.Fatalf("key %s: %v %s", id, err, r.Body)
	}
	var out struct{ Key string }
	r.JSON(t, &out)
	return out.Key
}

var _ = register("12.17 virtual key on /mcp", func(t *testing.T, m *harness.Mesh) {
	k := key(t, m, "mcp-1217", "tools:call")
	id := openMCP(t, m, k)
	status, _, body := mcp(t, m, k, id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"noop","arguments":{"say":"hello"}}}`)
	if status != 200 || !strings.Contains(body, `"binnacle/verdict":"ALLOW"`) {
		t.Errorf("tools/call: %d %s", status, body)
	}
	// Another credential cannot continue the MCP session.
	if status, _, body := mcp(t, m, m.Token, id, ping); status != 404 {
		t.Errorf("another credential in the session: %d %s", status, body)
	}
	if status, _, body := mcp(t, m, key(t, m, "mcp-1217-llm", "health:read"), "", initialize); status != 403 {
		t.Errorf("a key that allows no calls: %d %s", status, body)
	}
})

var _ = register("12.18 sessions of MCP without end", func(t *testing.T, m *harness.Mesh) {
	hog, other := mint(t, m, "hog-1218", "tools:call"), mint(t, m, "other-1218", "tools:call")
	kept := openMCP(t, m, other)
	first := openMCP(t, m, hog)
	last := ""
	for range 60 {
		last = openMCP(t, m, hog)
	}
	if status, _, body := mcp(t, m, hog, first, ping); status != 404 {
		t.Errorf("the first of 61 sessions: %d %s", status, body)
	}
	if status, _, body := mcp(t, m, hog, last, ping); status != 200 {
		t.Errorf("the last of 61 sessions: %d %s", status, body)
	}
	if status, _, body := mcp(t, m, other, kept, ping); status != 200 {
		t.Errorf("another caller's session: %d %s", status, body)
	}
})

// follow opens the event stream of an MCP session. It returns a channel that is closed
// when the stream ends.
func follow(t *testing.T, m *harness.Mesh, token, session string) <-chan struct{} {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+m.Addr+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + token}, "Accept": {"text/event-stream"}, "Mcp-Session-Id": {session}, "Mcp-Protocol-Version": {"2025-06-18"}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 {
		t.Fatal("event stream:", resp.Status)
	}
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, bufio.NewReader(resp.Body))
		close(done)
	}()
	return done
}

var _ = register("12.18 session outlives its credential", func(t *testing.T, m *harness.Mesh) {
	k := key(t, m, "mcp-1218", "tools:call")
	ended := follow(t, m, k, openMCP(t, m, k))
	out, err := m.CLI("token", "create", "--actor", "short-1218", "--scope", "tools:call", "--ttl", "4s")
	if err != nil {
		t.Fatal(err)
	}
	short := strings.TrimSpace(out)
	expired := follow(t, m, short, openMCP(t, m, short))
	select {
	case <-ended:
		t.Fatal("the stream ended before its key")
	case <-time.After(500 * time.Millisecond):
	}
	if out, err := m.CLI("key", "revoke", "mcp-1218", "--reason", "over"); err != nil {
		t.Fatal(out, err)
	}
	for what, c := range map[string]<-chan struct{}{"revoked": ended, "expired": expired} {
		select {
		case <-c:
		case <-time.After(15 * time.Second):
			t.Errorf("the stream of a session goes on after its credential is %s", what)
		}
	}
})

// hostPaths matches paths below folders of the host; no error response may contain one.
var hostPaths = regexp.MustCompile(`(?:^|[^A-Za-z0-9_./-])(?:/work|/tmp|/home|/root|/var|/usr|/state|/data|/run|/proc|/packs|/etc)/[A-Za-z0-9_.-]+`)

// The test sends mostly invalid parameters and bodies to every route except GET /mcp. It
// checks that no error response contains a path of the host, and that none has the
// status 500.
var _ = register("12.19 paths of the host in errors", func(t *testing.T, m *harness.Mesh) {
	r, err := m.Do(context.Background(), http.MethodGet, "/openapi.json", "", "")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		} `json:"paths"`
	}
	r.JSON(t, &doc)
	values := []string{"0", "1", "99", "9999999999", "9007199254740991", "9223372036854775807", "18446744073709551615", "-1", "x", "..%2F..%2Fetc%2Fpasswd", "%00", "s-none", "sha256:00", "audit", "vault-broker", "unknown"}
	param := regexp.MustCompile(`\{[a-z]+\}|\*`)
	for path, ops := range doc.Paths {
		for method, op := range ops {
			query := ""
			for _, p := range op.Parameters {
				if p.In == "query" && p.Name != "follow" && p.Name != "witness" {
					query += "&" + p.Name + "=VALUE"
				}
			}
			for _, v := range values {
				if path == "/mcp" && method == "get" {
					continue
				}
				full := param.ReplaceAllString(path, v)
				if query != "" {
					full += "?" + strings.ReplaceAll(query[1:], "VALUE", v)
				}
				body := ""
				if method == "post" {
					body = `{"kind":"tool.` + v + `","args":{},"name":"x","value":"y","id":"` + v + `","model":"` + v + `/x","messages":[],"session":"s-x","rubric":"a: [","size":1,"line":"x"}`
				}
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				r, err := m.Do(ctx, strings.ToUpper(method), full, "", body)
				cancel()
				if err != nil {
					continue // the URL is not valid in HTTP, or the response is an endless stream
				}
				if r.Status >= 400 {
					if found := hostPaths.Find(r.Body); found != nil || strings.Contains(string(r.Body), m.Dir) {
						t.Errorf("%s %s: %d shows %s: %.300s", method, full, r.Status, found, r.Body)
					}
				}
				if r.Status == 500 {
					t.Errorf("%s %s: %.300s", method, full, r.Body)
				}
			}
		}
	}
})

// The error for invalid arguments names the invalid argument.
var _ = register("12 errors name the argument", func(t *testing.T, m *harness.Mesh) {
	for body, want := range map[string]string{`{"text":1}`: "/args/text", `{}`: "/args/text", `{"text":"x","other":1}`: "/args/other"} {
		e := wrongBody(t, m, "/api/v1/packs/cmd.upper", body)
		if e.Pointer != want || e.Param != strings.TrimPrefix(want, "/args") {
			t.Errorf("%s: %+v", body, e)
		}
	}
})

// pointed holds the message of an error, and its members param and pointer, which
// identify the invalid part of the request.
type pointed struct{ Param, Pointer, Message string }

// wrongBody sends a body that must be rejected with a 4xx status, and returns the error.
func wrongBody(t *testing.T, m *harness.Mesh, path, body string) pointed {
	t.Helper()
	r, err := m.Do(context.Background(), http.MethodPost, path, "s-attack-pointer", body)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Error pointed }
	r.JSON(t, &doc)
	if r.Status/100 != 4 {
		t.Errorf("%s %s: %d %s", path, body, r.Status, r.Body)
	}
	return doc.Error
}

// The error names an invalid member of a body by its JSON pointer, and an invalid
// parameter of the path by its name. The test covers errors that the gateway, the tool's
// schema and the executor detect.
var _ = register("12 errors point into the body", func(t *testing.T, m *harness.Mesh) {
	for _, c := range []struct{ path, body, param, pointer string }{
		{"/api/v1/calls", `{"kind":"tool.cmd.upper","args":{"text":1}}`, "/args/text", "/args/text"},
		{"/api/v1/calls", `{"kind":"policy.suspend_principal","args":{"principal":"admin","reason":""}}`, "/args/reason", "/args/reason"},
		{"/api/v1/calls", `{"kind":"vault.put","args":{"name":"a b"}}`, "/args/name", "/args/name"},
		{"/api/v1/calls", `{"kind":"policy.activate","args":{"layer":"p2","name":"x","document":"{"}}`, "/args/document", "/args/document"},
		{"/api/v1/calls", `{"kind":"policy.set_limits","args":{"limits":[{"id":"a","level":"agent","subject":"unregistered-1299","measure":"calls","window":"day","max":1}]}}`, "/args/limits/0/subject", "/args/limits/0/subject"},
		{"/api/v1/calls", `{"kind":"llm.chat","args":{"model":"demo/echo","messages":"x"}}`, "/args/messages", ""},
		{"/api/v1/decide", `{"kind":"tool.cmd.upper","args":{"txt":"x"},"report_within_ms":1000}`, "/args/txt", "/args/txt"},
		{"/mcp/v1/execute", `{"method":"cmd.upper","params":{"text":["x"]}}`, "/params/text", "/args/text"},
		{"/api/v1/keys", `{"id":"k-1299","scopes":["llm:call","nothing:here"]}`, "/scopes/1", ""},
		{"/api/v1/keys", `{"id":"k-1299","models":["demo/*","["]}`, "/models/1", "/args/models/1"},
		{"/api/v1/keys", `{"id":"k-1299","rate_window":"year","rate_calls":1}`, "/rate_window", "/args/rate_window"},
		{"/api/v1/keys/k-1299/consent", `{"maker":"admin","scopes":["llm:call"],"ttl_ms":1000}`, "/maker", "/args/maker"},
		{"/api/v1/keys/a%20b/consent", `{"maker":"x","scopes":["llm:call"],"ttl_ms":1000}`, "id", "/args/id"},
		{"/api/v1/tokens/revocations", `{"id":"a","principal":"b","reason":"x"}`, "/id", "/args/id"},
		{"/api/v1/secrets", `{"name":"db","value":7}`, "/value", ""},
		{"/api/v1/judgements", `{"session":"s-x","rubric":"a: ["}`, "/rubric", "/args/rubric"},
		{"/v1/chat/completions", `{"model":"demo/echo","messages":[],"Stream":true}`, "/Stream", ""},
		{"/v1/chat/completions", `{"model":"nowhere/none","messages":[{"role":"user","content":"x"}]}`, "/model", ""},
	} {
		if e := wrongBody(t, m, c.path, c.body); e.Param != c.param || e.Pointer != c.pointer {
			t.Errorf("%s %s: %+v, want param %q, pointer %q", c.path, c.body, e, c.param, c.pointer)
		}
	}
})
