package govern

import (
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestKeyKinds shows that a key for calls of some kinds may be used for these alone.
func TestKeyKinds(t *testing.T) {
	var x Keys
	x.add(&events.VirtualKeyCreated{ID: "page", Actor: "ann", Kinds: []string{"tool.cmd.upper", "tool.web.*"}, RateCalls: 3, RateWindow: "total"})
	for kind, fault := range map[string]string{"tool.cmd.upper": "", "tool.web.test": "", "tool.cmd.upper2": contract.ReasonKeyKindNotAllowed, "llm.chat": contract.ReasonKeyKindNotAllowed, "policy.create_key": contract.ReasonKeyNotInPerson} {
		if f, _ := x.fact("page", "ann", kind, "", ""); f.Fault != fault {
			t.Errorf("%s: %q, want %q", kind, f.Fault, fault)
		}
	}
	if l := x.Limits(); len(l) != 1 || l[0].Window != "total" || l[0].Max != 3 {
		t.Errorf("%+v", l)
	}
}

// TestKeyFacts shows for which calls a virtual key has a fault, and that the maker of a key
// that is invalid is not returned.
func TestKeyFacts(t *testing.T) {
	const now = "2026-03-03T12:00:00.000Z"
	for name, c := range map[string]struct {
		change            func(*events.VirtualKeyCreated)
		id, actor, model  string
		kind, fault, made string
	}{
		"valid":              {nil, "k", "alice", "", "llm.chat", "", "dana"},
		"another key":        {nil, "x", "alice", "", "llm.chat", contract.ReasonKeyInvalid, ""},
		"another actor":      {nil, "k", "bob", "", "llm.chat", contract.ReasonKeyInvalid, ""},
		"expires later":      {func(k *events.VirtualKeyCreated) { k.Expires = "2026-03-03T12:00:00.001Z" }, "k", "alice", "", "llm.chat", "", "dana"},
		"expires now":        {func(k *events.VirtualKeyCreated) { k.Expires = now }, "k", "alice", "", "llm.chat", contract.ReasonKeyInvalid, ""},
		"expired":            {func(k *events.VirtualKeyCreated) { k.Expires = "2026-03-03T11:59:59.999Z" }, "k", "alice", "", "llm.chat", contract.ReasonKeyInvalid, ""},
		"in person":          {nil, "k", "alice", "", "policy.create_key", contract.ReasonKeyNotInPerson, "dana"},
		"any model":          {nil, "k", "alice", "p/large", "llm.chat", "", "dana"},
		"its model":          {func(k *events.VirtualKeyCreated) { k.Models = []string{"q/x", "p/*"} }, "k", "alice", "p/large", "llm.chat", "", "dana"},
		"another model":      {func(k *events.VirtualKeyCreated) { k.Models = []string{"q/x", "p/*"} }, "k", "alice", "q/y", "llm.chat", contract.ReasonModelNotAllowed, "dana"},
		"a slash more":       {func(k *events.VirtualKeyCreated) { k.Models = []string{"p/*"} }, "k", "alice", "p/a/b", "llm.chat", contract.ReasonModelNotAllowed, "dana"},
		"a malformed one":    {func(k *events.VirtualKeyCreated) { k.Models = []string{"p/["} }, "k", "alice", "p/[", "llm.chat", contract.ReasonModelNotAllowed, "dana"},
		"no model":           {func(k *events.VirtualKeyCreated) { k.Models = []string{"p/*"} }, "k", "alice", "", "llm.embed", "", "dana"},
		"no pattern, if any": {func(k *events.VirtualKeyCreated) { k.Models = []string{} }, "k", "alice", "p/a", "llm.chat", "", "dana"},
	} {
		d := events.VirtualKeyCreated{Actor: "alice", ID: "k", Maker: "dana", Tags: []string{"x"}}
		if c.change != nil {
			c.change(&d)
		}
		x := Keys{made: map[string]*virtualKey{"k": {VirtualKeyCreated: d}}}
		f, maker := x.fact(c.id, c.actor, c.kind, now, c.model)
		if f.ID != c.id || f.Fault != c.fault || maker != c.made || (len(f.Tags) == 1) != (c.made != "") {
			t.Errorf("%s: %+v, made by %q", name, f, maker)
		}
		if k := x.made["k"]; c.fault == "" {
			k.revoked = "x"
			if f, maker := x.fact(c.id, c.actor, c.kind, now, c.model); f.Fault != contract.ReasonKeyInvalid || maker != "" {
				t.Errorf("%s, revoked: %+v, made by %q", name, f, maker)
			}
		}
	}
}

// TestKeyLimits shows that Limits returns the budgets that are set, of the keys that are
// not revoked.
func TestKeyLimits(t *testing.T) {
	x := Keys{made: map[string]*virtualKey{
		"b": {VirtualKeyCreated: events.VirtualKeyCreated{ID: "b", BudgetUSDMicros: 7, BudgetWindow: "day"}},
		"a": {VirtualKeyCreated: events.VirtualKeyCreated{ID: "a", BudgetUSDMicros: 0, BudgetWindow: "day"}},
		"c": {VirtualKeyCreated: events.VirtualKeyCreated{ID: "c", BudgetUSDMicros: 9, BudgetWindow: "month"}, revoked: "x"},
	}}
	var got []string
	for _, l := range x.Limits() {
		got = append(got, fmt.Sprint(l.Subject, " ", l.Max, " ", l.Measure, " ", l.Window))
	}
	if strings.Join(got, "; ") != "b 7 usd_micros day" {
		t.Errorf("%q", got)
	}
}

// TestKeysEnd shows which keys are revoked with the credentials of a principal: those that
// it made and those that act for it. A key that was revoked before keeps its reason. The
// consents that the principal gave or received end too, and others remain.
func TestKeysEnd(t *testing.T) {
	x := Keys{made: map[string]*virtualKey{
		"acts": {VirtualKeyCreated: events.VirtualKeyCreated{Actor: "alice", Maker: "dana"}}, "made": {VirtualKeyCreated: events.VirtualKeyCreated{Actor: "dana", Maker: "alice"}},
		"other": {VirtualKeyCreated: events.VirtualKeyCreated{Actor: "dana", Maker: "dana"}}, "earlier": {VirtualKeyCreated: events.VirtualKeyCreated{Actor: "alice"}, revoked: "before"},
	}, consents: map[string]*consent{
		"given": {VirtualKeyConsented: events.VirtualKeyConsented{Principal: "alice", Maker: "dana"}}, "received": {VirtualKeyConsented: events.VirtualKeyConsented{Principal: "dana", Maker: "alice"}},
		"others": {VirtualKeyConsented: events.VirtualKeyConsented{Principal: "dana", Maker: "carol"}},
	}}
	x.endOf("alice", "lost", 9)
	if len(x.consents) != 1 || x.consents["others"] == nil {
		t.Errorf("the consents that remain: %v", x.consents)
	}
	for id, want := range map[string]string{"acts": "credentials of alice revoked: lost", "made": "credentials of alice revoked: lost", "other": "", "earlier": "before"} {
		if got := x.made[id].revoked; got != want {
			t.Errorf("%s: %q", id, got)
		}
	}
}

// TestSpan shows at which Lamport times and times an entry is in force, also after it ended.
func TestSpan(t *testing.T) {
	for _, c := range []struct {
		x       span
		lamport uint64
		now     string
		at      bool
	}{
		{span{from: 3}, 2, "", false}, {span{from: 3}, 3, "", true}, {span{from: 3, to: 5}, 4, "", true}, {span{from: 3, to: 5}, 5, "", false},
		{span{from: 3}, 3, "a", true}, {span{from: 3, expires: "b"}, 3, "", true}, {span{from: 3, expires: "b"}, 3, "a", true}, {span{from: 3, expires: "b"}, 3, "b", false}, {span{from: 3, to: 5, expires: "b"}, 6, "a", false},
	} {
		if got := c.x.at(c.lamport, c.now); got != c.at {
			t.Errorf("%+v at %d, %q: %v", c.x, c.lamport, c.now, got)
		}
	}
	for _, c := range []struct {
		x     span
		holds bool
	}{{span{}, false}, {span{from: 1}, true}, {span{from: 1, to: 2}, false}, {span{from: 1, expires: "b"}, false}, {span{from: 1, expires: "c"}, true}} {
		if got := c.x.holds("b"); got != c.holds {
			t.Errorf("%+v: %v", c.x, got)
		}
	}
}

// TestReviews shows which grant is open and when a review is overdue, and that the first
// review of a grant counts.
func TestReviews(t *testing.T) {
	var x Emergencies
	x.review(&events.BreakGlassReviewed{ID: "b-1"}) // of no grant
	x.open(&events.BreakGlassOpened{Actor: "alice", Expires: "m", ID: "b-1"})
	for _, c := range []struct {
		actor, now, due, open string
		overdue               bool
	}{{"alice", "l", "m", "b-1", false}, {"alice", "m", "m", "", false}, {"alice", "z", "n", "", true}, {"bob", "l", "z", "", false}} {
		if open, overdue := x.Of(c.actor, c.now, c.due); open != c.open || overdue != c.overdue {
			t.Errorf("%+v: %q, %v", c, open, overdue)
		}
	}
	if got := x.List(); len(got) != 1 || got[0].Reviewer+got[0].Verdict != "" {
		t.Errorf("%+v", got)
	}
	x.review(&events.BreakGlassReviewed{ID: "b-1", Reviewer: "dana", Verdict: "ok"})
	x.review(&events.BreakGlassReviewed{ID: "b-1", Reviewer: "eve", Verdict: "bad"})
	if open, overdue := x.Of("alice", "l", "z"); open != "" || overdue {
		t.Errorf("reviewed: %q, %v", open, overdue)
	}
	if got := x.List(); len(got) != 1 || got[0].Reviewer != "dana" || got[0].Verdict != "ok" {
		t.Errorf("%+v", got)
	}
}

// TestDelegationEnds shows that the first end of a delegation counts, and that an unknown
// one and one without recorded scopes have no known scopes.
func TestDelegationEnds(t *testing.T) {
	var x Delegations
	x.add(&events.DelegationGranted{ID: "g-1", Scopes: []string{"s"}}, 3)
	x.add(&events.DelegationGranted{ID: "g-2"}, 4)
	x.end("g-0", 5)
	x.end("g-1", 5)
	x.end("g-1", 6)
	if d := x.given["g-1"]; d.to != 5 || x.given["g-2"].to != 0 {
		t.Errorf("%+v", d)
	}
	for id, want := range map[string]bool{"g-0": false, "g-1": true, "g-2": false} {
		if scopes, known := x.Scopes(id); known != want || (len(scopes) > 0) != want {
			t.Errorf("%s: %v %v", id, scopes, known)
		}
	}
}
