// Package run starts and stops an instance of a service, in a process of its own or in
// one process with other services. It connects to NATS, acquires an instance slot,
// loads the key registry, opens the instance's inbox and advances the Lamport clock to
// the ledger's last events; then it runs the service, and stops everything in order.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/hostpath"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Service is implemented by each of the mesh's services.
type Service interface {
	// Declaration returns the service's name and the streams, consumers and permissions
	// that it needs on the bus.
	Declaration() bus.Declaration
	// Run serves until ctx ends, then finishes the work that it has accepted and
	// returns. It calls ready once, when it accepts work.
	Run(ctx context.Context, env *Env, ready func()) error
}

// Config is the configuration that every service needs to start. Only Dialer depends on
// the topology of the deployment.
type Config struct {
	Dialer   bus.Dialer
	Tenant   string
	NKeySeed []byte // seed of the service's NATS user key (nkey)
	// SignSeed reads the 32-byte Ed25519 seed of the signing key; it is nil for services
	// that sign nothing. It is called every keyPoll, so that a key can be rotated while
	// the service runs: a new seed is used once its key is in the key registry.
	SignSeed func() ([]byte, error)
	RootKID  string            // key id of the mesh's trust anchor
	Live     *Live             // configuration that is reloaded while the process runs; nil if it is not reloaded
	Metrics  *metrics.Registry // registry for the instance's metrics; nil for one that is not served
	TracesTo string            // URL of the OpenTelemetry collector; the environment variables of OpenTelemetry override it
	Starting *Starting         // receives what the instance waits for until it is ready; nil if nothing reads it
}

// Env holds the identity, connections and shared facilities of a running instance. Its
// methods are safe for concurrent use; the exported fields are set before Service.Run is
// called and do not change.
type Env struct {
	Tenant   string
	Service  string
	Instance string
	RootKID  string
	Conn     *bus.Conn
	Emit     *emit.Emitter
	Trust    *Trust
	Blobs    *blob.Store
	Box      *transient.Box
	Queries  *rpc.Client // sends queries to other services
	Log      *slog.Logger
	Tracer   *tracing.Tracer
	Metrics  *metrics.Instance

	starting *Starting
	key      atomic.Pointer[sign.Key]
	mu       sync.Mutex
	health   []func(context.Context) Health
}

// SignKey returns the instance's current signing key, or nil for services that sign
// nothing. The key may be rotated, so callers do not cache it.
func (v *Env) SignKey() *sign.Key { return v.key.Load() }

const (
	keyPoll   = time.Second     // interval at which a service reads its seed again
	keySettle = 2 * time.Second // time for which a new key is in the registry before it is used, so that other services have it
)

// rotate reads the seed again every keyPoll until ctx ends, and switches to a new
// signing key when it has been in the key registry for keySettle, or at once if the old
// key is no longer valid.
func (v *Env) rotate(ctx context.Context, read func() ([]byte, error)) {
	var known time.Time // when the new key was first found in the registry; zero if it was not
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(keyPoll):
		}
		seed, err := read()
		if err != nil {
			v.Log.Warn("signing key not read", "err", err)
			continue
		}
		k, err := sign.NewKey(seed)
		if err != nil {
			v.Log.Warn("signing key not usable", "err", err)
			continue
		}
		if old := v.SignKey().KID; k.KID == old || !v.Trust.Valid(k.KID) {
			known = time.Time{}
		} else if known.IsZero() && v.Trust.Valid(old) {
			known = time.Now()
		} else if time.Since(known) >= keySettle {
			v.Log.Info("signing key rotated", "kid", k.KID)
			v.key.Store(k)
		}
	}
}

// Health is the state of one dependency or view of an instance.
type Health = query.Health

// Report registers a function that returns the health of one part of the instance. It is
// called each time that the instance's health is read, possibly concurrently.
func (v *Env) Report(f func(context.Context) Health) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.health = append(v.health, f)
}

// ReportFollower registers the health of the view that f reads: it is OK once f has
// caught up for the first time and check, if not nil, returns nil. Until then the start
// of the instance reports the progress of f.
func (v *Env) ReportFollower(name string, f *follow.Follower, check func() error) {
	v.starting.Follow(v.Instance, name, f)
	v.Report(func(ctx context.Context) Health {
		try, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = f.Poll(try) // on an error, the reported position is the last one applied
		h := Health{Name: name, OK: true, Position: f.Position(), Lag: f.Pending()}
		select {
		case <-f.Ready():
		default:
			h.OK, h.Detail = false, "replaying"
		}
		if check == nil {
			return h
		}
		if err := check(); err != nil {
			h.OK, h.Detail = false, err.Error()
		}
		return h
	})
}

// ReportWork registers the health of a durable consumer of the stream EVENTS, with its
// undelivered and unacknowledged messages as the lag.
func (v *Env) ReportWork(consumer string) {
	v.Report(func(ctx context.Context) Health {
		c, err := v.Conn.JS.Consumer(ctx, bus.Events, consumer)
		if err != nil {
			return Health{Name: consumer, Detail: hostpath.Strip(err.Error())}
		}
		i := c.CachedInfo()
		return Health{Name: consumer, OK: true, Position: i.Delivered.Stream, Lag: i.NumPending + uint64(i.NumAckPending)}
	})
}

// Health returns the health of every registered part, in the order of registration.
func (v *Env) Health(ctx context.Context) []Health {
	v.mu.Lock()
	fs := v.health
	v.mu.Unlock()
	out := []Health{}
	for _, f := range fs {
		out = append(out, f(ctx))
	}
	return out
}

