package run

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Serve runs one instance of a service until ctx ends or the instance fails, and calls
// ready when the service accepts work. It waits until its streams exist and a slot is
// free, so services may start in any order. It returns nil if the instance has stopped
// without an error, in general because ctx has ended, and a *bus.RunningError if running
// processes hold all slots of the service.
func Serve(ctx context.Context, cfg Config, s Service, ready func()) error {
	d := s.Declaration()
	conn, err := bus.Connect(cfg.Dialer, cfg.NKeySeed, d.Service, false)
	if err != nil {
		return err
	}
	defer conn.Close()
	slot, err := bus.AcquireSlot(ctx, conn, &d)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	env := newEnv(&cfg, d.Service, slot.Instance, conn)
	defer env.count(cfg.Metrics)()
	env.connect()
	if slices.Contains(services.Snapshots(), d.Service) && !cfg.NoSnapshots {
		env.Snapshots = env.snapshots()
	}
	if env.Tracer, err = tracing.New(ctx, d.Service, slot.Instance, cfg.TracesTo, env.Endpoint(egress.EndpointTraces)); err != nil {
		return fmt.Errorf("%s: tracing: %w", slot.Instance, err)
	}
	in := &instance{env: env, cfg: &cfg, service: s, started: make(chan struct{})}
	env.starting.add(startTask{instance: slot.Instance, done: in.started})
	env.Report(func(context.Context) Health { return Health{Name: "service", OK: in.takesWork.Load()} })
	if cfg.NKey != nil {
		env.Report(func(context.Context) Health {
			return Health{Name: "nats-identity", OK: true, Detail: bus.IdentityOf(conn)}
		})
	}
	if err := in.loadKey(); err != nil {
		return err
	}
	if err := in.run(ctx, slot, ready); err != nil {
		return fmt.Errorf("%s: %w", slot.Instance, err)
	}
	return nil
}

// newEnv returns the Env of an instance, with its identity and an empty key registry.
func newEnv(cfg *Config, service, name string, conn *bus.Conn) *Env {
	env := &Env{Service: service, Instance: name, RootKID: cfg.RootKID, Conn: conn, Trust: &Trust{}, Cell: &Cell{},
		Log: slog.With("service", service, "instance", name), starting: cfg.Starting, recent: cfg.Recent}
	if env.starting == nil {
		env.starting = NewStarting()
	}
	env.Trust.reg.Root, env.Trust.cell = cfg.RootKID, env.Cell
	return env
}

// connect sets the facilities of v that use its connection and its metrics.
func (v *Env) connect() {
	ledger := &appends{Log: eventlog.JetStream{Conn: v.Conn}}
	v.Report(ledger.health)
	v.Emit = &emit.Emitter{Log: v.Metrics.Log(ledger), Source: v.Service + "/" + v.Instance, Now: time.Now}
	v.Trust.see = v.Emit.See
	v.Blobs = &blob.Store{Conn: v.Conn, Recent: v.recent}
	v.Transport = transient.NewTransport(v.Conn, contract.CellTenant, v.Service, v.Instance)
	v.Transport.Tenants(v.Cell.standing)
	v.Queries = &rpc.Client{Transport: v.Transport, Live: v.live, All: v.running}
	// The vault-broker accepts queries for content keys from these services only.
	if slices.Contains(services.ContentReaders(), v.Service) {
		v.contentKeys = contentkeys.New(v.Queries)
		v.Blobs.Keys = v.contentKeys
		v.OnErasure(func(string) { v.contentKeys.Forget() })
	}
	v.serveQueries()
}

// OnErasure registers a function that is called when the instance reads that content keys of a
// tenant were destroyed, which takes less than a second. The instance has then dropped the keys
// that it cached. The function drops what it caches of the contents of the tenant; it must return
// soon. At a start it is called for the events of the past too.
func (v *Env) OnErasure(f func(tenant string)) {
	v.Trust.mu.Lock()
	defer v.Trust.mu.Unlock()
	v.Trust.erased = append(v.Trust.erased, f)
}

// Pseudonym returns the pseudonym of a data subject of a tenant. It returns an error if the
// service may not fetch content keys.
func (v *Env) Pseudonym(ctx context.Context, tenant, subject string) (string, error) {
	if v.contentKeys == nil {
		return "", errors.New("this service has no content keys")
	}
	return v.contentKeys.Pseudonym(ctx, tenant, subject)
}

// snapshots returns the store of the snapshots of the instance's views. It has no tenant
// yet; see instance.serve.
func (v *Env) snapshots() *snapshot.Store {
	return &snapshot.Store{Conn: v.Conn, Log: v.Emit.Log, Trust: v.Trust, SignKey: v.SignKey, Service: v.Service,
		Instance: v.Instance, RootKID: v.RootKID, Now: v.Emit.Now, Logger: v.Log}
}

// instance is the state of a service that Serve runs.
type instance struct {
	env       *Env
	cfg       *Config
	service   Service
	trust     *follow.Follower // reads the key registry
	takesWork atomic.Bool
	started   chan struct{} // closed when the service accepts work
}

// loadKey reads the signing key, if the service has one.
func (in *instance) loadKey() error {
	if in.cfg.SignSeed == nil {
		return nil
	}
	seed, err := in.cfg.SignSeed()
	if err != nil {
		return err
	}
	k, err := sign.NewKey(seed)
	if err != nil {
		return err
	}
	in.env.key.Store(k)
	in.env.Report(func(context.Context) Health {
		return Health{Name: "signing-key", OK: true, Detail: in.env.SignKey().KID}
	})
	return nil
}

