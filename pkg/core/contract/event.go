// Package contract holds the documents that a verifier of the ledger needs: the event
// envelope and the data inside it. docs/reference/ledger-format.md describes the same
// documents for implementers in other languages.
//
// Each document lists its members once, in its Canonical method. Bytes writes by that
// list and Decode reads by it. Decode accepts only the canonical bytes (RFC 8785, with
// empty optional members absent). Decisions, receipts and trust keys are signed only
// inside the trusted core, by guard.Decide, receipt.Issue and trust.Publish; TestMakers
// scans the repository for other makers.
//
// A released schema of an event never changes: a new member needs a new version of the
// schema under schemas/events, and is optional here, so that older events still decode.
// The files zz_*.go are generated from the files in schemas. The package imports canon,
// sign and the standard library; it reads no clock and no randomness.
package contract

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Event is one ledger entry: a CloudEvents 1.0 event in structured JSON form,
// with extension attributes. The log hashes the stored bytes. Code that needs an
// event's hash must use those bytes and never encode the event again.
type Event struct {
	ID       string // id of the event; also the message id, except that the message id of claims and decisions is derived from the call's id
	Source   string // producer, service "/" instance, such as "policy/policy-1"
	Name     string // event name, such as "call_proposed"; part of the type
	Version  int    // schema version, from 1; part of the type
	Key      string // aggregate key or session id
	Time     string // when the producer made the event (TimeFormat)
	Tenant   string // id of the tenant that the event belongs to
	Actor    string // verified caller; "-" if the mesh itself acts
	Client   string // client that the actor used; "-" if none
	Session  string // id of the session that the event belongs to; empty for aggregates
	CallID   string // id of the call that the event belongs to; empty if none
	Origin   string // instance that waits for the outcome; "-" if none
	Target   string // executor that an allowed event addresses; otherwise empty
	Correl   string // id of the first event in the sequence of causes; empty for that event itself
	Cause    string // id of the event that caused this one; empty if none did
	Lamport  uint64 // Lamport time, greater than that of every event that the producer had made or received; a decimal string in JSON, as CloudEvents integers have 32 bits
	TraceCtx string // W3C trace context; empty if there is none
	Data     []byte // canonical JSON object with the event's data
}

// TypePrefix begins the CloudEvents type of each event; service, event name and
// version follow, separated by dots.
const TypePrefix = "dev.binnacle."

// Service returns the name of the service that produced the event: Source up to
// its slash.
func (e *Event) Service() string { s, _, _ := strings.Cut(e.Source, "/"); return s }

// Type returns the CloudEvents type attribute, dev.binnacle.<service>.<name>.v<version>,
// in which service is the producer's.
func (e *Event) Type() string {
	return TypePrefix + e.Service() + "." + e.Name + ".v" + strconv.Itoa(e.Version)
}

// Subject returns the NATS subject under which the event must be stored, computed
// from its attributes: evt.<tenant>.<service>.<origin>.<name>[_<target>].<key>.
func (e *Event) Subject() string {
	name := e.Name
	if e.Target != "" {
		name += "_" + e.Target
	}
	return SubjectEvent + "." + e.Tenant + "." + e.Service() + "." + e.Origin + "." + name + "." + e.Key
}

// Under reports whether subject equals e.Subject(). It does not allocate, as it
// runs for every event that is read.
func (e *Event) Under(subject string) bool {
	sep := ""
	if e.Target != "" {
		sep = "_"
	}
	return is([]byte(subject), SubjectEvent+".", e.Tenant, ".", e.Service(), ".", e.Origin, ".", e.Name, sep, e.Target, ".", e.Key)
}

// Encode returns the canonical bytes, which the caller owns. It returns an error that
// names the attribute if a mandatory attribute is missing, or if one of them or Target
// is malformed, for example because it could not be a token of the subject. Data must be
// canonical, but Encode checks only that Data has at least two bytes and begins with a
// brace.
func (e *Event) Encode() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	return Bytes(e), nil
}

