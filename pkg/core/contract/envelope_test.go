package contract

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// TestEnvelope shows that an event with every attribute reads back from its bytes, that
// type, schema and lamport have the form that the ledger format documents, and that
// Under accepts the event's subject and rejects others.
func TestEnvelope(t *testing.T) {
	e := benchEvent()
	e.Target = "session-runner"
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"actor":"alice","callid":"c-1","causationid":"e-0","client":"-","correlationid":"e-0","data":{"call_id":"c-1","decision_id":"d-c-1","intent_id":"i-c-1"},` +
		`"datacontenttype":"application/json","dataschema":"urn:binnacle:event:mesh:effect_started:v2","id":"e-1","lamport":"12","origin":"gw1","session":"s-1","source":"gateway/gw1",` +
		`"specversion":"1.0","subject":"s-1","target":"session-runner","tenant":"t","time":"2026-05-04T03:02:01.000Z","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",` +
		`"type":"dev.binnacle.gateway.effect_started.v2"}`
	if string(b) != want {
		t.Errorf("%s\nwant %s", b, want)
	}
	back, err := DecodeEvent(b)
	if err != nil || !reflect.DeepEqual(back, e) {
		t.Errorf("%+v, %v", back, err)
	}
	if got := e.Subject(); got != "evt.t.gateway.gw1.effect_started_session-runner.s-1" || !e.Under(got) {
		t.Error(got)
	}
	if e.Target = ""; e.Subject() != "evt.t.gateway.gw1.effect_started.s-1" || !e.Under(e.Subject()) {
		t.Error(e.Subject())
	}
	for _, other := range []string{"", "evt.t.gateway.gw1.effect_started.s-1.", "evt.t.gateway.gw1.effect_started.s-", "evt.u.gateway.gw1.effect_started.s-1", "evt.t.policy.gw1.effect_started.s-1",
		"evt.t.gateway.gw2.effect_started.s-1", "evt.t.gateway.gw1.effect_started_x.s-1", "tmp.t.gateway.gw1.effect_started.s-1"} {
		if e.Under(other) {
			t.Errorf("the event is taken to lie under %q", other)
		}
	}
	if e.Service() != "gateway" || e.Type() != "dev.binnacle.gateway.effect_started.v2" {
		t.Error(e.Service(), e.Type())
	}
	// An event's schema belongs to the event's producer unless it is one of the mesh's
	// shared schemas.
	e.Name, e.Version = "outcome_reported", 1
	if got := e.dataSchema(); got != "urn:binnacle:event:gateway:outcome_reported:v1" {
		t.Error(got)
	}
}

// TestCutEvent shows that no proper prefix of an event's bytes is an event. An
// early version read past the end of an event that was cut inside its data.
func TestCutEvent(t *testing.T) {
	b, err := benchEvent().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range b {
		if _, err := DecodeEvent(slices.Clip(b[:n])); err == nil {
			t.Errorf("%s is accepted", b[:n])
		}
	}
}

// TestEnvelopeChecks shows that an event with a missing or malformed attribute can be
// neither encoded nor decoded.
func TestEnvelopeChecks(t *testing.T) {
	long := strings.Repeat("x", 128)
	for name, c := range map[string]struct {
		change func(e *Event)
		want   string // expected part of the error; empty = accepted
	}{
		"nothing":              {func(*Event) {}, ""},
		"longest token":        {func(e *Event) { e.Key = long }, ""},
		"too long a token":     {func(e *Event) { e.Key = long + "x" }, "event subject:"},
		"no tenant":            {func(e *Event) { e.Tenant = "" }, "event tenant:"},
		"a dot in the tenant":  {func(e *Event) { e.Tenant = "a.b" }, "event tenant:"},
		"no instance":          {func(e *Event) { e.Source = "gateway" }, "not made of"},
		"an empty instance":    {func(e *Event) { e.Source = "gateway/" }, "event source:"},
		"an empty service":     {func(e *Event) { e.Source = "/gw1" }, "event source:"},
		"two slashes":          {func(e *Event) { e.Source = "gateway/gw1/x" }, "event source:"},
		"a wildcard origin":    {func(e *Event) { e.Origin = "*" }, "event origin:"},
		"no name":              {func(e *Event) { e.Name = "" }, "event type:"},
		"a space in target":    {func(e *Event) { e.Target = "a b" }, "event target"},
		"no id":                {func(e *Event) { e.ID = "" }, "event id is empty"},
		"no actor":             {func(e *Event) { e.Actor = "" }, "actor and client"},
		"no client":            {func(e *Event) { e.Client = "" }, "actor and client"},
		"the first version":    {func(e *Event) { e.Version = 1 }, ""},
		"no version":           {func(e *Event) { e.Version = 0 }, "no version"},
		"no lamport":           {func(e *Event) { e.Lamport = 0 }, "lamport out of range"},
		"the largest lamport":  {func(e *Event) { e.Lamport = canon.MaxInt }, ""},
		"too large a lamport":  {func(e *Event) { e.Lamport = canon.MaxInt + 1 }, "lamport out of range"},
		"no data":              {func(e *Event) { e.Data = nil }, "not an object"},
		"data is no object":    {func(e *Event) { e.Data = []byte("[]") }, "not an object"},
		"data is half a brace": {func(e *Event) { e.Data = []byte("{") }, "not an object"},
		"the least data":       {func(e *Event) { e.Data = []byte("{}") }, ""},
		"a time of another":    {func(e *Event) { e.Time = "2026-05-04T03:02:01Z" }, "event time:"},
	} {
		e := benchEvent()
		c.change(e)
		b, err := e.Encode()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
			continue
		}
		if err == nil {
			if _, err := DecodeEvent(b); err != nil {
				t.Errorf("%s: encodes and does not decode: %v", name, err)
			}
			continue
		}
		if _, err := DecodeEvent(canon.Append(nil, e)); err == nil {
			t.Errorf("%s: does not encode and decodes", name)
		}
	}
}

// TestSpellings shows that type, schema, lamport, specversion and content type are
// accepted in one form only.
func TestSpellings(t *testing.T) {
	b, err := benchEvent().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new string }{
		{`"lamport":"12"`, `"lamport":"012"`}, {`"lamport":"12"`, `"lamport":"+12"`}, {`"lamport":"12"`, `"lamport":"-12"`}, {`"lamport":"12"`, `"lamport":"x"`}, {`"lamport":"12"`, `"lamport":12`},
		{`started.v2"}`, `started.v02"}`}, {`started.v2"}`, `started.v+2"}`}, {`started.v2"}`, `started.2"}`}, {`started.v2"}`, `started.v2.v2"}`}, {`started.v2"}`, `started.v3"}`},
		{`dev.binnacle.gateway.`, `dev.binnacle.policy.`}, {`dev.binnacle.gateway.`, `org.binnacle.gateway.`},
		{`event:mesh:effect_started:v2`, `event:gateway:effect_started:v2`}, {`event:mesh:effect_started:v2`, `event:mesh:effect_started:v1`}, {`event:mesh:effect_started:v2`, `event:mesh:effect_recorded:v2`},
		{`"specversion":"1.0"`, `"specversion":"1.1"`}, {`"application/json"`, `"text/json"`},
	} {
		if !strings.Contains(string(b), c.old) {
			t.Fatalf("%s is not in the event", c.old)
		}
		if _, err := DecodeEvent([]byte(strings.Replace(string(b), c.old, c.new, 1))); err == nil {
			t.Errorf("%s for %s is accepted", c.new, c.old)
		}
	}
}

// TestPeekCallID checks the result for events with and without a call id, for a call id
// before and one after the limit of 4 KiB, and for incomplete input.
func TestPeekCallID(t *testing.T) {
	b, err := benchEvent().Encode()
	if err != nil {
		t.Fatal(err)
	}
	e := benchEvent()
	e.CallID = ""
	without, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	far := `{"actor":"` + strings.Repeat("x", 4096) + `","callid":"c-1"}`
	near := `{"actor":"` + strings.Repeat("x", 4096-25) + `","callid":"c-1"}`
	for _, c := range []struct{ in, want string }{
		{string(b), "c-1"}, {string(without), ""}, {"", ""}, {far, ""}, {near, "c-1"}, {`{"actor":"a","callid":"`, ""}, {`{"actor":"a","callid":""}`, ""},
	} {
		if got := PeekCallID([]byte(c.in)); got != c.want {
			t.Errorf("%.60s…: %q, want %q", c.in, got, c.want)
		}
	}
}

