package guard_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TestIntent checks the members of the intent for different inputs.
func TestIntent(t *testing.T) {
	in := inputs()
	in.Tool.Egress, in.P0.EgressHosts = []string{"a.org"}, []string{"a.org"}
	in.Tool.Secrets = []contract.SecretGrant{{Name: "k"}}
	in.P1.Obliged = []string{"content.flag:pii"}
	in.Facts.Budget = &guard.BudgetFact{Accounts: []string{"l/agent:alice"}, Amounts: contract.Amounts{Calls: 1}}
	sandbox := box(64, "process")
	want := contract.ExecutionIntent{ArgsDigest: "sha256:a", Budget: &contract.Reservation{Accounts: []string{"l/agent:alice"}, Amounts: contract.Amounts{Calls: 1}}, CallID: "c-1",
		Egress: []string{"a.org"}, Executor: "session-runner", Expires: contract.Time(now.Add(time.Minute)), ID: "i-c-1", IdemKey: "c-1", Kind: "tool.echo", NotBefore: contract.Time(now),
		Obliged: []string{"content.flag:pii"}, Sandbox: &sandbox, Secrets: []contract.SecretGrant{{Name: "k"}}, Tool: "echo"}
	k := key(t, "policy")
	if got := guard.Decide(in, k).Intent; !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v\nwant %+v", *got, want)
	}
	in.IdemKey, in.Tool.Sandbox = "mine", nil
	if got := guard.Decide(in, k).Intent; got.IdemKey != "mine" || got.Sandbox != nil {
		t.Errorf("%+v", got)
	}
	// The window ends at the deadline if that comes first.
	in.Facts.Deadline = contract.Time(now.Add(time.Second))
	if got := guard.Decide(in, k).Intent; got.Expires != in.Facts.Deadline || got.Deadline != "" {
		t.Errorf("%+v", got)
	}
	// After an escalation, the start window and the deadline are counted from the time
	// at which the escalation was resolved.
	approved(&in, 1, "bob")
	in.Facts.Proposed, in.Facts.Deadline = contract.Time(now.Add(-time.Hour)), contract.Time(now.Add(-time.Hour+30*time.Second))
	if got := guard.Decide(in, k).Intent; got.NotBefore != contract.Time(now) || got.Deadline != contract.Time(now.Add(30*time.Second)) || got.Expires != got.Deadline {
		t.Errorf("%+v", got)
	}
}

// TestDecisionFields checks the fields of an ALLOW, the members that its policy decision
// hash covers, and the id of an ESCALATE.
func TestDecisionFields(t *testing.T) {
	in := inputs()
	in.Policies = contract.PolicyDigests{P0: "p0", P1: "p1"}
	k := key(t, "policy")
	d := guard.Decide(in, k)
	facts := contract.Bytes(&in.Facts)
	want := contract.Decision{Actor: "alice", ArgsDigest: "sha256:a", CallID: "c-1", CatalogDigest: "c", Client: "-", Facts: facts, FactsDigest: sign.Digest(facts), ID: "d-c-1", Intent: d.Intent,
		KID: k.KID, Kind: "tool.echo", Lamport: 7, Policies: in.Policies, PolicyHash: d.PolicyHash, ReasonCode: "RULE", Session: "s-1", Sig: d.Sig, Tenant: "t", Time: contract.Time(now),
		Tool: "echo", ToolDigest: "d", Verdict: contract.Allow}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("%+v\nwant %+v", d, want)
	}
	hash := sign.Digest([]byte(`{"args_digest":"sha256:a","facts_digest":"` + d.FactsDigest + `","policies":{"p0":"p0","p1":"p1"},"reason_code":"RULE","verdict":"ALLOW"}`))
	if d.PolicyHash != hash {
		t.Error("the policy decision hash is not over the five members that the reference names")
	}
	if in.P1.Verdict = contract.Escalate; guard.Decide(in, k).ID != "q-c-1" || guard.EscalationID("c-1") != "q-c-1" {
		t.Error("an escalation has the id of a decision that ends the call")
	}
}

