package mcpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// bearer adds a credential to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// socketTransport is the transport of a client over WebSocket.
type socketTransport struct {
	url, who string
	conn     *websocket.Conn
}

func (s *socketTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, _, err := websocket.Dial(ctx, s.url, &websocket.DialOptions{Subprotocols: []string{"mcp"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + s.who}}})
	s.conn = conn
	return s, err
}

func (s *socketTransport) Read(ctx context.Context) (jsonrpc.Message, error) {
	_, data, err := s.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	return jsonrpc.DecodeMessage(data)
}

func (s *socketTransport) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return s.conn.Write(ctx, websocket.MessageText, data)
}

func (s *socketTransport) Close() error      { return s.conn.Close(websocket.StatusNormalClosure, "") }
func (s *socketTransport) SessionID() string { return "" }

// oldGateway is a gateway that listens, with the tool a.
type oldGateway struct {
	*edgetest.Mesh
	url string
}

func newOldGateway(t *testing.T) *oldGateway {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	srv := httptest.NewServer(m.Service.Handler())
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	return &oldGateway{m, srv.URL + "/mcp"}
}

// transports are the old transports of a client with a credential.
func (g *oldGateway) transports(who string) map[string]mcp.Transport {
	return map[string]mcp.Transport{
		"SSE":       &mcp.SSEClientTransport{Endpoint: g.url, HTTPClient: &http.Client{Transport: bearer(who)}},
		"WebSocket": &socketTransport{url: g.url, who: who},
	}
}

// TestOldTransports lists and calls a tool over SSE and over WebSocket, with an old protocol version
// and with concurrent requests of one session.
func TestOldTransports(t *testing.T) {
	g := newOldGateway(t)
	var both sync.WaitGroup
	g.Execute = func(c *edgetest.Call) {
		if strings.Contains(string(c.Args), "together") { // the calls wait for each other
			both.Done()
			both.Wait()
		}
		c.Succeed(c.Args)
	}
	for name := range g.transports("") {
		t.Run(name, func(t *testing.T) {
			who := g.Token("old "+name, token.Tools)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cs, err := mcp.NewClient(&mcp.Implementation{Name: "old", Version: "1"}, nil).Connect(ctx, g.transports(who)[name], &mcp.ClientSessionOptions{ProtocolVersion: "2024-11-05"})
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			if v := cs.InitializeResult().ProtocolVersion; v != "2024-11-05" {
				t.Errorf("protocol version %s", v)
			}
			l, err := cs.ListTools(ctx, nil)
			if err != nil || len(l.Tools) != 1 || l.Tools[0].Name != "a" {
				t.Fatal(l, err)
			}
			both.Add(2)
			errs := make(chan error, 2)
			for range 2 {
				go func() {
					res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "a", Arguments: map[string]string{"text": "together"}})
					if err == nil && (res.IsError || res.Meta["binnacle/receipt_id"] == nil) {
						err = fmt.Errorf("%+v", res)
					}
					errs <- err
				}()
			}
			for range 2 {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			// The client of a session with the newest version would use requests without one.
			if cs, err := mcp.NewClient(&mcp.Implementation{Name: "new", Version: "1"}, nil).Connect(ctx, g.transports(who)[name], nil); err != nil || cs.InitializeResult().ProtocolVersion != "2025-11-25" {
				t.Errorf("a client of the newest version: %v", err)
			} else {
				_ = cs.Close()
			}
		})
	}
}

