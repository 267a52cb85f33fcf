package mcprouter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// TestDiffer checks which members of two documents differ.
func TestDiffer(t *testing.T) {
	a := contract.Tool{Kind: "tool.a.x", Tool: "x", Description: "one", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}
	b := a
	if got := differ(&a, &b); len(got) != 0 {
		t.Errorf("equal documents: %v", got)
	}
	b.Description, b.InputSchema, b.Egress = "two", contract.Raw(`{"type":"object"}`), []string{"a.test"}
	want := []string{"description", "egress_hosts", "input_schema"}
	if got := differ(&a, &b); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := differ(&b, &a); !slices.Equal(got, want) {
		t.Errorf("in the other order: %v, want %v", got, want)
	}
}

// TestRequestHeaders checks that the value of a secret follows the prefix of its header.
func TestRequestHeaders(t *testing.T) {
	cfg := &events.ServerAdded{Headers: []events.Header{{Name: "authorization", Prefix: "Bearer ", Secret: "a"}, {Name: "X-Key", Secret: "b"}}}
	h := headers(cfg, map[string]string{"a": "one", "b": "two"})
	if h.Get("Authorization") != "Bearer one" || h.Get("X-Key") != "two" || len(h) != 2 {
		t.Error(h)
	}
}

// TestFailed checks the outcome of a call for errors with a code, of which a timeout has a
// status of its own, for an error after the call was stopped, and for another error, whose
// text is cut.
func TestFailed(t *testing.T) {
	cfg := &events.ServerAdded{Name: "files"}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx          context.Context
		err          error
		code, status string
	}{
		{t.Context(), fmt.Errorf("calling: %w", &upstream.Error{Code: contract.CodeUpstreamTimeout, Message: "late"}), contract.CodeUpstreamTimeout, contract.TimedOut},
		{stopped, &upstream.Error{Code: contract.CodeToolDrift, Message: "changed"}, contract.CodeToolDrift, ""},
		{stopped, errors.New("eof"), contract.CodeCancelled, ""},
		{t.Context(), errors.New(strings.Repeat("x", 5000)), contract.CodeUpstreamError, ""},
	} {
		r := failed(c.ctx, cfg, c.err)
		want := c.status
		if want == "" {
			want = execute.Fail(c.code, "").Status
		}
		if r.ErrorCode != c.code || r.Status != want || !strings.Contains(r.ErrorMessage, "MCP server files") || len(r.ErrorMessage) > 1100 {
			t.Errorf("%.60v: %+.200v", c.err, r)
		}
	}
	if asError(errors.New("x")) != nil || asError(nil) != nil {
		t.Error("another error is one of a server")
	}
}

