package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// long is the minimum time that a tool of the fixture takes if its call is to become a task. It is
// longer than the mesh waits for an outcome.
const long = 1500 * time.Millisecond

// newFixture starts an MCP server of both protocol versions with the tools that the
// conformance suite requires beyond those of the SDK's reference server:
// test_reconnection, which closes the stream of its call (the reference server does not
// store events), and those of the tasks extension. It returns the server's address.
func newFixture(t *testing.T) string {
	t.Helper()
	srv := mcp.NewServer(&mcp.Implementation{Name: "fixture", Version: "1"}, nil)
	add := func(name, schema string, meta mcp.Meta, h func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, error)) {
		srv.AddTool(&mcp.Tool{Meta: meta, Name: name, Description: "Tool of the conformance suite.", InputSchema: json.RawMessage(schema)}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			args := map[string]any{}
			if len(r.Params.Arguments) > 0 {
				if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
					return nil, err
				}
			}
			return h(ctx, r, args)
		})
	}
	none, required := `{"type":"object","properties":{}}`, mcp.Meta{"binnacle/tasks": "required"}
	add("test_reconnection", none, nil, func(_ context.Context, r *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, error) {
		r.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
		time.Sleep(100 * time.Millisecond)
		return textResult("reconnected"), nil
	})
	add("greet", `{"type":"object","properties":{"name":{"type":"string"}}}`, nil, func(_ context.Context, _ *mcp.CallToolRequest, args map[string]any) (*mcp.CallToolResult, error) {
		return textResult(fmt.Sprintf("Hello, %v!", args["name"])), nil
	})
	add("slow_compute", `{"type":"object","properties":{"seconds":{"type":"number"},"label":{"type":"string"}}}`, nil, func(ctx context.Context, _ *mcp.CallToolRequest, args map[string]any) (*mcp.CallToolResult, error) {
		seconds, _ := args["seconds"].(float64)
		if seconds > 0 && !pause(ctx, long+time.Duration(seconds*float64(time.Second))) {
			return nil, ctx.Err()
		}
		return textResult("computed"), nil
	})
	add("failing_job", none, required, func(ctx context.Context, _ *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, error) {
		pause(ctx, long)
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "the job failed"}}}, nil
	})
	add("protocol_error_job", none, nil, func(ctx context.Context, _ *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, error) {
		pause(ctx, long)
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the job broke"}
	})
	add("confirm_delete", `{"type":"object","properties":{"filename":{"type":"string"}}}`, nil, asks("confirm"))
	add("multi_input", none, nil, asks("first", "second"))
	add("test_tool_with_task", none, nil, func(ctx context.Context, r *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, error) {
		a, ok := r.Params.InputResponses["user_name"].(*mcp.ElicitResult)
		if !ok {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"user_name": question("user_name")}, RequestState: "asked"}, nil
		}
		pause(ctx, long)
		return textResult(fmt.Sprintf("Hello, %v!", a.Content["name"])), nil
	})
	old := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
	young := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") >= "2026" {
			young.ServeHTTP(w, r)
			return
		}
		old.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h.Listener.Addr().String()
}

// textResult returns a result with a text.
func textResult(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// pause waits for d, or until ctx is done, and reports whether d has passed.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// question returns a request for input.
func question(name string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: name, RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"},"confirm":{"type":"boolean"}}}`)}
}

// asks returns a tool that waits for the time long, and then requires the named inputs, in any
// number of rounds. Its state consists of the names for which input was received.
func asks(names ...string) func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, error) {
	return func(ctx context.Context, r *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, error) {
		answered := strings.Fields(r.Params.RequestState)
		for name := range r.Params.InputResponses {
			answered = append(answered, name)
		}
		if len(answered) == 0 {
			pause(ctx, long)
		}
		open := mcp.InputRequestMap{}
		for _, name := range names {
			if !strings.Contains(" "+strings.Join(answered, " ")+" ", " "+name+" ") {
				open[name] = question(name)
			}
		}
		if len(open) > 0 {
			return &mcp.CallToolResult{InputRequests: open, RequestState: strings.Join(answered, " ")}, nil
		}
		return textResult("done"), nil
	}
}
