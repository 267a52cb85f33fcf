package bus

import (
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Filter selects events of the ledger by the tokens of their subject,
// evt.<tenant>.<service>.<origin>.<event>.<key>; see contract.Event.Subject. An empty
// field matches any token. String is canonical: equal filters have equal strings. This
// matters because a replicated stream compares the filters of expected sequences as
// strings, so every writer of a key must use the same one.
type Filter struct {
	Tenant, Service, Origin, Event, Key string
}

// String returns the subject filter. Trailing tokens that match anything are
// written as one ">".
func (f Filter) String() string {
	tokens := [...]string{f.Tenant, f.Service, f.Origin, f.Event, f.Key}
	last := len(tokens) - 1
	for last >= 0 && tokens[last] == "" {
		last--
	}
	var b strings.Builder
	b.Grow(64)
	b.WriteString(contract.SubjectEvent)
	for _, t := range tokens[:last+1] {
		b.WriteByte('.')
		if t == "" {
			t = "*"
		}
		b.WriteString(t)
	}
	if last < len(tokens)-1 {
		b.WriteString(".>")
	}
	return b.String()
}

// ParseFilter parses a filter, or the subject of an event, which is a filter of all five
// tokens. For text that does not begin with "evt." it returns the zero Filter, which
// selects every event.
func ParseFilter(subject string) (f Filter) {
	rest, ok := strings.CutPrefix(subject, contract.SubjectEvent+".")
	if !ok {
		return f
	}
	for _, to := range []*string{&f.Tenant, &f.Service, &f.Origin, &f.Event, &f.Key} {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		if token == ">" {
			break
		}
		if token != "*" {
			*to = token
		}
	}
	return f
}

// EveryEvent is the filter of all events of the ledger. It equals Filter{}.String().
const EveryEvent = contract.SubjectEvent + ".>"

// Match reports whether a subject matches a NATS filter with the wildcards * and >. It
// does not allocate.
func Match(filter, subject string) bool {
	for {
		f, fs, fmore := strings.Cut(filter, ".")
		if f == ">" {
			return true
		}
		s, ss, smore := strings.Cut(subject, ".")
		if f != "*" && f != s {
			return false
		}
		if !fmore || !smore {
			return fmore == smore
		}
		filter, subject = fs, ss
	}
}

// MatchAny reports whether a subject matches one of several NATS filters.
func MatchAny(filters []string, subject string) bool {
	return slices.ContainsFunc(filters, func(f string) bool { return Match(f, subject) })
}

// Filters returns one filter for each event name. The filters select the events of
// service, or of every service if service is empty.
func Filters(service string, events ...string) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = Filter{Service: service, Event: e}.String()
	}
	return out
}

// The functions below return the subjects and filters of the streams TRANSIENT,
// SNAPSHOTS, CHECKPOINTS, ARTIFACTS and SLOTS. What the subjects of a stream begin with is a
// constant of package contract, which schemas/subjects.json defines.

// everyOf returns the filter of all subjects that begin with the tokens in head.
func everyOf(head string) string { return head + ".>" }

// slotSubject returns the subject of the lease of a slot, or the filter of all leases of the
// service if slot is "*".
func slotSubject(service, slot string) string {
	return contract.SubjectSlot + "." + service + "." + slot
}

// TransientSubject returns the subject under which a service sends messages with the
// given id to an instance.
func TransientSubject(tenant, service, to, id string) string {
	return contract.SubjectTransient + "." + tenant + "." + service + "." + to + "." + id
}

// TransientFilter returns the filter of the messages that a service sends to any
// instance on TRANSIENT.
func TransientFilter(service string) string {
	return contract.SubjectTransient + ".*." + service + ".>"
}

// SnapshotSubject returns the subject of a part of a snapshot. Each instance stores a
// view's snapshots alternately under two names, so that the earlier one remains complete
// while the next is stored. part is a number, or SnapshotHead for the signed
// description.
func SnapshotSubject(tenant, service, instance, view, name, part string) string {
	return strings.Join([]string{contract.SubjectSnapshot, tenant, service, instance, strings.ReplaceAll(view, ".", "_"), name, part}, ".")
}

// SnapshotHead is the last token of the subject of a snapshot's signed description.
const SnapshotHead = "head"

// SnapshotFilter returns the filter of the snapshots of a service.
func SnapshotFilter(service string) string { return contract.SubjectSnapshot + ".*." + service + ".>" }

// LogSubject returns the subject of the checkpoints or of the cosignatures of a log, or
// the filter of both. name is CheckpointSubject, CosignatureSubject or "*".
func LogSubject(log, name string) string { return contract.SubjectLog + "." + log + "." + name }

// Last tokens of the subjects of the stream CHECKPOINTS.
const (
	CheckpointSubject  = "checkpoint"
	CosignatureSubject = "cosignature"
)

// ArtifactSubject returns the subject of the part of an artifact with a key; see package
// artifact.
func ArtifactSubject(key string) string { return contract.SubjectArtifact + "." + key }

// ArtifactFilter returns the filter of the parts that a service stores.
func ArtifactFilter(service string) string { return contract.SubjectArtifact + ".*." + service + ".>" }
