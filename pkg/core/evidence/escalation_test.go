package evidence

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey/passkeytest"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// escalation is a call that two people approved, one of them with a signing key of his
// own. Tests change it after his vote is signed and before the call is allowed.
type escalation struct {
	votes  []contract.Approval
	facts  guard.Facts
	settle bool
	signer *sign.Key
	device *passkeytest.Device // with a passkey of carol; used if the test sets sworn
	sworn  func(*contract.Approval, *contract.Decision)
}

// byPasskey has a passkey of carol sign her vote, and registers it if known is set.
func byPasskey(w *world, known bool, change func(*escalation)) func(*escalation) {
	return func(x *escalation) {
		x.device = passkeytest.New("https://mesh.example", "mesh.example")
		if known {
			e := w.put("policy", "passkey_registered", "identity", contract.Bytes(x.device.Registered("carol")), nil)
			w.store(e)
		}
		x.sworn = func(a *contract.Approval, d *contract.Decision) {
			a.Passkey = x.device.Assert(passkey.Challenge(guard.BallotOf(a, d)))
		}
		x.facts.Approvals[1].Passkey = true
		change(x)
	}
}

// TestPasskeyVotes shows that a pack verifies with a vote that a passkey signed, that the report
// counts it, and that the pack does not verify if the passkey is not registered or is another
// person's, if the assertion is that of another vote, or if the decision counts a vote without a
// passkey as one with a passkey.
func TestPasskeyVotes(t *testing.T) {
	for name, c := range map[string]struct {
		known  bool
		change func(*escalation)
		word   string
	}{
		"good":           {true, func(*escalation) {}, ""},
		"not registered": {false, func(*escalation) {}, "was not registered in tenant t"},
		"of another":     {true, func(x *escalation) { x.votes[1].Approver, x.facts.Approvals[1].Approver = "dave", "dave" }, "that of another person"},
		"not verified":   {true, func(x *escalation) { x.device.Flags = 1 }, "has not verified the person"},
		"another vote": {true, func(x *escalation) {
			x.sworn = func(a *contract.Approval, d *contract.Decision) {
				b := guard.BallotOf(a, d)
				b.Vote = contract.Refuse
				a.Passkey = x.device.Assert(passkey.Challenge(b))
			}
		}, "challenge is that of another ballot"},
		"counted as one": {true, func(x *escalation) { x.sworn = nil }, "not recorded"},
		"not counted":    {true, func(x *escalation) { x.facts.Approvals[1].Passkey = false }, "not recorded"},
	} {
		w := sample(t, 1)
		w.escalated(byPasskey(w, c.known, c.change))
		rep, err := Verify(build(t, w.source("s-e"), w.keys["audit"]), w.root.KID)
		switch {
		case c.word == "" && (err != nil || rep.Passkeys != 1 || !strings.Contains(rep.String(), "passkeys  1 votes")):
			t.Errorf("%s: %v %v", name, rep, err)
		case c.word != "" && (err == nil || !strings.Contains(err.Error(), c.word)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// escalated adds an escalated call with its outcome to the ledger. After the ESCALATE is
// stored, it calls spoil, which may change the votes and the facts of the ALLOW; then it
// stores the votes, the ALLOW and the outcome.
func (w *world) escalated(spoil func(*escalation)) {
	bob := key(w.t, "bob")
	doc := trust.Publish(w.root, contract.TrustKey{Algorithm: "ed25519", KID: bob.KID, Owner: contract.OwnerApprover + "bob", PublicKey: base64.StdEncoding.EncodeToString(bob.Public()), Tenant: "t", Uses: []string{contract.UseApproval}})
	w.store(w.put("provision", "key_published", "trust", contract.Bytes(&doc), nil))
	args := contract.NewContent(make([]byte, 16), []byte(`{"n":1}`), "application/json")
	c := contract.Call{Args: args, Deadline: contract.Time(w.now.Add(time.Minute)), ID: "c-e", Kind: "tool.echo", Scopes: []string{}, Tool: "echo"}
	p := w.put("gateway", "call_proposed", "s-e", contract.Bytes(&c), nil)
	p.ID, p.Actor, p.Client, p.Session, p.CallID, p.Origin = "p-c-e", "alice", "test", "s-e", "c-e", "gw1"
	w.store(p)
	tool := &contract.Tool{Executor: "session-runner", InputSchema: contract.Raw(`{}`), Kind: "tool.echo", OutputSchema: contract.Raw(`{}`), Tool: "echo", Version: "v1"}
	rules := []contract.ApprovalRule{{Quorum: 2, TimeoutMS: 60_000}}
	x := &escalation{settle: true, signer: bob}
	x.facts = guard.Facts{Actor: "alice", ArgsDigest: args.Commitment, CatalogDigest: "c", Client: "test", Deadline: c.Deadline, Kind: c.Kind, Now: contract.Time(w.now), Proposed: p.Time,
		Proposer: "gateway", Scopes: c.Scopes, Session: "s-e", Tenant: "t", Tool: "echo", ToolDigest: contract.Digest(tool)}
	in := guard.Inputs{CallID: "c-e", Facts: x.facts, Tool: tool, P1: guard.Answer{Verdict: contract.Escalate, Reason: "ESCALATE_ASK", Approvals: rules}, P0: &ceilings, Policies: w.pol, Lamport: w.lamport}
	d := guard.Decide(in, w.keys["policy"])
	e := w.put("policy", "escalated", "s-e", contract.Bytes(&contract.Escalated{Call: c, Decision: d, Expires: contract.Time(w.now.Add(time.Minute)), Rules: rules}), p)
	e.ID = d.ID
	w.store(e)
	escalate := new(contract.Decision)
	*escalate = d
	x.votes = []contract.Approval{
		{Approver: "bob", CallID: "c-e", KID: bob.KID, Reason: "seen", Roles: []string{guard.DefaultRole}, Tenant: "t", Vote: contract.Grant},
		{Approver: "carol", CallID: "c-e", Reason: "seen", Resolved: "granted", Roles: []string{guard.DefaultRole}, Tenant: "t", Vote: contract.Grant}}
	spoilVotes := func() {
		x.votes[0].Sig = x.signer.Sign(sign.DomainApproval, contract.Bytes(guard.BallotOf(&x.votes[0], &d)))
	}
	x.facts.Resolution = "granted"
	for i, id := range []string{"v-0", "v-1"} {
		x.facts.Approvals = append(x.facts.Approvals, guard.ApprovalFact{Approver: x.votes[i].Approver, EventID: id, Roles: x.votes[i].Roles, Vote: x.votes[i].Vote})
	}
	spoilVotes()
	spoil(x)
	for i, v := range x.votes {
		if !x.settle {
			v.Resolved = ""
		}
		if i == 1 && x.sworn != nil {
			x.sworn(&v, escalate)
		}
		ev := w.put("policy", "approval_recorded", "s-e", contract.Bytes(&v), e)
		if v.Passkey != nil {
			ev.Version = 2
		}
		ev.ID = []string{"v-0", "v-1"}[i]
		w.store(ev)
	}
	x.facts.Now = contract.Time(w.now)
	x.facts.Resolved = x.facts.Now
	in.Facts, in.Lamport = x.facts, w.lamport
	d = guard.Decide(in, w.keys["policy"])
	if d.Verdict != contract.Allow {
		w.t.Fatalf("%s %s", d.Verdict, d.ReasonCode)
	}
	a := w.put("policy", "allowed", "s-e", contract.Bytes(&contract.Allowed{Call: c, Decision: d}), p)
	a.ID, a.Target, a.Version = d.ID, "session-runner", 2 // schema version 2 is the first whose facts may hold approvals
	if x.device != nil {
		a.Version = 7 // the first whose facts state that a passkey signed a vote
	}
	w.store(a)
	s := w.put("session-runner", "effect_started", "s-e", contract.Bytes(&contract.Started{CallID: "c-e", DecisionID: d.ID, IntentID: d.Intent.ID}), a)
	s.ID = "s-c-e"
	w.store(s)
	w.record("session-runner", s, &d, false, contract.Effect{CallID: "c-e", EffectType: c.Kind, Ended: contract.Time(w.now), InputDigest: args.Commitment, Instance: "x-1", Tool: "echo", Status: contract.Failed, ErrorCode: "x"}, nil)
}

// spoiled is one change to the approvals of an escalated call.
type spoiled struct {
	spoil func(*escalation)
	word  string // part of the verifier's error; empty = the pack verifies
}

func escalations(t testing.TB) map[string]spoiled {
	return map[string]spoiled{
		"as it was":                {func(*escalation) {}, ""},
		"a vote nobody cast":       {func(x *escalation) { x.facts.Approvals[1].EventID = "v-9" }, "not recorded"},
		"a vote of another":        {func(x *escalation) { x.facts.Approvals[1].Approver = "dave" }, "not recorded"},
		"a role that was not held": {func(x *escalation) { x.votes[1].Roles = []string{"guest"} }, "not recorded"},
		"a denial counted as yes":  {func(x *escalation) { x.votes[1].Vote = contract.Refuse }, "not recorded"},
		"a ballot of another key":  {func(x *escalation) { x.votes[0].Sig = key(t, "eve").Sign(sign.DomainApproval, []byte("{}")) }, "vote of bob"},
		"a ballot with new words":  {func(x *escalation) { x.votes[0].Reason = "changed" }, "vote of bob"},
		"a key of another":         {func(x *escalation) { x.votes[0].Approver, x.facts.Approvals[0].Approver = "dave", "dave" }, "vote of dave"},
		"before it was settled":    {func(x *escalation) { x.settle = false }, "before the escalation was settled"},
	}
}

// TestEscalation shows that a correct escalation verifies, and that one does not if the
// decision counts a vote that was not recorded or was recorded otherwise, if the
// signature of a vote does not verify, or if no vote ends it.
func TestEscalation(t *testing.T) {
	for name, c := range escalations(t) {
		w := sample(t, 1)
		w.escalated(c.spoil)
		_, err := Verify(build(t, w.source("s-e"), w.keys["audit"]), w.root.KID)
		if c.word == "" && err != nil || c.word != "" && (err == nil || !strings.Contains(err.Error(), c.word)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
