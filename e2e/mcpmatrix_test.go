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

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// generation is a generation of the protocol, as a server speaks it.
type generation struct {
	name    string
	version string // that the mesh negotiates
	handler func(*mcp.Server) http.Handler
	add     string // settings of mcp.add
}

var generations = []generation{
	{"young", "2026-07-28", func(s *mcp.Server) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true, DisableLocalhostProtection: true, PropagateRequestCancellation: true})
	}, ""},
	{"old", "2025-11-25", func(s *mcp.Server) http.Handler {
		h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Mcp-Method") != "" { // of the newer version, which the server does not know
				http.Error(w, "no session", http.StatusBadRequest)
				return
			}
			h.ServeHTTP(w, r)
		})
	}, ""},
	{"older", "2025-11-25", func(s *mcp.Server) http.Handler {
		return mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return s }, &mcp.SSEOptions{DisableLocalhostProtection: true})
	}, `,"transport":"sse"`},
}

// newPeer starts a server of a generation, with everything that a server may offer and request.
func newPeer(t *testing.T, g generation) (srv *mcp.Server, url, host string) {
	t.Helper()
	srv = mcp.NewServer(&mcp.Implementation{Name: "peer", Version: "1"}, &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}},
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{r.Params.Argument.Value + "ris"}}}, nil
		}})
	add := func(name string, h mcp.ToolHandler) {
		srv.AddTool(&mcp.Tool{Name: name, Description: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	add("report", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1, Total: 2})
		_ = r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "under way"})
		return textResult("reported"), nil
	})
	form := &mcp.ElicitParams{Mode: "form", Message: "Which port?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"port":{"type":"string"}}}`)}
	sample := &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: "Name a ship."}}}}
	add("consult", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		in := r.Params.InputResponses
		if g.version < "2026" {
			in = mcp.InputResponseMap{}
			for key, ask := range map[string]func() (mcp.InputResponse, error){
				"form":   func() (mcp.InputResponse, error) { return r.Session.Elicit(ctx, form) },
				"sample": func() (mcp.InputResponse, error) { return r.Session.CreateMessage(ctx, sample) },
				"roots":  func() (mcp.InputResponse, error) { return r.Session.ListRoots(ctx, nil) },
			} {
				a, err := ask()
				if err != nil {
					return nil, fmt.Errorf("%s: %w", key, err)
				}
				in[key] = a
			}
		}
		if len(in) == 0 {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"form": form, "sample": sample, "roots": &mcp.ListRootsParams{}}, RequestState: "consulted"}, nil
		}
		b, err := json.Marshal(in)
		return textResult(string(b)), err
	})
	srv.AddResource(&mcp.Resource{Name: "log", URI: g.name + "://log"}, func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "fair"}}}, nil
	})
	srv.AddPrompt(&mcp.Prompt{Name: "hail", Arguments: []*mcp.PromptArgument{{Name: "city"}}}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Hail " + r.Params.Arguments["city"]}}}}, nil
	})
	s := httptest.NewServer(g.handler(srv))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return srv, s.URL, s.Listener.Addr().String()
}

// matrixClients are the ways in which a client uses the mesh: a version of the protocol and a transport.
var matrixClients = map[string]struct {
	version   string
	transport func(m *harness.Mesh, session string) mcp.Transport
}{
	"2026-07-28": {"2026-07-28", streamable},
	"2025-11-25": {"2025-11-25", streamable},
	"2025-06-18": {"2025-06-18", streamable},
	"2025-03-26": {"2025-03-26", streamable},
	"2024-11-05, SSE": {"2024-11-05", func(m *harness.Mesh, session string) mcp.Transport {
		return &mcp.SSEClientTransport{Endpoint: m.URL() + "/mcp", HTTPClient: &http.Client{Transport: bearerOf{m.Token, session}}}
	}},
}

func streamable(m *harness.Mesh, session string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: m.URL() + "/mcp", HTTPClient: &http.Client{Transport: bearerOf{m.Token, session}}}
}

