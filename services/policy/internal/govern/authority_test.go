package govern

import (
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestPersons shows that the administrator of a new mesh is registered as a person once,
// that only registered persons who are not suspended may vote, and that registering
// another person, or registering a person as another type, requires the approval of a
// person other than the caller if there is one. A suspended person counts as such a
// person until forgottenAfter has passed.
func TestPersons(t *testing.T) {
	d := &desk{t: t}
	d.refused(d.st.MayVote("admin"), "not registered")
	first := Bootstrap(&d.st, contract.BootstrapAdmin)
	if first == nil || first.Principal != contract.BootstrapAdmin || first.Type != Person {
		t.Fatal(first)
	}
	d.fold(0, events.PrincipalRegisteredName, first)
	if Bootstrap(&d.st, contract.BootstrapAdmin) != nil {
		t.Error("the administrator is registered twice")
	}
	d.ok(d.st.MayVote("admin"))
	dual := func(actor, who, kind string, at time.Duration, want bool) {
		t.Helper()
		if d.st.People.DualControl(fmt.Appendf(nil, `{"principal":%q,"type":%q}`, who, kind), actor, noon.Add(at)) != want {
			t.Errorf("%s registers %s as %s: not %v", actor, who, kind, want)
		}
	}
	dual("admin", "bob", Person, 0, false) // no other person is registered who could approve it
	dual("robot", "bob", Person, 0, true)
	d.refused(d.do("robot", 0, "register_principal", call{Principal: "bob", Type: Person}), "registered persons")
	d.ok(d.do("admin", 0, "register_principal", call{Principal: "bob", Type: Person}))
	dual("admin", "carol", Person, 0, true)
	dual("admin", "robot", Agent, 0, false)
	dual("admin", "bob", Agent, 0, true)   // approval is required, because bob would stop being an approver
	dual("admin", "bob", Person, 0, false) // bob is registered as a person already
	d.ok(d.do("admin", time.Hour, "suspend_principal", call{Principal: "bob", Reason: "x"}))
	dual("admin", "carol", Person, 2*time.Hour, true) // the suspension of bob does not make the second approval unnecessary
	dual("admin", "carol", Person, time.Hour+forgottenAfter, true)
	dual("admin", "carol", Person, time.Hour+forgottenAfter+time.Minute, false)
	d.refused(d.st.MayVote("bob"), "suspended")
	d.refused(d.do("admin", time.Hour, "resume_principal", call{Principal: "robot", Reason: "x"}), "not suspended")
	d.refused(d.do("admin", time.Hour, "resume_principal", call{Principal: "bob"}), "reason")
	d.ok(d.do("admin", time.Hour, "resume_principal", call{Principal: "bob", Reason: "x"}))
	if d.st.People.Suspended("bob") || d.st.People.TypeOf("bob") != Person {
		t.Error("bob is not what he was")
	}
	d.ok(d.do("bob", time.Hour, "register_principal", call{Principal: "robot", Type: Agent}))
	d.refused(d.st.MayVote("robot"), "only persons")
}

// TestKeysOfOthers shows that a virtual key can be created for its maker or for a
// principal who consented, with scopes that the maker holds and the principal agreed to.
// The key is invalid for several kinds of calls that InPerson selects, while its maker
// is suspended, and after the consent was withdrawn. While a consent is valid, another
// principal cannot consent to a key with the same id.
func TestKeysOfOthers(t *testing.T) {
	d := &desk{t: t}
	key := func(id, owner string, scopes, held []string) call {
		return call{ID: id, Owner: owner, Digest: "sha256:" + id, Scopes: scopes, Held: held}
	}
	llm, both := []string{"llm:call"}, []string{"llm:call", "approvals:vote"}
	d.refused(d.do("admin", 0, "create_key", key("k", "admin", both, llm)), "scopes/1: approvals:vote: the caller's credential lacks it")
	d.ok(d.do("admin", 0, "create_key", key("own", "admin", llm, llm)))
	d.refused(d.do("admin", 0, "create_key", key("k", "bob", llm, both)), "bob has not agreed")
	agree := func(who string, at time.Duration, id, maker string) error {
		return d.do(who, at, "consent_key", call{ID: id, Maker: maker, Scopes: llm, Held: llm, TTLMS: 60_000})
	}
	d.refused(agree("bob", 0, "own", "admin"), "a key own exists")
	d.refused(agree("bob", 0, "k", "bob"), "no consent")
	d.refused(d.do("bob", 0, "consent_key", call{ID: "k", Maker: "admin", Scopes: both, Held: llm, TTLMS: 1}), "scopes")
	d.ok(agree("bob", 0, "k", "admin"))
	d.refused(agree("mallory", 0, "k", "mallory2"), "choose another")
	d.ok(agree("bob", 0, "k3", "admin"))
	d.refused(agree("mallory", time.Minute-time.Millisecond, "k3", "mallory2"), "choose another")
	d.ok(agree("mallory", time.Minute, "k3", "mallory2"))
	d.refused(d.do("eve", 0, "create_key", key("k", "bob", llm, llm)), "bob has not agreed")
	d.refused(d.do("admin", 0, "create_key", key("k", "carol", llm, llm)), "carol has not agreed")
	d.refused(d.do("admin", 0, "create_key", key("k2", "bob", llm, llm)), "bob has not agreed")
	d.refused(d.do("admin", 0, "create_key", key("k", "bob", both, both)), "bob has not agreed to it")
	d.refused(d.do("admin", time.Minute, "create_key", key("k", "bob", llm, llm)), "bob has not agreed")
	d.ok(d.do("admin", 0, "create_key", key("k", "bob", llm, llm)))

	fault := func(id, actor, kind, want string) {
		t.Helper()
		if f := d.st.Key(id, actor, kind, at(0), ""); f.Fault != want {
			t.Errorf("%s of %s for %s: %q, want %q", id, actor, kind, f.Fault, want)
		}
	}
	fault("k", "bob", "tool.x", "")
	for _, kind := range []string{"policy.vote", "policy.create_key", "policy.consent_key", "policy.delegate", "policy.register_principal", "policy.grant_role", "tenant.create"} {
		fault("k", "bob", kind, contract.ReasonKeyNotInPerson)
	}
	d.ok(d.do("carol", 0, "suspend_principal", call{Principal: "admin", Reason: "x"}))
	fault("k", "bob", "tool.x", contract.ReasonKeyInvalid) // the maker of the key is suspended
	d.ok(d.do("carol", 0, "resume_principal", call{Principal: "admin", Reason: "x"}))
	fault("k", "bob", "tool.x", "")
	d.refused(d.do("admin", 0, "withdraw_consent", call{ID: "k"}), "no key and no consent")
	d.ok(d.do("bob", 0, "withdraw_consent", call{ID: "k"}))
	d.refused(d.do("bob", 0, "withdraw_consent", call{ID: "k"}), "no key and no consent")
	fault("k", "bob", "tool.x", contract.ReasonKeyInvalid)
	fault("own", "admin", "tool.x", "")
}

// TestRevocation shows that a token can be revoked by its id, that revoking a
// principal's credentials also ends its keys, delegations, session grants and consents,
// and that a key can be created under a consent that the principal gives later. A session
// grant does not hold while its owner is suspended.
func TestRevocation(t *testing.T) {
	d := &desk{t: t}
	llm := []string{"llm:call"}
	agree := func(id string, after time.Duration) {
		t.Helper()
		d.ok(d.do("bob", after, "consent_key", call{ID: id, Maker: "admin", Scopes: llm, Held: llm, TTLMS: 1e6}))
	}
	agree("k", 0)
	agree("open", 0)
	d.ok(d.do("admin", 0, "create_key", call{ID: "k", Owner: "bob", Digest: "d", Scopes: llm, Held: llm}))
	d.ok(d.do("bob", 0, "delegate", call{CallID: "c-a", Delegate: "robot", Kinds: []string{"tool.*"}, TTLMS: 1e6, Held: llm}))
	id := contract.SessionID("t", "bob", "s-one")
	grant := call{Tenant: "t", Session: id, Principal: "robot", TTLMS: 1e6}
	d.refused(d.do("eve", 0, "grant_session", grant), "not found")
	d.ok(d.do("bob", 0, "grant_session", grant))
	d.ok(d.do("admin", 0, "suspend_principal", call{Principal: "bob", Reason: "x"}))
	if who := d.st.GrantedBy(id, "robot", at(0)); who != "" {
		t.Error("a grant of a suspended owner holds, by", who)
	}
	d.ok(d.do("admin", 0, "resume_principal", call{Principal: "bob", Reason: "x"}))
	if d.st.GrantedBy(id, "robot", at(0)) != "bob" || d.st.GrantedBy(id, "eve", at(0)) != "" || d.st.GrantedBy(id, "robot", at(time.Hour)) != "" {
		t.Error("the grant is not what it says")
	}
	if scopes, known := d.st.Delegations.Scopes("g-c-a"); !known || len(scopes) != 1 {
		t.Error("the delegator's scopes are lost")
	}

	d.refused(d.do("admin", 0, "revoke_token", call{Reason: "x"}), "name one token")
	d.refused(d.do("admin", 0, "revoke_token", call{ID: "J", Principal: "bob", Reason: "x"}), "name one token")
	d.refused(d.do("admin", 0, "revoke_token", call{ID: "J"}), "reason")
	d.ok(d.do("admin", 0, "revoke_token", call{ID: "J", Reason: "x"}))
	if !d.st.Tokens.Revoked("J", "anybody", at(time.Hour)) || d.st.Tokens.Revoked("K", "bob", at(0)) || d.st.Tokens.Revoked("", "bob", at(0)) {
		t.Error("the wrong token is revoked")
	}
	d.ok(d.do("admin", time.Second, "revoke_token", call{Principal: "bob", Reason: "x"}))
	if !d.st.Tokens.Revoked("K", "bob", at(time.Second)) || d.st.Tokens.Revoked("K", "bob", at(time.Second+time.Millisecond)) || d.st.Tokens.Revoked("K", "admin", at(0)) {
		t.Error("the revocation ends something else than what was issued before")
	}
	if d.st.Key("k", "bob", "tool.x", at(0), "").Fault == "" || d.st.Delegations.Fault("g-c-a", "bob", "robot", "tool.x", at(0)) == "" || d.st.GrantedBy(id, "robot", at(0)) != "" {
		t.Error("what was made with revoked credentials holds on")
	}
	d.refused(d.do("admin", time.Second, "create_key", call{ID: "open", Owner: "bob", Digest: "e", Scopes: llm, Held: llm}), "has not agreed")
	agree("later", 2*time.Second)
	d.ok(d.do("admin", 2*time.Second, "create_key", call{ID: "later", Owner: "bob", Digest: "f", Scopes: llm, Held: llm}))
	if f := d.st.Key("later", "bob", "tool.x", at(2*time.Second), ""); f.Fault != "" {
		t.Error(f.Fault)
	}
}

// TestConsentAcrossAggregates shows that no key can be created under a consent if all
// credentials of the principal who gave it, or of the one who creates the key, were revoked
// at the time of the consent or later, although keys and identities are separate aggregates.
func TestConsentAcrossAggregates(t *testing.T) {
	llm := []string{"llm:call"}
	for _, who := range []string{"bob", "admin", "carol"} {
		for consented, refused := range map[time.Duration]bool{0: true, time.Second: true, time.Second + time.Millisecond: false} {
			keys, all := &desk{t: t}, &desk{t: t}
			keys.ok(keys.do("bob", consented, "consent_key", call{ID: "k", Maker: "admin", Scopes: llm, Held: llm, TTLMS: 1e6}))
			all.ok(all.do("admin", time.Second, "revoke_token", call{Principal: who, Reason: "x"}))
			err := keys.do("admin", 2*time.Second, "create_key", call{ID: "k", Owner: "bob", Digest: "d", Scopes: llm, Held: llm, View: &all.st})
			if refused && who != "carol" {
				keys.refused(err, "has not agreed")
			} else {
				keys.ok(err)
			}
		}
	}
}