// Canonical implements canon.Document. Name and Version are parts of the members type
// and dataschema, and Lamport is a decimal string. When c reads, Canonical derives these
// fields from type and lamport, and checks dataschema.
func (e *Event) Canonical(c *canon.Codec) {
	var schema, lamport, typ []byte
	if !c.Reading() {
		// Slices of constant capacity need no heap memory, and names of the usual length
		// fit.
		schema = e.appendSchema(make([]byte, 0, 96))
		typ = append(make([]byte, 0, 96), e.Type()...)
		lamport = strconv.AppendUint(make([]byte, 0, 20), e.Lamport, 10)
	}
	c.Str("actor", &e.Actor)
	c.OptStr("callid", &e.CallID)
	c.OptStr("causationid", &e.Cause)
	c.Str("client", &e.Client)
	c.OptStr("correlationid", &e.Correl)
	c.Data("data", &e.Data)
	c.Const("datacontenttype", "application/json")
	c.Text("dataschema", &schema)
	c.Str("id", &e.ID)
	c.Text("lamport", &lamport)
	c.Str("origin", &e.Origin)
	c.OptStr("session", &e.Session)
	c.Str("source", &e.Source)
	c.Const("specversion", "1.0")
	c.Str("subject", &e.Key)
	c.OptStr("target", &e.Target)
	c.Str("tenant", &e.Tenant)
	c.Str("time", &e.Time)
	c.OptStr("traceparent", &e.TraceCtx)
	c.Text("type", &typ)
	if c.Reading() {
		c.Fail(e.derive(schema, lamport, typ))
	}
}

// derive sets Name, Version and Lamport from the attributes that contain them. It
// returns an error if type does not belong to the event's source, or if type, dataschema
// or lamport is not in its canonical form.
func (e *Event) derive(schema, lamport, typ []byte) (err error) {
	rest, ok := after(typ, TypePrefix, e.Service(), ".")
	name, version, ok2 := bytes.Cut(rest, []byte(".v"))
	if e.Version, err = strconv.Atoi(string(version)); !ok || !ok2 || err != nil {
		return fmt.Errorf("type %q does not belong to source %q", string(typ), e.Source)
	}
	e.Name = string(name)
	if e.Lamport, err = strconv.ParseUint(string(lamport), 10, 64); err != nil {
		return fmt.Errorf("lamport %q", string(lamport))
	}
	var digits [20]byte // room for the digits of the largest uint64
	if !is(typ, TypePrefix, e.Service(), ".", e.Name, ".v", strconv.Itoa(e.Version)) ||
		!is(schema, "urn:binnacle:event:", e.schemaOwner(), ":", e.Name, ":v", strconv.Itoa(e.Version)) ||
		string(lamport) != string(strconv.AppendUint(digits[:0], e.Lamport, 10)) {
		return errors.New("type, dataschema or lamport is not in canonical form")
	}
	return nil
}

// versions maps an event name to the schema version that this release writes, if it is
// not 1. Older versions lack only some members and some values of members, so their
// events are read without conversion.
var versions = map[string]int{
	"allowed": 7, "approval_recorded": 2, "attempt_finished": 3, "budget_changed": 2, "call_proposed": 4, "delegation_granted": 2, "effect_recorded": 7, "effect_started": 2, "escalated": 6, "ledger_truncated": 2, "policy_activated": 2, "prices_published": 2, "secret_refused": 2, "secret_released": 2, "secret_requested": 3, "tool_registered": 5, "tool_retired": 5, "virtual_key_created": 3,
}

// VersionOf returns the schema version in which this release writes events with
// this name. An unknown name has version 1.
func VersionOf(name string) int { return max(versions[name], 1) }

func (e *Event) schemaOwner() string {
	if shared[e.Name] {
		return "mesh"
	}
	return e.Service()
}

func (e *Event) dataSchema() string { return string(e.appendSchema(nil)) }

// appendSchema appends the value of the attribute dataschema to dst.
func (e *Event) appendSchema(dst []byte) []byte {
	for _, s := range [...]string{"urn:binnacle:event:", e.schemaOwner(), ":", e.Name, ":v"} {
		dst = append(dst, s...)
	}
	return strconv.AppendInt(dst, int64(e.Version), 10)
}

// is reports whether b is the concatenation of parts. It does not allocate.
func is(b []byte, parts ...string) bool {
	rest, ok := after(b, parts...)
	return ok && len(rest) == 0
}

// after returns the part of b after the concatenation of parts, and reports whether b
// begins with that concatenation. It does not allocate.
func after(b []byte, parts ...string) (rest []byte, ok bool) {
	for _, p := range parts {
		if len(b) < len(p) || string(b[:len(p)]) != p {
			return nil, false
		}
		b = b[len(p):]
	}
	return b, true
}

