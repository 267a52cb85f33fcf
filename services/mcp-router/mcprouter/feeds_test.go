package mcprouter

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/server"
)

// newTestService returns a service without connections.
func newTestService() *Service {
	return &Service{env: &run.Env{Instance: "mcp-router-1", Log: slog.New(slog.DiscardHandler)}, pools: map[string]*pool{}, held: map[string]*exchange{},
		feeds: feeds{all: map[feedKey]*feed{}}, view: newView(nil)}
}

// callOf returns a call by the actor alice.
func callOf(s *Service, cfg *events.ServerAdded, id, kind, args string) *call {
	return &call{s: s, cfg: cfg, w: &execute.Work{Args: []byte(args), Event: &contract.Event{Tenant: "t", Actor: "alice", Origin: "gw1", Session: "s-1"},
		Call: &contract.Call{ID: id, Kind: kind}}}
}

// TestFeeds checks that the calls that subscribe to a resource share one subscription at the
// server and receive its changes, and that a change of the server's settings ends the
// subscription. It also checks the errors for a missing URI and for a server that cannot be
// reached.
func TestFeeds(t *testing.T) {
	subscribed := make(chan string, 8)
	srv := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler: func(_ context.Context, r *mcp.SubscribeRequest) error {
			subscribed <- r.Params.URI
			return nil
		},
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil }})
	srv.AddResource(&mcp.Resource{Name: "motd", URI: "note://motd"}, nil)
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, nil))
	defer h.Close()
	defer h.CloseClientConnections()
	s := newTestService()
	type frame struct {
		tenant, to, call, method string
		n                        int64
	}
	frames := make(chan frame, 64)
	s.post = func(tenant, to, call string, n int64, data []byte) error {
		var f mcpdoc.Frame
		if err := json.Unmarshal(data, &f); err != nil {
			t.Error(err)
		}
		frames <- frame{tenant, to, call, f.Method, n}
		return nil
	}
	cfg := &events.ServerAdded{Name: "calc", Url: h.URL, CallID: "c-add"}
	if err := server.Check(cfg); err != nil {
		t.Fatal(err)
	}
	s.view.servers["calc"] = cfg
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	next := func() frame {
		t.Helper()
		select {
		case f := <-frames:
			return f
		case <-ctx.Done():
			t.Fatal("no frame was sent")
		}
		return frame{}
	}
	for _, id := range []string{"c-1", "c-2"} {
		res := callOf(s, cfg, id, mcpdoc.SubscriptionKind("calc"), `{"uri":"note://motd"}`).subscribe(ctx)
		if res.ErrorCode != "" || len(res.Output) == 0 {
			t.Fatalf("%+v", res)
		}
	}
	all, listeners := s.feeds.count()
	if uri := <-subscribed; uri != "note://motd" || len(subscribed) != 0 || all != 1 || listeners != 2 {
		t.Errorf("subscribed to %s, and %d more; %d feeds, %d listeners", uri, len(subscribed), all, listeners)
	}
	got := map[string]frame{}
	for range 20 { // 20 changes in quick succession, for two listeners
		if err := srv.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "note://motd"}); err != nil {
			t.Fatal(err)
		}
	}
	for len(got) < 2 {
		f := next()
		got[f.call] = f
	}
	for id, f := range got {
		if f != (frame{"t", "gw1", id, mcpdoc.Updated, f.n}) || f.n < 1 || f.n > 10 {
			t.Errorf("%+v", f)
		}
	}
	s.view.mu.Lock()
	s.view.servers["calc"] = &events.ServerAdded{Name: "calc", Url: h.URL, CallID: "c-other"}
	s.view.mu.Unlock()
	ended := map[string]bool{}
	for len(ended) < 2 {
		if err := srv.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "note://motd"}); err != nil {
			t.Fatal(err)
		}
		if f := next(); f.method == mcpdoc.Ended {
			ended[f.call] = true
		}
	}
	if all, listeners := s.feeds.count(); all != 0 || listeners != 0 {
		t.Errorf("%d feeds and %d listeners remain", all, listeners)
	}
	if res := callOf(s, cfg, "c-3", mcpdoc.SubscriptionKind("calc"), `{"uri":""}`).subscribe(ctx); res.ErrorCode != contract.CodeInvalidInput {
		t.Errorf("no URI: %+v", res)
	}
	h.CloseClientConnections()
	h.Close()
	if res := callOf(s, &events.ServerAdded{Name: "gone", Url: h.URL, CallID: "c-gone", Concurrency: 1, TimeoutMS: 5000}, "c-4", mcpdoc.SubscriptionKind("gone"), `{"uri":"note://motd"}`).subscribe(ctx); res.ErrorCode != contract.CodeUpstreamUnreachable {
		t.Errorf("a server that does not respond: %+v", res)
	}
	if all, listeners := s.feeds.count(); all != 0 || listeners != 0 {
		t.Errorf("after a failure %d feeds and %d listeners remain", all, listeners)
	}
}

