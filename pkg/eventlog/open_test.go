package eventlog_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// event returns a valid event, to which it applies change if that is not nil, and its
// encoding.
func event(t testing.TB, change func(*contract.Event)) (*contract.Event, []byte) {
	t.Helper()
	e := &contract.Event{ID: "a-1", Name: contract.EventAllowed, Target: "judge", Version: contract.VersionOf(contract.EventAllowed), Source: "policy/policy-1", Tenant: "t",
		Origin: "gw1", Key: "s-1", Session: "s-1", CallID: "c-1", Actor: "alice", Client: "-", Lamport: 7, Time: "2026-01-01T00:00:00.000Z", Data: []byte(`{"x":1}`)}
	if change != nil {
		change(e)
	}
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return e, b
}

// TestOpen shows that Open accepts an entry only if one of the caller's filters selects
// it, its size is permitted, and its bytes are the canonical form of an event with its
// subject.
func TestOpen(t *testing.T) {
	good, stored := event(t, nil)
	_, short := event(t, func(e *contract.Event) { e.Data = []byte(`{"x":""}`) })
	_, largest := event(t, func(e *contract.Event) {
		e.Data = []byte(`{"x":"` + strings.Repeat("y", bus.MaxMessage-len(short)) + `"}`)
	})
	foreign, ofJudge := event(t, func(e *contract.Event) { e.Source = "judge/judge-1" })
	_, ofTenant := event(t, func(e *contract.Event) { e.Tenant = "u" })
	_, ofKey := event(t, func(e *contract.Event) { e.Key = "s-2" })
	_, ofTarget := event(t, func(e *contract.Event) { e.Target = "audit" })
	_, ofOrigin := event(t, func(e *contract.Event) { e.Origin = "gw2" })
	filter := bus.AllowedInSession("t", "judge", "s-1")
	edited := func(old, new string) []byte {
		b := bytes.Replace(stored, []byte(old), []byte(new), 1)
		if bytes.Equal(b, stored) {
			t.Fatalf("the event has no %s: %s", old, stored)
		}
		return b
	}
	for _, c := range []struct {
		name, subject string
		data          []byte
		filters       []string
		err           string // part of the expected error; empty = the entry is accepted
	}{
		{"the requested event", good.Subject(), stored, []string{filter}, ""},
		{"the second filter", good.Subject(), stored, []string{"evt.t.audit.>", filter}, ""},
		{"any event", good.Subject(), stored, []string{eventlog.Every}, ""},
		{"the largest", good.Subject(), largest, []string{filter}, ""},
		{"too large", good.Subject(), append(bytes.Clone(largest), ' '), []string{filter}, "1048577 bytes"},
		{"no filters", good.Subject(), stored, nil, "is not one of"},

		{"another producer's subject", foreign.Subject(), ofJudge, []string{filter}, "is not one of"},
		{"another producer, under the subject", good.Subject(), ofJudge, []string{filter}, "is not the one of its body"},
		{"another producer, any event", good.Subject(), ofJudge, []string{eventlog.Every}, "is not the one of its body"},
		{"another tenant, under the subject", good.Subject(), ofTenant, []string{filter}, "is not the one of its body"},
		{"another session, under the subject", good.Subject(), ofKey, []string{filter}, "is not the one of its body"},
		{"another executor, under the subject", good.Subject(), ofTarget, []string{filter}, "is not the one of its body"},
		{"another instance, under the subject", good.Subject(), ofOrigin, []string{filter}, "is not the one of its body"},
		{"of another tenant", strings.Replace(good.Subject(), "evt.t.", "evt.u.", 1), ofTenant, []string{filter}, "is not one of"},
		{"of another session", strings.Replace(good.Subject(), "s-1", "s-2", 1), ofKey, []string{filter}, "is not one of"},
		{"of another executor", strings.Replace(good.Subject(), "_judge", "_audit", 1), ofTarget, []string{filter}, "is not one of"},

		{"a longer subject", good.Subject() + ".x", stored, []string{eventlog.Every}, "is not the one of its body"},
		{"a shorter subject", strings.TrimSuffix(good.Subject(), ".s-1"), stored, []string{eventlog.Every}, "is not the one of its body"},
		{"no subject", "", stored, []string{eventlog.Every}, "is not one of"},
		{"another stream", "tmp.t.policy.gw1.x", stored, []string{eventlog.Every}, "is not one of"},

		{"no content", good.Subject(), nil, []string{filter}, "event:"},
		{"noise", good.Subject(), []byte("noise"), []string{filter}, "event:"},
		{"cut off", good.Subject(), stored[:len(stored)-1], []string{filter}, "event:"},
		{"two events", good.Subject(), append(bytes.Clone(stored), stored...), []string{filter}, "event:"},
		{"white space", good.Subject(), edited(`,"client"`, `, "client"`), []string{filter}, "event:"},
		{"an unknown attribute", good.Subject(), edited(`"client"`, `"cliche":"x","client"`), []string{filter}, "event:"},
		{"a duplicate attribute", good.Subject(), edited(`"client"`, `"client":"-","client"`), []string{filter}, "event:"},
		{"no actor", good.Subject(), edited(`"actor":"alice"`, `"actor":""`), []string{filter}, "event actor"},
		{"no id", good.Subject(), edited(`"id":"a-1"`, `"id":""`), []string{filter}, "event id"},
		{"a type of another producer", good.Subject(), edited(`binnacle.policy.allowed`, `binnacle.judge.allowed`), []string{filter}, "event:"},
		{"a lamport of zero", good.Subject(), edited(`"lamport":"7"`, `"lamport":"0"`), []string{filter}, "lamport"},
		{"a lamport in another form", good.Subject(), edited(`"lamport":"7"`, `"lamport":"07"`), []string{filter}, "event:"},
		{"a wildcard in the key", good.Subject(), edited(`"subject":"s-1"`, `"subject":"*"`), []string{filter}, "event subject"},
		{"no time", good.Subject(), edited(`2026-01-01T00:00:00.000Z`, `yesterday`), []string{filter}, "event time"},
		{"data that is not an object", good.Subject(), edited(`"data":{"x":1}`, `"data":[1]`), []string{filter}, "event"},
	} {
		e, err := eventlog.Open(eventlog.Entry{Seq: 1, Subject: c.subject, Data: c.data}, c.filters...)
		switch {
		case c.err == "" && (err != nil || e.ID != good.ID):
			t.Errorf("%s: %v", c.name, err)
		case c.err != "" && (err == nil || e != nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.err)
		}
	}
}

