package policy

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey/passkeytest"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// waits returns a ledger with the registered approvers bob and carol, an instance of
// policy, and the id of an escalated call of tool.pay.
func waits(t *testing.T, ctx context.Context) (l *ledger, m *member, call string) {
	l = founded(t, nil)
	for _, who := range []string{"bob", "carol"} {
		l.put("policy", events.PrincipalRegisteredName, "identity", &events.PrincipalRegistered{Principal: who, Type: "person"}, nil)
		l.put("policy", events.RoleGrantedName, "identity", &events.RoleGranted{Principal: who, Role: guard.DefaultRole}, nil)
	}
	m = l.join("policy-1")
	d := l.propose("pay", nil)
	if err := m.decider.take(ctx, d); err != nil {
		t.Fatal(err)
	}
	m.follow()
	if got := m.states.OfCell().Escalations(); len(got) != 1 || got[0].CallID != l.callOf(d) || got[0].Reason != contract.ReasonApprovalRequired {
		t.Fatalf("%+v", got)
	}
	return l, m, l.callOf(d)
}

// work returns a governing call in the form that its executor receives.
func work(actor, kind, args string) *execute.Work {
	return &execute.Work{Event: &contract.Event{ID: "a-1", Tenant: "t", Actor: actor, Client: "-", Session: "s-gov", CallID: "g-1", Source: "policy/policy-1"},
		Call: &contract.Call{ID: "g-1", Kind: kind}, Args: []byte(args)}
}

// settled delivers the recorded votes to the settler, as the work consumer does.
func settled(t *testing.T, ctx context.Context, l *ledger, m *member) {
	t.Helper()
	for _, e := range l.of(contract.EventApprovalRecorded) {
		if err := m.settler.take(ctx, delivery{event: e}); err != nil {
			t.Fatal(err)
		}
	}
	m.follow()
}

// TestVotes shows that votes of unregistered principals, votes on calls that do not
// wait, and votes that are neither grant nor deny are rejected, that a vote fails as
// unavailable and not as invalid while the ledger fails, that a settled call accepts no
// other vote, and that the vote that settles a call leads to exactly one second decision
// even if it is delivered twice.
func TestVotes(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m, call := waits(t, ctx)
		vote := func(actor, call, vote, extra string) execute.Result {
			r := m.governor.handle(ctx, work(actor, kindVote, `{"call_id":"`+call+`","reason":"seen","vote":"`+vote+`"`+extra+`}`))
			m.follow()
			return r
		}
		for _, c := range []struct{ actor, call, code, message string }{
			{"alice", call, "invalid_input", "not registered"},
			{"mallory", call, "invalid_input", "not registered"},
			{"bob", "c-other", "not_found", "no call c-other waits"},
		} {
			if r := vote(c.actor, c.call, contract.Grant, ""); r.ErrorCode != c.code || !strings.Contains(r.ErrorMessage, c.message) {
				t.Errorf("%s: %+v", c.actor, r)
			}
		}
		if len(l.of(contract.EventApprovalRecorded)) != 0 {
			t.Fatal("a vote that does not count is recorded")
		}
		m.faults.failBefore(once(1, contract.EventApprovalRecorded))
		if r := vote("bob", call, contract.Grant, ""); r.ErrorCode != contract.CodeUnavailable {
			t.Errorf("a vote that is not stored is answered %+v", r)
		}
		m.faults.failBefore(nil)
		m.faults.failRead(errDown)
		if r := vote("bob", call, contract.Grant, ""); r.ErrorCode != contract.CodeUnavailable {
			t.Errorf("a vote on an escalation that cannot be read is answered %+v", r)
		}
		m.faults.failRead(nil)
		if r := vote("bob", call, "maybe", ""); r.ErrorCode != contract.CodeInvalidInput {
			t.Errorf("a vote that is neither grant nor deny is answered %+v", r)
		}
		if r := vote("bob", call, contract.Grant, ""); r.ErrorCode != "" || !strings.Contains(string(r.Output), `"resolved":"granted"`) {
			t.Errorf("%+v", r)
		}
		if r := vote("carol", call, contract.Grant, ""); r.ErrorCode == "" {
			t.Error("a settled call takes another vote")
		}
		for range 2 { // the settling vote is delivered twice
			settled(t, ctx, l, m)
		}
		if got := l.of(contract.EventAllowed); len(got) != 1 || got[0].CallID != call || len(m.states.OfCell().Escalations()) != 0 {
			t.Errorf("%d calls are allowed", len(got))
		}
	})
}

