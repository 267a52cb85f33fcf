// Package policy is the policy service. It consumes proposals, decides them with
// the policies and tools in force, and records each decision as an allowed event,
// which is a work item of the executor, as an escalation, or as a denial with its
// receipt. It also executes the calls that govern the mesh, settles escalations and
// reservations, and ends allowed calls that do not start in time.
//
// The package is the shell around the pure packages in internal: it consumes
// deliveries, collects facts, appends with expected sequences, and serves
// queries. DESIGN.md describes the states of a call, the invariants and the tests
// for them. A new fact is collected in gather.go; a new governing call is a tool
// in tools.go and a command in internal/govern.
package policy

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// Config is the configuration of the policy service; its files are read when the
// service starts.
type Config struct {
	P0File  string   // signed ceilings, created by `binnacle init` or `binnacle trust sign`
	P1Files []string // bundles (.tar.gz) and Rego files; the Rego files together replace the built-in bundle
	Limit   int      // greatest number of concurrent decisions; 0 = 32
}

// maxDecisions is the greatest number of concurrent decisions if Config has none.
const maxDecisions = 32

// Service implements run.Service. Up to eight instances may run in a mesh; they keep no
// durable state outside the streams of the mesh.
type Service struct {
	Config
}

// Declaration implements run.Service: it returns the work that policy consumes
// and the events that it reads.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: "policy", Slots: 8, Work: []bus.Work{decideWork, settleWork, bus.ExecutorWork("policy")},
		Readers: []bus.Reader{stateReader, startsReader, outcomesReader, bus.Control}}
}

// parts are the components of a running service, with the instance that they
// share.
type parts struct {
	*instance
	decider   decider
	settler   settler
	ballots   *ballots
	activator *activator
	governor  governor
	expirer   expirer
	budget    *budget.Ledger
	queries   queries
	view      atomic.Pointer[follow.Follower] // follower of state; nil until Run has activated the configuration
}

// mesh holds the tracer, and the functions by which the parts obtain information about
// the running mesh.
type mesh struct {
	tracer    *tracing.Tracer
	connected func() time.Time                                            // when the connection to the server was established
	acted     func(ctx context.Context, actor string) (bool, error)       // reports whether the ledger has an event of the actor, according to audit's index
	live      func(ctx context.Context, service string) ([]string, error) // returns the running instances of a service
	latest    func(context.Context) (uint64, error)                       // returns the sequence of the newest event that the state processes
}

// surroundings returns the instance and the mesh functions that are built from the
// environment of package run.
func surroundings(env *run.Env) (*instance, mesh) {
	i := &instance{name: env.Instance, tenant: env.Tenant, emit: env.Emit, log: env.Log, contents: env.Blobs, trust: env.Trust,
		signKey: env.SignKey, recorder: env.Recorder()}
	return i, mesh{tracer: env.Tracer, connected: env.Conn.Made,
		acted: func(ctx context.Context, actor string) (bool, error) {
			r, err := rpc.Do(ctx, env.Queries, audit.ActedQuery, audit.ActedRequest{Actor: actor})
			return r.Value, err
		},
		live:   func(ctx context.Context, service string) ([]string, error) { return bus.Live(ctx, env.Conn, service) },
		latest: func(ctx context.Context) (uint64, error) { return latest(ctx, env) }}
}

// assemble creates the parts of an instance. Tests call it with an in-memory log.
func assemble(i *instance, m mesh) *parts {
	i.state.Keys = i.trust.At
	i.state.Open = func(c *contract.Content) ([]byte, error) { return i.contents.Open(context.Background(), c) }
	p := &parts{instance: i, ballots: &ballots{i}, budget: budget.New(i.emit, i.log, func() (limits []guard.Limit) {
		i.state.Read(func(v *state.View) { limits = v.Limits() })
		return limits
	})}
	owners := &sessions{instance: i}
	known := &names{instance: i, sessions: owners, attested: m.acted, latest: m.latest, position: func() (uint64, bool) {
		if view := p.view.Load(); view != nil {
			return view.Position(), true
		}
		return 0, false
	}}
	p.decider = decider{instance: i, sessions: owners, labels: &labels{instance: i}, ballots: p.ballots, budget: p.budget, tracer: m.tracer, connected: m.connected}
	p.settler = settler{&p.decider}
	p.activator = &activator{instance: i, names: known}
	p.governor = governor{instance: i, sessions: owners, names: known, ballots: p.ballots, activator: p.activator, freezes: &freezes{instance: i, live: m.live}}
	p.expirer.instance = i
	p.queries = queries{instance: i, budget: p.budget, starts: &p.expirer.starts}
	return p
}

