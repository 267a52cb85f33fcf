// Package gateway is the service that clients connect to. It translates requests of the
// OpenAI, Anthropic, MCP and REST APIs into proposals of calls, awaits their outcomes on
// the ledger, and translates these into responses. For requests that are not calls, it
// reads the ledger or its views, or queries other services. The gateway makes no policy
// decisions and executes no calls.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/handout"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/react"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/acme"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/browsers"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/logins"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/metrics"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/webhook"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Config is the gateway's configuration.
type Config struct {
	Addr         string        // listen address, host:port
	TokenKeys    token.Keys    // verify bearer tokens
	Durability   string        // durability mode that /readyz reports: process, power or replicated
	Expect       []string      // services that must be ready for /readyz to return 200
	CallTimeout  time.Duration // timeout of a call whose request sets none; 0 means 90 s
	Version      string
	Capture      string // how prompts and responses are recorded: plain, encrypted, hashed or off; empty means plain
	Bodies       body.Limits
	TLS          config.GatewayTLS // files of the certificate and of the authorities of clients, reloaded when they change; without a certificate plain HTTP
	ACME         config.ACME       // authority from which the certificate is obtained instead; none without domains
	Webhook      string            // URL that is notified of calls that wait for approval; empty disables notifications
	JobWebhook   string            // URL that is notified of the ends of jobs; empty disables notifications
	OIDC         config.OIDC       // identity provider at which persons log in; none without an issuer
	OAuth        config.OAuth      // programs that may obtain logins by authorization codes
	PublicURL    string            // URL under which browsers reach the gateways; empty means that of each request
	Origins      []string          // origins whose pages may use the API (CORS); nil means none
	AddressRate  int               // requests per second from one address; 0 means no limit
	ApprovalPage string            // URL of the page for approvers that clients of MCP and the approval webhook are offered, in which {call} stands for the id of a call; empty for that of the gateways at PublicURL
	// WebhookKeys reads the HMAC-SHA256 keys of the webhooks' signatures, at each notice. It must be set
	// if Webhook or JobWebhook is.
	WebhookKeys func() ([][]byte, error)
	// Passwords is the path of the file of passwords (see package password), which need not
	// exist. It is read at each login. Empty means that no person has a password.
	Passwords string
	// Artifacts stores the content of artifacts; nil means the stream ARTIFACTS.
	Artifacts artifact.Collected
	// Listening, if set, is called with the bound address before requests are served.
	Listening func(addr string)
	// Serving, if set, is called before Listening with the handler of requests, which can be used
	// without a connection.
	Serving func(http.Handler)
	// Listener, if set, accepts the connections instead of a TCP listener on Addr.
	Listener net.Listener
}

// Service implements run.Service. Its APIs are packages under services/gateway/internal;
// Service creates them and runs their background work.
type Service struct {
	Config

	env          *run.Env
	tools        catalog.View
	authority    auth.Authority
	view         *follow.Follower
	metrics      *metrics.Metrics
	probe        probe.Probe
	provider     *logins.Provider // nil without an identity provider
	clients      *logins.Clients
	await        func(seq uint64) error // waits until the key registry has applied every key event before ledger entry seq
	captures     atomic.Pointer[string] // capture mode of the latest reload; nil before the first reload
	certificates *acme.Manager          // nil unless they are obtained by ACME
	challenges   net.Listener           // for challenges over HTTP; nil if there are none
	parts
}

// Reload implements run.Reloader. The capture mode of c applies from the next request
// on.
func (s *Service) Reload(c *config.Config) { s.captures.Store(&c.Gateway.Capture) }

// capture returns the capture mode in force: plain, encrypted, hashed or off.
func (s *Service) capture() string {
	if p := s.captures.Load(); p != nil {
		return *p
	}
	return s.Capture
}

// toolsReader is the reader of the events of both views: the catalog of tools and the
// state of credentials.
var toolsReader = bus.Reader{Name: "catalog", Stream: bus.Events, Filters: append(slices.Clone(catalog.ViewFilters), auth.Filters()...)}

// outcomesReader is the reader of the events that pending calls wait for: outcomes,
// escalations, and the intents of calls that their callers execute.
var outcomesReader = bus.Reader{Name: propose.Reader.Name, Stream: bus.Events, Filters: append(slices.Clone(propose.Reader.Filters), bus.HandOutFilter)}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.Gateway, Prefix: "gw", Slots: 4, Work: []bus.Work{approvals.Work, calls.JobWork, handout.Work()},
		Readers: []bus.Reader{outcomesReader, toolsReader, bus.ExecutorControl(contract.CallerExecutor)}, Artifacts: true}
}

