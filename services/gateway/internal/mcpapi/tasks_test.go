package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// metaOf decodes the metadata of a request.
func metaOf(t *testing.T, doc string) map[string]any {
	t.Helper()
	m := map[string]any{}
	if err := json.Unmarshal([]byte(doc), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCheckTask checks that a request about a task is refused if its headers differ from its
// body, or if the client has not declared the extension.
func TestCheckTask(t *testing.T) {
	const declared = `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`
	for name, c := range map[string]struct {
		method, task, meta string
		want               int64
	}{
		"valid":                 {"tasks/get", "c-1", declared, 0},
		"another method":        {"tasks/cancel", "c-1", declared, mcp.CodeHeaderMismatch},
		"another task":          {"tasks/get", "c-2", declared, mcp.CodeHeaderMismatch},
		"no version":            {"tasks/get", "c-1", `{}`, mcp.CodeHeaderMismatch},
		"another version":       {"tasks/get", "c-1", strings.Replace(declared, "2026-07-28", "2025-11-25", 1), mcp.CodeHeaderMismatch},
		"no extension":          {"tasks/get", "c-1", `{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`, mcp.CodeMissingRequiredClientCapabilities},
		"malformed extensions":  {"tasks/get", "c-1", strings.Replace(declared, `{"io.modelcontextprotocol/tasks":{}}`, `7`, 1), mcp.CodeMissingRequiredClientCapabilities},
		"malformed capability":  {"tasks/get", "c-1", `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":[]}`, mcp.CodeMissingRequiredClientCapabilities},
		"a version of any type": {"tasks/get", "c-1", `{"io.modelcontextprotocol/protocolVersion":{}}`, mcp.CodeHeaderMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			req := &taskRequest{Method: c.method}
			req.Params.TaskID, req.Params.Meta = c.task, metaOf(t, c.meta)
			h := http.Header{}
			h.Set("Mcp-Method", "tasks/get")
			h.Set("Mcp-Name", "c-1")
			h.Set("Mcp-Protocol-Version", sessionless)
			var got int64
			if wire := checkTask(h, req); wire != nil {
				got = wire.Code
			}
			if got != c.want {
				t.Errorf("code %d, want %d", got, c.want)
			}
		})
	}
}

// TestTaskEnd checks the state of a task for several outcomes of its call, and that an output
// of a server which is not a result is an error.
func TestTaskEnd(t *testing.T) {
	for name, c := range map[string]struct {
		status, code, executor, output string
		want, contains                 string
	}{
		"a result of a server":  {contract.Succeeded, "", mcpdoc.Executor, `{"content":[{"type":"text","text":"hi"}]}`, taskCompleted, `"text":"hi"`},
		"a result of a pack":    {contract.Succeeded, "", "session-runner", `{"n":1}`, taskCompleted, `"structuredContent":{"n":1}`},
		"an error of a server":  {contract.Failed, contract.CodeUpstreamRefused, mcpdoc.Executor, `{"error":{"code":-32603,"message":"broke"}}`, taskFailed, `"message":"broke"`},
		"a failure":             {contract.Failed, contract.CodeUpstreamCut, mcpdoc.Executor, ``, taskCompleted, `"isError":true`},
		"a denial":              {contract.Denied, "", "", ``, taskCompleted, `"isError":true`},
		"a cancellation":        {contract.Cancelled, contract.CodeCancelled, mcpdoc.Executor, ``, taskCancelled, `"status":"cancelled"`},
		"a refusal without one": {contract.Failed, contract.CodeUpstreamRefused, mcpdoc.Executor, `{}`, taskCompleted, `"isError":true`},
	} {
		t.Run(name, func(t *testing.T) {
			x := &round{recorded: &contract.Recorded{}, output: []byte(c.output)}
			x.recorded.Effect.Status, x.recorded.Effect.ErrorCode = c.status, c.code
			x.recorded.Receipt.Executor, x.recorded.Receipt.ID = c.executor, "r-1"
			got := &task{}
			if err := got.end(x, apierr.OfOutcome(x.recorded)); err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(got)
			if err != nil || got.Status != c.want || !strings.Contains(string(b), c.contains) || !strings.Contains(string(b), `"r-1"`) {
				t.Errorf("%s, %v; want %s with %s", b, err, c.want, c.contains)
			}
			if (got.Result != nil) != (c.want == taskCompleted) || (got.Error != nil) != (c.want == taskFailed) {
				t.Errorf("result %s, error %v", got.Result, got.Error)
			}
		})
	}
	x := &round{recorded: &contract.Recorded{}, output: []byte(`[]`)}
	x.recorded.Effect.Status, x.recorded.Receipt.Executor = contract.Succeeded, mcpdoc.Executor
	if err := (&task{}).end(x, nil); err == nil {
		t.Error("an output that is no result is not an error")
	}
}

// TestAsTask checks that a result with a task is sent as the task alone.
func TestAsTask(t *testing.T) {
	res, err := asTask(&mcp.CallToolResult{Meta: mcp.Meta{taskKey: &task{ResultType: "task", TaskID: "c-1"}}}, nil)
	b, failed := json.Marshal(res)
	if err != nil || failed != nil || strings.Contains(string(b), "content") || !strings.Contains(string(b), `"taskId":"c-1"`) || !strings.Contains(string(b), `"ttlMs":null`) {
		t.Errorf("%s, %v, %v", b, err, failed)
	}
	plain := &mcp.CallToolResult{}
	if res, err := asTask(plain, nil); res != plain || err != nil {
		t.Errorf("%v, %v", res, err)
	}
}

// TestNeedsTasks checks which tools are only for clients with the extension.
func TestNeedsTasks(t *testing.T) {
	offer := func(meta string) *mcpdoc.Offer {
		return &mcpdoc.Offer{Tool: map[string]json.RawMessage{"_meta": json.RawMessage(meta)}}
	}
	if !needsTasks(offer(`{"binnacle/tasks":"required"}`)) {
		t.Error("a tool that requires the extension")
	}
	for _, o := range []*mcpdoc.Offer{nil, {}, offer(`{"binnacle/tasks":"optional"}`), offer(`[]`), offer(`7`)} {
		if needsTasks(o) {
			t.Errorf("%+v requires the extension", o)
		}
	}
}

// TestSubscriptions checks the limit of a session's subscriptions, and that each is ended
// once it is replaced or removed.
func TestSubscriptions(t *testing.T) {
	var s subscriptions
	a, b := &mcp.ServerSession{}, &mcp.ServerSession{}
	ended := map[string]int{}
	add := func(ss *mcp.ServerSession, uri string) error {
		return s.add(ss, uri, func() { ended[uri]++ })
	}
	for i := range maxSubscriptions {
		if err := add(a, string(rune('a'+i))); err != nil {
			t.Fatal(err)
		}
	}
	var wire *jsonrpc.Error
	if err := add(a, "more"); !errors.As(err, &wire) || wire.Code != jsonrpc.CodeInvalidParams {
		t.Errorf("one more than the limit: %v", err)
	}
	if err := errors.Join(add(b, "more"), add(a, "a")); err != nil {
		t.Error(err)
	}
	if ended["a"] != 1 || ended["b"] != 0 {
		t.Errorf("ended: %v", ended)
	}
	s.remove(a, "b")
	s.remove(a, "b")
	s.remove(b, "more")
	if ended["b"] != 1 || ended["more"] != 1 || s.all[b] != nil {
		t.Errorf("ended: %v", ended)
	}
}

// TestToSubscriber checks that a notification reaches the session that it is for, without
// the member that names it, and no other.
func TestToSubscriber(t *testing.T) {
	a, b := &mcp.ServerSession{}, &mcp.ServerSession{}
	var got []mcp.Meta
	h := toSubscriber(func(_ context.Context, _ string, req mcp.Request) (mcp.Result, error) {
		got = append(got, req.GetParams().(*mcp.ResourceUpdatedNotificationParams).Meta)
		return nil, nil
	})
	shared := mcp.Meta{subscriber: a, "x": 1}
	for _, ss := range []*mcp.ServerSession{a, b} {
		p := &mcp.ResourceUpdatedNotificationParams{URI: "u", Meta: shared}
		if _, err := h(t.Context(), mcpdoc.Updated, &mcp.ServerRequest[*mcp.ResourceUpdatedNotificationParams]{Session: ss, Params: p}); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 1 || got[0][subscriber] != nil || got[0]["x"] != 1 || shared[subscriber] != a {
		t.Errorf("%v", got)
	}
}
