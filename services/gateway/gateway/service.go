// Package gateway is the edge: it translates OpenAI, MCP and REST requests
// into one thing, "propose a call, await its outcome", and outcomes back. It
// decides nothing and executes nothing.
package gateway

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/tlsfiles"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/conformance"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/decide"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/health"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/ledgerapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/llmapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/mcpapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/metrics"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/policyapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/secrets"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/tlog"
)

// Config is the gateway's configuration.
type Config struct {
	Addr        string            // listen address, host:port
	TokenKey    ed25519.PublicKey // verifies bearer tokens
	Durability  string            // mode named in /readyz: process, power, replicated
	Expect      []string          // services /readyz waits for
	CallTimeout time.Duration     // how long a caller waits; 0 = 90 s
	Version     string
	Capture     string // how much of prompts and answers the ledger keeps: plain, encrypted, hashed or off; empty = plain
	Bodies      body.Limits
	TLSCert     string // certificate and key, PEM files, read again when they change; empty = plain HTTP
	TLSKey      string
	Webhook     string // is told of calls that wait for approval; empty = nobody
	WebhookKey  []byte // HMAC-SHA256 key of the webhook's signature
	// Listening, if set, is told the bound address.
	Listening func(addr string)
	// Listener, if set, is served instead of a TCP listener on Addr.
	Listener net.Listener
}

// Service implements run.Service. Each of its parts is a package beneath
// services/gateway/internal; Service builds them and runs what runs.
type Service struct {
	Config

	env       *run.Env
	tools     catalog.Catalog
	authority auth.Authority
	view      *follow.Follower
	metrics   *metrics.Metrics
	probe     probe.Probe
	parts
}

// parts are the gateway's APIs and what they share.
type parts struct {
	gate        *auth.Gate
	prop        *propose.Proposer
	lender      *execute.Lender // nil without a signing key
	calls       *calls.API
	models      *llmapi.API
	mcp         *mcpapi.API
	packs       *packs.API
	decide      *decide.API
	keys        *keys.API
	secrets     *secrets.API
	approvals   *approvals.API
	policy      *policyapi.API
	ledger      *ledgerapi.API
	tlog        *tlog.API
	conformance *conformance.API
	health      *health.API
	queries     *queries.Client
}

var toolsReader = bus.Reader{Name: "catalog", Stream: bus.Events, Filters: append(slices.Clone(catalog.Filters), auth.Filters()...)}

// outcomesReader is what callers wait for: outcomes, escalations, and the intents
// of calls that they execute themselves.
var outcomesReader = bus.Reader{Name: propose.Reader.Name, Stream: bus.Events, Filters: append(slices.Clone(propose.Reader.Filters), bus.HandOutFilter)}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: "gateway", Prefix: "gw", Slots: 4, Work: []bus.Work{approvals.Work, execute.LentWork()},
		Readers: []bus.Reader{outcomesReader, toolsReader, execute.Control}}
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	if s.CallTimeout == 0 {
		s.CallTimeout = 90 * time.Second
	}
	if s.Capture == "" {
		s.Capture = llm.CapturePlain
	}
	if !slices.Contains([]string{llm.CapturePlain, llm.CaptureEncrypted, llm.CaptureHashed, llm.CaptureOff}, s.Capture) {
		return fmt.Errorf("gateway: capture %q: want plain, encrypted, hashed or off", s.Capture)
	}
	s.view = follow.New(env.Conn, env.Instance, toolsReader, func(en eventlog.Entry) error {
		e, err := eventlog.Open(en)
		if err != nil {
			env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
			return nil
		}
		env.Emit.See(e.Lamport)
		if err := s.authority.Apply(e); err != nil {
			return err
		}
		return s.tools.Apply(e)
	})
	s.build(env)
	s.prop.ServeBodies(env.Box)
	s.secrets.Serve()
	env.ReportFollower("gateway.catalog", s.view)
	env.Report(func(context.Context) run.Health {
		pos, lag := s.prop.Position()
		return run.Health{Name: "gateway.outcomes", OK: pos > 0 || lag == 0, Position: pos, Lag: lag}
	})

	files, err := tlsfiles.Open(s.TLSCert, s.TLSKey)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	l, err := s.listen()
	if err != nil {
		return err
	}
	bound := l.Addr().String()
	if files == nil {
		tlsfiles.Warn("gateway", bound)
	} else {
		l = tls.NewListener(l, files.Config())
	}
	srv := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: body.MaxHeader, IdleTimeout: 2 * time.Minute}
	g, inner := errgroup.WithContext(ctx)
	listening := make(chan struct{})
	g.Go(func() error { return s.view.Run(inner, 1) })
	g.Go(func() error {
		s.probe.Run(inner, func(ctx context.Context) error { _, err := env.Conn.LastSeq(ctx, bus.Events); return err })
		return nil
	})
	g.Go(func() error { s.mcp.Run(inner); return nil })
	if s.lender != nil {
		g.Go(func() error { return s.lender.Run(inner) })
	}
	if s.Webhook != "" {
		if len(s.WebhookKey) < 16 {
			return errors.New("gateway: the webhook's key has fewer than 16 bytes")
		}
		hook := &approvals.Webhook{URL: s.Webhook, Key: s.WebhookKey, Emit: env.Emit, Log: env.Log}
		g.Go(func() error {
			return execute.Consume(inner, env.Conn, approvals.Work.Consumer("gateway"), 4, approvals.Work.AckWait, hook.Notify)
		})
	}
	// Outcomes are received until every request has had its answer.
	outcomes, stopOutcomes := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return s.prop.Run(outcomes, func() { close(listening) }) })
	g.Go(func() error {
		select {
		case <-listening:
		case <-inner.Done():
			return nil
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
		bye, cancel := context.WithTimeout(context.WithoutCancel(inner), 10*time.Second)
		defer cancel()
		err := srv.Shutdown(bye)
		if errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close()
		}
		stopOutcomes()
		l.Close()
		return err
	})
	return g.Wait()
}