// TestMCPMatrix shows that clients of each protocol version use servers of each generation: tools,
// resources and subscriptions to them, prompts, completion, logging, progress, elicitation, sampling and
// roots. With one process per service, the clients use two gateways.
func TestMCPMatrix(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{})
			servers := map[string]*mcp.Server{}
			var hosts []string
			var adds []string
			for _, g := range generations {
				srv, url, host := newPeer(t, g)
				servers[g.name], hosts = srv, append(hosts, host)
				adds = append(adds, fmt.Sprintf(`{"name":%q,"url":%q%s}`, g.name, url, g.add))
			}
			permit(t, m, hosts...)
			for i, settings := range adds {
				r, err := m.Operator().Do(t.Context(), "POST", "/api/v1/calls", "", `{"kind":"mcp.add","args":`+settings+`}`)
				if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), generations[i].version) {
					t.Fatal(err, r.Status, string(r.Body))
				}
			}
			at := []*harness.Mesh{m, m.As(m.Token)} // for the clients
			if name == "processes" {
				at[1].Addr = m.StartGateway("gateway-b")
			}
			n := 0
			for client := range matrixClients {
				for _, g := range generations {
					n++
					t.Run(client+" to "+g.name, func(t *testing.T) { cell(t, m, at[n%2], client, g, servers[g.name]) })
				}
			}
			proves(t, m)
		})
	}
}

// cell uses a server as a client does, at one of the gateways of a mesh.
func cell(t *testing.T, m, at *harness.Mesh, client string, g generation, srv *mcp.Server) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x := matrixClients[client]
	progress, logs, changes := make(chan float64, 8), make(chan any, 8), make(chan string, 64)
	c := mcp.NewClient(&mcp.Implementation{Name: "matrix", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params.Progress },
		LoggingMessageHandler:       func(_ context.Context, r *mcp.LoggingMessageRequest) { logs <- r.Params.Data },
		ResourceUpdatedHandler:      func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { changes <- r.Params.URI },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"port": "Cork"}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "m-1", Role: "assistant", Content: &mcp.TextContent{Text: "Argo"}}, nil
		},
	})
	c.AddRoots(&mcp.Root{URI: "file:///hold", Name: "hold"})
	cs, err := c.Connect(ctx, x.transport(at, ""), &mcp.ClientSessionOptions{ProtocolVersion: x.version})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	if v := cs.InitializeResult().ProtocolVersion; v != x.version {
		t.Fatalf("protocol version %s", v)
	}
	if x.version < "2026" {
		if err := cs.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
			t.Error("logging:", err)
		}
	}
	p := &mcp.CallToolParams{Name: g.name + ".report", Meta: mcp.Meta{}}
	if x.version >= "2026" {
		p.Meta[mcp.MetaKeyLogLevel] = "info"
	}
	p.SetProgressToken("tok")
	res, err := cs.CallTool(ctx, p)
	if err != nil || text(res) != "reported" {
		t.Fatalf("tool: %s, %v", text(res), err)
	}
	checkReceipt(t, m, res.Meta, "tool."+g.name+".report")
	receive(ctx, t, "progress", progress, 1)
	receive[any](ctx, t, "logging", logs, "under way")
	res, err = cs.CallTool(ctx, &mcp.CallToolParams{Name: g.name + ".consult"})
	for what, want := range map[string]string{"elicitation": "Cork", "sampling": "Argo", "roots": "file:///hold"} {
		if err != nil || res.IsError || !strings.Contains(text(res), want) {
			t.Errorf("%s: %s, %v", what, text(res), err)
		}
	}
	if r, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: g.name + "://log"}); err != nil || r.Contents[0].Text != "fair" {
		t.Errorf("resource: %+v, %v", r, err)
	}
	if r, err := cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: g.name + ".hail", Arguments: map[string]string{"city": "Rome"}}); err != nil || r.Messages[0].Content.(*mcp.TextContent).Text != "Hail Rome" {
		t.Errorf("prompt: %+v, %v", r, err)
	}
	if r, err := cs.Complete(ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: g.name + ".hail"}, Argument: mcp.CompleteParamsArgument{Name: "city", Value: "Pa"}}); err != nil || len(r.Completion.Values) != 1 || r.Completion.Values[0] != "Paris" {
		t.Errorf("completion: %+v, %v", r, err)
	}
	if err := cs.Subscribe(ctx, &mcp.SubscribeParams{URI: g.name + "://log"}); err != nil {
		t.Fatal("subscription:", err)
	}
	for received := false; !received; { // the subscription may not have been made yet
		if err := srv.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: g.name + "://log"}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changes:
			received = true
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("subscription: no change is received")
		}
	}
}

// receive checks that a value arrives.
func receive[T comparable](ctx context.Context, t *testing.T, what string, from <-chan T, want T) {
	t.Helper()
	select {
	case got := <-from:
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	case <-ctx.Done():
		t.Errorf("%s: nothing is received", what)
	}
}
