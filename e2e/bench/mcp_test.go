//go:build bench

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// Numbers of the benchmark of MCP.
const (
	manyTools     = 2000
	manyClients   = 64
	idleClients   = 1000
	idlePerCaller = 25 // a caller may have 32 sessions
)

// bearer adds a token to requests.
type bearer string

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return client.Transport.RoundTrip(r)
}

// federation measures calls of a tool of an MCP server directly and through the mesh, the list
// of 2,000 tools of a federated server, and the time until 64 clients are notified of a change
// of the list.
func federation(t *testing.T) {
	direct, many := toolServer(t, 0), toolServer(t, manyTools)
	m := harness.One(t, harness.Options{})
	hosts, err := json.Marshal(map[string]any{"egress_hosts": []string{strings.TrimPrefix(direct.URL, "http://"), strings.TrimPrefix(many.URL, "http://")}})
	if err != nil {
		t.Fatal(err)
	}
	ceilings := filepath.Join(t.TempDir(), "p0.json")
	if err := os.WriteFile(ceilings, hosts, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"trust", "sign", ceilings}, {"policy", "activate", m.Dir + "/keys/p0.json"}, {"mcp", "add", "plain", direct.URL, "--concurrency", "64"}, {"mcp", "add", "many", many.URL}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(args, err, out)
		}
	}
	connect := func(url, token, version string, o *mcp.ClientOptions) *mcp.ClientSession {
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, o).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer(token)}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cs.Close() })
		return cs
	}
	add(row{Name: "load average before the rows of MCP", Durability: "none", Value: loadAverage(t)})
	for _, n := range []int{1, 64} {
		plain, prate := loaded(t, n, callOf(direct.URL, "none", "echo"))
		via, rate := loaded(t, n, callOf(m.URL()+"/mcp", m.Token, "plain.echo"))
		add(row{Name: "floor: MCP server of the SDK", Durability: "none", Clients: n, P50us: us(plain, .5), P99us: us(plain, .99), PerSecond: prate})
		add(row{Name: "MCP, federated call", Durability: "process", Clients: n, P50us: us(via, .5), P99us: us(via, .99), PerSecond: rate,
			Value: fmt.Sprintf("added p50 %.0f us", us(via, .5)-us(plain, .5)), Budget: map[int]string{1: "added p50 <= 1200 us", 64: ">= 1500/s"}[n]})
	}
	var sdk []*mcp.ClientSession
	for range 64 {
		sdk = append(sdk, connect(m.URL()+"/mcp", m.Token, "2026-07-28", nil))
	}
	lat, rate := loaded(t, 64, func(i int) error {
		res, err := sdk[i].CallTool(t.Context(), &mcp.CallToolParams{Name: "plain.echo", Arguments: map[string]string{"text": "x"}})
		if err == nil && res.IsError {
			err = fmt.Errorf("the call failed: %+v", res.Content[0])
		}
		return err
	})
	add(row{Name: "MCP, federated call, clients of the SDK", Durability: "process", Clients: 64, P50us: us(lat, .5), P99us: us(lat, .99), PerSecond: rate})
	listed(t, m)
	changed(t, m, connect)
	idleSessions(t)
}

// loaded is load for the usual time, and fails the test if a call fails.
func loaded(t *testing.T, n int, f func(client int) error) ([]time.Duration, float64) {
	t.Helper()
	lat, rate, err := load(n, span, f)
	if err != nil {
		t.Fatal(err)
	}
	return lat, rate
}

// callOf returns a function that calls a tool over HTTP, without the SDK, so that the CPU time of the
// clients limits the rate as little as possible.
func callOf(url, token, tool string) func(int) error {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":{"text":"x"},` + protocol + `}}`)
	return func(int) error {
		_, err := posted(url, token, "tools/call", tool, body, `"text":"{\"text\":\"x\"}"`)
		return err
	}
}

// protocol is the metadata of each request without a session.
const protocol = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// posted sends a request without a session and returns the response, which must contain want.
func posted(url, token, method, name string, body []byte, want string) ([]byte, error) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range map[string]string{"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name} {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	resp, err := bearer(token).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Contains(b, []byte(want)) {
		err = fmt.Errorf("status %d: %.300s", resp.StatusCode, b)
	}
	return b, err
}