// Recorder returns a new recorder of outcomes, which signs with the instance's current
// key.
func (v *Env) Recorder() *outcome.Recorder {
	return &outcome.Recorder{Emit: v.Emit, Key: v.SignKey, Service: v.Service}
}

// live returns the name of a running instance of a service, or an error if there is
// none.
func (v *Env) live(ctx context.Context, service string) (string, error) {
	names, err := bus.Live(ctx, v.Conn, service)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("service %s has no running instance", service)
	}
	return names[0], nil
}

// serveQueries registers the handlers of the queries that every instance answers: its
// health and its view of the key registry.
func (v *Env) serveQueries() {
	s := &rpc.Server{Box: v.Box}
	rpc.Serve(s, query.HealthQuery, func(ctx context.Context, _ *query.HealthRequest) ([]Health, error) { return v.Health(ctx), nil })
	rpc.Serve(s, query.KeysViewQuery, func(context.Context, *query.KeysViewRequest) (query.ViewDump, error) { return v.Trust.dump(), nil })
}

// Serve runs one instance of a service until ctx ends or the instance fails, and calls
// ready when the service accepts work. It retries until its streams exist, so services
// may start in any order. It returns nil when ctx has ended and the instance has
// stopped, and a *bus.RunningError if running processes hold all slots of the service.
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
	env := &Env{Tenant: cfg.Tenant, Service: d.Service, Instance: slot.Instance, RootKID: cfg.RootKID, Conn: conn, Trust: &Trust{},
		Log: slog.With("service", d.Service, "instance", slot.Instance), starting: cfg.Starting}
	if env.starting == nil {
		env.starting = NewStarting()
	}
	env.Trust.reg.Root = cfg.RootKID
	defer env.count(cfg.Metrics)()
	env.Emit = &emit.Emitter{Log: env.Metrics.Log(eventlog.JetStream{Conn: conn}), Tenant: cfg.Tenant, Source: d.Service + "/" + slot.Instance, Now: time.Now}
	env.Trust.see = env.Emit.See
	env.Blobs = &blob.Store{Conn: conn, Tenant: cfg.Tenant}
	env.Box = transient.NewBox(conn, cfg.Tenant, d.Service, slot.Instance)
	env.Queries = &rpc.Client{Box: env.Box, Live: env.live}
	// The vault-broker refuses the query for content keys to all other services.
	if slices.Contains(services.ContentReaders(), d.Service) {
		env.Blobs.Keys = &contentkeys.Ring{Client: env.Queries}
	}
	env.serveQueries()
	if env.Tracer, err = tracing.New(ctx, d.Service, slot.Instance, cfg.TracesTo); err != nil {
		return fmt.Errorf("%s: tracing: %w", slot.Instance, err)
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		env.Tracer.Close(bye)
	}()
	var takesWork atomic.Bool
	started := make(chan struct{})
	env.starting.add(startTask{instance: slot.Instance, done: started})
	env.Report(func(context.Context) Health { return Health{Name: "service", OK: takesWork.Load()} })
	if cfg.SignSeed != nil {
		seed, err := cfg.SignSeed()
		if err != nil {
			return err
		}
		k, err := sign.NewKey(seed)
		if err != nil {
			return err
		}
		env.key.Store(k)
		env.Report(func(context.Context) Health { return Health{Name: "signing-key", OK: true, Detail: env.SignKey().KID} })
	}
	// The base context ends after the service has stopped, so that the outcomes of its
	// last work can still be recorded.
	base, stopBase := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBase()
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var g errgroup.Group
	background := func(f func(context.Context) error) {
		g.Go(func() error {
			err := f(base)
			if err != nil {
				cancel(err)
			}
			return err
		})
	}
	trustView := follow.New(conn, slot.Instance, bus.Trust, env.Trust.apply)
	env.starting.Follow(slot.Instance, "keys."+d.Service, trustView)
	go env.starting.Report(inner, env.Log, slot.Instance)
	background(slot.Keep)
	background(func(c context.Context) error { return trustView.Run(c, 1) })
	background(env.Box.Run)
	background(func(c context.Context) error {
		select {
		case err := <-conn.Fatal:
			return err
		case <-c.Done():
			return nil
		}
	})
	err = func() error {
		// The key registry must be complete before the service verifies a signature,
		// and the inbox must receive before the service sends a query.
		for _, ch := range []<-chan struct{}{trustView.Ready(), env.Box.Ready()} {
			select {
			case <-ch:
			case <-inner.Done():
				return nil
			}
		}
		kid := ""
		if k := env.SignKey(); k != nil {
			kid = k.KID
		}
		// Other services reject what this instance signs until its key is published.
		env.Trust.wait(inner, kid)
		if inner.Err() != nil {
			return nil
		}
		if err := eventlog.Retry(inner, func() error { return env.seeLedger(inner) }); err != nil {
			return err
		}
		if kid != "" {
			go env.rotate(base, cfg.SignSeed)
		}
		if cfg.Live != nil {
			defer cfg.Live.add(env, s)()
		}
		return s.Run(inner, env, func() { takesWork.Store(true); close(started); ready() })
	}()
	cause := context.Cause(inner)
	stopBase()
	if e := g.Wait(); err == nil {
		err = e
	}
	// A background task that fails cancels inner with its error, which stops the
	// service; the service itself may then have returned nil.
	if err == nil && ctx.Err() == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("%s: %w", slot.Instance, err)
	}
	return nil
}

// seeLedger advances the Lamport clock to at least that of the tenant's last event and
// of the service's own last event, so that new events come after both.
func (v *Env) seeLedger(ctx context.Context) error {
	for _, filter := range []string{bus.Filter{Tenant: v.Tenant}.String(), bus.Filter{Tenant: v.Tenant, Service: v.Service}.String()} {
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
