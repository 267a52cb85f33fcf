package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// instance holds the values that the parts of one running policy service share.
type instance struct {
	name     string // name of the instance
	emit     *emit.Emitter
	log      *slog.Logger
	contents func(tenant string) contents // returns the contents of a tenant
	trust    keyring
	signKey  func() *sign.Key
	recorder *outcome.Recorder
	states   state.States
	epoch    func() uint64                              // returns the number of reconnections to the server; nil without a server, as in tests
	cell     func(context.Context) (handle.Cell, error) // returns the state of the cell after every stored event; see run.Cell.Now
	reach    func(context.Context) error                // waits until states has applied every event that was stored at the time of the call
	others   func(context.Context) error                // waits until the other running instances of policy, and those of the gateway, have applied every event that was stored at the time of the call; see mesh.spread
	await    func(seq uint64) error                     // waits until trust has applied every key event before a stored event; nil if trust is complete
	seen     atomic.Uint64                              // greatest Lamport time of the events that states has applied
}

// contents stores, reads and decrypts the contents of one tenant.
type contents interface {
	Open(context.Context, *contract.Content) ([]byte, error)
	Commit(ctx context.Context, content []byte, mediaType string) (contract.Content, error)
}

// keyring is the mesh's registry of public keys.
type keyring interface {
	At(kid, owner, use string, lamport uint64) ([]byte, error)
	Keys() []trust.Key
}

// fact returns a new event of an aggregate. cause is the governing call, whose tenant the
// event has, or nil if no call causes the event, which is then in the cell's own tenant.
// The event does not belong to the call's session.
func (i *instance) fact(name, key string, data []byte, cause *contract.Event) *contract.Event {
	m := i.emit
	if cause == nil {
		m = m.In(i.states.Cell())
	}
	e := m.New(name, key, data, cause)
	e.Session, e.CallID, e.Origin = "", "", "-"
	return e
}

// reachWait is the maximum time that known waits for the state to apply stored events.
const reachWait = 5 * time.Second

// known returns the state of a tenant, or nil if the tenant does not exist. If this
// instance has no state of the tenant, known first waits until the instance has applied
// every stored event, because it may not have applied the event that creates the tenant
// or opens the cell. It returns an error if reach fails or takes longer than reachWait.
func (i *instance) known(ctx context.Context, id string) (*state.State, error) {
	if st := i.states.Of(id); st != nil {
		return st, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reachWait)
	defer cancel()
	if err := i.reach(ctx); err != nil {
		return nil, fmt.Errorf("tenant %s is not known, and the state has not applied every event: %w", id, err)
	}
	return i.states.Of(id), nil
}

// tenant returns the state of a tenant as known does, or nil if known fails.
func (i *instance) tenant(ctx context.Context, id string) *state.State {
	st, err := i.known(ctx, id)
	if err != nil {
		i.log.Warn("tenant not found", "err", err)
	}
	return st
}

// answered reports whether policy has recorded, at or after sequence seq, that the call
// of e is allowed, an outcome of the call, or an event about it with a name in also.
func (i *instance) answered(ctx context.Context, e *contract.Event, seq uint64, also ...string) (bool, error) {
	filter := bus.Filter{Tenant: e.Tenant, Service: services.Policy, Key: e.Session}.String()
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
			i.log.Warn(what+" returned for redelivery", "subject", d.Subject, "err", err)
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

// maxCached is the maximum number of entries of a cache. An entry has at most about 1 kB.
const maxCached = 16384

// cacheOf returns an empty cache of at most maxCached entries, which is emptied at each
// reconnection to the server.
func cacheOf[V any](i *instance) *lru.Cache[V] {
	return &lru.Cache[V]{Max: maxCached, Epoch: i.epoch}
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
	return execute.Fail(contract.CodeUnavailable, "the ledger did not store the change: %v", err), true
}
