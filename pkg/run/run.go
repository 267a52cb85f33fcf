// Package run starts and stops an instance of a service, in a process of its own or in
// one process with other services. It connects to NATS, acquires an instance slot, loads
// the key registry, opens the instance's inbox and advances the Lamport clock to the
// ledger's last events; then it runs the service, and stops everything in order. For a
// process, it loads and reloads the configuration, starts the admin listener and answers
// health checks.
package run

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/hostpath"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
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

// Config holds the settings, keys and shared facilities with which Serve starts an
// instance of a service.
type Config struct {
	Dialer   bus.Dialer
	NKeySeed []byte // seed of the service's NATS user key (nkey)
	// NKey reads that seed again, every keyPoll, so that the identity can be replaced while the
	// service runs; nil if it does not change.
	NKey func() (string, error)
	// SignSeed reads the 32-byte Ed25519 seed of the signing key; it is nil for services
	// that sign nothing. It is called every keyPoll, so that a key can be rotated while
	// the service runs: a new seed is not used before its key is in the key registry.
	SignSeed func() ([]byte, error)
	RootKID  string            // key id of the root key
	Live     *Live             // configuration that is reloaded while the process runs; nil if it is not reloaded
	Metrics  *metrics.Registry // registry for the instance's metrics; nil for one that is not served
	TracesTo string            // base URL of the OpenTelemetry collector, or ""; the environment variables of OpenTelemetry override it
	// NoSnapshots disables snapshots: every view starts from the ledger's first entry,
	// and no snapshots are stored.
	NoSnapshots bool
	Starting    *Starting    // tracks the start of the instance; nil if nothing reads it
	Recent      *blob.Recent // shared by the services of a process that store and open the same content; nil = none
}

// Env holds the identity, connections and shared facilities of a running instance. Its
// methods are safe for concurrent use; the exported fields are set before Service.Run is
// called and do not change.
type Env struct {
	Service   string
	Instance  string
	RootKID   string
	Conn      *bus.Conn
	Emit      *emit.Emitter // has no tenant: events without a cause need Emitter.In
	Trust     *Trust
	Cell      *Cell
	Blobs     *blob.Store          // has no tenant: contents need Store.In
	Transport *transient.Transport // sends for contract.CellTenant; for a tenant, see Transport.In
	Queries   *rpc.Client          // sends queries to other services for contract.CellTenant
	// Snapshots stores states of the service's views; nil if the instance uses none.
	Snapshots *snapshot.Store
	Log       *slog.Logger
	Tracer    *tracing.Tracer
	Metrics   *metrics.Instance

	starting *Starting
	recent   *blob.Recent

	contentKeys *contentkeys.Ring // nil if the service may not fetch content keys

	key    atomic.Pointer[sign.Key]
	mu     sync.Mutex
	health []func(context.Context) Health
}

// SignKey returns the instance's current signing key, or nil for services that sign
// nothing. The key may be rotated, so callers do not cache it.
func (v *Env) SignKey() *sign.Key { return v.key.Load() }

const (
	keyPoll   = time.Second     // interval at which a service reads its seed again
	keySettle = 2 * time.Second // time for which a new key is in the registry before it is used, so that other services have it
)

// rotate reads the seed again every keyPoll until ctx ends, and switches to a new
// signing key once it has found the key in the key registry for keySettle. If the old
// key is no longer valid when rotate first finds the new key there, it switches at once.
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

// identify reads the seed of the NATS identity again every keyPoll until ctx ends, and makes the
// connection use it if it has changed and the server accepts it.
func (v *Env) identify(ctx context.Context, read func() (string, error)) {
	refused := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(keyPoll):
		}
		was := bus.IdentityOf(v.Conn)
		seed, err := read()
		if err == nil {
			err = bus.Identify(v.Conn, []byte(seed))
		}
		switch now := bus.IdentityOf(v.Conn); {
		case err != nil:
			if err.Error() != refused { // the server may not have its new configuration yet
				v.Log.Warn("NATS identity not replaced", "err", err)
			}
			refused = err.Error()
		case now != was:
			v.Log.Info("NATS identity replaced", "identity", now)
			refused = ""
		}
	}
}

// Health is the state of one part of an instance, such as a view, a consumer or the
// signing key.
type Health = query.Health

// Report registers a function that returns the health of one part of the instance. The
// function is called each time that the instance's health is read, possibly
// concurrently.
func (v *Env) Report(f func(context.Context) Health) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.health = append(v.health, f)
}