// idleSessions measures the memory of a mesh with 1,000 sessions of protocol version 2025-11-25, each
// with an open stream of notifications, and how much of it they take.
func idleSessions(t *testing.T) {
	m := harness.One(t, harness.Options{})
	time.Sleep(2 * time.Second)
	_, before := used(t, m)
	token := ""
	send := func(method, session, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, m.URL()+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": session} {
			if v != "" {
				req.Header.Set(k, v)
			}
		}
		resp, err := (&http.Client{Transport: bearer(token)}).Do(req)
		if err != nil || resp.StatusCode >= 300 {
			t.Fatal(method, err, resp)
		}
		return resp
	}
	for i := range idleClients {
		if i%idlePerCaller == 0 {
			token = m.TokenFor(fmt.Sprintf("idle-%d", i/idlePerCaller), "tools:call")
		}
		resp := send(http.MethodPost, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
		id := resp.Header.Get("Mcp-Session-Id")
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		_ = send(http.MethodPost, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`).Body.Close()
		stream := send(http.MethodGet, id, "")
		t.Cleanup(func() { _ = stream.Body.Close() })
	}
	time.Sleep(5 * time.Second)
	_, after := used(t, m)
	add(row{Name: "MCP, 1,000 idle sessions", Durability: "process", Clients: idleClients, Value: fmt.Sprintf("%d MiB RSS of one process, %d MiB more than without", after>>20, (after-before)>>20), Budget: "<= 150 MiB more than without"})
}

// toolServer starts an MCP server with a tool echo and n others.
func toolServer(t *testing.T, n int) *httptest.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "1"}, &mcp.ServerOptions{PageSize: 2 * manyTools})
	echo := func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
	}
	schema := json.RawMessage(`{"type":"object","properties":{"text":{"type":"string","description":"what to return"}}}`)
	srv.AddTool(&mcp.Tool{Name: "echo", Description: "Returns its arguments.", InputSchema: schema}, echo)
	for i := range n {
		srv.AddTool(&mcp.Tool{Name: fmt.Sprintf("tool_%d", i), Description: strings.Repeat("Does one of many things. ", 8), InputSchema: schema}, echo)
	}
	s := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{Stateless: true, DisableLocalhostProtection: true}))
	t.Cleanup(s.Close)
	return s
}

// listed measures the list of all tools until the last byte of the response.
func listed(t *testing.T, m *harness.Mesh) {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + protocol + `}}`)
	size := 0
	raw, _ := loaded(t, 1, func(int) error {
		b, err := posted(m.URL()+"/mcp", m.Token, "tools/list", "", body, "")
		if size = len(b); err == nil && bytes.Count(b, []byte(`"many.tool_`)) != manyTools {
			err = fmt.Errorf("%d tools", bytes.Count(b, []byte(`"many.tool_`)))
		}
		return err
	})
	add(row{Name: "MCP, list of 2,000 tools", Durability: "process", Clients: 1, P50us: us(raw, .5), P99us: us(raw, .99), Value: fmt.Sprintf("one page of %d kB", size/1000), Budget: "p50 <= 20 ms"})
}

// changed measures the time from the request for a change of the catalog until each of 64
// clients, half of them with an older protocol version, is notified.
func changed(t *testing.T, m *harness.Mesh, connect func(url, token, version string, o *mcp.ClientOptions) *mcp.ClientSession) {
	arrived := make(chan time.Time, 64*manyClients)
	for i := range manyClients {
		connect(m.URL()+"/mcp", m.Token, []string{"2025-11-25", "2026-07-28"}[i%2], &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { arrived <- time.Now() }})
	}
	time.Sleep(time.Second) // until the clients have opened their streams of notifications
	var lat []time.Duration
	for i := range 10 {
		for len(arrived) > 0 {
			<-arrived
		}
		began := time.Now()
		r, err := m.Operator().Do(t.Context(), http.MethodPost, "/api/v1/calls", "", fmt.Sprintf(`{"kind":"mcp.publish","args":{"name":"bench%d","tools":["plain.*"]}}`, i))
		if err != nil || r.Status != http.StatusOK {
			t.Fatal(err, r.Status, string(r.Body))
		}
		for range manyClients {
			select {
			case at := <-arrived:
				lat = append(lat, at.Sub(began))
			case <-time.After(10 * time.Second):
				t.Fatal("a client is not notified")
			}
		}
		time.Sleep(300 * time.Millisecond) // until further notifications of the same change have arrived
	}
	slices.Sort(lat)
	add(row{Name: "MCP, notification of a changed list", Durability: "process", Clients: manyClients, P50us: us(lat, .5), P99us: us(lat, .99), Value: fmt.Sprintf("greatest %d ms", lat[len(lat)-1].Milliseconds()), Budget: "greatest <= 250 ms"})
}
