// Package emit creates the events of an instance and appends them to the ledger. Apart
// from tests, only this package assigns the time and lamport of an event. An event gets
// a random id, which the caller may replace before it appends the event.
//
// The lamport value orders events by cause: it exceeds that of every event that the
// instance has passed to See. An event that belongs to an aggregate or to a receipt
// chain is created here and stored elsewhere with an expected sequence, in most cases by
// package handle or package outcome.
package emit

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Emitter creates and appends the events of one instance, and holds its Lamport clock.
// Its fields are set before its first use. It is safe for concurrent use.
type Emitter struct {
	Log    eventlog.Log
	Tenant string // tenant of events without a cause
	Source string // service "/" instance
	Now    func() time.Time

	lamport atomic.Uint64
	shared  *atomic.Uint64 // clock of the Emitter that In was called on; nil if the clock is lamport
}

// In returns an Emitter that differs from m only in its tenant, which is the given one.
// Both have the same Lamport clock. It returns m itself if that is m's tenant.
func (m *Emitter) In(tenant string) *Emitter {
	if tenant == m.Tenant {
		return m
	}
	return &Emitter{Log: m.Log, Tenant: tenant, Source: m.Source, Now: m.Now, shared: m.clock()}
}

// clock returns the Lamport clock, which all Emitters of an instance share.
func (m *Emitter) clock() *atomic.Uint64 {
	if m.shared != nil {
		return m.shared
	}
	return &m.lamport
}

// See advances the Lamport clock to at least l. Readers of the ledger call it for the
// events that they process, so that later events of the instance have a greater lamport.
func (m *Emitter) See(l uint64) {
	for clock := m.clock(); ; {
		old := clock.Load()
		if l <= old || clock.CompareAndSwap(old, l) {
			return
		}
	}
}

// Tick advances the Lamport clock and returns its new value, which is greater than every
// value that Tick returned or See received.
func (m *Emitter) Tick() uint64 { return m.clock().Add(1) }

// Time returns the current time in the format of events.
func (m *Emitter) Time() string { return contract.Time(m.Now()) }

// New returns a new event, which it does not append. If cause is not nil, New passes its
// lamport to See, and the event names cause as its cause and has cause's tenant, caller,
// origin, session, call, trace context and correlation id; if cause has no correlation
// id, its event id takes that place. Without a cause, the event has the Emitter's tenant
// and no caller. name is the event's name without the service, key the last token of its
// subject. The event retains data without copying it.
func (m *Emitter) New(name, key string, data []byte, cause *contract.Event) *contract.Event {
	e := &contract.Event{ID: NewID(contract.IDEvent), Source: m.Source, Name: name, Version: contract.VersionOf(name), Key: key, Tenant: m.Tenant,
		Actor: "-", Client: "-", Origin: "-", Data: data}
	if cause != nil {
		m.See(cause.Lamport)
		e.Actor, e.Client, e.Session, e.CallID = cause.Actor, cause.Client, cause.Session, cause.CallID
		e.Tenant, e.Origin, e.Cause, e.TraceCtx = cause.Tenant, cause.Origin, cause.ID, cause.TraceCtx
		// An event without a cause has no correlation id; its event id becomes the
		// correlation id of the events that follow from it.
		if e.Correl = cause.Correl; e.Correl == "" {
			e.Correl = cause.ID
		}
	}
	e.Time, e.Lamport = m.Time(), m.Tick()
	return e
}

// Append appends e with its own id as the message id and without an expected sequence,
// and returns its sequence in the ledger. If the error is nil, the event is stored. The
// errors are those of eventlog.AppendEvent.
func (m *Emitter) Append(ctx context.Context, e *contract.Event) (uint64, error) {
	seq, _, err := eventlog.AppendEvent(ctx, m.Log, e)
	return seq, err
}

// NewID returns a random id: prefix, which is a constant of package contract such as
// contract.IDCall, and 26 characters.
func NewID(prefix string) string { return prefix + rand.Text() }
