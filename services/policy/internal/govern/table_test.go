package govern

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestTables shows that every verb belongs to an aggregate, and that unknown members,
// arguments that are a list, and unknown kinds are errors.
func TestTables(t *testing.T) {
	for kind := range commands {
		c, err := Parse(kind, []byte(`{}`))
		if err != nil || c.Aggregate == "" || !strings.HasPrefix(kind, "policy.") {
			t.Errorf("%s: %+v, %v", kind, c, err)
		}
		if _, err := Parse(kind, []byte(`{"surplus":1}`)); err == nil {
			t.Errorf("%s takes a member that nothing reads", kind)
		}
		if _, err := Parse(kind, []byte(`[]`)); err == nil {
			t.Errorf("%s takes a list", kind)
		}
	}
	if _, err := Parse("policy.conquer", []byte(`{}`)); err == nil || !strings.Contains(err.Error(), "policy.conquer") {
		t.Error(err)
	}
}

// TestFoldedAlone shows that events of other services change nothing, that malformed
// events are errors unless their data is not read, and that other events are ignored.
func TestFoldedAlone(t *testing.T) {
	var s State
	before := string(s.Dump())
	for name := range folds {
		forged := &contract.Event{Source: "gateway/gw1", Name: name, Lamport: 1, Data: contract.Bytes(&events.RoleGranted{Principal: "eve", Role: "approver"})}
		if err := Evolve(&s, forged); err != nil || string(s.Dump()) != before {
			t.Errorf("%s of the gateway's: %v %s", name, err, s.Dump())
		}
		malformed := &contract.Event{Source: "policy/policy-1", Name: name, Lamport: 1, Data: canon.AppendString(nil, "x")}
		if err := Evolve(&s, malformed); err == nil && name != events.MeshUnfrozenName {
			t.Errorf("%s: malformed data is folded", name)
		}
	}
	if err := Evolve(&s, &contract.Event{Source: "policy/policy-1", Name: "call_proposed", Data: []byte(`{}`)}); err != nil || Folds("call_proposed") {
		t.Error(err)
	}
	if string(s.Dump()) != before {
		t.Errorf("%s", s.Dump())
	}
}

// TestLasts shows for several verbs that a time to live that overflows a time.Duration, or that is
// above the maximum of its verb or negative, is rejected, and that the longest one is accepted. It
// also shows that MaxTerm ends in the future.
func TestLasts(t *testing.T) {
	own := func(string) bool { return true }
	for verb, c := range map[string]struct {
		most time.Duration
		args call
	}{
		"delegate":      {MaxDelegation, call{Delegate: "robot", Kinds: []string{"*"}}},
		"grant_session": {MaxDelegation, call{Session: "s-old", Principal: "bob", Owns: own}},
		"consent_key":   {MaxDelegation, call{ID: "k", Maker: "bob"}},
		"break_glass":   {MaxBreakGlass, call{Reason: "x"}},
		"grant_role":    {MaxTerm, call{Principal: "bob", Role: "ops"}},
		"create_key":    {MaxTerm, call{ID: "k", Owner: "dana", Digest: "sha256:k"}},
	} {
		for _, ms := range []int64{-1, c.most.Milliseconds() + 1, 9223372036855, 18446744073710, canon.MaxInt, math.MinInt64} {
			d := &desk{t: t}
			c.args.TTLMS = ms
			d.refused(d.do("dana", 0, verb, c.args), "ttl_ms: want 1 to ")
		}
		d := &desk{t: t}
		c.args.TTLMS = c.most.Milliseconds()
		d.ok(d.do("dana", 0, verb, c.args))
	}
	if by := (Caller{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}); by.until(MaxTerm.Milliseconds()) <= by.now() {
		t.Error("the longest term ends in the past")
	}
}

// TestMaxima shows the maximum durations.
func TestMaxima(t *testing.T) {
	const day = 24 * time.Hour
	for what, c := range map[string]struct{ got, want time.Duration }{
		"a delegation, a session grant or a consent": {MaxDelegation, 90 * day},
		"a break-glass grant":                        {MaxBreakGlass, 4 * time.Hour},
		"the review of one":                          {ReviewWithin, day},
		"a role, a virtual key or an entry":          {MaxTerm, 36_500 * day},
		"a login":                                    {MaxLogin, 30 * day},
		"the approval of a device":                   {MaxDevice, 15 * time.Minute},
		"an invitation":                              {MaxInvitation, 30 * day},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", what, c.got, c.want)
		}
	}
}

// TestOnlyWhoIsMeant shows that a call is rejected if an argument names something that
// does not exist or that belongs to another principal, or is otherwise invalid, and that
// the error names the argument.
func TestOnlyWhoIsMeant(t *testing.T) {
	d := &desk{t: t}
	own := func(string) bool { return true }
	d.refused(d.do("eve", 0, "revoke_session", call{Session: "s-x", Principal: "bob"}), "session: not granted")
	d.refused(d.do("eve", 0, "grant_session", call{Session: "s-old", Principal: "bob"}), "ttl_ms: want 1 to")
	d.refused(d.do("eve", 0, "grant_session", call{Session: "s-old", Principal: "bob", TTLMS: 1}), "session: not found")
	d.refused(d.do("eve", 0, "grant_session", call{Session: "s-old", Principal: "eve", TTLMS: 1, Owns: own}), "principal: is the caller")
	d.ok(d.do("eve", 0, "grant_session", call{Session: "s-old", Principal: "bob", TTLMS: 1000, Owns: own}))
	d.refused(d.do("bob", 0, "revoke_session", call{Session: "s-old", Principal: "bob"}), "session: not granted")
	d.ok(d.do("eve", 0, "revoke_session", call{Session: "s-old", Principal: "bob"}))
	if who := d.st.GrantedBy("s-old", "bob", at(0)); who != "" {
		t.Error("a grant that was revoked holds, by", who)
	}
	d.refused(d.do("eve", 0, "consent_key", call{ID: "k", Maker: "bob"}), "ttl_ms")
	d.refused(d.do("eve", 0, "revoke_key", call{ID: "k", Reason: "x"}), "id: virtual key not found")
	d.refused(d.do("eve", 0, "withdraw_consent", call{ID: "k"}), "id: no key and no consent")
	d.refused(d.do("eve", 0, "approve_tool", call{Kind: "tool.x", Digest: "latest"}), "digest: want")
	d.ok(d.do("eve", 0, "approve_tool", call{Kind: "tool.x", Digest: "sha256:x"}))
	d.ok(d.do("eve", 0, "create_key", call{ID: "k", Owner: "eve", Digest: "sha256:k", TTLMS: 60_000}))
	d.refused(d.do("eve", 0, "create_key", call{ID: "k", Owner: "eve", Digest: "sha256:k"}), "id: a key k exists")
	d.refused(d.do("eve", 0, "create_key", call{ID: "l", Owner: "eve", Models: []string{"a/*", "["}}), "models/1:")
	d.refused(d.do("eve", 0, "revoke_key", call{ID: "k"}), "reason")
	d.ok(d.do("eve", 0, "revoke_key", call{ID: "k", Reason: "lost"}))
	if got := d.st.Keys.List(); len(got) != 1 || got[0].Revoked != "lost" || got[0].Maker != "eve" {
		t.Errorf("%+v", got)
	}
}