// latest returns the sequence of the newest event that the state processes.
func latest(ctx context.Context, env *run.Env) (last uint64, err error) {
	for _, filter := range stateReader.FiltersOf(env.Instance) {
		n, err := env.Conn.Last(ctx, bus.Events, filter)
		if err != nil {
			return 0, err
		}
		last = max(last, n)
	}
	return last, nil
}

// Run implements run.Service. It activates the configuration, calls ready once the view
// policy.state has caught up and it begins to consume work, and returns when ctx ends
// and the decisions in progress are complete, or with the first error.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	p := assemble(surroundings(env))
	if err := catalog.Register(ctx, env.Emit, "policy", tools); err != nil {
		return err
	}
	if err := eventlog.Retry(ctx, func() error { return p.activator.configure(ctx, &s.Config) }); err != nil {
		return err
	}
	if err := eventlog.Retry(ctx, func() error { return p.activator.bootstrap(ctx) }); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	view := follow.New(env.Conn, env.Instance, stateReader, p.apply)
	p.view.Store(view)
	started := follow.New(env.Conn, env.Instance, startsReader, p.expirer.starts.Apply)
	started.Batch, started.Every = 5000, 500*time.Millisecond
	env.ReportFollower("policy.state", view, nil)
	env.ReportFollower("policy.starts", started, nil)
	env.ReportWork(decideWork.Consumer("policy"))
	p.queries.serve(env.Box, view, started)
	g.Go(func() error { return view.Run(ctx, 1) })
	g.Go(func() error { return started.Run(ctx, 1) })
	g.Go(func() error {
		if caught(ctx, started) {
			p.expirer.run(ctx)
		}
		return nil
	})
	g.Go(func() error {
		if !caught(ctx, view) {
			return nil
		}
		// The budget ledger runs until the last decision in progress has ended.
		writing, stop := context.WithCancel(context.WithoutCancel(ctx))
		g.Go(func() error { return p.budget.Run(writing, ctx) })
		g.Go(func() error { return p.followOutcomes(ctx, env) })
		defer stop()
		return s.work(ctx, env, p, ready)
	})
	return g.Wait()
}

// caught waits until a view has caught up with the ledger. It returns false if ctx is
// done first.
func caught(ctx context.Context, view *follow.Follower) bool {
	select {
	case <-view.Ready():
		return true
	case <-ctx.Done():
		return false
	}
}

// work consumes work until ctx ends, and returns after the work in progress is done. It
// calls ready when it begins.
func (s *Service) work(ctx context.Context, env *run.Env, p *parts, ready func()) error {
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return execute.New(env, 16, tools, p.governor.handle).Run(ctx) })
	work.Go(func() error { p.ballots.timeouts(ctx); return nil })
	work.Go(func() error {
		return consumer.Run(ctx, env.Conn, "policy", settleWork, 8, p.consume("settlement", 250*time.Millisecond, p.settler.take))
	})
	ready()
	limit := s.Limit
	if limit == 0 {
		limit = maxDecisions
	}
	work.Go(func() error {
		return consumer.Run(ctx, env.Conn, "policy", decideWork, limit, p.consume("proposal", 0, p.decider.take))
	})
	return work.Wait()
}

// followOutcomes settles reservations when calls end. It starts when limits or open
// reservations exist, because before that there is nothing to settle.
func (p *parts) followOutcomes(ctx context.Context, env *run.Env) error {
	for !p.budget.Watched() {
		if sleep(ctx, 200*time.Millisecond); ctx.Err() != nil {
			return nil
		}
	}
	tail, err := env.Conn.Tail(ctx, bus.Events)
	if err != nil {
		return nil // the only possible error is that ctx is done
	}
	f := follow.New(env.Conn, env.Instance, outcomesReader, func(en eventlog.Entry) error {
		p.budget.Outcome(ctx, en)
		return nil
	})
	go p.budget.Sweep(ctx)
	return f.Run(ctx, p.budget.From(tail))
}

// apply applies one entry to the state. It logs and skips an entry that is not a valid
// event. It returns an error if an event of policy or a policy document cannot be read;
// the service then stops, since it would otherwise decide with the wrong policies.
func (p *parts) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en, stateReader.Filters...)
	if err != nil {
		p.log.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	p.emit.See(e.Lamport)
	defer func() { p.seen.Store(max(p.seen.Load(), e.Lamport)) }()
	switch e.Name {
	case contract.EventLedgerTruncated:
		p.log.Error("audit misses history: every call is denied until the ledger is recovered")
	case contract.EventFreezeAcknowledged:
		var a contract.FreezeAck
		if err := contract.Decode(e.Data, &a); err == nil {
			p.governor.freezes.add(&a)
		}
		return nil
	}
	return p.state.Apply(e)
}
