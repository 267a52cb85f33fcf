package govern

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

var noon = time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)

// call is a governing call in a test: facts about its caller, and the arguments of all
// verbs in one struct.
type call struct {
	CallID string                    `json:"-"`
	Tenant string                    `json:"-"`
	Held   []string                  `json:"-"`
	Owns   func(session string) bool `json:"-"`
	View   View                      `json:"-"`

	Principal string        `json:"principal,omitempty"`
	Role      string        `json:"role,omitempty"`
	Type      string        `json:"type,omitempty"`
	Delegate  string        `json:"delegate,omitempty"`
	Kinds     []string      `json:"kinds,omitempty"`
	Kind      string        `json:"kind,omitempty"`
	Digest    string        `json:"digest,omitempty"`
	ID        string        `json:"id,omitempty"`
	Reason    string        `json:"reason,omitempty"`
	Verdict   string        `json:"verdict,omitempty"`
	TTLMS     int64         `json:"ttl_ms,omitempty"`
	Limits    []guard.Limit `json:"limits,omitempty"`
	Owner     string        `json:"actor,omitempty"`
	Scopes    []string      `json:"scopes,omitempty"`
	Models    []string      `json:"models,omitempty"`
	Maker     string        `json:"maker,omitempty"`
	Session   string        `json:"session,omitempty"`
}

// desk decides commands on one state and applies the resulting events to it.
type desk struct {
	t       *testing.T
	st      State
	lamport uint64
}

// do decides a command and applies the resulting event.
func (d *desk) do(actor string, at time.Duration, verb string, a call) error {
	d.t.Helper()
	args, err := json.Marshal(a)
	if err != nil {
		d.t.Fatal(err)
	}
	c, err := Parse("policy."+verb, args)
	if err != nil {
		return err
	}
	by := Caller{CallID: a.CallID, Actor: actor, Tenant: a.Tenant, Held: a.Held, Owns: a.Owns, View: a.View, Now: noon.Add(at)}
	if by.CallID == "" {
		by.CallID = "c-1"
	}
	f, err := c.Decide(&d.st, by)
	if err != nil {
		return err
	}
	d.lamport += 10
	d.fold(at, f.Name, f.Data)
	return nil
}