// TestOldBadInput checks that each invalid message over an old transport is refused, and proposes
// nothing, that a message may be cancelled twice, that the connection can be used afterwards, that too
// many requests without a response end it, and that sessions cannot be used with another
// credential or over another transport.
func TestOldBadInput(t *testing.T) {
	g := newOldGateway(t)
	g.Execute = func(c *edgetest.Call) { t.Errorf("proposed: %s %s", c.Kind, c.Args); c.Succeed(c.Args) }
	who, eve := g.Token("alice", token.Tools), g.Token("eve", token.Tools)
	const list, init = `{"jsonrpc":"2.0","id":"last","method":"tools/list","params":{}}`, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	post := func(at, who, text string, headers ...string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		res, err := (&http.Client{Transport: bearer(who)}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	stream := func(who string) (at string, next func() string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: bearer(who)}).Do(r)
		if err != nil || res.StatusCode != 200 {
			t.Fatal(err, res)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		buf, rest := make([]byte, 1<<16), ""
		next = func() string {
			for {
				if e, more, ok := strings.Cut(rest, "\n\n"); ok {
					rest = more
					_, data, _ := strings.Cut(e, "data: ")
					return data
				}
				n, err := res.Body.Read(buf)
				if rest += string(buf[:n]); err != nil && n == 0 {
					return "ended: " + err.Error()
				}
			}
		}
		return strings.TrimSuffix(g.url, "/mcp") + next(), next
	}
	text := func(body string) string { return strings.NewReplacer(","+meta, "", meta, "").Replace(body) }

	at, next := stream(who)
	if s := post(at, who, init); s != 202 || !strings.Contains(next(), "protocolVersion") {
		t.Fatal(s)
	}
	post(at, who, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for what, bad := range badInputs {
		switch s := post(at, who, text(bad)); {
		case s == 202:
			if got := next(); !strings.Contains(got, `"error"`) && !strings.Contains(got, `"isError":true`) {
				t.Errorf("SSE, %s: %.200s", what, got)
			}
		case s < 400 || s >= 500:
			t.Errorf("SSE, %s: status %d", what, s)
		}
	}
	for range 2 {
		if s := post(at, who, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}`); s != 202 {
			t.Errorf("SSE, cancelled: status %d", s)
		}
	}
	if s := post(at, who, list); s != 202 || !strings.Contains(next(), `"id":"last"`) {
		t.Error("SSE: the session cannot be used after bad input")
	}
	_, id, _ := strings.Cut(at, "sessionid=")
	for what, s := range map[string]int{
		"another credential": post(at, eve, list), "no session": post(g.url+"?sessionid=", who, list), "an unknown session": post(g.url+"?sessionid=none", who, list),
		"another transport": post(g.url, who, list, "Mcp-Session-Id", id), "another virtual server": post(at+"&server=none", who, list),
	} {
		if s != 404 {
			t.Errorf("SSE, %s: status %d", what, s)
		}
	}
	if s := post(at, who, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"`+strings.Repeat("x", 4<<20)+`"}}`); s != 400 {
		t.Errorf("SSE, too long a message: status %d", s)
	}

	dial := func() *websocket.Conn {
		t.Helper()
		conn, _, err := websocket.Dial(ctx, g.url, &websocket.DialOptions{Subprotocols: []string{"mcp"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + who}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.CloseNow() })
		conn.SetReadLimit(1 << 20)
		return conn
	}
	conn := dial()
	exchange := func(message string) string {
		t.Helper()
		if err := conn.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
		_, data, err := conn.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := exchange(init); !strings.Contains(got, "protocolVersion") {
		t.Fatal(got)
	}
	if err := conn.Write(ctx, websocket.MessageText, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		t.Fatal(err)
	}
	for range 5 { // requests that were refused do not count as pending
		for what, bad := range badInputs {
			if got := exchange(text(bad)); !strings.Contains(got, `"error"`) && !strings.Contains(got, `"isError":true`) {
				t.Errorf("WebSocket, %s: %.200s", what, got)
			}
		}
	}
	if got := exchange(list); !strings.Contains(got, `"id":"last"`) {
		t.Errorf("WebSocket: the session cannot be used after bad input: %.200s", got)
	}
	for kind, message := range map[websocket.MessageType]string{websocket.MessageBinary: list, websocket.MessageText: `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 4<<20) + `"}}`} {
		conn := dial()
		_ = conn.Write(ctx, kind, []byte(message))
		if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusUnsupportedData && websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
			t.Errorf("WebSocket, a message of type %v: %v", kind, err)
		}
	}
	if _, res, err := websocket.Dial(ctx, g.url, nil); err == nil || res.StatusCode != 401 {
		t.Errorf("WebSocket, without a credential: %v", err)
	}
	if _, res, err := websocket.Dial(ctx, g.url, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + who}, "Origin": {"https://elsewhere.example"}}}); err == nil || res.StatusCode != 403 {
		t.Errorf("WebSocket, from a page of another site: %v", err)
	}

	// Requests without a response are limited.
	release := make(chan struct{})
	g.Execute = func(c *edgetest.Call) { <-release; c.Succeed(c.Args) }
	defer close(release)
	for i := range 100 {
		if err := conn.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a","arguments":{"text":"x"}}}`, i)); err != nil {
			break
		}
	}
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
				t.Errorf("WebSocket, too many requests: %v", err)
			}
			break
		}
	}
}

// TestOldSuspended shows that the connections of an old transport end when their tenant is suspended, and
// that none can be opened then.
func TestOldSuspended(t *testing.T) {
	g := newOldGateway(t)
	who := g.Token("alice", token.Tools)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan string, 2)
	for name, transport := range g.transports(who) {
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "old", Version: "1"}, nil).Connect(ctx, transport, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		go func() {
			_ = cs.Wait()
			ended <- name
		}()
	}
	g.Tenants.Suspend(edgetest.Other, true)
	select {
	case name := <-ended:
		t.Errorf("%s ends with another tenant", name)
	case <-time.After(300 * time.Millisecond):
	}
	g.Tenants.Suspend(edgetest.Tenant, true)
	for range 2 {
		select {
		case <-ended:
		case <-ctx.Done():
			t.Fatal("a connection of a suspended tenant does not end")
		}
	}
	for name, transport := range g.transports(who) {
		if _, err := mcp.NewClient(&mcp.Implementation{Name: "old", Version: "1"}, nil).Connect(ctx, transport, nil); err == nil {
			t.Errorf("%s is opened during the suspension", name)
		}
	}
}