// TestVerifyDecision checks the errors for decisions with a valid signature and
// inconsistent content, such as a faulty policy service could sign.
func TestVerifyDecision(t *testing.T) {
	k := key(t, "policy")
	for name, c := range map[string]struct {
		change func(d *contract.Decision)
		want   string
	}{
		"nothing":                  {func(*contract.Decision) {}, ""},
		"facts of another digest":  {func(d *contract.Decision) { d.Facts = contract.Raw(`{}`) }, "facts do not match"},
		"another reason":           {func(d *contract.Decision) { d.ReasonCode = "X" }, "policy_decision_hash"},
		"other policies":           {func(d *contract.Decision) { d.Policies.P2 = "p2" }, "policy_decision_hash"},
		"ALLOW without an intent":  {func(d *contract.Decision) { d.Intent = nil }, "an intent belongs to ALLOW"},
		"an intent of other args":  {func(d *contract.Decision) { d.Intent.ArgsDigest = "sha256:b" }, "intent is for another call"},
		"an intent of another":     {func(d *contract.Decision) { d.Intent.CallID = "c-2" }, "intent is for another call"},
		"an intent of other kind":  {func(d *contract.Decision) { d.Intent.Kind = "vault.put" }, "intent is for another call"},
		"an intent of other tool":  {func(d *contract.Decision) { d.Intent.Tool = "rm" }, "intent is for another call"},
		"a key of another service": {func(d *contract.Decision) { d.KID = "k-0" }, "unknown key"},
	} {
		d := guard.Decide(inputs(), k)
		c.change(&d)
		d.Sig = ""
		d.Sig = k.Sign(sign.DomainDecision, contract.Bytes(&d))
		if err := guard.VerifyDecision(&d, keys(k)); (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "decision d-c-1: ")) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	in := inputs()
	in.P1.Verdict = contract.Deny
	d := guard.Decide(in, k)
	d.Intent, d.Sig = &contract.ExecutionIntent{CallID: d.CallID, ArgsDigest: d.ArgsDigest, Kind: d.Kind, Tool: d.Tool}, ""
	d.Sig = k.Sign(sign.DomainDecision, contract.Bytes(&d))
	if err := guard.VerifyDecision(&d, keys(k)); err == nil {
		t.Error("a denial with an intent is accepted")
	}
}