// TestSignedBallots shows that a signed ballot counts as the vote of the owner of its key
// and not of the client that sends it, that a forged ballot does not verify, and that
// neither it nor a ballot with a key id or a signature alone counts.
func TestSignedBallots(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m, call := waits(t, ctx)
		k := key(t, "ballot")
		shown := &m.states.OfCell().WaitingFor(call).Escalated.Decision
		ballot := &contract.Approval{Approver: "carol", CallID: call, KID: k.KID, Reason: "seen", Tenant: "t", Vote: contract.Refuse}
		sig := k.Sign(sign.DomainApproval, contract.Bytes(guard.BallotOf(ballot, shown)))
		args := func(vote, kid, sig string) string {
			return `{"call_id":"` + call + `","kid":"` + kid + `","reason":"seen","sig":"` + sig + `","vote":"` + vote + `"}`
		}
		for _, c := range []struct {
			args string
			want bool
		}{
			{args(contract.Refuse, k.KID, sig), true},
			{args(contract.Grant, k.KID, sig), false}, // the vote was changed after it was signed
			{args(contract.Refuse, "k-none", sig), false},
			{args(contract.Refuse, key(t, "bundler").KID, sig), false},
			{`{"call_id":"` + call + `","vote":"grant"}`, true}, // an unsigned vote
			{`{"call_id":"c-other","sig":"x"}`, true},           // the call is not waiting for votes
			{`[]`, true}, // args that the schema denies
		} {
			if m.ballots.verifies(&contract.Event{Tenant: "t", Actor: "bob"}, []byte(c.args)) != c.want {
				t.Errorf("%s: not %v", c.args, c.want)
			}
		}
		if r := m.governor.handle(ctx, work("bob", kindVote, args(contract.Grant, k.KID, sig))); r.ErrorCode != "invalid_input" {
			t.Errorf("%+v", r)
		}
		for _, half := range []string{`"kid":"` + k.KID + `"`, `"sig":"` + sig + `"`} {
			r := m.governor.handle(ctx, work("bob", kindVote, `{"call_id":"`+call+`",`+half+`,"reason":"seen","vote":"deny"}`))
			if r.ErrorCode != contract.CodeInvalidInput || len(l.of(contract.EventApprovalRecorded)) != 0 {
				t.Errorf("%s: %+v", half, r)
			}
		}
		if r := m.governor.handle(ctx, work("bob", kindVote, args(contract.Refuse, k.KID, sig))); !strings.Contains(string(r.Output), `"approver":"carol"`) {
			t.Errorf("%+v", r)
		}
		settled(t, ctx, l, m)
		if status, reason := l.outcome(call); status != contract.Denied || reason != contract.ReasonApprovalDenied {
			t.Error(status, reason)
		}
	})
}