// Run implements run.Service. Once it can receive outcomes from the ledger, it calls
// ready and serves requests. When ctx is done or a background task has failed, it
// accepts no further requests; it returns when the requests in progress have their
// responses, or after ten seconds. Run returns an error if the configuration is invalid
// or no listener can be opened, and otherwise the first error of the server or of a
// background task.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	if err := s.configure(env); err != nil {
		return err
	}
	kept := s.entries(env.Snapshots == nil)
	s.view = follow.New(env.Conn, env.Instance, toolsReader, kept.Add)
	s.build(env, outsideOf(env, s.Artifacts))
	s.prop.ServeBodies(env.Transport)
	s.secrets.Serve()
	env.ReportFollower("gateway.catalog", s.view, nil)
	env.ServeApplied(s.view)
	env.Report(func(context.Context) run.Health {
		pos, lag := s.prop.Position()
		return run.Health{Name: "gateway.outcomes", OK: pos > 0 || lag == 0, Position: pos, Lag: lag}
	})
	l, bound, err := s.listen()
	if err != nil {
		return err
	}
	g, inner := errgroup.WithContext(ctx)
	s.obtain(inner, g)
	s.await = func(seq uint64) error { return env.Trust.Await(inner, seq) }
	from := env.Snapshots.Start(ctx, kept.Source(services.ViewCatalog, snapshotVersion, s.view))
	g.Go(func() error { return s.view.Run(inner, from) })
	s.background(inner, g)
	// Outcomes are still received after ctx is done, so that the requests in progress can get their
	// responses.
	outcomes, stopOutcomes := context.WithCancel(context.WithoutCancel(ctx))
	listening := make(chan struct{})
	g.Go(func() error { return s.prop.Run(outcomes, func() { close(listening) }) })
	srv := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: body.MaxHeader, IdleTimeout: 2 * time.Minute}
	g.Go(func() error {
		select {
		case <-listening:
		case <-inner.Done():
			return nil
		}
		if s.Serving != nil {
			s.Serving(srv.Handler)
		}
		if s.Listening != nil {
			s.Listening(bound)
		}
		ready()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-inner.Done()
		defer l.Close()
		defer stopOutcomes()
		return shutDown(context.WithoutCancel(inner), srv)
	})
	return g.Wait()
}

// configure sets the defaults of the configuration and returns an error if the
// configuration is invalid.
func (s *Service) configure(env *run.Env) error {
	s.CallTimeout, s.Capture = cmp.Or(s.CallTimeout, 90*time.Second), cmp.Or(s.Capture, llm.CapturePlain)
	if !slices.Contains([]string{llm.CapturePlain, llm.CaptureEncrypted, llm.CaptureHashed, llm.CaptureOff}, s.Capture) {
		return fmt.Errorf("gateway: capture %q: want plain, encrypted, hashed or off", s.Capture)
	}
	if s.Webhook+s.JobWebhook != "" && s.WebhookKeys == nil {
		return errors.New("gateway: the webhooks have no key")
	}
	if err := browsers.Check(s.Origins); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	var err error
	s.provider, err = logins.NewProvider(s.OIDC, endpoint.New(env.Queries, egress.EndpointOIDC, ""))
	if err == nil {
		s.clients, err = logins.NewClients(s.OAuth, endpoint.New(env.Queries, egress.EndpointClients, ""))
	}
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

// apply applies a ledger entry to the views of credentials and of the catalog, and
// advances the Lamport clock. An entry that eventlog.Open rejects is logged and skipped.
// Before it applies cell_opened, which a root key signs, it waits until the key registry
// has applied the key events before that entry. It returns an error if that wait fails
// or a view cannot apply the event.
func (s *Service) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en, toolsReader.Filters...)
	if err != nil {
		s.env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	if e.Name == contract.EventCellOpened {
		if err := s.await(en.Seq); err != nil {
			return err
		}
	}
	s.env.Emit.See(e.Lamport)
	if err := s.authority.Apply(e); err != nil {
		return err
	}
	return s.tools.Apply(e)
}

// background starts the goroutines that run concurrently with the requests until ctx is
// done: the ledger probe, the cleanup of MCP sessions, the lender if the instance has a
// signing key, and the webhooks that are configured.
func (s *Service) background(ctx context.Context, g *errgroup.Group) {
	conn := s.env.Conn
	g.Go(func() error {
		s.probe.Run(ctx, func(try context.Context) error { return conn.Led(try, bus.Events) })
		return nil
	})
	g.Go(func() error { s.mcp.Run(ctx); return nil })
	if s.lender != nil {
		g.Go(func() error { return s.lender.Run(ctx) })
	}
	if reactors := s.reactors(); len(reactors) > 0 {
		g.Go(func() error {
			return react.Run(ctx, react.Env{Service: services.Gateway, Conn: conn, Emit: s.env.Emit, Log: s.env.Log, Metrics: s.env.Metrics}, reactors...)
		})
	}
}

// approvalPage returns the URL of the page for approvers, or "" if none is known without a request.
func (s *Service) approvalPage() string {
	if s.ApprovalPage == "" && s.PublicURL != "" {
		return auth.ApprovalPageAt(s.PublicURL)
	}
	return s.ApprovalPage
}

// reactors returns the reactors of the webhooks that are configured.
func (s *Service) reactors() (out []react.Reactor) {
	to := func(name, url string) *webhook.Endpoint {
		return &webhook.Endpoint{Name: name, URL: url, Keys: s.WebhookKeys, Now: s.env.Emit.Now,
			Transport: func(tenant, id string) http.RoundTripper {
				return endpoint.New(s.env.Queries.In(tenant), name, id)
			}}
	}
	if s.Webhook != "" {
		hook := &approvals.Webhook{Endpoint: to(egress.EndpointApprovalWebhook, s.Webhook), Emit: s.env.Emit, Durable: s.env.Conn.Durable, Page: s.approvalPage()}
		out = append(out, hook.Reactor())
	}
	if s.JobWebhook != "" {
		hook := &calls.JobWebhook{Endpoint: to(egress.EndpointJobWebhook, s.JobWebhook), Emit: s.env.Emit, Queries: s.queries, Durable: s.env.Conn.Durable}
		out = append(out, hook.Reactor())
	}
	return out
}

// shutDown waits at most ten seconds until the requests in progress have their
// responses, and then closes the connections that remain.
func shutDown(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	return err
}