// TestRounds checks that a held exchange is continued only by calls of the same actor and
// kind, and once per state; that requests which were not answered are returned to the
// client again under another state; and that the exchange ends with the server's result.
func TestRounds(t *testing.T) {
	s := newTestService()
	cfg := &events.ServerAdded{Name: "calc"}
	x := &exchange{tenant: "t", actor: "alice", kind: "tool.ask", cancel: func() {}, requests: make(chan *request), done: make(chan struct{}), n: 2,
		open: map[string]*request{"request-1": {&mcp.ElicitParams{Message: "one"}, make(chan mcp.InputResponse, 1)}, "request-2": {&mcp.ElicitParams{Message: "two"}, make(chan mcp.InputResponse, 1)}}}
	one, two := x.open["request-1"], x.open["request-2"]
	state, ok := s.hold(x)
	if !ok {
		t.Fatal("not held")
	}
	round := func(state, answers string) *mcpdoc.Round {
		return &mcpdoc.Round{RequestState: state, InputResponses: json.RawMessage(answers)}
	}
	other := callOf(s, cfg, "c-0", "tool.ask", "{}")
	other.w.Event.Actor = "eve"
	for _, c := range []*call{other, callOf(s, cfg, "c-0", "tool.other", "{}")} {
		if _, err := c.resume(round(state, `{}`)); err == nil {
			t.Error("an exchange is continued by another's call, or one of another kind")
		}
	}
	c := callOf(s, cfg, "c-1", "tool.ask", "{}")
	got, err := c.resume(round(state, `{"request-1":{"action":"accept"},"other":{"action":"accept"}}`))
	if err != nil || got != x || len(one.answer) != 1 || len(two.answer) != 0 {
		t.Fatal(err, len(one.answer), len(two.answer))
	}
	out, _, err := c.wait(t.Context(), x)
	res, _ := out.(*mcp.CallToolResult)
	if err != nil || res == nil || len(res.InputRequests) != 1 || res.InputRequests["request-2"] == nil || res.RequestState == state {
		t.Fatalf("%+v, %v", res, err)
	}
	c = callOf(s, cfg, "c-2", "tool.ask", "{}")
	if _, err := c.resume(round(state, `{}`)); err == nil {
		t.Error("a state is used twice")
	}
	if _, err := c.resume(round(res.RequestState, `{"request-2":{"action":"decline"}}`)); err != nil || len(two.answer) != 1 {
		t.Fatal(err)
	}
	x.out = &mcp.CallToolResult{}
	close(x.done)
	if out, _, err := c.wait(t.Context(), x); err != nil || out != x.out {
		t.Error(out, err)
	}
}

// count returns the numbers of feeds and of their listeners.
func (fs *feeds) count() (all, listeners int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.all), fs.listeners
}
