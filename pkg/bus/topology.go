// Package bus provides the mesh's use of NATS: the declared streams and consumers, their
// subjects and filters, one generated server configuration with least privilege per
// service, provisioning, mirrors, connections and instance slots. One account, MESH,
// owns the streams and belongs to the provisioning identity; the optional account MIRROR
// owns copies of two of them. Over the network, every service has its own account, which
// imports only the subjects that the service may use. The server resolves a client's reply
// subject within that client's account, so such a client cannot have a response stored
// under a subject that it may not use itself. Services in the server's process are users
// of MESH, who may publish only to these subjects.
package bus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Names of the mesh's streams. The comments state their subjects and content.
const (
	Events      = "EVENTS"      // evt.>, the ledger
	Transient   = "TRANSIENT"   // tmp.>, frames, queries, sealed secrets; in memory, so it must not be the only place of a fact
	Checkpoints = "CHECKPOINTS" // log.>, signed tree heads and their cosignatures
	Blobs       = "BLOBS"       // blob.>, content by commitment; the server refuses a second message under a subject
	Artifacts   = "ARTIFACTS"   // art.>, parts of artifacts; the server refuses a second message under a subject, and one identity alone may remove messages
	Cache       = "CACHE"       // cache.>, cached content, which expires; not evidence
	Snapshots   = "SNAPSHOTS"   // snap.>, states of views to start from; not evidence
	Slots       = "SLOTS"       // slot.>, instance leases
)

// Mirrors of the ledger and its checkpoints, in the account MIRROR. The provisioning
// identity has no rights in that account.
const (
	MirrorEvents      = "MIRROR_EVENTS"
	MirrorCheckpoints = "MIRROR_CHECKPOINTS"
)

// mirrorOf maps the name of a mirror to the name of the stream that it copies.
var mirrorOf = map[string]string{MirrorEvents: Events, MirrorCheckpoints: Checkpoints}

// MaxMessage is the maximum size of a message in bytes, which the server enforces.
const MaxMessage = 1 << 20

// APIPrefix is the prefix of the JetStream API in a service's account.
const APIPrefix = contract.SubjectAPI

// Declaration declares the streams and consumers that one service uses, and its rights.
type Declaration struct {
	Service string
	Prefix  string   // prefix of instance names; defaults to Service + "-"
	Slots   int      // maximum number of instances
	Alone   string   // how more than one instance can run, if Slots is 1 because of the configuration; part of an error message
	Work    []Work   // durable consumers shared by all instances
	Readers []Reader // one consumer per instance and reader
	Logs    bool     // may publish and read checkpoints and cosignatures
	Caches  bool     // may cache content
	// Artifacts is true if the service may read artifacts and store new ones under its own
	// name.
	Artifacts bool
	// Collects is true for the one service that may remove parts of artifacts.
	Collects bool
}

// Work is a durable pull consumer on EVENTS with explicit ack. The filters in Filters
// and Ends may restrict only the tokens service and event of a subject; see Filter.
type Work struct {
	Name    string
	Filters []string
	// Ends selects the events that complete an item of the work. After such an event,
	// the items with the same call id need not be delivered any more. If the server
	// loses the consumer, it is created again so that it starts at the oldest item
	// without such an event. The filters may name only services whose events are proof
	// to the consumer's service that its work is complete.
	Ends          []string
	AckWait       time.Duration
	MaxAckPending int
}

// Reader declares a pull consumer without acks for each instance of a service. An
// instance can reset its consumer to any sequence. In Filters, "{instance}" stands for
// the instance's name.
type Reader struct {
	Name    string
	Stream  string
	Filters []string
	// Cover, if not empty, is the only filter of the consumer. It must match every
	// subject that Filters match; package follow drops the other messages. One filter is
	// cheaper for a reader of a large share of a stream, because the server's search for
	// the next message that matches one of several filters costs more than a delivery.
	Cover string
}

// Instance returns the name of the service's instance in slot n, counted from 1.
func (d *Declaration) Instance(n int) string {
	p := d.Prefix
	if p == "" {
		p = d.Service + "-"
	}
	return fmt.Sprintf("%s%d", p, n)
}

// TransientReader is the name of the reader with which an instance receives the messages to it
// on TRANSIENT. Every instance has it.
const TransientReader = "mailbox"

// Erasures is the filter of the events about the destruction of content keys.
var Erasures = Filter{Service: services.VaultBroker, Event: contract.EventContentKeysDestroyed}.String()

// Trust is the reader of the events of provision, which include the events that publish
// and revoke keys, of the events by which policy creates and changes tenants, and of those about
// the destruction of content keys. Every instance has it.
var Trust = Reader{Name: "trust", Stream: Events, Filters: append([]string{Filter{Service: services.Provision}.String(), Erasures},
	Filters(services.Policy, contract.EventTenantCreated, contract.EventTenantQuotaSet, contract.EventTenantResumed, contract.EventTenantSuspended)...)}

// KeyFilters returns the filters of the events that publish and revoke keys.
func KeyFilters() []string {
	return Filters(services.Provision, contract.EventKeyPublished, contract.EventKeyRevoked)
}

