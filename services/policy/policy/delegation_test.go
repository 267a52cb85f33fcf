package policy

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// TestDelegatedAuthority shows that a delegate may make only those calls that both
// principals may make at that time, according to scopes, roles, rules, overlays, limits
// and suspensions, and that revoking the delegator's credentials ends the delegation.
func TestDelegatedAuthority(t *testing.T) {
	grant := func(w *world, scopes ...string) {
		w.event("policy", events.DelegationGrantedName, &events.DelegationGranted{Delegate: "alice", Delegator: "dana", Expires: contract.Time(noon.Add(time.Hour)), ID: "g-1", Kinds: []string{"tool.*"}, Scopes: scopes})
	}
	delegated := func(tool string) guard.Facts {
		f := facts(tool)
		f.OnBehalfOf, f.Delegation = "dana", "g-1"
		return f
	}
	want := func(w *world, f guard.Facts, reason string) {
		t.Helper()
		if _, r := w.decide(f, `{}`); r != reason {
			t.Errorf("%s for %s: %s, want %s", f.Kind, f.OnBehalfOf, r, reason)
		}
	}
	w := usual(t)
	grant(w, "tools:call")
	want(w, delegated("echo"), "RULE_SCOPED_CALL")
	w = usual(t)
	grant(w, "llm:call") // the scopes of dana's credential do not permit tools
	want(w, delegated("echo"), contract.ReasonMissingRequirement)
	want(w, facts("echo"), "RULE_SCOPED_CALL")
	w = usual(t)
	grant(w) // a delegation of a release before 0.5, without scopes
	want(w, delegated("echo"), "RULE_SCOPED_CALL")

	// A rule about dana also applies to calls on her behalf. Each of the two principals
	// has its own roles.
	w = usual(t)
	grant(w, "tools:call")
	w.rego("early", 10, `answer := {"verdict": "DENY", "reason_code": "DENY_DANA"} if input.actor == "dana"
else := {"verdict": "ALLOW", "reason_code": "RULE_KEEPER"} if "keeper" in input.roles`)
	want(w, delegated("echo"), "DENY_DANA")
	w = usual(t)
	grant(w, "tools:call")
	w.rego("early", 10, `answer := {"verdict": "ALLOW", "reason_code": "RULE_KEEPER"} if "keeper" in input.roles
else := {"verdict": "DENY", "reason_code": "DENY_STRANGER"}`)
	want(w, delegated("echo"), "DENY_STRANGER")
	w.event("policy", events.RoleGrantedName, &events.RoleGranted{Principal: "alice", Role: "keeper"})
	want(w, delegated("echo"), "DENY_STRANGER")
	w.event("policy", events.RoleGrantedName, &events.RoleGranted{Principal: "dana", Role: "keeper"})
	want(w, delegated("echo"), "RULE_KEEPER")
	w.event("policy", events.RoleRevokedName, &events.RoleRevoked{Principal: "dana", Role: "keeper"})
	want(w, delegated("echo"), "DENY_STRANGER")

	// The overlays and limits of both principals apply.
	w = usual(t)
	grant(w, "tools:call")
	w.activate("p2", "o", 0, contract.Bytes(&guard.Overlay{ID: "o", Scope: "agent", Subject: "dana", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_OVER", Verdict: contract.Deny}}}))
	want(w, delegated("echo"), "DENY_OVER")
	want(w, facts("echo"), "RULE_SCOPED_CALL")
	l := guard.Limit{ID: "l", Level: "agent", Measure: "calls", Window: "day", Max: 1}
	f := delegated("echo")
	w.addFacts(&f)
	if got := l.Accounts(&f); !slices.Equal(got, []string{"l/agent:alice", "l/agent:dana"}) {
		t.Error(got)
	}
	l.Subject = "dana"
	if got := l.Accounts(&f); !slices.Equal(got, []string{"l/agent:dana"}) {
		t.Error(got)
	}

	// The call is denied if either principal is suspended. A break-glass grant of the
	// delegate does not apply to calls on behalf of the delegator.
	for _, who := range []string{"alice", "dana"} {
		w = usual(t)
		grant(w, "tools:call")
		w.event("policy", events.PrincipalSuspendedName, &events.PrincipalSuspended{Principal: who, Reason: "x"})
		want(w, delegated("echo"), contract.ReasonPrincipalSuspended)
		w.event("policy", events.PrincipalResumedName, &events.PrincipalResumed{Principal: who, Reason: "x"})
		want(w, delegated("echo"), "RULE_SCOPED_CALL")
	}
	w.event("policy", events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: "alice", Expires: contract.Time(noon.Add(time.Minute)), ID: "b-1", Reason: "x"})
	want(w, facts("pay"), contract.ReasonBreakGlass)
	want(w, delegated("pay"), contract.ReasonApprovalRequired)
	w.event("policy", events.TokenRevokedName, &events.TokenRevoked{Principal: "dana", Before: contract.Time(noon), Reason: "x"})
	want(w, delegated("echo"), contract.ReasonDelegationInvalid)
}

// TestSessionsByName shows that overlays and limits may name a session by its id
// or by its owner's name for it, and that rules receive both.
func TestSessionsByName(t *testing.T) {
	w := usual(t)
	f := facts("echo")
	f.Session, f.SessionName = contract.SessionID("t", "alice", "s-mine"), "s-mine"
	for _, subject := range []string{"s-mine", f.Session} {
		o := guard.Overlay{ID: "o", Scope: "session", Subject: subject}
		l := guard.Limit{ID: "l", Level: "session", Subject: subject, Measure: "calls", Window: "day", Max: 1}
		if got := l.Accounts(&f); !o.Applies(&f) || !slices.Equal(got, []string{"l/session:" + f.Session}) {
			t.Errorf("%s: %v", subject, got)
		}
	}
	w.rego("early", 10, `answer := {"verdict": "DENY", "reason_code": "DENY_NAME"} if input.session == "s-mine"
else := {"verdict": "DENY", "reason_code": "DENY_ID"} if input.ids.session == "`+f.Session+`"`)
	for name, want := range map[string]string{"s-mine": "DENY_NAME", "s-other": "DENY_ID", "": "DENY_ID"} {
		f.SessionName = name
		if _, r := w.decide(f, `{}`); r != want {
			t.Errorf("called %q: %s", name, r)
		}
	}
}

// TestDualControlDecision shows that a call under dual control requires the approval of
// a second person, that break-glass does not replace it, and that the caller's own vote
// does not count.
func TestDualControlDecision(t *testing.T) {
	w := usual(t)
	w.event("policy", events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: "alice", Expires: contract.Time(noon.Add(time.Minute)), ID: "b-1", Reason: "x"})
	judge := func(f guard.Facts) string {
		w.addFacts(&f)
		eval := w.st.OfCell().Evaluate(context.Background(), stack.Call{ID: "c-1", Facts: f, Args: []byte(`{}`)})
		return eval.Verdict().Reason
	}
	f := facts("echo")
	f.DualControl = true
	if r := judge(f); r != contract.ReasonApprovalRequired {
		t.Error(r)
	}
	f.Resolution, f.Resolved = "granted", f.Now
	for who, want := range map[string]string{"alice": contract.ReasonApprovalDenied, "bob": contract.ReasonApproved} {
		f.Approvals = []guard.ApprovalFact{{Approver: who, EventID: "e", Roles: []string{guard.DefaultRole}, Vote: contract.Grant}}
		if r := judge(f); r != want {
			t.Errorf("granted by %s: %s", who, r)
		}
	}
}