// TestOpenBytes shows that OpenBytes accepts the bytes of an event only if one of the
// filters selects the subject that the event determines, and rejects bytes that are not
// an event.
func TestOpenBytes(t *testing.T) {
	_, stored := event(t, nil)
	for _, c := range []struct {
		name    string
		data    []byte
		filters []string
		ok      bool
	}{
		{"the requested event", stored, []string{bus.AllowedFilter("judge")}, true},
		{"any event", stored, []string{eventlog.Every}, true},
		{"no filters", stored, nil, false},
		{"another executor", stored, []string{bus.AllowedFilter("audit")}, false},
		{"another tenant", stored, []string{bus.Filter{Tenant: "u"}.String()}, false},
		{"noise", []byte("noise"), []string{eventlog.Every}, false},
		{"cut off", stored[:len(stored)-1], []string{eventlog.Every}, false},
	} {
		if e, err := eventlog.OpenBytes(c.data, c.filters...); (err == nil) != c.ok || (e != nil) != c.ok {
			t.Errorf("%s: %v, %v", c.name, e, err)
		}
	}
}

// BenchmarkOpen measures Open: the checks and the decoding.
func BenchmarkOpen(b *testing.B) {
	e, stored := event(b, nil)
	en, filter := eventlog.Entry{Seq: 1, Subject: e.Subject(), Data: stored}, bus.AllowedFilter("judge")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := eventlog.Open(en, filter); err != nil {
			b.Fatal(err)
		}
	}
}