// check returns an error that names the attribute unless the tokens of the subject and
// the instance in Source are well-formed, ID, Actor and Client are set, Version, Lamport
// and Time are valid, and Data begins like an object. It does not check other
// attributes.
func (e *Event) check() error {
	if err := e.checkNames(); err != nil {
		return err
	}
	switch {
	case e.Actor == "" || e.Client == "":
		return errors.New(`event actor and client must be named ("-" for the mesh itself)`)
	case e.Version < 1:
		return errors.New("event type has no version")
	case e.Lamport == 0 || e.Lamport > canon.MaxInt:
		return errors.New("event lamport out of range")
	case len(e.Data) < 2 || e.Data[0] != '{':
		return errors.New("event data is not an object")
	}
	if _, err := ParseTime(e.Time); err != nil {
		return fmt.Errorf("event time: %w", err)
	}
	return nil
}

// checkNames checks the tokens of the subject and the instance in Source, and that the
// id is not empty.
func (e *Event) checkNames() error {
	service, instance, ok := strings.Cut(e.Source, "/")
	for _, t := range [...]struct{ field, v string }{
		{"tenant", e.Tenant}, {"source", service}, {"source", instance}, {"origin", e.Origin},
		{"subject", e.Key}, {"type", e.Name},
	} {
		if !Token(t.v) || !ok {
			return fmt.Errorf("event %s: %q is not made of [A-Za-z0-9_-]", t.field, t.v)
		}
	}
	if e.Target != "" && !Token(e.Target) {
		return fmt.Errorf("event target %q is not made of [A-Za-z0-9_-]", e.Target)
	}
	if e.ID == "" {
		return errors.New("event id is empty")
	}
	return nil
}

// maxToken is the greatest length of a token in bytes.
const maxToken = 128

// tokenBytes is the set of bytes that a token may contain.
var tokenBytes = func() (set [256]bool) {
	for _, b := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") {
		set[b] = true
	}
	return set
}()

// Token reports whether s can be one token of a subject: 1 to 128 bytes of
// [A-Za-z0-9_-]. Dots, wildcards and white space would change the meaning of a
// NATS subject.
func Token(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	for i := range len(s) {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return true
}

// DecodeEvent reads an event from its stored bytes. It accepts only the bytes
// that Encode produces, so another form of the same event, an unknown attribute
// or a duplicate name is an error. Data aliases b, and is not checked to be
// canonical: CheckData and Decode do that.
func DecodeEvent(b []byte) (*Event, error) {
	var e Event
	if err := canon.Read(b, &e); err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	if err := e.check(); err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	return &e, nil
}

// Bytes returns the canonical bytes of d in a newly allocated slice.
func Bytes(d canon.Document) (b []byte) {
	canon.With(d, func(scratch []byte) { b = bytes.Clone(scratch) })
	return b
}

// Digest returns the digest of d's canonical bytes, in the form of sign.Digest.
// Documents refer to each other by this digest.
func Digest(d canon.Document) (digest string) {
	canon.With(d, func(scratch []byte) { digest = sign.Digest(scratch) })
	return digest
}

// Sign returns the signature of key over domain and d's canonical bytes, in the form of
// sign.Key.Sign. The member of d for the signature must be absent.
func Sign(key *sign.Key, domain string, d canon.Document) (sig string) {
	canon.With(d, func(scratch []byte) { sig = key.Sign(domain, scratch) })
	return sig
}

// Verify returns nil if sig is the signature, in the form of Sign, over domain and d's
// canonical bytes by the key public, and otherwise the errors of sign.Verify. The member
// of d for the signature must be absent.
func Verify(public []byte, domain string, d canon.Document, sig string) (err error) {
	canon.With(d, func(scratch []byte) { err = sign.Verify(public, domain, scratch, sig) })
	return err
}

// Decode reads d from b and accepts only the canonical bytes of d: unknown members,
// duplicate names and other forms of a value are errors. d must be the zero value; after
// an error its content is undefined. Raw members alias b.
func Decode(b []byte, d canon.Document) error { return canon.Read(b, d) }

// PeekCallID returns the callid attribute of canonical event bytes without decoding
// them, or "" unless the value begins within the first 4 KiB and ends within b. Use it
// to select events from a scan; decode the events that are acted on, since the bytes are
// not checked, and the result may be a member of the data if the event has no such
// attribute.
func PeekCallID(b []byte) string {
	const key = `","callid":"`
	i := bytes.Index(b[:min(len(b), 4096)], []byte(key))
	if i < 0 {
		return ""
	}
	rest := b[i+len(key):]
	if j := bytes.IndexByte(rest, '"'); j >= 0 {
		return string(rest[:j])
	}
	return ""
}