// ReportFollower registers the health of the view that f builds: it is OK once f has
// caught up for the first time and check, if not nil, returns nil. Until f has caught
// up, its progress is logged while the instance starts.
func (v *Env) ReportFollower(name string, f *follow.Follower, check func() error) {
	v.starting.Follow(v.Instance, name, f)
	v.Report(func(ctx context.Context) Health {
		h := Health{Name: name, OK: true}
		select {
		case <-f.Ready():
			_ = f.Poll(ctx) // on an error, the reported position is the last one applied
		default:
			h.OK, h.Detail = false, "replaying"
		}
		h.Position, h.Lag = f.Position(), f.Pending()
		if check == nil {
			return h
		}
		if err := check(); err != nil {
			h.OK, h.Detail = false, err.Error()
		}
		return h
	})
}

// ReportWork registers the health of a durable consumer of the stream EVENTS. It is OK
// if the server returns the consumer's state; the lag is the number of undelivered and
// unacknowledged messages.
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

// healthWithin is the time limit for the parts of an instance's health. It is shorter than
// the deadline of the query for the health, so that the instance responds in time although a
// part is late.
const healthWithin = time.Second

// Health returns the health of every registered part, in the order of registration. The
// functions of the parts are called concurrently, with a context that ends after
// healthWithin, and Health waits until all of them have returned.
func (v *Env) Health(ctx context.Context) []Health {
	v.mu.Lock()
	fs := v.health
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	out := make([]Health, len(fs))
	var parts sync.WaitGroup
	for i, f := range fs {
		parts.Go(func() { out[i] = f(ctx) })
	}
	parts.Wait()
	return out
}

// Recorder returns a new recorder of outcomes, which signs with the instance's current
// key.
func (v *Env) Recorder() *outcome.Recorder {
	return &outcome.Recorder{Emit: v.Emit, Key: v.SignKey, Service: v.Service, Epoch: v.Epoch}
}

// Epoch returns the number of reconnections to the server. A server that was restarted
// may have lost the end of the ledger, so when the number changes, an instance must
// discard the values that it has cached of the ledger's end.
func (v *Env) Epoch() uint64 {
	n, _ := v.Conn.Epoch()
	return n
}

// running returns the running instances of a service with their leases, in the order of their
// slots, or an error if there is none.
func (v *Env) running(ctx context.Context, service string) ([]rpc.Instance, error) {
	leases, err := bus.Running(ctx, v.Conn, service)
	if err != nil {
		return nil, err
	}
	if len(leases) == 0 {
		return nil, fmt.Errorf("service %s has no running instance", service)
	}
	all := make([]rpc.Instance, len(leases))
	for i, l := range leases {
		all[i] = rpc.Instance{Name: l.Instance(), Lease: l}
	}
	return all, nil
}

// live returns the running instance of a service with the lowest slot, or an error if there is
// none.
func (v *Env) live(ctx context.Context, service string) (rpc.Instance, error) {
	all, err := v.running(ctx, service)
	if err != nil {
		return rpc.Instance{}, err
	}
	return all[0], nil
}

// ServeApplied registers the handler of the query applied for f, which builds the service's main
// view; see applied.
func (v *Env) ServeApplied(f *follow.Follower) {
	rpc.Serve(&rpc.Server{Transport: v.Transport, View: f}, query.AppliedQuery, func(ctx context.Context, _ *query.AppliedRequest) (query.AppliedPosition, error) {
		return applied(ctx, f)
	})
}

// applied waits until f has applied every event that is stored at the time of the call. While f
// has not caught up since the start, the instance is not ready, and applied returns at once. It
// fails with unavailable if the ledger cannot be read before ctx ends, or f ends.
func applied(ctx context.Context, f *follow.Follower) (query.AppliedPosition, error) {
	select {
	case <-f.Ready():
	default:
		return query.AppliedPosition{Position: f.Position()}, nil
	}
	at, err := f.Applied(ctx)
	if err != nil {
		return query.AppliedPosition{}, rpc.Errorf(contract.CodeUnavailable, "stored events may not be applied: %v", err)
	}
	return query.AppliedPosition{Position: at}, nil
}

// serveQueries registers the handlers of the queries that every instance answers: its
// health and its view of the key registry.
func (v *Env) serveQueries() {
	s := &rpc.Server{Transport: v.Transport}
	rpc.Serve(s, query.HealthQuery, func(ctx context.Context, _ *query.HealthRequest) ([]Health, error) { return v.Health(ctx), nil })
	rpc.Serve(s, query.KeysViewQuery, func(context.Context, *query.KeysViewRequest) (query.ViewDump, error) { return v.Trust.dump(), nil })
}
