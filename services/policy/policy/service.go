// Package policy is the policy service. It consumes proposals, decides them with
// the policies and tools in force, and records each decision as an allowed event,
// which is a work item of the executor, as an escalation, or as a denial with its
// receipt. It also executes the calls that govern the mesh, settles escalations and
// reservations, and ends allowed calls that do not start in time.
//
// The package is the shell around the pure packages in internal: it consumes
// deliveries, collects facts, appends with expected sequences, and serves
// queries. DESIGN.md describes the states of a call, the invariants and the tests
// for them.
package policy

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/tenant"
)

// Config is the configuration of the policy service; its files are read when the
// service starts.
type Config struct {
	P0File  string   // signed ceilings, created by `binnacle init` or `binnacle trust sign`
	P1Files []string // bundles (.tar.gz) and Rego files; the Rego files together replace the built-in bundle
	Limit   int      // greatest number of concurrent decisions; 0 = 32
}

// maxDecisions is the greatest number of concurrent decisions if Config.Limit is 0.
const maxDecisions = 32

// Service implements run.Service. Up to eight instances may run in a mesh; they keep no
// durable state outside the streams of the mesh.
type Service struct {
	Config
}

// Declaration implements run.Service: it returns the work that policy consumes
// and the events that it reads.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.Policy, Slots: 8, Work: []bus.Work{decideWork, settleWork, bus.ExecutorWork(services.Policy)},
		Readers: []bus.Reader{stateReader, startsReader, budgetReader, bus.ExecutorControl(services.Policy)}}
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
	budget    *budget.Ledgers
	queries   queries
	view      atomic.Pointer[follow.Follower] // follower of state; nil until Run has activated the configuration
}

// mesh holds the tracer, and the functions by which the parts obtain information about
// the running mesh.
type mesh struct {
	tracer    *tracing.Tracer
	connected func() time.Time                                              // returns the time at which the connection to the NATS server was established
	acted     func(ctx context.Context, tenant, actor string) (bool, error) // reports whether the ledger has an event of the actor in the tenant, according to audit's index
	live      func(ctx context.Context, service string) ([]string, error)   // returns the running instances of a service
	latest    func(context.Context) (uint64, error)                         // returns the sequence of the newest event that the state processes
	applied   func(ctx context.Context, service, instance string) error     // waits until the main view of an instance has applied every stored event
	bundles   func(tenant, call string) http.RoundTripper                   // see activator; nil if no bundle is downloaded
}

// surroundings returns the instance and the mesh functions that are built from the
// environment of package run.
func surroundings(env *run.Env) (*instance, mesh) {
	i := &instance{name: env.Instance, emit: env.Emit, log: env.Log, contents: func(tenant string) contents { return env.Blobs.In(tenant) }, trust: env.Trust,
		signKey: env.SignKey, recorder: env.Recorder(), epoch: env.Epoch, cell: env.Cell.Now}
	i.states.Configured = env.Cell.Log()
	return i, mesh{tracer: env.Tracer, connected: env.Conn.Made,
		acted: func(ctx context.Context, tenant, actor string) (bool, error) {
			r, err := rpc.Do(ctx, env.Queries.In(tenant), audit.ActedQuery, audit.ActedRequest{Actor: actor})
			return r.Value, err
		},
		live:   func(ctx context.Context, service string) ([]string, error) { return bus.Live(ctx, env.Conn, service) },
		latest: func(ctx context.Context) (uint64, error) { return latest(ctx, env) },
		applied: func(ctx context.Context, service, instance string) error {
			_, err := rpc.Do(ctx, env.Queries.To(instance), query.AppliedQuery.Of(service), query.AppliedRequest{})
			return err
		},
		bundles: func(tenant, call string) http.RoundTripper {
			return endpoint.New(env.Queries.In(tenant), egress.EndpointBundles, call)
		}}
}

// assemble creates the parts of an instance. Tests call it with an in-memory log.
func assemble(i *instance, m mesh) *parts {
	i.states.Keys = i.trust.At
	i.states.Open = func(tenant string, c *contract.Content) ([]byte, error) {
		return i.contents(tenant).Open(context.Background(), c)
	}
	p := &parts{instance: i, ballots: &ballots{i}, budget: budget.New(i.emit, i.log, i.states.Cell(), &i.states)}
	i.reach = p.reached
	i.others = func(ctx context.Context) error { return m.spread(ctx, i.name) }
	owners := &sessions{instance: i, openers: cacheOf[string](i)}
	known := &names{instance: i, sessions: owners, attested: m.acted, latest: m.latest, position: func() (uint64, bool) {
		if view := p.view.Load(); view != nil {
			return view.Position(), true
		}
		return 0, false
	}}
	p.decider = decider{instance: i, sessions: owners, labels: &labels{instance: i, known: cacheOf[labelled](i)}, parents: cacheOf[liveParent](i), ballots: p.ballots, budget: p.budget, tracer: m.tracer, connected: m.connected}
	p.settler = settler{&p.decider}
	p.activator = &activator{instance: i, names: known, bundles: m.bundles}
	p.governor = governor{instance: i, sessions: owners, names: known, ballots: p.ballots, activator: p.activator, freezes: &freezes{instance: i, live: m.live}, tenants: &tenants{i}}
	p.expirer.instance = i
	p.queries = queries{instance: i, budget: p.budget, starts: &p.expirer.starts}
	return p
}