// TestStructured checks which results of a tool with an output schema are accepted.
func TestStructured(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
	c := &call{s: &Service{}, doc: &contract.Tool{}, offer: &mcpdoc.Offer{Tool: map[string]json.RawMessage{"outputSchema": schema}}}
	for name, x := range map[string]struct {
		res  *mcp.CallToolResult
		want string // part of the error
	}{
		"valid": {&mcp.CallToolResult{StructuredContent: map[string]any{"n": 1, "more": true}}, ""}, "none": {&mcp.CallToolResult{}, "no structured content"},
		"invalid": {&mcp.CallToolResult{StructuredContent: map[string]any{"n": "one"}}, "breaks the tool's output schema"}, "an error": {&mcp.CallToolResult{IsError: true}, ""},
		"a request": {&mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}}, ""},
	} {
		if err := c.structured(x.res); (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.offer = &mcpdoc.Offer{}
	if err := c.structured(&mcp.CallToolResult{}); err != nil {
		t.Errorf("without a schema: %v", err)
	}
}

// waiting returns a service, and an exchange of a caller with one open request of the
// server. The service does not hold the exchange yet.
func waiting() (s *Service, x *exchange, r *request) {
	s = &Service{env: &run.Env{Instance: "mcp-router-1"}, held: map[string]*exchange{}}
	r = &request{answer: make(chan mcp.InputResponse, 1)}
	x = &exchange{tenant: "t", actor: "alice", kind: "tool.a.x", open: map[string]*request{"1": r}}
	return s, x, r
}

// TestResume checks that only a call of the same caller and kind continues an exchange, that
// it does so once, that a request without an answer remains open, and that malformed answers
// end the exchange.
func TestResume(t *testing.T) {
	for name, c := range map[string]struct {
		tenant, actor, kind, answers string
		want                         string // part of the error
	}{
		"its caller": {"t", "alice", "tool.a.x", ``, ""}, "with answers": {"t", "alice", "tool.a.x", `{"1":{"action":"decline"}}`, ""},
		"another tenant": {"u", "alice", "tool.a.x", ``, "no request of the server waits"}, "another actor": {"t", "bob", "tool.a.x", ``, "no request of the server waits"}, "another kind": {"t", "alice", "tool.a.y", ``, "no request of the server waits"},
		"malformed answers": {"t", "alice", "tool.a.x", `[]`, "inputResponses are malformed"},
	} {
		s, x, r := waiting()
		ended := false
		x.cancel = func() { ended = true }
		s.held["state"] = x
		next := &call{s: s, w: &execute.Work{Event: &contract.Event{Tenant: c.tenant, Actor: c.actor}, Call: &contract.Call{Kind: c.kind}}}
		got, err := next.resume(&mcpdoc.Round{RequestState: "state", InputResponses: json.RawMessage(c.answers)})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		malformed := c.answers == `[]`
		if kept := s.held["state"] != nil; kept != (err != nil && !malformed) || ended != malformed {
			t.Errorf("%s: held %t, ended %t", name, kept, ended)
		}
		if err != nil {
			continue
		}
		answered := c.answers != ""
		if got != x || x.call != next || (x.open["1"] == nil) != answered || (len(r.answer) == 1) != answered {
			t.Errorf("%s: another exchange continues, or the server gets another answer", name)
		}
		if _, err := next.resume(&mcpdoc.Round{RequestState: "state"}); err == nil {
			t.Errorf("%s: it continues twice", name)
		}
	}
}

// TestHold checks that a held exchange is cancelled after two minutes unless it was removed
// before, as when its answers arrive, that an instance holds at most maxHeld, and that each
// state names the instance.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, x, _ := waiting()
		var ended atomic.Int64 // exchanges end at the same time
		x.cancel = func() { ended.Add(1) }
		first := ""
		for range maxHeld {
			state, ok := s.hold(x)
			if !ok || s.held[state] != x || !strings.HasPrefix(state, held+"mcp-router-1.") {
				t.Fatalf("state %q, held %t", state, ok)
			}
			first = state
		}
		if len(s.held) != maxHeld {
			t.Fatalf("%d states", len(s.held))
		}
		if state, ok := s.hold(x); ok || state != "" {
			t.Errorf("one more is held: %q", state)
		}
		s.mu.Lock()
		delete(s.held, first) // its answers arrived
		s.mu.Unlock()
		time.Sleep(heldWithin - time.Second)
		synctest.Wait()
		if len(s.held) != maxHeld-1 || ended.Load() != 0 {
			t.Errorf("before the time is over: %d held, %d ended", len(s.held), ended.Load())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.held) != 0 || ended.Load() != maxHeld-1 {
			t.Errorf("after it: %d held, %d ended", len(s.held), ended.Load())
		}
	})
}

// TestServers checks the view of servers after events about them, and that neither an event
// of another service nor a malformed one changes it.
func TestServers(t *testing.T) {
	v := newView(nil)
	v.apply(1, &contract.Event{Source: "provision/provision-1", Tenant: contract.CellTenant, Name: contract.EventKeyPublished})
	apply := func(source, name string, data []byte) {
		v.apply(2, &contract.Event{Source: source, Tenant: contract.CellTenant, Name: name, Data: data})
	}
	names := func() (out string) {
		for _, s := range v.all() {
			out += s.Name + " " + s.Url + "; "
		}
		return out
	}
	added := func(name, url string) []byte {
		return contract.Bytes(&events.ServerAdded{Name: name, Url: url, Descriptions: []events.Description{}, Headers: []events.Header{}})
	}
	const own = Name + "/mcp-router-1"
	for _, c := range []struct {
		source, name string
		data         []byte
		want         string
	}{
		{own, events.ServerAddedName, added("b", "1"), "b 1; "},
		{own, events.ServerAddedName, added("a", "2"), "a 2; b 1; "},
		{own, events.ServerAddedName, added("b", "3"), "a 2; b 3; "},
		{"work/work-1", events.ServerAddedName, added("c", "4"), "a 2; b 3; "},
		{own, events.ServerAddedName, []byte(`[]`), "a 2; b 3; "},
		{"work/work-1", events.ServerRemovedName, contract.Bytes(&events.ServerRemoved{Name: "a"}), "a 2; b 3; "},
		{own, events.ServerRemovedName, []byte(`[]`), "a 2; b 3; "},
		{own, events.ServerRemovedName, contract.Bytes(&events.ServerRemoved{Name: "a"}), "b 3; "},
	} {
		if apply(c.source, c.name, c.data); names() != c.want {
			t.Errorf("%s of %s: %s, want %s", c.name, c.source, names(), c.want)
		}
	}
	if v.server("b") == nil || v.server("a") != nil {
		t.Error("a server that was removed is found, or one that was added is not")
	}
}
