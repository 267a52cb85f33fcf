package mcpapi

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hidden is the name of a tool, a prompt and a resource that each server registers with the SDK.
// Every request for a tool, prompt or resource is passed to them, because the tenant's catalog at
// the time of the request determines what exists. They are not listed.
const hidden = "binnacle.any"

// hiddenURI is the URI of the hidden resource.
const hiddenURI = "binnacle://any"

// requestKey is the context key of the name or URI in a request for a tool, prompt or
// resource, which is replaced by the hidden one.
type requestKey struct{}

// requested returns the name or URI that the client sent.
func requested(ctx context.Context) string {
	name, _ := ctx.Value(requestKey{}).(string)
	return name
}

// edge serves one MCP session, or all requests without a session of a tenant.
type edge struct {
	*API
	tenant      string
	virtualName string // of the virtual server that clients use, or "" if they use all that the tenant's catalog offers
	srv         *mcp.Server
	life        context.Context // of the session; nil if the edge serves requests without one
	subs        subscriptions
	level       atomic.Pointer[string] // level of log messages that the client set; nil if it set none
}

// mcpServer returns the server of one MCP session of a tenant. virtual is the name of the
// session's virtual server, or "". The subscriptions of the session end with life.
func (s *API) mcpServer(life context.Context, id, tenant, virtual string) *mcp.Server {
	e := &edge{API: s, tenant: tenant, virtualName: virtual, life: life}
	e.serve(id)
	return e.srv
}

// serve makes the server of an edge, with the id of its MCP session, or "" if it serves
// requests without a session. Lists show the catalog at the time of the request. Every
// tools/call is passed to callTool, because policy decides by the catalog at that time.
// An attempt to call a tool that is not listed is proposed too, so that the attempt and
// its denial are on the ledger.
func (e *edge) serve(id string) {
	caps := &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}, Prompts: &mcp.PromptCapabilities{ListChanged: true},
		Resources: &mcp.ResourceCapabilities{ListChanged: true}, Completions: &mcp.CompletionCapabilities{}}
	caps.Logging = &mcp.LoggingCapabilities{}
	if e.life == nil {
		caps.AddExtension(tasksExtension, map[string]any{})
	}
	srv := mcp.NewServer(&mcp.Implementation{Name: "binnacle", Version: e.Version}, &mcp.ServerOptions{Capabilities: caps,
		GetSessionID: func() string { return id }, CompletionHandler: e.complete, SetCacheable: cacheable,
		SubscribeHandler: e.subscribe, UnsubscribeHandler: e.unsubscribe})
	e.srv = srv
	e.register(srv)
	srv.AddReceivingMiddleware(e.receive)
	srv.AddSendingMiddleware(withSchema, toSubscriber)
}

// register registers the hidden tool, prompt and resource.
func (e *edge) register(srv *mcp.Server) {
	srv.AddTool(&mcp.Tool{Name: hidden, InputSchema: map[string]any{"type": "object"}}, e.callTool)
	srv.AddPrompt(&mcp.Prompt{Name: hidden}, e.getPrompt)
	srv.AddResource(&mcp.Resource{Name: hidden, URI: hiddenURI}, e.readResource)
}

// cacheable permits only the client itself to cache a response. It sets the maximum time
// to listTTL, except for the content of resources. Lists are of the caller's tenant and
// change at any time; clients that subscribe are notified.
func cacheable(_ context.Context, req mcp.Request, c *mcp.Cacheable) {
	c.CacheScope = "private"
	if _, ok := req.(*mcp.ReadResourceRequest); !ok {
		c.TTLMs = int(listTTL / time.Millisecond)
	}
}

// listTTL is the time for which clients may cache lists.
const listTTL = 5 * time.Second

// receive returns a handler that answers requests for lists, and passes those for a
// tool, prompt or resource to the hidden one. It also stores the level of log messages
// that a client sets.
func (e *edge) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch r := req.(type) {
		case *mcp.ListToolsRequest:
			return e.listTools(ctx, r)
		case *mcp.ListPromptsRequest:
			return e.listPrompts(ctx, r)
		case *mcp.ListResourcesRequest:
			return e.listResources(ctx, r)
		case *mcp.ListResourceTemplatesRequest:
			return e.listTemplates(ctx, r)
		case *mcp.CallToolRequest:
			p := *r.Params
			p.Name = hidden
			ctx, r.Params = context.WithValue(ctx, requestKey{}, r.Params.Name), &p
			return asTask(next(ctx, method, r))
		case *mcp.GetPromptRequest:
			p := *r.Params
			p.Name = hidden
			ctx, r.Params = context.WithValue(ctx, requestKey{}, r.Params.Name), &p
		case *mcp.ReadResourceRequest:
			p := *r.Params
			p.URI = hiddenURI
			ctx, r.Params = context.WithValue(ctx, requestKey{}, r.Params.URI), &p
		case *mcp.SubscriptionsListenRequest: // the SDK calls subscribe for it, with its context
			ctx = context.WithValue(ctx, extraKey{}, r.Extra)
		case *mcp.ServerRequest[*mcp.SetLoggingLevelParams]:
			level := string(r.Params.Level)
			e.level.Store(&level)
		}
		return next(ctx, method, req)
	}
}

// changePoll is the interval at which the catalog and the overlays are checked for a change.
const changePoll = 100 * time.Millisecond

// notifyChanges notifies the clients that the lists have changed, whenever the catalog or an
// overlay has changed, until ctx ends.
func (s *API) notifyChanges(ctx context.Context) {
	t := time.NewTicker(changePoll)
	defer t.Stop()
	state := func() (now [2]uint64) {
		now[0] = s.Tools.Generation()
		if s.Overlays != nil {
			now[1] = s.Overlays.Policies()
		}
		return now
	}
	last := state()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := state()
		if now == last {
			continue
		}
		last = now
		for _, srv := range append(s.mcps.servers(), s.modern.list()...) {
			(&edge{API: s}).touch(srv)
		}
	}
}

// touch makes the SDK notify the clients of a server that the lists have changed. It does so by
// adding entries that no client can use.
func (e *edge) touch(srv *mcp.Server) {
	srv.RemoveTools(hidden + ".none")
	srv.AddTool(&mcp.Tool{Name: hidden + ".none", InputSchema: map[string]any{"type": "object"}}, e.callTool)
	srv.AddPrompt(&mcp.Prompt{Name: hidden + ".none"}, e.getPrompt)
	srv.AddResource(&mcp.Resource{Name: hidden, URI: hiddenURI + "/none"}, e.readResource)
}