// reached waits until the state has applied every event that was stored when reached was
// called. It returns the error of ctx or of a NATS request, or an error if the service
// stops: the state may then lack events. Without a follower, it returns at once.
func (p *parts) reached(ctx context.Context) error {
	view := p.view.Load()
	if view == nil {
		return nil
	}
	_, err := view.Applied(ctx)
	return err
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

// Run implements run.Service. It activates the configuration, waits until the view
// policy.state has caught up, calls ready and consumes work. It returns when ctx ends
// and the decisions in progress are complete, or with the first error.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	p := assemble(surroundings(env))
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, services.Policy, tools); err != nil {
		return err
	}
	if err := eventlog.Retry(ctx, func() error { return p.activator.configure(ctx, &s.Config) }); err != nil {
		return err
	}
	if err := eventlog.Retry(ctx, func() error { return p.activator.bootstrap(ctx) }); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	p.await = func(seq uint64) error { return env.Trust.Await(ctx, seq) }
	kept := p.entries(env.Snapshots == nil)
	view := follow.New(env.Conn, env.Instance, stateReader, kept.Add)
	p.view.Store(view)
	started := follow.New(env.Conn, env.Instance, startsReader, p.expirer.starts.Apply)
	started.Batch, started.Every = 5000, 500*time.Millisecond
	env.ReportFollower("policy.state", view, nil)
	env.ReportFollower("policy.starts", started, nil)
	env.ReportWork(decideWork.Consumer(services.Policy))
	env.ServeApplied(view)
	p.queries.serve(env.Transport, view, started)
	from := env.Snapshots.Start(ctx, kept.Source(services.ViewState, state.Version, view))
	startedFrom := env.Snapshots.Start(ctx, p.startsSource(started))
	env.Snapshots.Start(ctx, p.budgetSource(env))
	g.Go(func() error { return view.Run(ctx, from) })
	g.Go(func() error { return started.Run(ctx, startedFrom) })
	g.Go(func() error { p.bootstrapOpened(ctx); return nil })
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
		// The budget ledger runs until the last decision in progress has ended, and is
		// followed until its last event is stored.
		writing, stop := context.WithCancel(context.WithoutCancel(ctx))
		following, unfollow := context.WithCancel(context.WithoutCancel(ctx))
		g.Go(func() error { p.budget.Run(writing); unfollow(); return nil })
		g.Go(func() error { return p.followBudget(ctx, following, env) })
		defer stop()
		return s.work(ctx, env, p, ready)
	})
	return g.Wait()
}

// bootstrapOpened waits until this instance has applied cell_opened, and then registers
// the first persons of the tenants that exist from that event on. It returns when ctx is
// done or the persons are registered. An error is logged, because the next instance that
// starts registers them too.
func (p *parts) bootstrapOpened(ctx context.Context) {
	for !p.states.Opened() {
		if sleep(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return
		}
	}
	if err := eventlog.Retry(ctx, func() error { return p.activator.bootstrap(ctx) }); err != nil && ctx.Err() == nil {
		p.log.Error("the first persons are not registered", "err", err)
	}
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
	governing := execute.New(env, 16, tools, p.governor.handle)
	governing.ReRunable = tenant.Governs
	work.Go(func() error { return governing.Run(ctx) })
	work.Go(func() error { p.ballots.timeouts(ctx); return nil })
	work.Go(func() error {
		return consumer.Run(ctx, env.Conn, services.Policy, settleWork, 8, p.consume("settlement", 250*time.Millisecond, p.settler.take))
	})
	ready()
	limit := s.Limit
	if limit == 0 {
		limit = maxDecisions
	}
	work.Go(func() error {
		return consumer.Run(ctx, env.Conn, services.Policy, decideWork, limit, p.consume("proposal", 0, p.decider.take))
	})
	return work.Wait()
}

// followBudget applies the events from which the budget ledgers are computed, until
// following is done. It starts when the ledgers have events or a call needs them, unless ctx
// is done before.
func (p *parts) followBudget(ctx, following context.Context, env *run.Env) error {
	from := uint64(0)
	if eventlog.Retry(ctx, func() error { return p.budget.Discover(ctx) }) != nil {
		return nil // ctx is done
	}
	select {
	case <-ctx.Done():
		return nil
	case <-p.budget.Wanted():
	}
	if eventlog.Retry(ctx, func() (err error) { from, err = p.budget.From(ctx); return err }) != nil {
		return nil
	}
	p.budget.Follow(from)
	go p.budget.Sweep(ctx)
	return follow.New(env.Conn, env.Instance, budgetReader, p.budget.Apply).Run(following, from)
}

// signedEvents are the names of the events of the state that contain signed documents.
var signedEvents = map[string]bool{contract.EventCellOpened: true, contract.EventOperatorDelegated: true, contract.EventOperatorWithdrawn: true,
	contract.EventLogEpochOpened: true, contract.EventPolicyActivated: true}

// apply applies one entry to the state. It logs and skips an entry that is not a valid
// event. Before it applies an event with a document that a root key or a signer of bundles
// signed, it waits until the key registry has applied the events before that one;
// otherwise the state would lack a valid document. An error means that an event of policy
// or a policy document cannot be read or applied, or that await has failed; the service
// then stops, since it would otherwise decide with the wrong policies.
func (p *parts) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en, stateReader.Filters...)
	if err != nil {
		p.log.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	if signedEvents[e.Name] && p.await != nil {
		if err := p.await(en.Seq); err != nil {
			return err
		}
	}
	p.emit.See(e.Lamport)
	defer func() { p.seen.Store(max(p.seen.Load(), e.Lamport)) }()
	switch e.Name {
	case contract.EventLedgerTruncated:
		p.log.Error("audit misses history: every call is denied until the ledger is recovered")
	case contract.EventFreezeAcknowledged:
		var a contract.FreezeAck
		if err := contract.Decode(e.Data, &a); err == nil && e.Tenant == p.states.Cell() && ownInstance(e.Service(), a.Instance) {
			p.governor.freezes.add(&a)
		}
		return nil
	}
	return p.states.Apply(e)
}
