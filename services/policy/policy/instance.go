package policy

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// instance holds the values that the parts of one running policy service share.
type instance struct {
	name     string // name of the instance
	tenant   string // tenant of the mesh
	emit     *emit.Emitter
	log      *slog.Logger
	contents contents
	trust    keyring
	signKey  func() *sign.Key
	recorder *outcome.Recorder
	state    state.State
	seen     atomic.Uint64 // Lamport time of the newest event in state
}

// contents reads and stores contents that are too large for an event, and
// decrypts them.
type contents interface {
	Open(context.Context, *contract.Content) ([]byte, error)
	Commit(ctx context.Context, content []byte, mediaType string) (contract.Content, error)
}

// keyring is the mesh's registry of public keys.
type keyring interface {
	At(kid, owner, use string, lamport uint64) ([]byte, error)
	Keys() []trust.Key
}

// fact returns a new event of an aggregate, caused by the governing call. The
// event does not belong to the call's session.
func (i *instance) fact(name, key string, data []byte, cause *contract.Event) *contract.Event {
	e := i.emit.New(name, key, data, cause)
	e.Session, e.CallID, e.Origin = "", "", "-"
	return e
}

// caughtUp waits, for at most a second, until the state has applied an event. The
// caller's next call is then usually decided with the change in force. For a nil event
// it returns at once.
func (i *instance) caughtUp(ctx context.Context, ev *contract.Event) {
	if ev == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for ctx.Err() == nil && i.seen.Load() < ev.Lamport {
		sleep(ctx, 2*time.Millisecond)
	}
}

// answered reports whether the ledger has a decision on the proposal at or after
// sequence seq. The last parameter lists further names of events that count as
// decisions.
func (i *instance) answered(ctx context.Context, e *contract.Event, seq uint64, also ...string) (bool, error) {
	for en, err := range i.emit.Log.Scan(ctx, bus.Filter{Tenant: e.Tenant, Service: "policy", Key: e.Session}.String(), seq) {
		if err != nil {
			return false, err
		}
		a, err := eventlog.Open(en)
		if err == nil && a.CallID == e.CallID && (a.Name == contract.EventAllowed || a.Name == contract.EventEffectRecorded || slices.Contains(also, a.Name)) {
			return true, nil
		}
	}
	return false, nil
}

// delivery is one message of a work consumer.
type delivery struct {
	entry  eventlog.Entry
	tries  uint64 // number of deliveries before this one
	stored time.Time
}

// consume returns the handler of a work consumer's messages. A message is
// acknowledged after take has returned nil; after an error it is negatively
// acknowledged and delivered again, at the earliest after delay.
func (i *instance) consume(what string, delay time.Duration, take func(context.Context, delivery) error) func(context.Context, jetstream.Msg) {
	return func(ctx context.Context, m jetstream.Msg) {
		md, err := m.Metadata()
		if err == nil {
			err = take(ctx, delivery{eventlog.Entry{Seq: md.Sequence.Stream, Subject: m.Subject(), Data: m.Data()}, md.NumDelivered - 1, md.Timestamp})
		}
		switch {
		case err == nil:
			_ = m.Ack()
		case delay == 0:
			i.log.Warn(what+" handed back", "subject", m.Subject(), "err", err)
			_ = m.Nak()
		default:
			i.log.Warn(what+" handed back", "subject", m.Subject(), "err", err)
			_ = m.NakWithDelay(delay)
		}
	}
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// cache is a map of at most maxCached entries that is safe for concurrent use.
// When it is full, it is emptied.
type cache[V any] struct {
	m  sync.Map
	mu sync.Mutex
	n  int
}

const maxCached = 16384

func (c *cache[V]) get(k string) (v V, ok bool) {
	x, ok := c.m.Load(k)
	v, _ = x.(V)
	return v, ok
}

func (c *cache[V]) put(k string, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n++; c.n > maxCached {
		c.m.Clear()
		c.n = 1
	}
	c.m.Store(k, v)
}

// invalid is an error in the caller's input, as opposed to one of the ledger.
type invalid struct{ error }

// failure returns the failed result for an error of handle.Do; ok is false if err
// is nil.
func failure(err error) (execute.Result, bool) {
	var bad invalid
	switch {
	case err == nil:
		return execute.Result{}, false
	case errors.As(err, &bad):
		return execute.Fail("invalid_input", "%v", err), true
	}
	return execute.Fail("unavailable", "the ledger did not take the change: %v", err), true
}
