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
	"sync"
	"sync/atomic"
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
	Bodies      BodyLimits
	TLSCert     string // certificate and key, PEM files, read again when they change; empty = plain HTTP
	TLSKey      string
	Webhook     string // is told of calls that wait for approval; empty = nobody
	WebhookKey  []byte // HMAC-SHA256 key of the webhook's signature
	// Listening, if set, is told the bound address.
	Listening func(addr string)
	// Listener, if set, is served instead of a TCP listener on Addr.
	Listener net.Listener
}

// Service implements run.Service.
type Service struct {
	Config

	env       *run.Env
	prop      *propose.Proposer
	tools     catalog.Catalog
	authority authority
	released  released
	view      *follow.Follower
	metrics   *metrics
	pulse     pulse
	bodies    bodies
	values    heldValues
	makers    makers
	mcps      mcpSessions
	lender    *execute.Lender // nil without a signing key

	readyNow   cached[Readiness]
	figures    cached[struct{}]
	verifying  chan struct{} // packs that are verified now
	conforming sync.Mutex    // held by a conformance run

	verified      sync.Map // digest of a token -> *caller
	verifiedCount atomic.Int64
}

var toolsReader = bus.Reader{Name: "catalog", Stream: bus.Events, Filters: append(slices.Clone(catalog.Filters), authorityFilters()...)}

// outcomesReader is what callers wait for: outcomes, escalations, and the intents
// of calls that they execute themselves.
var outcomesReader = bus.Reader{Name: propose.Reader.Name, Stream: bus.Events, Filters: append(slices.Clone(propose.Reader.Filters), bus.HandOutFilter)}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: "gateway", Prefix: "gw", Slots: 4, Work: []bus.Work{notifyWork, execute.LentWork()},
		Readers: []bus.Reader{outcomesReader, toolsReader, execute.Control}}
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env = env
	if s.CallTimeout == 0 {
		s.CallTimeout = 90 * time.Second
	}
	if s.Capture == "" {
		s.Capture = llm.CapturePlain
	}
	if !slices.Contains([]string{llm.CapturePlain, llm.CaptureEncrypted, llm.CaptureHashed, llm.CaptureOff}, s.Capture) {
		return fmt.Errorf("gateway: capture %q: want plain, encrypted, hashed or off", s.Capture)
	}
	s.metrics = newMetrics()
	s.verifying = make(chan struct{}, maxVerifying)
	s.prop = &propose.Proposer{Emit: env.Emit, Blobs: env.Blobs, Conn: env.Conn, Instance: env.Instance, Reader: outcomesReader, ExecutorOf: s.executorOf}
	s.prop.ServeBodies(env.Box)
	s.serveValues()
	s.view = follow.New(env.Conn, env.Instance, toolsReader, func(en eventlog.Entry) error {
		e, err := eventlog.Open(en)
		if err != nil {
			env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
			return nil
		}
		env.Emit.See(e.Lamport)
		if slices.Contains(authorityEvents, e.Name) {
			return s.authority.apply(e)
		}
		return s.tools.Apply(e)
	})
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
	srv := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: maxHeader, IdleTimeout: 2 * time.Minute}
	g, inner := errgroup.WithContext(ctx)
	listening := make(chan struct{})
	g.Go(func() error { return s.view.Run(inner, 1) })
	g.Go(func() error { s.pulse.run(inner, env.Conn); return nil })
	g.Go(func() error { s.keepSessions(inner); return nil })
	if env.SignKey() != nil {
		s.lender = &execute.Lender{Conn: env.Conn, Emit: env.Emit, Recorder: env.Recorder(), Keys: env.Trust.At, Instance: env.Instance}
		g.Go(func() error { return s.lender.Run(inner) })
	}
	if s.Webhook != "" {
		if len(s.WebhookKey) < 16 {
			return errors.New("gateway: the webhook's key has fewer than 16 bytes")
		}
		g.Go(func() error {
			return execute.Consume(inner, env.Conn, notifyWork.Consumer("gateway"), 4, notifyWork.AckWait, s.notify)
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
