package mcpbridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newServer returns a server of MCP with a tool that elicits input and reports progress, and a
// resource.
func newServer() *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "mesh", Version: "1"}, nil)
	srv.AddTool(&mcp.Tool{Name: "ask", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		x, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "continue?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}})
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: x.Action}}}, nil
	})
	srv.AddResource(&mcp.Resource{Name: "é", URI: "note://é"}, func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "hello"}}}, nil
	})
	return srv
}

// connect connects a client through a bridge to a URL.
func connect(t *testing.T, url, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	toBridge, in := io.Pipe()
	out, fromBridge := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- (&Bridge{URL: url, Client: http.DefaultClient, Out: fromBridge}).Run(context.Background(), toBridge)
		_ = fromBridge.Close()
	}()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), &mcp.IOTransport{Reader: out, Writer: in}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cs.Close()
		_ = in.Close()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the bridge does not end with its input")
		}
	})
	return cs
}

// TestSessions checks that a client with a session uses tools, resources, elicitation, progress and
// notifications through a bridge, and continues when the server has lost its sessions.
func TestSessions(t *testing.T) {
	var srv atomic.Pointer[mcp.Server]
	var handler atomic.Pointer[mcp.StreamableHTTPHandler]
	restart := func() {
		s := newServer()
		srv.Store(s)
		handler.Store(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	}
	restart()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Load().ServeHTTP(w, r) }))
	defer h.Close()
	defer h.CloseClientConnections()
	progress, changed := make(chan float64, 8), make(chan struct{}, 64)
	cs := connect(t, h.URL, "2025-11-25", &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params.Progress },
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
	for i := range 2 {
		p := &mcp.CallToolParams{Name: "ask"}
		p.SetProgressToken("t")
		if r, err := cs.CallTool(t.Context(), p); err != nil || r.Content[0].(*mcp.TextContent).Text != "decline" {
			t.Fatal(i, r, err)
		}
		select {
		case <-progress:
		case <-time.After(time.Minute):
			t.Fatal("no progress")
		}
		if r, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "note://é"}); err != nil || r.Contents[0].Text != "hello" {
			t.Fatal(i, r, err)
		}
		for n, received := 0, false; !received; n++ { // the stream of notifications may not be open yet
			srv.Load().AddTool(&mcp.Tool{Name: fmt.Sprint("tool", n), InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
			select {
			case <-changed:
				received = true
			case <-time.After(200 * time.Millisecond):
			case <-t.Context().Done():
				return
			}
		}
		restart()
	}
}

// TestWithoutSessions checks that a client without sessions uses tools and resources through a
// bridge.
func TestWithoutSessions(t *testing.T) {
	s := newServer()
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true}))
	defer h.Close()
	defer h.CloseClientConnections()
	cs := connect(t, h.URL, "2026-07-28", nil)
	if got := cs.InitializeResult().ProtocolVersion; got != "2026-07-28" {
		t.Fatal(got)
	}
	if r, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "note://é"}); err != nil || r.Contents[0].Text != "hello" {
		t.Fatal(r, err)
	}
	if r, err := cs.ListTools(t.Context(), nil); err != nil || len(r.Tools) != 1 {
		t.Fatal(r, err)
	}
}

// TestFailures checks that a request which the mesh rejects, or whose response is cut or empty, is
// answered with an error that has its id, that a notification is not, and that input which is not
// JSON ends the bridge with an error.
func TestFailures(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch {
		case bytes.Contains(b, []byte("cut")):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n")
		case bytes.Contains(b, []byte("empty")):
		default:
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"code":"token_missing","message":"send a token"}}`)
		}
	}))
	defer h.Close()
	for in, want := range map[string]string{
		`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`:                    `"id":"a"}|token_missing: send a token`,
		`{"jsonrpc":"2.0","id":7,"method":"cut"}`:                             `"id":7,|notifications/message|ended before the response`,
		`{"jsonrpc":"2.0","id":9,"method":"empty"}`:                           `"id":9|no message`,
		`{"jsonrpc":"2.0","method":"notifications/empty"}`:                    ``,
		`{"jsonrpc":"2.0","method":"notifications/cancelled"}`:                ``,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":"cut"}}`: `ended before the response`,
	} {
		var out bytes.Buffer
		if err := (&Bridge{URL: h.URL, Client: http.DefaultClient, Out: &out}).Run(t.Context(), strings.NewReader(in)); err != nil {
			t.Error(in, err)
		}
		if want == "" && out.Len() > 0 {
			t.Errorf("%s: %s", in, &out)
		}
		for _, part := range strings.Split(want, "|") {
			if !strings.Contains(out.String(), strings.TrimSuffix(strings.TrimSuffix(part, "}"), ",")) {
				t.Errorf("%s: %s, want %s", in, &out, part)
			}
		}
	}
	for _, in := range []string{"{", "x", "{}}"} {
		if err := (&Bridge{URL: h.URL, Client: http.DefaultClient, Out: io.Discard}).Run(t.Context(), strings.NewReader(in)); err == nil {
			t.Errorf("%s: no error", in)
		}
	}
}
