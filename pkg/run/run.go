// Package run brings a service up on the bus, in a process of its own or
// beside others: connection, slot, clock, keys, mailbox; and takes it down in
// order.
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

// Service is one of the mesh's services.
type Service interface {
	// Declaration says, as data, what the service needs of the bus.
	Declaration() bus.Declaration
	// Run serves until ctx ends, then finishes what it holds. It calls ready
	// once it takes work.
	Run(ctx context.Context, env *Env, ready func()) error
}

// Config is what every service needs to come up. Nothing here depends on the
// topology but Dialer.
type Config struct {
	Dialer   bus.Dialer
	Tenant   string
	NKeySeed []byte // NATS identity
	// SignSeed reads the 32 byte Ed25519 seed; nil for services that sign
	// nothing. It is read again every so often: a new seed is used from the
	// moment its key is published.
	SignSeed func() ([]byte, error)
	RootKID  string            // the root key this mesh trusts
	Live     *Live             // the configuration that may change while the service runs; nil = none does
	Metrics  *metrics.Registry // counts what the instance does; nil = one that nothing serves
	TracesTo string            // URL of OpenTelemetry's collector; "" = that of OTEL_EXPORTER_OTLP_ENDPOINT, or none
}

// Env is a running instance's surroundings.
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

	key    atomic.Pointer[sign.Key]
	mu     sync.Mutex
	health []func(context.Context) Health
}

// SignKey is the instance's signing key of the moment; nil for services that
// sign nothing.
func (v *Env) SignKey() *sign.Key { return v.key.Load() }

const (
	keyPoll   = time.Second     // how often a service looks for a new signing key
	keySettle = 2 * time.Second // how long others have to learn of it before it is used
)

// rotate takes up a new signing key when the trust registry has known it for
// keySettle, or at once when the old one is no longer valid.
func (v *Env) rotate(ctx context.Context, read func() ([]byte, error)) {
	var known time.Time // since when the new key is in the registry
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

// Health is one dependency's or view's state.
type Health = query.Health

// Report registers a part of this instance's health.
func (v *Env) Report(f func(context.Context) Health) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.health = append(v.health, f)
}

// ReportFollower registers a view's health.
func (v *Env) ReportFollower(name string, f *follow.Follower) {
	v.Report(func(ctx context.Context) Health {
		try, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = f.Poll(try) // else the position says where it is
		select {
		case <-f.Ready():
			return Health{Name: name, OK: true, Position: f.Position(), Lag: f.Pending()}
		default:
			return Health{Name: name, Position: f.Position(), Lag: f.Pending(), Detail: "replaying"}
		}
	})
}

// ReportWork registers a durable's health.
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

// Health collects every registered part.
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

// Recorder makes the instance's recorder of outcomes.
func (v *Env) Recorder() *outcome.Recorder {
	return &outcome.Recorder{Emit: v.Emit, Key: v.SignKey, Service: v.Service}
}

// live returns a running instance of a service.
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

// serveQueries registers the queries that every instance answers.
func (v *Env) serveQueries() {
	s := &rpc.Server{Box: v.Box}
	rpc.Serve(s, query.HealthQuery, func(ctx context.Context, _ *query.HealthRequest) ([]Health, error) { return v.Health(ctx), nil })
	rpc.Serve(s, query.KeysViewQuery, func(context.Context, *query.KeysViewRequest) (query.ViewDump, error) { return v.Trust.dump(), nil })
}

// Serve runs one instance of a service until ctx ends. It retries until its
// streams exist, so services start in any order.
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
		Log: slog.With("service", d.Service, "instance", slot.Instance)}
	env.Trust.reg.Root = cfg.RootKID
	defer env.count(cfg.Metrics)()
	env.Emit = &emit.Emitter{Log: env.Metrics.Log(eventlog.JetStream{Conn: conn}), Tenant: cfg.Tenant, Source: d.Service + "/" + slot.Instance, Now: time.Now}
	env.Trust.see = env.Emit.See
	env.Blobs = &blob.Store{Conn: conn, Tenant: cfg.Tenant}
	env.Box = transient.NewBox(conn, cfg.Tenant, d.Service, slot.Instance)
	env.Queries = &rpc.Client{Box: env.Box, Live: env.live}
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
	// The base outlives the service, so that work in hand can be recorded.
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
		env.Trust.wait(inner, kid)
		if inner.Err() != nil {
			return nil
		}
		if err := env.seeLedger(inner); err != nil {
			return err
		}
		if kid != "" {
			go env.rotate(base, cfg.SignSeed)
		}
		if cfg.Live != nil {
			defer cfg.Live.add(env, s)()
		}
		return s.Run(inner, env, func() { takesWork.Store(true); ready() })
	}()
	cause := context.Cause(inner)
	stopBase()
	if e := g.Wait(); err == nil {
		err = e
	}
	if err == nil && ctx.Err() == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("%s: %w", slot.Instance, err)
	}
	return nil
}

// seeLedger moves the clock past what this service and the ledger know.
func (v *Env) seeLedger(ctx context.Context) error {
	for _, filter := range []string{bus.Filter{Tenant: v.Tenant}.String(), bus.Filter{Tenant: v.Tenant, Service: v.Service}.String()} {
		en, err := v.Emit.Log.Last(ctx, filter)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if e, err := eventlog.Open(en); err == nil {
			v.Emit.See(e.Lamport)
		}
	}
	return nil
}