// run starts the background tasks, runs the service, and stops the tasks after it. It
// returns the error of the service or, if that is nil, of a background task. After ctx
// has ended or a task has failed, the error context.Canceled does not count as one of
// the service.
func (in *instance) run(ctx context.Context, slot *bus.Slot, ready func()) error {
	env := in.env
	// The base context ends after the service has stopped, so that the outcomes of its
	// last work can still be recorded.
	base, stopBase := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBase()
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in.trust = follow.New(env.Conn, env.Instance, bus.Trust, env.Trust.apply)
	env.Cell.reach, env.Trust.reach, env.Trust.position = in.trust.Reach, in.trust.Reach, in.trust.Position
	env.starting.Follow(env.Instance, "keys."+env.Service, in.trust)
	go env.starting.Report(inner, env.Log, env.Instance)
	var g errgroup.Group
	for _, task := range []func(context.Context) error{slot.Keep, func(c context.Context) error { return in.trust.Run(c, 1) }, env.Transport.Run, in.fatal} {
		g.Go(func() error {
			err := task(base)
			if err != nil {
				cancel(err)
			}
			return err
		})
	}
	err := in.serve(inner, base, ready)
	in.lastSpans(base)
	cause := context.Cause(inner)
	if inner.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // the instance was stopped; if a task is the reason, its error follows
	}
	stopBase()
	if e := g.Wait(); err == nil {
		err = e
	}
	// A background task that fails cancels inner with its error, which stops the
	// service; the service itself may then have returned nil.
	if err == nil && ctx.Err() == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// lastSpansTime is the maximum time for sending the spans that remain when an instance stops.
const lastSpansTime = time.Second

// lastSpans sends the remaining spans. The egress-broker may have stopped before.
func (in *instance) lastSpans(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastSpansTime)
	defer cancel()
	in.env.Tracer.Close(ctx)
}

// Endpoint returns a function that returns a round tripper for requests to an endpoint of the
// egress-broker, for example egress.EndpointTraces, with a configuration of TLS, which is nil for the
// default. Flows are recorded in the tenant of the cell.
func (v *Env) Endpoint(name string) func(*tls.Config) http.RoundTripper {
	return func(conf *tls.Config) http.RoundTripper { return endpoint.NewShared(v.Queries, name, conf) }
}

// fatal returns the error after which the connection requires the service to stop, or
// nil when ctx ends.
func (in *instance) fatal(ctx context.Context) error {
	select {
	case err := <-in.env.Conn.Fatal:
		return err
	case <-ctx.Done():
		return nil
	}
}

// serve waits until the instance can verify, sign and query, and then runs the service
// until ctx ends. It returns the error of the service, or that of seeLedger. If ctx ends
// before the service runs, serve returns nil or the error of ctx. base ends later than
// ctx.
func (in *instance) serve(ctx, base context.Context, ready func()) error {
	kid, ok := in.prepare(ctx)
	if !ok {
		return nil
	}
	if err := eventlog.Retry(ctx, func() error { return in.env.seeLedger(ctx) }); err != nil {
		return err
	}
	if kid != "" {
		go in.env.rotate(base, in.cfg.SignSeed)
	}
	if in.cfg.NKey != nil {
		go in.env.identify(base, in.cfg.NKey)
	}
	if in.cfg.Live != nil {
		defer in.cfg.Live.add(in.env, in.service)()
	}
	if s := in.env.Snapshots; s != nil {
		s.Tenant = in.env.Cell.Log() // the registry of keys is complete, so the log has its name
	}
	keep, stop := context.WithCancel(ctx)
	var kept sync.WaitGroup
	err := in.service.Run(ctx, in.env, func() {
		in.takesWork.Store(true)
		close(in.started)
		kept.Go(func() { in.env.Snapshots.Keep(keep) })
		ready()
	})
	stop()
	kept.Wait()
	if err == nil || errors.Is(err, context.Canceled) {
		in.env.Snapshots.Close(base)
	}
	return err
}

// prepare waits until the key registry is complete and has the root key and the
// instance's own key, and the inbox receives. It returns the id of the signing key, or
// "" if there is none; ok is false if ctx has ended.
func (in *instance) prepare(ctx context.Context) (kid string, ok bool) {
	// The key registry must be complete before the service verifies a signature, and the
	// inbox must receive before the service sends a query.
	for _, ch := range []<-chan struct{}{in.trust.Ready(), in.env.Transport.Ready()} {
		select {
		case <-ch:
		case <-ctx.Done():
			return "", false
		}
	}
	if k := in.env.SignKey(); k != nil {
		kid = k.KID
	}
	// Other services reject signatures of this instance until its key is published.
	in.env.Trust.wait(ctx, kid)
	return kid, ctx.Err() == nil
}

// seeLedger advances the Lamport clock to at least that of the ledger's last event and
// of the service's own last event, of any tenant, so that new events come after both. It
// ignores an entry that is not a valid event. It returns an error if the ledger cannot
// be read.
func (v *Env) seeLedger(ctx context.Context) error {
	for _, filter := range []string{bus.EveryEvent, bus.Filter{Service: v.Service}.String()} {
		en, err := v.Emit.Log.Last(ctx, filter)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if e, err := eventlog.Open(en, filter); err == nil {
			v.Emit.See(e.Lamport)
		}
	}
	return nil
}
