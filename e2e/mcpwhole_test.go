package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// later is an MCP server whose results have members that the SDK does not have.
func later(t *testing.T) (url string) {
	srv := mcp.NewServer(&mcp.Implementation{Name: "later", Version: "1"}, nil)
	srv.AddTool(&mcp.Tool{Name: "show", InputSchema: map[string]any{"type": "object"}}, nil)
	sdk := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{Stateless: true})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Method") != "tools/call" {
			sdk.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"hologram","depth":3}],"ofLater":{"a":[1,"x"]},"_meta":{"later/x":1}}}`)
	}))
	t.Cleanup(func() { _ = s.Config.Close() }) // it does not wait for the mesh, which listens for changes
	return s.URL
}

// whole checks that the result of a server reaches a client with all its members, also those that the
// SDK does not have. others are the hosts of other servers, which stay permitted.
func whole(t *testing.T, m *harness.Mesh, others ...string) {
	url := later(t)
	permit(t, m, append(others, strings.TrimPrefix(url, "http://"))...)
	addServer(t, m, fmt.Sprintf(`{"name":"later","url":%q}`, url))
	body := `{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{"name":"later.show","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.URL()+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "later.show"} {
		req.Header.Set(k, v)
	}
	resp, err := bearerOf{m.Token, "s-whole"}.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	for _, part := range []string{`"id":"w"`, `"content":[{"depth":3,"type":"hologram"}]`, `"ofLater":{"a":[1,"x"]}`, `"later/x":1`, `"resultType":"complete"`, `"binnacle/receipt_id":"`} {
		if !strings.Contains(string(got), part) {
			t.Errorf("%s is not in %d, %s, %v", part, resp.StatusCode, got, err)
		}
	}
}
