// Package emit makes events. No other package assigns the id, time and lamport of an
// event.
package emit

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Emitter makes and appends events of one instance. It is safe for
// concurrent use.
type Emitter struct {
	Log    eventlog.Log
	Tenant string
	Source string // service "/" instance
	Now    func() time.Time

	lamport atomic.Uint64
}

// See advances the lamport clock to l at least. Readers of the ledger call it for every
// event.
func (m *Emitter) See(l uint64) {
	for {
		old := m.lamport.Load()
		if l <= old || m.lamport.CompareAndSwap(old, l) {
			return
		}
	}
}

// Tick returns the next lamport value: 1 + max(own, every value passed to See).
func (m *Emitter) Tick() uint64 { return m.lamport.Add(1) }

// Time returns the current time in the format of events.
func (m *Emitter) Time() string { return contract.Time(m.Now()) }

// New returns an event caused by cause, with its tenant, caller, session, call and
// correlation; a nil cause means that the mesh itself acts. key is the last subject
// token.
func (m *Emitter) New(name, key string, data []byte, cause *contract.Event) *contract.Event {
	e := &contract.Event{ID: NewID("e"), Source: m.Source, Name: name, Version: contract.VersionOf(name), Key: key, Tenant: m.Tenant,
		Actor: "-", Client: "-", Origin: "-", Data: data}
	if cause != nil {
		m.See(cause.Lamport)
		e.Actor, e.Client, e.Session, e.CallID = cause.Actor, cause.Client, cause.Session, cause.CallID
		e.Tenant, e.Origin, e.Cause, e.TraceCtx = cause.Tenant, cause.Origin, cause.ID, cause.TraceCtx
		if e.Correl = cause.Correl; e.Correl == "" {
			e.Correl = cause.ID
		}
	}
	e.Time, e.Lamport = m.Time(), m.Tick()
	return e
}

// Append stores e under its own id, without an expected sequence. It is durable on
// return.
func (m *Emitter) Append(ctx context.Context, e *contract.Event) (uint64, error) {
	seq, _, err := eventlog.AppendEvent(ctx, m.Log, e)
	return seq, err
}

// NewID returns a random id: prefix, "-", and 26 characters.
func NewID(prefix string) string { return prefix + "-" + rand.Text() }