func (d *desk) fold(at time.Duration, name string, data canon.Document) {
	d.t.Helper()
	if err := Evolve(&d.st, &contract.Event{Source: "policy/policy-1", Name: name, Data: contract.Bytes(data), Lamport: d.lamport, Time: contract.Time(noon.Add(at))}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) ok(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// refused fails the test unless err contains word.
func (d *desk) refused(err error, word string) {
	d.t.Helper()
	if err == nil || !strings.Contains(err.Error(), word) {
		d.t.Errorf("%v, want %q", err, word)
	}
}

// heldAt reports whether a principal held a role at a Lamport time and, unless now is
// empty, the role had not expired at the time now.
func (d *desk) heldAt(principal, role string, lamport uint64, now string) bool {
	return slices.ContainsFunc(d.st.IdentitiesAt(lamport, now), func(i Identity) bool { return i.Kind == "role" && i.Principal == principal && i.Role == role })
}

// inForceAt reports whether a delegation was in force at a Lamport time.
func (d *desk) inForceAt(id string, lamport uint64) bool {
	return slices.ContainsFunc(d.st.IdentitiesAt(lamport, ""), func(i Identity) bool { return i.Kind == "delegation" && i.ID == id })
}

func at(d time.Duration) string { return contract.Time(noon.Add(d)) }

// TestRoles shows which roles a principal holds now, and which it held at earlier
// Lamport times, after grants, a revocation and an expiry. Revoking a role that is not
// held, or granting one with an invalid name, is rejected.
func TestRoles(t *testing.T) {
	d := &desk{t: t}
	d.ok(d.do("admin", 0, "grant_role", call{Principal: "bob", Role: "sec"}))                // Lamport time 10
	d.ok(d.do("admin", 0, "grant_role", call{Principal: "bob", Role: "ops", TTLMS: 60_000})) // Lamport time 20
	d.ok(d.do("admin", 0, "revoke_role", call{Principal: "bob", Role: "sec"}))               // Lamport time 30
	d.refused(d.do("admin", 0, "revoke_role", call{Principal: "bob", Role: "sec"}), "does not hold")
	d.ok(d.do("admin", 0, "grant_role", call{Principal: "bob", Role: "sec"})) // Lamport time 40
	d.refused(d.do("admin", 0, "grant_role", call{Principal: "bob", Role: "a b"}), "role: want")
	if got := strings.Join(d.st.People.Roles("bob", at(0)), " "); got != "ops sec" {
		t.Error(got)
	}
	if got := strings.Join(d.st.People.Roles("bob", at(time.Minute)), " "); got != "sec" {
		t.Error(got)
	}
	for lamport, want := range map[uint64]bool{9: false, 10: true, 29: true, 30: false, 39: false, 40: true, 1000: true} {
		if d.heldAt("bob", "sec", lamport, "") != want {
			t.Errorf("at lamport %d: not %v", lamport, want)
		}
	}
	if d.heldAt("bob", "ops", 25, at(time.Hour)) {
		t.Error("a role outlives its time")
	}
}

// TestPrincipals shows the type and suspension of a principal now and at earlier Lamport
// times. Registration ends a suspension. A suspension is rejected if it is the caller's
// own or has no reason.
func TestPrincipals(t *testing.T) {
	d := &desk{t: t}
	d.ok(d.do("admin", 0, "register_principal", call{Principal: "robot", Type: "agent"})) // Lamport time 10
	d.ok(d.do("admin", 0, "suspend_principal", call{Principal: "robot", Reason: "odd"}))  // Lamport time 20
	d.refused(d.do("admin", 0, "suspend_principal", call{Principal: "admin", Reason: "x"}), "themselves")
	d.refused(d.do("admin", 0, "suspend_principal", call{Principal: "bob"}), "reason")
	if !d.st.People.Suspended("robot") || d.st.People.TypeOf("robot") != "agent" || d.st.People.Suspended("bob") {
		t.Error("wrong now")
	}
	d.ok(d.do("admin", 0, "register_principal", call{Principal: "robot", Type: "service"})) // Lamport time 30
	if d.st.People.Suspended("robot") {
		t.Error("the suspension stays")
	}
	for lamport, want := range map[uint64]string{15: "agent false", 25: "agent true", 35: "service false"} {
		got := d.st.IdentitiesAt(lamport, "")
		if len(got) != 1 || fmt.Sprint(got[0].Type, " ", got[0].Suspended) != want {
			t.Errorf("at %d: %+v", lamport, got)
		}
	}
}

// TestEndedAuthorities shows that session grants, consents and revocations are listed as
// they were at earlier Lamport times, also if they have ended, or were replaced, since.
func TestEndedAuthorities(t *testing.T) {
	d := &desk{t: t}
	llm := []string{"llm:call"}
	id := contract.SessionID("t", "bob", "s-one")
	grant, agree := call{Tenant: "t", Session: id, Principal: "robot", TTLMS: 1e6}, call{ID: "k", Maker: "admin", Scopes: llm, Held: llm, TTLMS: 1e6}
	d.ok(d.do("bob", 0, "grant_session", grant))                                  // Lamport time 10
	d.ok(d.do("bob", 0, "revoke_session", call{Session: id, Principal: "robot"})) // Lamport time 20
	d.ok(d.do("bob", 0, "grant_session", grant))                                  // Lamport time 30
	d.ok(d.do("bob", 0, "grant_session", grant))                                  // Lamport time 40
	d.ok(d.do("bob", 0, "consent_key", agree))                                    // Lamport time 50
	d.ok(d.do("bob", 0, "withdraw_consent", call{ID: "k"}))                       // Lamport time 60
	d.ok(d.do("bob", 0, "consent_key", agree))                                    // Lamport time 70
	d.ok(d.do("admin", 0, "revoke_token", call{ID: "J", Reason: "x"}))            // Lamport time 80
	d.ok(d.do("admin", 0, "revoke_token", call{Principal: "bob", Reason: "x"}))   // Lamport time 90
	d.ok(d.do("admin", 0, "revoke_token", call{Principal: "admin", Reason: "x"})) // Lamport time 100
	for lamport, want := range map[uint64]string{9: "", 15: "session 10-20", 25: "", 35: "session 30-40", 45: "session 40-90", 55: "session 40-90, consent 50-60", 65: "session 40-90",
		75: "session 40-90, consent 70-90", 85: "session 40-90, consent 70-90, revocation 80-0", 95: "revocation 80-0, revocation 90-0", 100: "revocation 80-0, revocation 90-0, revocation 100-0"} {
		var got []string
		for _, i := range d.st.IdentitiesAt(lamport, "") {
			got = append(got, fmt.Sprint(i.Kind, " ", i.From, "-", i.To))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("at %d: %v, want %s", lamport, got, want)
		}
	}
	if got := len(d.st.Identities()); got != 8 {
		t.Errorf("%d identities", got)
	}
	if dump := string(d.st.Dump()); strings.Count(dump, `"authority":"session"`) != 3 || strings.Count(dump, `"to":"90"`) != 2 {
		t.Errorf("%s", dump)
	}
}

// TestDelegations shows that a delegation is limited to its two principals, its kinds
// and its time, and can be revoked once. Delegating to oneself, or for longer than
// MaxDelegation, is rejected.
func TestDelegations(t *testing.T) {
	d := &desk{t: t}
	d.ok(d.do("dana", 0, "delegate", call{CallID: "c-a", Delegate: "robot", Kinds: []string{"tool.*"}, TTLMS: 60_000})) // Lamport time 10
	for _, c := range []struct {
		id, from, to, kind string
		at                 time.Duration
		want               string
	}{
		{"g-c-a", "dana", "robot", "tool.x", 0, ""},
		{"g-c-a", "dana", "robot", "policy.x", 0, contract.ReasonDelegationScopeViolation},
		{"g-c-a", "dana", "thief", "tool.x", 0, contract.ReasonDelegationInvalid},
		{"g-c-a", "admin", "robot", "tool.x", 0, contract.ReasonDelegationInvalid},
		{"g-c-b", "dana", "robot", "tool.x", 0, contract.ReasonDelegationInvalid},
		{"", "dana", "robot", "tool.x", 0, contract.ReasonDelegationInvalid},
		{"g-c-a", "dana", "robot", "tool.x", time.Minute, contract.ReasonDelegationInvalid},
	} {
		if got := d.st.Delegations.Fault(c.id, c.from, c.to, c.kind, at(c.at)); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	d.refused(d.do("dana", 0, "delegate", call{Delegate: "dana", Kinds: []string{"*"}, TTLMS: 1}), "caller itself")
	d.refused(d.do("dana", 0, "delegate", call{Delegate: "robot", Kinds: []string{"*"}, TTLMS: MaxDelegation.Milliseconds() + 1}), "ttl_ms")
	d.ok(d.do("admin", 0, "revoke_delegation", call{ID: "g-c-a"})) // Lamport time 20
	d.refused(d.do("admin", 0, "revoke_delegation", call{ID: "g-c-a"}), "delegation not found or ended")
	if d.st.Delegations.Fault("g-c-a", "dana", "robot", "tool.x", at(0)) == "" {
		t.Error("a revoked delegation stands")
	}
	if !d.inForceAt("g-c-a", 15) || d.inForceAt("g-c-a", 20) {
		t.Error("the history is wrong")
	}
}

// TestFreeze freezes and unfreezes a mesh. Freezing a frozen mesh, freezing without a
// reason, and unfreezing a mesh that is not frozen are rejected.
func TestFreeze(t *testing.T) {
	d := &desk{t: t}
	d.refused(d.do("a", 0, "unfreeze", call{Reason: "x"}), "not frozen")
	d.refused(d.do("a", 0, "freeze", call{Reason: " "}), "reason")
	d.ok(d.do("a", 0, "freeze", call{Reason: "x"}))
	if d.st.Freeze.ID() == "" {
		t.Error("not frozen")
	}
	d.refused(d.do("a", 0, "freeze", call{Reason: "x"}), "already frozen")
	d.ok(d.do("a", 0, "unfreeze", call{Reason: "x"}))
	if d.st.Freeze.ID() != "" {
		t.Error("frozen")
	}
}

// TestBreakGlass shows that a grant expires after its TTL, that its review becomes
// overdue, that a registered person other than its holder must review it, and that no
// second grant is made before the review.
func TestBreakGlass(t *testing.T) {
	d := &desk{t: t}
	d.refused(d.do("dana", 0, "break_glass", call{Reason: "x", TTLMS: MaxBreakGlass.Milliseconds() + 1}), "ttl_ms")
	d.ok(d.do("dana", 0, "break_glass", call{Reason: "x", TTLMS: 60_000}))
	d.refused(d.do("dana", 0, "break_glass", call{Reason: "x", TTLMS: 1}), "review")
	look := func(after time.Duration) (string, bool) {
		return d.st.Emergencies.Of("dana", at(after), at(after-ReviewWithin))
	}
	if id, due := look(0); id != "b-c-1" || due {
		t.Error(id, due)
	}
	if id, due := look(time.Minute); id != "" || due {
		t.Error("open after its time:", id, due)
	}
	if _, due := look(ReviewWithin + 2*time.Minute); !due {
		t.Error("the review is not overdue")
	}
	d.refused(d.do("dana", 0, "review", call{ID: "b-c-1", Reason: "x", Verdict: "justified"}), "by its holder")
	d.refused(d.do("bob", 0, "review", call{ID: "b-c-9", Reason: "x", Verdict: "justified"}), "no break-glass grant with this id")
	d.refused(d.do("bob", 0, "review", call{ID: "b-c-1", Reason: "x", Verdict: "misused"}), "only registered persons")
	d.ok(d.do("admin", 0, "register_principal", call{Principal: "bob", Type: Person}))
	d.ok(d.do("bob", 0, "review", call{ID: "b-c-1", Reason: "x", Verdict: "misused"}))
	if id, due := look(0); id != "" || due {
		t.Error("a reviewed grant is open:", id, due)
	}
	d.ok(d.do("dana", 0, "break_glass", call{CallID: "c-2", Reason: "x", TTLMS: 1}))
	d.ok(d.do("carol", 0, "break_glass", call{CallID: "c-3", Reason: "x", TTLMS: 1}))
	d.refused(d.do("carol", 0, "break_glass", call{CallID: "c-4", Reason: "x", TTLMS: 1}), "b-c-3 still waits for its review")
}

// TestLimits shows that limits are replaced as a whole, that the dump contains them, and
// that invalid ones and those that the caller's check rejects are rejected.
func TestLimits(t *testing.T) {
	d := &desk{t: t}
	l := guard.Limit{ID: "a", Level: "agent", Measure: "calls", Window: "day", Max: 1}
	if dump := string(d.st.Dump()); strings.Contains(dump, `{"limits":`) {
		t.Errorf("the dump without limits: %s", dump)
	}
	d.ok(d.do("a", 0, "set_limits", call{Limits: []guard.Limit{l}}))
	if dump := string(d.st.Dump()); len(d.st.Limits.List()) != 1 || !strings.Contains(dump, `{"limits":`) {
		t.Error(d.st.Limits.List(), dump)
	}
	c, err := Parse("policy.set_limits", []byte(`{"limits":[]}`))
	d.ok(err)
	for _, want := range []error{nil, errors.New("limits[0]: no such role")} {
		if _, err := c.Decide(&d.st, Caller{CallID: "c-1", Actor: "a", Now: noon, Consistent: func([]guard.Limit) error { return want }}); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	for field, spoil := range map[string]func(*guard.Limit){"id": func(l *guard.Limit) { l.ID = "a b" }, "level": func(l *guard.Limit) { l.Level = "world" }, "measure": func(l *guard.Limit) { l.Measure = "fun" },
		"window": func(l *guard.Limit) { l.Window = "fortnight" }, "max": func(l *guard.Limit) { l.Max = -1 }, "on_exceed": func(l *guard.Limit) { l.OnExceed = "allow" }} {
		x := l
		spoil(&x)
		d.refused(d.do("a", 0, "set_limits", call{Limits: []guard.Limit{x}}), "limits[0]."+field)
	}
	d.refused(d.do("a", 0, "set_limits", call{Limits: []guard.Limit{l, l}}), "twice")
	for _, id := range []string{"p0-a", "p0-"} { // reserved for the limits of the ceilings, whose accounts such a limit could charge
		x := l
		x.ID = id
		d.refused(d.do("a", 0, "set_limits", call{Limits: []guard.Limit{l, x}}), "limits[1].id: begins with p0-")
	}
	d.ok(d.do("a", 0, "set_limits", call{}))
	if len(d.st.Limits.List()) != 0 {
		t.Error(d.st.Limits.List())
	}
}
