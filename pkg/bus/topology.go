// Package bus is the mesh's wire: declared topology, one generated NATS
// server configuration with least privilege per service, provisioning,
// connections and instance slots.
//
// One account, MESH, owns the streams and belongs to the provisioning
// identity. Every service has an account of its own that imports exactly the
// subjects it may use, so that a reply subject a client names is resolved in
// the client's own account, where no stream listens: no client can make the
// server store a message on its behalf.
package bus

import (
	"fmt"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Streams of the mesh.
const (
	Events      = "EVENTS"      // evt.>, the ledger
	Transient   = "TRANSIENT"   // tmp.>, frames, queries, sealed secrets; loss of them must never lose a fact
	Checkpoints = "CHECKPOINTS" // log.>, signed tree heads
	Blobs       = "BLOBS"       // blob.>, content by commitment; the server refuses a second write
	Cache       = "CACHE"       // cache.>, cached answers, which expire; not evidence
	Slots       = "SLOTS"       // slot.>, instance leases
)

// Mirrors of the ledger and its checkpoints, in the account MIRROR. The provisioning
// identity has no rights in that account.
const (
	MirrorEvents      = "MIRROR_EVENTS"
	MirrorCheckpoints = "MIRROR_CHECKPOINTS"
)

// mirrorOf maps a mirror to its origin.
var mirrorOf = map[string]string{MirrorEvents: Events, MirrorCheckpoints: Checkpoints}

// mirrorDeliver is the subject prefix under which the server delivers messages to
// mirrors.
const mirrorDeliver = "mirror.deliver"

// APIPrefix is the prefix of the JetStream API in a service's account.
const APIPrefix = "mesh.API"

// Declaration is what one service needs of the bus, as data.
type Declaration struct {
	Service string
	Prefix  string   // of instance names; defaults to Service + "-"
	Slots   int      // instances at most
	Work    []Work   // durables shared by all instances
	Readers []Reader // one consumer per instance and reader
	Logs    bool     // may publish checkpoints
	Caches  bool     // may cache answers
}

// Work is a durable pull consumer on EVENTS with explicit ack.
type Work struct {
	Name          string
	Filters       []string
	AckWait       time.Duration
	MaxAckPending int
}

// Reader is an ordered, ack-less pull consumer that its instance resets to
// any sequence. Filters may hold {instance}.
type Reader struct {
	Name    string
	Stream  string
	Filters []string
}

// Instance names the service's instance in slot n, counted from 1.
func (d *Declaration) Instance(n int) string {
	p := d.Prefix
	if p == "" {
		p = d.Service + "-"
	}
	return fmt.Sprintf("%s%d", p, n)
}

// Mailbox is the name of each instance's reader on TRANSIENT.
const Mailbox = "mailbox"

// Trust is the name of each instance's reader of key events.
var Trust = Reader{Name: "trust", Stream: Events, Filters: []string{Filter{Service: "provision"}.String()}}

// Control is the reader from which an instance that starts effects receives the
// cancellations of calls and the freezes of the mesh.
var Control = Reader{Name: "control", Stream: Events, Filters: append(Filters("", contract.EventCancelRequested), FreezeFilters()...)}

// FreezeFilters select the events that freeze and unfreeze the mesh.
func FreezeFilters() []string {
	return Filters("policy", contract.EventMeshFrozen, contract.EventMeshUnfrozen)
}

func (d *Declaration) readers() []Reader {
	return append([]Reader{{Name: Mailbox, Stream: Transient, Filters: []string{"tmp.*.*.{instance}.>"}}, Trust}, d.Readers...)
}

// Consumer names a reader's consumer.
func (r *Reader) Consumer(instance string) string { return instance + "-" + r.Name }

// FiltersOf returns the filters of an instance's consumer.
func (r *Reader) FiltersOf(instance string) []string {
	out := make([]string, len(r.Filters))
	for i, f := range r.Filters {
		out[i] = strings.ReplaceAll(f, "{instance}", instance)
	}
	return out
}

// Consumer names a work consumer.
func (w *Work) Consumer(service string) string { return service + "-" + w.Name }

// AllowedFilter is the work of an executor.
func AllowedFilter(executor string) string {
	return Filter{Service: "policy", Event: contract.EventAllowed + "_" + executor}.String()
}

// AllowedInSession selects the events that allow calls of one session to an executor.
func AllowedInSession(tenant, executor, session string) string {
	return Filter{Tenant: tenant, Service: "policy", Event: contract.EventAllowed + "_" + executor, Key: session}.String()
}

// Allows reports whether a subject is that of an event which is an executor's work.
func Allows(subject, executor string) bool {
	return strings.Contains(subject, "."+contract.EventAllowed+"_"+executor+".")
}

// HandOutFilter selects the intents for callers that wait at an instance.
var HandOutFilter = Filter{Service: "policy", Origin: "{instance}", Event: contract.EventAllowed + "_" + contract.CallerExecutor}.String()

// ExecutorWork is the work consumer every executor has.
func ExecutorWork(executor string) Work {
	return Work{Name: "work", Filters: []string{AllowedFilter(executor)}, AckWait: 10 * time.Second, MaxAckPending: 4096}
}

// SessionFilter selects the events that have the session as their key.
func SessionFilter(tenant, session string) string {
	return Filter{Tenant: tenant, Key: session}.String()
}

// ChainFilter is the canonical filter of the expected sequence of a session's receipt
// chain.
func ChainFilter(tenant, session string) string {
	return Filter{Tenant: tenant, Event: contract.EventEffectRecorded, Key: session}.String()
}

// AggregateFilter is the canonical filter of the expected sequence of an aggregate.
func AggregateFilter(tenant, service, key string) string {
	return Filter{Tenant: tenant, Service: service, Key: key}.String()
}