// TestPasskeyVotes shows that a vote counts if a passkey of the caller has signed exactly this
// vote, and not if another vote, person or call was signed, if the passkey was removed, if the
// device did not verify the person, or if its counter did not increase; and that under a rule
// that requires passkeys no other vote counts.
func TestPasskeyVotes(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m, call := waits(t, ctx)
		bob, carol := passkeytest.New("https://mesh.example", "mesh.example"), passkeytest.New("https://mesh.example", "mesh.example")
		l.put("policy", contract.EventPasskeyRegistered, "identity", bob.Registered("bob"), nil)
		l.put("policy", contract.EventPasskeyRegistered, "identity", carol.Registered("carol"), nil)
		m.follow()
		shown := &m.states.OfCell().WaitingFor(call).Escalated
		challenge := func(who, vote string) []byte {
			return passkey.Challenge(guard.BallotOf(&contract.Approval{Approver: who, CallID: call, Reason: "seen", Tenant: "t", Vote: vote}, &shown.Decision))
		}
		args := func(a *contract.Assertion) []byte {
			return []byte(`{"call_id":"` + call + `","passkey":` + string(contract.Bytes(a)) + `,"reason":"seen","vote":"grant"}`)
		}
		verifies := func(who string, a *contract.Assertion) bool {
			return m.ballots.verifies(&contract.Event{Tenant: "t", Actor: who}, args(a))
		}
		good := bob.Assert(challenge("bob", contract.Grant))
		absent := *bob
		absent.Flags = 1
		for name, c := range map[string]struct {
			who  string
			a    *contract.Assertion
			want bool
		}{
			"the vote":                     {"bob", good, true},
			"of another person":            {"carol", good, false},
			"another verdict":              {"bob", bob.Assert(challenge("bob", contract.Refuse)), false},
			"another person's device":      {"bob", carol.Assert(challenge("bob", contract.Grant)), false},
			"without verification":         {"bob", absent.Assert(challenge("bob", contract.Grant)), false},
			"a device that is not known":   {"bob", passkeytest.New("https://mesh.example", "mesh.example").Assert(challenge("bob", contract.Grant)), false},
			"the device of another origin": {"bob", (&passkeytest.Device{Key: bob.Key, ID: bob.ID, Origin: "https://evil", RPID: bob.RPID, Flags: 5, Count: 9}).Assert(challenge("bob", contract.Grant)), false},
		} {
			if verifies(c.who, c.a) != c.want {
				t.Errorf("%s: not %v", name, c.want)
			}
		}
		both := `{"call_id":"` + call + `","kid":"k-1","passkey":` + string(contract.Bytes(good)) + `,"reason":"seen","sig":"x","vote":"grant"}`
		if m.ballots.verifies(&contract.Event{Tenant: "t", Actor: "bob"}, []byte(both)) {
			t.Error("a vote is signed twice")
		}
		// The executor verifies again, also if the decision did not.
		r := m.governor.handle(ctx, work("carol", kindVote, string(args(good))))
		if r.ErrorCode != contract.CodeInvalidInput || !strings.Contains(r.ErrorMessage, "another person") {
			t.Errorf("%+v", r)
		}
		shown.Rules = []contract.ApprovalRule{{Passkey: true, Quorum: 2, TimeoutMS: 60_000}}
		r = m.governor.handle(ctx, work("carol", kindVote, `{"call_id":"`+call+`","reason":"seen","vote":"deny"}`))
		if r.ErrorCode != contract.CodeInvalidInput || !strings.HasPrefix(r.ErrorMessage, "passkey: the rules count only") {
			t.Errorf("a vote without a passkey: %+v", r)
		}
		r = m.governor.handle(ctx, work("bob", kindVote, string(args(good))))
		if r.ErrorCode != "" || !strings.Contains(string(r.Output), `"approver":"bob"`) {
			t.Fatalf("%+v", r)
		}
		m.follow()
		var recorded contract.Approval
		if err := contract.Decode(l.of(contract.EventApprovalRecorded)[0].Data, &recorded); err != nil || recorded.Passkey == nil || *recorded.Passkey != *good || recorded.Resolved != "" {
			t.Errorf("%+v %v", recorded, err)
		}
		if verifies("bob", good) {
			t.Error("an assertion is accepted twice")
		}
		l.put("policy", events.PasskeyRemovedName, "identity", &events.PasskeyRemoved{ID: carol.Registered("carol").ID, Principal: "carol", Reason: "lost"}, nil)
		m.follow()
		if verifies("carol", carol.Assert(challenge("carol", contract.Grant))) {
			t.Error("a passkey that was removed votes")
		}
	})
}

