// Package mcprouter is the executor of calls to MCP servers. By governed calls, it adds and
// removes servers and publishes virtual servers. It registers what the servers offer as tools
// of the mesh, and executes the calls of these tools, of resources, subscriptions, prompts
// and completions.
package mcprouter

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/server"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// Name is the name of the service.
const Name = mcpdoc.Executor

// limit is the maximum number of concurrent calls of an instance.
const limit = 256

// Service implements run.Service. Its zero value is ready to run. Several instances may
// run at a time; each has its own sessions with the servers.
type Service struct {
	env     *run.Env
	view    *view
	checker toolschema.Checker
	feeds   feeds
	// post sends a frame to the gateway that waits for a call.
	post func(tenant, to, call string, n int64, data []byte) error

	mu    sync.Mutex
	pools map[string]*pool     // by server
	held  map[string]*exchange // by state
}

// pool is the pool of sessions with a server that has these settings.
type pool struct {
	settings *events.ServerAdded
	*upstream.Server
}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: Name, Slots: 8, Work: []bus.Work{bus.ExecutorWork(Name)}, Readers: []bus.Reader{bus.ExecutorControl(Name), viewReader}}
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env, s.view, s.pools, s.held = env, liveView(env), map[string]*pool{}, map[string]*exchange{}
	s.feeds.all = map[feedKey]*feed{}
	s.view.serve(env.Transport)
	s.post = func(tenant, to, call string, n int64, data []byte) error {
		return env.Transport.In(tenant).Post(to, call, n, data)
	}
	for i := range adminTools {
		if err := s.offer(ctx, &adminTools[i]); err != nil {
			return err
		}
	}
	reading, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the last call has ended
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.view.follower.Run(reading, 1) })
	g.Go(func() error {
		defer stop()
		select {
		case <-s.view.follower.Ready():
		case <-ctx.Done():
			return nil
		}
		ready()
		x := execute.New(env, limit, slices.Clone(adminTools), s.handle)
		x.ToolOf = s.view.tool
		x.Secrets = secret.FromBroker(env.Emit, env.Transport, env.Instance)
		x.Renew = secret.Renewed(env.Emit, env.Transport, env.Instance)
		x.ReRunable = func(kind string) bool {
			t := s.view.tool(kind)
			return t != nil && t.Rerunnable
		}
		return x.Run(ctx)
	})
	err := g.Wait()
	s.endFeeds()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		p.Close()
	}
	return err
}

// offer registers a tool document.
func (s *Service) offer(ctx context.Context, t *contract.Tool) error {
	return catalog.Offer(ctx, s.env.Emit, s.env.Cell.Now, Name, t)
}

// pool returns the pool of sessions with a server. Sessions that were opened with other
// settings are closed after their requests.
func (s *Service) pool(cfg *events.ServerAdded) *pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[cfg.Name]
	if p != nil && p.settings.CallID == cfg.CallID {
		return p
	}
	if p != nil {
		p.Close()
	}
	p = &pool{cfg, newUpstream(s, cfg)}
	s.pools[cfg.Name] = p
	return p
}

func newUpstream(s *Service, cfg *events.ServerAdded) *upstream.Server {
	return upstream.New(upstream.Config{Name: cfg.Name, Start: s.start(cfg), Once: len(cfg.Hosts)+len(cfg.Files) > 0, URL: cfg.Url, SSE: cfg.Transport == server.SSE, Concurrency: int(cfg.Concurrency), Timeout: time.Duration(cfg.TimeoutMS) * time.Millisecond, Version: run.Version()})
}

// handle executes one call.
func (s *Service) handle(ctx context.Context, w *execute.Work) execute.Result {
	if f, ok := adminCalls[w.Call.Kind]; ok {
		return f(s, ctx, w)
	}
	doc := s.view.tool(w.Call.Kind)
	if mcpdoc.VirtualOf(doc) != nil {
		return output(s.published(doc, s.view.catalog.In(w.Event.Tenant)))
	}
	offer := mcpdoc.Of(doc)
	if offer == nil {
		if err := s.view.follower.Poll(ctx); err != nil { // the tool may have been registered through another instance
			return execute.Fail(contract.CodeUnavailable, "the catalog cannot be read: %v", err)
		}
		if doc = s.view.tool(w.Call.Kind); mcpdoc.Of(doc) == nil {
			return execute.Fail(contract.CodeNotFound, "no MCP server offers %s: it was removed", w.Call.Kind)
		}
		offer = mcpdoc.Of(doc)
	}
	cfg := s.view.server(offer.Server)
	if cfg == nil {
		return execute.Fail(contract.CodeNotFound, "MCP server %s was removed", offer.Server)
	}
	if !permits(w.Intent, cfg) {
		return execute.Fail(contract.CodeToolDrift, "the decision permits the hosts %v, and MCP server %s has moved: call again", w.Intent.Egress, cfg.Name)
	}
	c := &call{s: s, w: w, cfg: cfg, doc: doc, offer: offer}
	if w.Call.Kind == mcpdoc.SubscriptionKind(cfg.Name) {
		return c.subscribe(ctx)
	}
	return c.run(ctx)
}

// permits reports whether an intent permits the use of a server: its host, or a sandbox for its
// command.
func permits(i *contract.ExecutionIntent, cfg *events.ServerAdded) bool {
	if cfg.Transport == server.Stdio {
		return i.Sandbox != nil
	}
	host, err := server.Host(cfg.Url)
	return err == nil && slices.Contains(i.Egress, host)
}

// failed returns the result for the error of a request to a server.
func failed(ctx context.Context, cfg *events.ServerAdded, err error) execute.Result {
	if e := asError(err); e != nil {
		r := execute.Fail(e.Code, "MCP server %s: %s", cfg.Name, e.Message)
		if e.Code == contract.CodeUpstreamTimeout {
			r.Status = contract.TimedOut
		}
		return r
	}
	if ctx.Err() != nil {
		return execute.Fail(contract.CodeCancelled, "MCP server %s: the call was stopped: %v", cfg.Name, ctx.Err())
	}
	return execute.Fail(contract.CodeUpstreamError, "%s", fmt.Sprintf("MCP server %s: %.1024s", cfg.Name, err))
}