// Control is the reader from which an instance that starts effects receives the
// cancellations of calls, and the events that freeze and unfreeze the mesh.
var Control = Reader{Name: "control", Stream: Events, Filters: append(Filters("", contract.EventCancelRequested), FreezeFilters()...)}

// AllotmentsClosed is the filter of the events that close allotments of budgets; see
// package budgetfence.
var AllotmentsClosed = Filter{Service: services.Policy, Event: contract.EventAllotmentClosed}.String()

// ExecutorControl is Control for an executor of calls that may draw from allotments: it
// also selects the events that close allotments, and those that allow the executor's
// calls, so that the position of the reader reaches the latter.
func ExecutorControl(executor string) Reader {
	r := Control
	r.Filters = slices.Concat(Control.Filters, []string{AllotmentsClosed, AllowedFilter(executor)})
	return r
}

// FreezeFilters returns the filters of the events that freeze and unfreeze the mesh.
func FreezeFilters() []string {
	return Filters(services.Policy, contract.EventMeshFrozen, contract.EventMeshUnfrozen)
}

// readers returns the declared readers and the readers that every instance has.
func (d *Declaration) readers() []Reader {
	return append([]Reader{{Name: TransientReader, Stream: Transient, Filters: []string{contract.SubjectTransient + ".*.*.{instance}.>"}}, Trust}, d.Readers...)
}

// Consumer returns the name of the consumer of an instance's reader.
func (r *Reader) Consumer(instance string) string { return instance + "-" + r.Name }

// FiltersOf returns the filters of the messages that an instance reads, with the
// instance's name for "{instance}".
func (r *Reader) FiltersOf(instance string) []string {
	out := make([]string, len(r.Filters))
	for i, f := range r.Filters {
		out[i] = strings.ReplaceAll(f, "{instance}", instance)
	}
	return out
}

// consumerFilters returns the filters of an instance's consumer.
func (r *Reader) consumerFilters(instance string) []string {
	if r.Cover != "" {
		return []string{r.Cover}
	}
	return r.FiltersOf(instance)
}

// Consumer returns the name of a service's work consumer.
func (w *Work) Consumer(service string) string { return service + "-" + w.Name }

// AllowedFilter returns the filter of the events that allow calls to an executor. These
// events are the executor's work.
func AllowedFilter(executor string) string {
	return Filter{Service: services.Policy, Event: contract.EventAllowed + "_" + executor}.String()
}

// Decisions returns filters that select the events by which policy decides calls
// finally: it allows them or, without allowing them, records their outcomes. The filters
// also select the other outcomes that policy records.
func Decisions() []string {
	out := Filters(services.Policy, contract.EventEffectRecorded)
	for _, x := range append(services.Executors(), contract.CallerExecutor) {
		out = append(out, AllowedFilter(x))
	}
	return out
}

// AllowedInSession returns the filter of the events that allow calls of one session to
// an executor.
func AllowedInSession(tenant, executor, session string) string {
	return Filter{Tenant: tenant, Service: services.Policy, Event: contract.EventAllowed + "_" + executor, Key: session}.String()
}

// Allows reports whether a subject has the event name that allows a call to the
// executor. It does not check that the service in the subject is policy.
func Allows(subject, executor string) bool {
	return strings.Contains(subject, "."+contract.EventAllowed+"_"+executor+".")
}

// HandOutFilter selects the events that allow calls which the callers of an instance
// execute themselves. It is for a Reader, since it contains "{instance}".
var HandOutFilter = Filter{Service: services.Policy, Origin: "{instance}", Event: contract.EventAllowed + "_" + contract.CallerExecutor}.String()

// ExecutorWork returns the work consumer that every executor has.
func ExecutorWork(executor string) Work {
	return Work{Name: "work", Filters: []string{AllowedFilter(executor)}, Ends: OutcomesOf(executor), AckWait: 10 * time.Second, MaxAckPending: 4096}
}

// OutcomesOf returns filters that select every outcome of a call that was allowed to an
// executor. The executor records it, or policy, if the executor has not started the call
// in time. The filters also select the other outcomes that the executor and policy
// record.
func OutcomesOf(executor string) []string {
	out := Filters(services.Policy, contract.EventEffectRecorded)
	if executor != services.Policy {
		out = append(out, Filters(executor, contract.EventEffectRecorded)...)
	}
	return out
}

// SessionFilter returns the filter of the events that have the session as their key.
func SessionFilter(tenant, session string) string {
	return Filter{Tenant: tenant, Key: session}.String()
}

// ChainFilter returns the canonical filter of the expected sequence of a session's
// receipt chain. Every writer must use it; see Filter.
func ChainFilter(tenant, session string) string {
	return Filter{Tenant: tenant, Event: contract.EventEffectRecorded, Key: session}.String()
}

// AggregateFilter returns the canonical filter of the expected sequence of an aggregate.
// Every writer must use it; see Filter.
func AggregateFilter(tenant, service, key string) string {
	return Filter{Tenant: tenant, Service: service, Key: key}.String()
}