// TestTimeout shows that the expiry of an escalation is recorded once, even if several
// instances try to record it.
func TestTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, a, call := waits(t, ctx)
		b := l.join("policy-2")
		for _, m := range []*member{a, b} {
			m.keepUp(ctx)
			go m.ballots.timeouts(ctx)
		}
		time.Sleep(59 * time.Second)
		if len(l.of(contract.EventApprovalRecorded)) != 0 {
			t.Fatal("the wait ended early")
		}
		a.faults.failBefore(once(1, contract.EventApprovalRecorded))
		b.faults.failBefore(once(2, contract.EventApprovalRecorded))
		time.Sleep(5 * time.Second)
		if n := len(l.of(contract.EventApprovalRecorded)); n != 1 {
			t.Fatalf("the wait ended %d times", n)
		}
		settled(t, ctx, l, a)
		if status, reason := l.outcome(call); status != contract.Denied || reason != contract.ReasonApprovalTimeout {
			t.Error(status, reason)
		}
	})
}

// TestExpiry shows that an allowed call that no executor starts expires exactly once,
// and that a claimed call does not expire.
func TestExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a, b := l.join("policy-1"), l.join("policy-2")
		left, begun := l.propose("echo", nil), l.propose("echo", nil)
		for _, d := range []delivery{left, begun} {
			if err := a.decider.take(ctx, d); err != nil {
				t.Fatal(err)
			}
		}
		allowed := l.of(contract.EventAllowed)[1]
		started := l.other.New(contract.EventEffectStarted, allowed.Session, contract.Bytes(&contract.Started{CallID: allowed.CallID}), allowed)
		started.Source = "session-runner/session-runner-1"
		raw, err := started.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*member{a, b} { // b, unlike a, does not apply the claim that is appended below
			m.follow()
			go m.expirer.run(ctx)
		}
		if _, err := l.log.Append(ctx, started.Subject(), "claim:"+allowed.CallID, raw); err != nil {
			t.Fatal(err)
		}
		a.keepUp(ctx)
		a.faults.failBefore(once(1, contract.EventStartExpired))
		b.faults.failAfter(once(1, contract.EventEffectRecorded))
		time.Sleep(59 * time.Second)
		if status, _ := l.outcome(l.callOf(left)); status != "" {
			t.Fatal("the call ended early:", status)
		}
		time.Sleep(10 * time.Second)
		if status, _ := l.outcome(l.callOf(left)); status != contract.Expired {
			t.Errorf("the call that was not started is %q", status)
		}
		if status, _ := l.outcome(l.callOf(begun)); status != "" {
			t.Errorf("the call that was claimed is %q", status)
		}
		if n := len(l.of(contract.EventStartExpired)); n != 1 {
			t.Errorf("%d claims of policy's", n)
		}
		if at, lines := a.expirer.starts.Dump(); len(lines) != 0 || at == 0 {
			t.Errorf("still listed at %d: %s", at, lines)
		}
	})
}

// TestExpiryResumed shows that an instance records the outcome of an expired call if
// the instance that expired it failed before it recorded the outcome.
func TestExpiryResumed(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		a := l.join("policy-1")
		left := l.propose("echo", nil)
		if err := a.decider.take(ctx, left); err != nil {
			t.Fatal(err)
		}
		a.follow()
		dead, kill := context.WithCancel(ctx)
		go a.expirer.run(dead)
		a.keepUp(dead)
		a.faults.failBefore(once(1<<30, contract.EventEffectRecorded))
		time.Sleep(70 * time.Second)
		kill()
		if n := len(l.of(contract.EventStartExpired)); n != 1 {
			t.Fatalf("%d expiries", n)
		}
		if status, _ := l.outcome(l.callOf(left)); status != "" {
			t.Fatal("the outcome was recorded all the same:", status)
		}
		b := l.join("policy-2")
		b.follow()
		go b.expirer.run(ctx)
		b.keepUp(ctx)
		time.Sleep(7 * time.Second)
		if status, _ := l.outcome(l.callOf(left)); status != contract.Expired {
			t.Errorf("the call that was expired is %q", status)
		}
		if at, lines := b.expirer.starts.Dump(); len(lines) != 0 || at == 0 {
			t.Errorf("still listed at %d: %s", at, lines)
		}
	})
}
