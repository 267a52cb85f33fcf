// Package contract holds the documents a stranger needs to read the ledger:
// the event envelope and the contracts inside it.
//
// Each document has one encoder, AppendCanonical (RFC 8785, keys in static
// order, empty optional members absent), and one decoder, Decode, which
// accepts nothing but those bytes. Signed documents (Decision, Receipt,
// TrustKey) are made only inside the trusted core: guard.Decide,
// receipt.Issue and trust.Publish; a test scans the tree for other makers.
package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TimeFormat is the only spelling of time in the ledger: UTC, milliseconds.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// Time renders t in TimeFormat.
func Time(t time.Time) string { return t.UTC().Format(TimeFormat) }

// ParseTime reads TimeFormat and nothing else.
func ParseTime(s string) (time.Time, error) {
	t, err := time.Parse(TimeFormat, s)
	if err == nil && Time(t) != s {
		err = fmt.Errorf("time %q is not in the form %s", s, TimeFormat)
	}
	return t, err
}

// Event is one ledger entry: CloudEvents 1.0 in structured JSON form, with
// extension attributes. The stored bytes are what the log hashes; nothing may
// re-encode an event to hash it.
type Event struct {
	ID       string `json:"id"`            // unique; of two events with one id the first in the ledger counts
	Source   string `json:"source"`        // producer: service "/" instance, e.g. "policy/policy-1"
	Name     string `json:"-"`             // event name, e.g. "call_proposed"; part of type
	Version  int    `json:"-"`             // schema version; part of type
	Key      string `json:"subject"`       // aggregate key or session id
	Time     string `json:"time"`          // when the producer made it (TimeFormat)
	Tenant   string `json:"tenant"`        // environment
	Actor    string `json:"actor"`         // verified caller; "-" where the mesh itself acts
	Client   string `json:"client"`        // client the actor used; "-" if none
	Session  string `json:"session"`       // session the event belongs to; empty for aggregates
	CallID   string `json:"callid"`        // call the event belongs to; empty if none
	Origin   string `json:"origin"`        // instance that waits for the outcome; "-" if none
	Target   string `json:"target"`        // executor addressed by an allowed event; else empty
	Correl   string `json:"correlationid"` // first event of the whole cause chain
	Cause    string `json:"causationid"`   // event that led to this one
	Lamport  uint64 `json:"-"`             // 1 + max(own, everything seen); decimal string in JSON, as CloudEvents integers have 32 bits
	TraceCtx string `json:"traceparent"`   // W3C trace context
	Data     []byte `json:"-"`             // canonical JSON object
}

// Service is the producer's service name.
func (e *Event) Service() string { s, _, _ := strings.Cut(e.Source, "/"); return s }

// Type is the CloudEvents type: dev.binnacle.<service>.<name>.v<version>.
func (e *Event) Type() string {
	return "dev.binnacle." + e.Service() + "." + e.Name + ".v" + strconv.Itoa(e.Version)
}

// Subject recomputes the NATS subject the event must lie under:
// evt.<tenant>.<service>.<origin>.<name>[_<target>].<key>.
func (e *Event) Subject() string {
	name := e.Name
	if e.Target != "" {
		name += "_" + e.Target
	}
	return "evt." + e.Tenant + "." + e.Service() + "." + e.Origin + "." + name + "." + e.Key
}

// Encode returns the canonical bytes. It fails when a token would break the
// subject or a mandatory attribute is missing.
func (e *Event) Encode() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	w := canon.Object(make([]byte, 0, 640+len(e.Data)))
	w.Str("actor", e.Actor)
	w.OptStr("callid", e.CallID)
	w.OptStr("causationid", e.Cause)
	w.Str("client", e.Client)
	w.OptStr("correlationid", e.Correl)
	w.Raw("data", e.Data)
	w.Str("datacontenttype", "application/json")
	w.Str("dataschema", e.dataSchema())
	w.Str("id", e.ID)
	w.Str("lamport", strconv.FormatUint(e.Lamport, 10))
	w.Str("origin", e.Origin)
	w.OptStr("session", e.Session)
	w.Str("source", e.Source)
	w.Str("specversion", "1.0")
	w.Str("subject", e.Key)
	w.OptStr("target", e.Target)
	w.Str("tenant", e.Tenant)
	w.Str("time", e.Time)
	w.OptStr("traceparent", e.TraceCtx)
	w.Str("type", e.Type())
	return w.End(), nil
}

// shared are the events whose schema belongs to the mesh as a whole, whoever
// produces them; every other event's schema belongs to its producer.
var shared = map[string]bool{
	"allowed": true, "call_proposed": true, "cancel_requested": true, "effect_recorded": true, "effect_started": true,
	"key_published": true, "key_revoked": true, "policy_activated": true, "secret_requested": true, "start_expired": true,
	"tool_registered": true, "tool_retired": true,
}

func (e *Event) dataSchema() string {
	owner := e.Service()
	if shared[e.Name] {
		owner = "mesh"
	}
	return "urn:binnacle:event:" + owner + ":" + e.Name + ":v" + strconv.Itoa(e.Version)
}

func (e *Event) check() error {
	service, instance, ok := strings.Cut(e.Source, "/")
	for _, t := range []struct{ field, v string }{
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
	switch {
	case e.ID == "":
		return errors.New("event id is empty")
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

// Token reports whether s can stand as one subject token of ours.
func Token(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

type wireEvent struct {
	Event
	SpecVersion string          `json:"specversion"`
	Type        string          `json:"type"`
	DataSchema  string          `json:"dataschema"`
	DataType    string          `json:"datacontenttype"`
	LamportText string          `json:"lamport"`
	RawData     json.RawMessage `json:"data"`
}

// DecodeEvent reads stored bytes. It accepts only what Encode produces, so a
// second spelling of one event, an unknown attribute or a doubled key is an
// error. Data aliases b.
func DecodeEvent(b []byte) (*Event, error) {
	var w wireEvent
	if err := strictUnmarshal(b, &w); err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	e := w.Event
	rest, ok := strings.CutPrefix(w.Type, "dev.binnacle."+e.Service()+".")
	name, version, ok2 := strings.Cut(rest, ".v")
	n, err := strconv.Atoi(version)
	if !ok || !ok2 || err != nil {
		return nil, fmt.Errorf("event: type %q does not belong to source %q", w.Type, e.Source)
	}
	e.Name, e.Version, e.Data = name, n, w.RawData
	if e.Lamport, err = strconv.ParseUint(w.LamportText, 10, 64); err != nil {
		return nil, fmt.Errorf("event: lamport %q", w.LamportText)
	}
	again, err := e.Encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, b) {
		return nil, errors.New("event: bytes are not in canonical form")
	}
	return &e, nil
}

// appender is a document that knows its canonical bytes.
type appender interface{ AppendCanonical([]byte) []byte }

// Bytes returns d's canonical bytes.
func Bytes(d appender) []byte { return d.AppendCanonical(nil) }

// Digest is the SHA-256 of d's canonical bytes.
func Digest(d appender) string { return sign.Digest(Bytes(d)) }

// Decode reads b into d and accepts only d's own canonical bytes: unknown
// members, doubled keys and other spellings are errors.
func Decode(b []byte, d appender) error {
	if err := strictUnmarshal(b, d); err != nil {
		return err
	}
	if again := Bytes(d); !bytes.Equal(again, b) {
		return fmt.Errorf("document is not in canonical form")
	}
	return nil
}

func strictUnmarshal(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// PeekCallID returns the callid of canonical event bytes without decoding
// them, or "". It is for readers that select; whoever acts decodes.
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