// TestToken checks the boundaries of the permitted bytes and lengths of a token.
func TestToken(t *testing.T) {
	for s, want := range map[string]bool{"a": true, "Z": true, "0": true, "9": true, "z": true, "A": true, "_": true, "-": true, "s-1_X": true, strings.Repeat("a", 128): true,
		"": false, strings.Repeat("a", 129): false, "a.b": false, "*": false, ">": false, " ": false, "a/b": false, "é": false, "a\x00": false, "@": false, "[": false, "`": false, "{": false, ":": false} {
		if Token(s) != want {
			t.Errorf("Token(%q) = %v", s, !want)
		}
	}
}

// TestTime checks that Time converts to UTC and truncates to milliseconds. For
// ParseTime, it checks the limits of each field, dates that do not exist, and input in
// other forms.
func TestTime(t *testing.T) {
	zone := time.FixedZone("", 3600)
	if got := Time(time.Date(2026, 1, 1, 0, 30, 0, 1_999_999, zone)); got != "2025-12-31T23:30:00.001Z" {
		t.Error(got)
	}
	for s, want := range map[string]bool{
		"2026-05-04T03:02:01.987Z": true, "0000-01-01T00:00:00.000Z": true, "9999-12-31T23:59:59.999Z": true, "2024-02-29T00:00:00.000Z": true, "2000-02-29T00:00:00.000Z": true,
		"2026-02-29T00:00:00.000Z": false, "1900-02-29T00:00:00.000Z": false, "2026-04-31T00:00:00.000Z": false, "2026-00-01T00:00:00.000Z": false, "2026-13-01T00:00:00.000Z": false,
		"2026-01-00T00:00:00.000Z": false, "2026-01-32T00:00:00.000Z": false, "2026-01-01T24:00:00.000Z": false, "2026-01-01T00:60:00.000Z": false, "2026-01-01T00:00:60.000Z": false,
		"2026-01-01 00:00:00.000Z": false, "2026/01-01T00:00:00.000Z": false, "2026-01/01T00:00:00.000Z": false, "2026-01-01T00.00:00.000Z": false, "2026-01-01T00:00.00.000Z": false,
		"2026-01-01T00:00:00:000Z": false, "2026-01-01T00:00:00.000z": false, "2026-01-01T00:00:00.000": false, "2026-01-01T00:00:00.0000Z": false, "": false,
		"x026-01-01T00:00:00.000Z": false, "2026-x1-01T00:00:00.000Z": false, "2026-01-x1T00:00:00.000Z": false, "2026-01-01Tx0:00:00.000Z": false, "2026-01-01T00:x0:00.000Z": false,
		"2026-01-01T00:00:x0.000Z": false, "2026-01-01T00:00:00.x00Z": false, "2026-01-01T00:00:00.00/Z": false, "2026-01-01T00:00:00.00:Z": false, "-001-01-01T00:00:00.000Z": false,
	} {
		got, err := ParseTime(s)
		if (err == nil) != want || want && Time(got) != s || !want && !got.IsZero() {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}