// TestGateOfExecutor checks that CheckIntent rejects decisions and intents that are
// invalid, or are not for the call, its tenant, session or executor, even if policy's
// signature over them verifies. An intent is valid until the moment at which it expires,
// inclusive.
func TestGateOfExecutor(t *testing.T) {
	k := key(t, "policy")
	for name, c := range map[string]struct {
		change func(in *guard.Inputs, a *contract.Allowed)
		at     time.Time
		want   string
	}{
		"nothing":          {func(*guard.Inputs, *contract.Allowed) {}, now, ""},
		"the last moment":  {func(*guard.Inputs, *contract.Allowed) {}, now.Add(time.Minute), ""},
		"after it":         {func(*guard.Inputs, *contract.Allowed) {}, now.Add(time.Minute + 1), "intent expired"},
		"a denial":         {func(in *guard.Inputs, _ *contract.Allowed) { in.P1.Verdict = contract.Deny }, now, "verdict DENY permits nothing"},
		"an escalation":    {func(in *guard.Inputs, _ *contract.Allowed) { in.P1.Verdict = contract.Escalate }, now, "verdict ESCALATE permits nothing"},
		"another tenant":   {func(in *guard.Inputs, _ *contract.Allowed) { in.Facts.Tenant = "u" }, now, "another tenant or session"},
		"another session":  {func(in *guard.Inputs, _ *contract.Allowed) { in.Facts.Session = "s-2" }, now, "another tenant or session"},
		"another executor": {func(in *guard.Inputs, _ *contract.Allowed) { in.Tool.Executor = "judge" }, now, "addressed to executor judge"},
		"another call":     {func(_ *guard.Inputs, a *contract.Allowed) { a.Call.ID = "c-2" }, now, "not the one decided"},
		"other args":       {func(_ *guard.Inputs, a *contract.Allowed) { a.Call.Args.Commitment = "x" }, now, "not the one decided"},
		"another kind":     {func(_ *guard.Inputs, a *contract.Allowed) { a.Call.Kind = "x" }, now, "not the one decided"},
		"another tool":     {func(_ *guard.Inputs, a *contract.Allowed) { a.Call.Tool = "x" }, now, "not the one decided"},
	} {
		in, a := inputs(), contract.Allowed{Call: contract.Call{ID: "c-1", Kind: "tool.echo", Tool: "echo", Args: contract.Content{Commitment: "sha256:a"}}}
		c.change(&in, &a)
		a.Decision = guard.Decide(in, k)
		if err := guard.CheckIntent(&a, "t", "s-1", "session-runner", c.at, keys(k)); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	a := contract.Allowed{Decision: guard.Decide(inputs(), k), Call: contract.Call{ID: "c-1", Kind: "tool.echo", Tool: "echo", Args: contract.Content{Commitment: "sha256:a"}}}
	a.Decision.Intent.Expires, a.Decision.Sig = "never", ""
	a.Decision.Sig = k.Sign(sign.DomainDecision, contract.Bytes(&a.Decision))
	if err := guard.CheckIntent(&a, "t", "s-1", "session-runner", now, keys(k)); err == nil || !strings.HasPrefix(err.Error(), "intent i-c-1: time") {
		t.Error("an expiry that is no time:", err)
	}
}

// TestBallots shows that a signed vote needs the approver's own key and the
// decision that was voted on, and that an unsigned vote needs no key.
func TestBallots(t *testing.T) {
	k := key(t, "bob")
	at := func(kid, owner, use string, lamport uint64) ([]byte, error) {
		if kid != k.KID || owner != guard.ApproverOwner("t", "bob") || use != contract.UseApproval || lamport != 9 {
			return nil, errors.New("unknown key")
		}
		return k.Public(), nil
	}
	shown := &contract.Decision{ID: "q-c-1", CallID: "c-1", Tenant: "t", Facts: contract.Raw("{}"), Verdict: contract.Escalate}
	for name, c := range map[string]struct {
		change func(a *contract.Approval)
		ok     bool
	}{
		"as signed":            {func(*contract.Approval) {}, true},
		"unsigned":             {func(a *contract.Approval) { a.Sig, a.KID = "", "" }, true},
		"a key, no signature":  {func(a *contract.Approval) { a.Sig = "" }, false},
		"a signature, no key":  {func(a *contract.Approval) { a.KID = "" }, false},
		"another's name":       {func(a *contract.Approval) { a.Approver = "alice" }, false},
		"the other vote":       {func(a *contract.Approval) { a.Vote = contract.Refuse }, false},
		"another reason":       {func(a *contract.Approval) { a.Reason = "because" }, false},
		"another call":         {func(a *contract.Approval) { a.CallID = "c-2" }, false},
		"another tenant":       {func(a *contract.Approval) { a.Tenant = "u" }, false},
		"roles are not signed": {func(a *contract.Approval) { a.Roles = []string{"x"} }, true},
	} {
		a := &contract.Approval{Approver: "bob", CallID: "c-1", KID: k.KID, Tenant: "t", Vote: contract.Grant}
		a.Sig = k.Sign(sign.DomainApproval, contract.Bytes(guard.BallotOf(a, shown)))
		c.change(a)
		if err := guard.VerifyBallot(a, shown, at, nil, 9); (err == nil) != c.ok || err != nil && !strings.HasPrefix(err.Error(), "vote of ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := &contract.Approval{Approver: "bob", CallID: "c-1", KID: k.KID, Tenant: "t", Vote: contract.Grant}
	a.Sig = k.Sign(sign.DomainApproval, contract.Bytes(guard.BallotOf(a, shown)))
	if guard.VerifyBallot(a, &contract.Decision{ID: "q-c-2", Facts: contract.Raw("{}")}, at, nil, 9) == nil {
		t.Error("the vote counts for another decision")
	}
}

// TestOpenP0 shows that ceilings are rejected if they are not canonical, not valid, or
// not signed by a key that was a root key at the Lamport time.
func TestOpenP0(t *testing.T) {
	root := key(t, "root")
	at := func(kid, owner, use string, lamport uint64) ([]byte, error) {
		if kid != root.KID || owner != "provision" || use != contract.UseRoot || lamport != 3 {
			return nil, errors.New("unknown key")
		}
		return root.Public(), nil
	}
	c := guard.Ceilings{Sandbox: box(64, "process"), StartWindowMS: 1000, MaxCents: 1, EgressHosts: []string{"a.org"}}
	doc := guard.SignP0(root, c)
	got, err := guard.OpenP0(doc, 3, at)
	if err != nil || !bytes.Equal(contract.Bytes(got), contract.Bytes(&c)) {
		t.Fatalf("%+v, %v", got, err)
	}
	c.MaxCents = -1
	for name, bad := range map[string][]byte{"not canonical": append([]byte(" "), doc...), "not valid": guard.SignP0(root, c), "empty": nil, "another key": guard.SignP0(key(t, "evil"), c)} {
		if _, err := guard.OpenP0(bad, 3, at); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := guard.OpenP0(doc, 2, at); err == nil {
		t.Error("opened before its key was published")
	}
}
