package policy

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
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
	seen     atomic.Uint64 // greatest Lamport time of the events that state has applied
}

// contents stores, reads and decrypts contents.
type contents interface {
	Open(context.Context, *contract.Content) ([]byte, error)
	Commit(ctx context.Context, content []byte, mediaType string) (contract.Content, error)
}

// keyring is the mesh's registry of public keys.
type keyring interface {
	At(kid, owner, use string, lamport uint64) ([]byte, error)
	Keys() []trust.Key
}

// fact returns a new event of an aggregate. cause is the governing call, or nil if no
// call causes the event. The event does not belong to the call's session.
func (i *instance) fact(name, key string, data []byte, cause *contract.Event) *contract.Event {
	e := i.emit.New(name, key, data, cause)
	e.Session, e.CallID, e.Origin = "", "", "-"
	return e
}

// caughtUp waits, for at most a second, until the state has applied an event with at
// least the Lamport time of ev. The caller's next call is then usually decided with the
// change in force. For a nil event it returns at once.
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

// answered reports whether policy has recorded a permission or an outcome of the call of
// e at or after sequence seq. also lists the names of other events that count.
func (i *instance) answered(ctx context.Context, e *contract.Event, seq uint64, also ...string) (bool, error) {
	filter := bus.Filter{Tenant: e.Tenant, Service: "policy", Key: e.Session}.String()
	for en, err := range i.emit.Log.Scan(ctx, filter, seq) {
		if err != nil {
			return false, err
		}
		a, err := eventlog.Open(en, filter)
		if err == nil && a.CallID == e.CallID && (a.Name == contract.EventAllowed || a.Name == contract.EventEffectRecorded || slices.Contains(also, a.Name)) {
			return true, nil
		}
	}
	return false, nil
}

// errMalformed is wrapped by the errors of events that can never be processed.
var errMalformed = errors.New("malformed")

// consume returns the handler of a work consumer's deliveries. A delivery is
// acknowledged after take has returned nil. It is terminated if the event is malformed
// or does not match the consumer's filters, or if the error of take wraps errMalformed.
// After any other error it is delivered again, at the earliest after delay.
func (i *instance) consume(what string, delay time.Duration, take func(context.Context, delivery) error) func(context.Context, *consumer.Delivery) {
	return func(ctx context.Context, d *consumer.Delivery) {
		e, err := d.Open()
		if err != nil {
			err = errors.Join(errMalformed, err)
		} else {
			err = take(ctx, delivery{e, d.Seq, d.Tries - 1, d.Stored})
		}
		switch {
		case err == nil:
			d.Ack()
		case errors.Is(err, errMalformed):
			i.log.Error("not a "+what, "subject", d.Subject, "seq", d.Seq, "err", err)
			d.Term()
		default:
			i.log.Warn(what+" handed back", "subject", d.Subject, "err", err)
			d.Nak(delay)
		}
	}
}

// delivery is one event of a work consumer, checked against the consumer's filters.
type delivery struct {
	event  *contract.Event
	seq    uint64
	tries  uint64 // number of deliveries before this one
	stored time.Time
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// cache is a map that is safe for concurrent use. It holds at most maxCached entries,
// since it is emptied after that number of calls of put.
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

// failure returns the failed result for an error of handle.Do, and false if err is nil.
// The code is invalid_input for an error of type invalid, and unavailable for any other.
func failure(err error) (execute.Result, bool) {
	var bad invalid
	switch {
	case err == nil:
		return execute.Result{}, false
	case errors.As(err, &bad):
		return execute.Fail(contract.CodeInvalidInput, "%v", err), true
	}
	return execute.Fail(contract.CodeUnavailable, "the ledger did not take the change: %v", err), true
}