// build makes the parts of a gateway over env.
func (s *Service) build(env *run.Env) {
	s.env, s.metrics = env, metrics.New()
	var ledger eventlog.Log
	if env.Emit != nil {
		ledger = env.Emit.Log
	}
	s.queries = &queries.Client{Services: env}
	s.gate = &auth.Gate{TokenKey: s.TokenKey, Tenant: env.Tenant, Authority: &s.authority, Limits: s.Bodies}
	if s.view != nil {
		s.gate.Known = s.view.Ready()
	}
	if env.SignKey() != nil {
		s.lender = &execute.Lender{Conn: env.Conn, Emit: env.Emit, Recorder: env.Recorder(), Keys: env.Trust.At, Instance: env.Instance}
	}
	in := &sessions.Resolver{Tenant: env.Tenant, Ledger: ledger, Grants: &s.authority}
	heirs := &labels.Reader{Tenant: env.Tenant, Ledger: ledger, Queries: s.queries}
	s.prop = &propose.Proposer{Emit: env.Emit, Blobs: env.Blobs, Conn: env.Conn, Instance: env.Instance, Reader: outcomesReader}
	s.calls = &calls.API{Tenant: env.Tenant, CallTimeout: s.CallTimeout, Gate: s.gate, Sessions: in, Labels: heirs, Queries: s.queries, Proposer: s.prop,
		Tools: &s.tools, Probe: &s.probe, Metrics: s.metrics, Blobs: env.Blobs, Ledger: ledger, Log: env.Log}
	s.prop.ExecutorOf = s.calls.ExecutorOf
	s.models = &llmapi.API{Capture: s.Capture, CallTimeout: s.CallTimeout, Gate: s.gate, Calls: s.calls, Labels: heirs, Queries: s.queries, Proposer: s.prop,
		Probe: &s.probe, Metrics: s.metrics, Blobs: env.Blobs, Box: env.Box, Tracer: env.Tracer, Log: env.Log}
	s.calls.ModelRequest = s.models.Request
	s.mcp = &mcpapi.API{Version: s.Version, CallTimeout: s.CallTimeout, Gate: s.gate, Calls: s.calls, Sessions: in, Labels: heirs, Tools: &s.tools, Logged: s.logToolCall}
	s.packs = &packs.API{Gate: s.gate, Calls: s.calls, Tools: &s.tools}
	s.decide = &decide.API{Gate: s.gate, Calls: s.calls, Queries: s.queries, Proposer: s.prop, Probe: &s.probe, Lender: s.lender, Tools: &s.tools,
		Metrics: s.metrics, Blobs: env.Blobs, Emit: env.Emit, Log: env.Log}
	s.keys = &keys.API{Gate: s.gate, Calls: s.calls, Queries: s.queries, Authority: &s.authority}
	s.secrets = &secrets.API{Tenant: env.Tenant, Gate: s.gate, Calls: s.calls, Trust: env.Trust, Ledger: ledger, Box: env.Box}
	s.approvals = &approvals.API{Gate: s.gate, Calls: s.calls, Queries: s.queries}
	s.policy = &policyapi.API{Gate: s.gate, Queries: s.queries, Trust: env.Trust}
	s.ledger = &ledgerapi.API{Tenant: env.Tenant, RootKID: env.RootKID, Gate: s.gate, Queries: s.queries, Sessions: in, Conn: env.Conn, Blobs: env.Blobs,
		Catalog: &s.tools, Authority: &s.authority, Position: func() uint64 { return s.view.Position() }}
	s.tlog = &tlog.API{Gate: s.gate, Queries: s.queries}
	s.conformance = &conformance.API{RootKID: env.RootKID, Gate: s.gate, Blobs: env.Blobs, Emit: env.Emit}
	s.health = &health.API{Tenant: env.Tenant, Instance: env.Instance, Version: s.Version, Durability: s.Durability, Expect: s.Expect, Gate: s.gate,
		Ledger: ledger, Conn: env.Conn, Box: env.Box, Health: env.Health}
}

func (s *Service) listen() (net.Listener, error) {
	if s.Listener != nil {
		return s.Listener, nil
	}
	l, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; set another address with --addr", s.Addr, err)
	}
	return l, nil
}
