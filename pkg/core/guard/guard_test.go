package guard_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func key(t testing.TB, name string) *sign.Key {
	h := sha256.Sum256([]byte(name))
	k, err := sign.NewKey(h[:])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func box(mem int64, tier string) contract.Sandbox {
	return contract.Sandbox{CPUMillis: 1000, MemoryMiB: mem, OutputBytes: 100, Pids: 10, Tier: tier, WallMS: 1000}
}

// inputs returns the inputs of a call that is allowed, which test cases change.
func inputs() guard.Inputs {
	s := box(64, "process")
	return guard.Inputs{
		CallID: "c-1",
		Facts: guard.Facts{Actor: "alice", ArgsDigest: "sha256:a", CatalogDigest: "c", Client: "-", Deadline: contract.Time(now.Add(time.Minute)), Kind: "tool.echo",
			Now: contract.Time(now), Proposed: contract.Time(now), Proposer: "gateway", Scopes: []string{}, Session: "s-1", Tenant: "t", Tool: "echo", ToolDigest: "d"},
		Tool:    &contract.Tool{Executor: "session-runner", Kind: "tool.echo", Tool: "echo", InputSchema: contract.Raw("{}"), OutputSchema: contract.Raw("{}"), Sandbox: &s},
		P1:      guard.Answer{Verdict: contract.Allow, Reason: "RULE"},
		P0:      &guard.Ceilings{ForbiddenKinds: []string{"tool.danger*", "vault.put"}, Sandbox: box(128, "process"), StartWindowMS: 60000, MaxCents: 1},
		Lamport: 7,
	}
}

// approved changes the inputs into those of an escalated call that the approvers listed
// in by have granted.
func approved(in *guard.Inputs, quorum int64, by ...string) {
	in.P1 = guard.Answer{Verdict: contract.Escalate, Reason: "ASK", Approvals: []contract.ApprovalRule{{Quorum: quorum, TimeoutMS: 1000}}}
	in.Facts.Resolution, in.Facts.Resolved = "granted", in.Facts.Now
	for _, who := range by {
		in.Facts.Approvals = append(in.Facts.Approvals, guard.ApprovalFact{Approver: who, EventID: "e-" + who, Roles: []string{guard.DefaultRole}, Vote: contract.Grant})
	}
}

// TestDecide checks verdict and reason for deviations from an allowed call, one at a
// time, that a decision has an intent if and only if its verdict is ALLOW, and that
// Redecide computes the same.
func TestDecide(t *testing.T) {
	k := key(t, "policy")
	for name, c := range map[string]struct {
		spoil           func(*guard.Inputs)
		verdict, reason string
	}{
		"allowed":                {func(*guard.Inputs) {}, contract.Allow, "RULE"},
		"unknown tool":           {func(in *guard.Inputs) { in.Tool = nil }, contract.Deny, contract.ReasonUnknownTool},
		"no ceilings":            {func(in *guard.Inputs) { in.P0 = nil }, contract.Deny, contract.ReasonNoPolicyDefined},
		"no rule matched":        {func(in *guard.Inputs) { in.P1 = guard.Answer{} }, contract.Deny, contract.ReasonNoPolicyDefined},
		"unknown verdict":        {func(in *guard.Inputs) { in.P1.Verdict = "PERHAPS" }, contract.Deny, contract.ReasonPrgEvaluationError},
		"verdict without reason": {func(in *guard.Inputs) { in.P1.Reason = "" }, contract.Deny, contract.ReasonPrgEvaluationError},
		"schema":                 {func(in *guard.Inputs) { in.Schema = guard.Answer{Verdict: contract.Deny, Reason: "ARGS"} }, contract.Deny, "ARGS"},
		"P1 denies":              {func(in *guard.Inputs) { in.P1 = guard.Answer{Verdict: contract.Deny, Reason: "NO"} }, contract.Deny, "NO"},
		"P1 escalates":           {func(in *guard.Inputs) { in.P1 = guard.Answer{Verdict: contract.Escalate, Reason: "ASK"} }, contract.Escalate, "ASK"},
		"P2 narrows":             {func(in *guard.Inputs) { in.P2 = []guard.Answer{{Verdict: contract.Deny, Reason: "P2"}} }, contract.Deny, "P2"},
		"P2 cannot widen": {func(in *guard.Inputs) {
			in.P1 = guard.Answer{Verdict: contract.Deny, Reason: "NO"}
			in.P2 = []guard.Answer{{Verdict: contract.Allow, Reason: "YES"}}
		}, contract.Deny, "NO"},
		"P2 unknown verdict":    {func(in *guard.Inputs) { in.P2 = []guard.Answer{{Verdict: "x", Reason: "x"}} }, contract.Deny, contract.ReasonPrgEvaluationError},
		"forbidden kind":        {func(in *guard.Inputs) { in.Facts.Kind = "tool.dangerous" }, contract.Deny, contract.ReasonPolicyViolation},
		"past its deadline":     {func(in *guard.Inputs) { in.Facts.Deadline = contract.Time(now.Add(-time.Second)) }, contract.Deny, contract.ReasonProposalExpired},
		"past its window":       {func(in *guard.Inputs) { in.Facts.Proposed = contract.Time(now.Add(-61 * time.Second)) }, contract.Deny, contract.ReasonProposalExpired},
		"time that is no time":  {func(in *guard.Inputs) { in.Facts.Deadline = "tomorrow" }, contract.Deny, contract.ReasonProposalExpired},
		"nested without parent": {func(in *guard.Inputs) { in.Facts.Proposer = "judge" }, contract.Deny, contract.ReasonProvenanceFailure},
		"dead parent":           {func(in *guard.Inputs) { in.Facts.Parent = "c-0" }, contract.Deny, contract.ReasonProvenanceFailure},
		"live parent":           {func(in *guard.Inputs) { in.Facts.Proposer, in.Facts.Parent, in.Facts.ParentLive = "judge", "c-0", true }, contract.Allow, "RULE"},
		"foreign tenant":        {func(in *guard.Inputs) { in.Facts.MeshTenant = "m" }, contract.Deny, contract.ReasonTenantIsolation},
		"confusable kind":       {func(in *guard.Inputs) { in.Facts.Kind = "tool.\u0435cho" }, contract.Deny, contract.ReasonUnicodeObfuscationDetected},
		"kind with a space":     {func(in *guard.Inputs) { in.Facts.Kind = "tool.e cho" }, contract.Deny, contract.ReasonEnvelopeInvalid},
		"frozen":                {func(in *guard.Inputs) { in.Facts.Frozen = "f-1" }, contract.Deny, contract.ReasonSystemFrozen},
		"frozen, to unfreeze":   {func(in *guard.Inputs) { in.Facts.Frozen, in.Facts.Kind = "f-1", guard.KindUnfreeze }, contract.Allow, "RULE"},
		"another's session":     {func(in *guard.Inputs) { in.Facts.SessionOwner = "bob" }, contract.Deny, contract.ReasonIdentityIsolationViolation},
		"tool not approved":     {func(in *guard.Inputs) { in.Facts.ToolPinned = "none" }, contract.Deny, contract.ReasonToolNotApproved},
		"tool drifted":          {func(in *guard.Inputs) { in.Facts.ToolPinned = "sha256:old" }, contract.Deny, contract.ReasonToolDrift},
		"delegation ended":      {func(in *guard.Inputs) { in.Facts.DelegationBad = contract.ReasonDelegationInvalid }, contract.Deny, contract.ReasonDelegationInvalid},
		"delegation too narrow": {func(in *guard.Inputs) { in.Facts.DelegationBad = contract.ReasonDelegationScopeViolation }, contract.Deny, contract.ReasonDelegationScopeViolation},
		"signature in args":     {func(in *guard.Inputs) { in.Facts.Unverified = true }, contract.Deny, contract.ReasonVerificationFailure},
		"review due":            {func(in *guard.Inputs) { in.Facts.ReviewDue = true }, contract.Deny, contract.ReasonBreakGlassReviewDue},
		"egress beyond P0":      {func(in *guard.Inputs) { in.Tool.Egress = []string{"evil.org"}; in.P0.EgressHosts = []string{"*.a.org"} }, contract.Deny, contract.ReasonDataEgressBlocked},
		"egress, suffix trick": {func(in *guard.Inputs) {
			in.Tool.Egress = []string{"evil-a.org"}
			in.P0.EgressHosts = []string{"*a.org"}
		}, contract.Deny, contract.ReasonDataEgressBlocked},
		"egress within P0": {func(in *guard.Inputs) { in.Tool.Egress = []string{"x.a.org"}; in.P0.EgressHosts = []string{"*.a.org"} }, contract.Allow, "RULE"},
		"dearer than P0":   {func(in *guard.Inputs) { in.Tool.Reserve = &contract.Amounts{Cents: 2} }, contract.Deny, contract.ReasonBudgetExceeded},
		"no sandbox left":  {func(in *guard.Inputs) { in.P1.Sandbox = &contract.Sandbox{MemoryMiB: -1, Tier: "process"} }, contract.Deny, contract.ReasonSandboxViolation},
		"unknown tier":     {func(in *guard.Inputs) { in.P1.Sandbox = &contract.Sandbox{Tier: "cardboard"} }, contract.Deny, contract.ReasonSandboxViolation},
		"budget refused":   {func(in *guard.Inputs) { in.Facts.Budget = &guard.BudgetFact{Refused: contract.ReasonBudgetExceeded} }, contract.Deny, contract.ReasonBudgetExceeded},
		"budget escalates": {func(in *guard.Inputs) {
			in.Facts.Budget = &guard.BudgetFact{Refused: contract.ReasonTemporalIntervention, Escalate: true}
		}, contract.Escalate, contract.ReasonTemporalIntervention},
		"P0 requires approval": {func(in *guard.Inputs) {
			in.P0.Approvals = []guard.KindApproval{{Kinds: []string{"tool.*"}, Rule: contract.ApprovalRule{Quorum: 2}}}
		}, contract.Escalate, contract.ReasonApprovalRequired},
		"P0 requires approval, overlay cannot grant it": {func(in *guard.Inputs) {
			in.P0.Approvals = []guard.KindApproval{{Kinds: []string{"tool.*"}, Rule: contract.ApprovalRule{Quorum: 2}}}
			in.P2 = []guard.Answer{{Verdict: contract.Allow, Reason: "YES"}}
		}, contract.Escalate, contract.ReasonApprovalRequired},
		"one of two approvals": {func(in *guard.Inputs) { approved(in, 2, "bob") }, contract.Deny, contract.ReasonApprovalDenied},
		"two approvals":        {func(in *guard.Inputs) { approved(in, 2, "bob", "carol") }, contract.Allow, contract.ReasonApproved},
		"one twice":            {func(in *guard.Inputs) { approved(in, 2, "bob", "bob") }, contract.Deny, contract.ReasonApprovalDenied},
		"by the caller":        {func(in *guard.Inputs) { approved(in, 2, "bob", "alice") }, contract.Deny, contract.ReasonApprovalDenied},
		"role not held": {func(in *guard.Inputs) {
			approved(in, 1, "bob")
			in.Facts.Approvals[0].Roles = []string{"guest"}
		}, contract.Deny, contract.ReasonApprovalDenied},
		"approval too late": {func(in *guard.Inputs) { approved(in, 1); in.Facts.Resolution = "timed_out" }, contract.Deny, contract.ReasonApprovalTimeout},
		"refused":           {func(in *guard.Inputs) { approved(in, 1, "bob"); in.Facts.Resolution = "denied" }, contract.Deny, contract.ReasonApprovalDenied},
		"approved long after the proposal": {func(in *guard.Inputs) {
			approved(in, 1, "bob")
			in.Facts.Proposed, in.Facts.Deadline = contract.Time(now.Add(-time.Hour)), contract.Time(now.Add(-59*time.Minute))
		}, contract.Allow, contract.ReasonApproved},
		"approved, and used long after": {func(in *guard.Inputs) {
			approved(in, 1, "bob")
			in.Facts.Now = contract.Time(now.Add(2 * time.Minute))
		}, contract.Deny, contract.ReasonProposalExpired},
		"break glass": {func(in *guard.Inputs) { in.P1.Verdict = contract.Escalate; in.Facts.BreakGlass = "g-1" }, contract.Allow, contract.ReasonBreakGlass},
		"glass opens no DENY": {func(in *guard.Inputs) {
			in.P1 = guard.Answer{Verdict: contract.Deny, Reason: "NO"}
			in.Facts.BreakGlass = "g-1"
		}, contract.Deny, "NO"},
		"truncated ledger": {func(in *guard.Inputs) { in.Facts.Truncated = true }, contract.Deny, contract.ReasonLedgerTruncated},
	} {
		in := inputs()
		c.spoil(&in)
		d := guard.Decide(in, k)
		if d.Verdict != c.verdict || d.ReasonCode != c.reason || (d.Intent != nil) != (c.verdict == contract.Allow) {
			t.Errorf("%s: %s %s intent %v", name, d.Verdict, d.ReasonCode, d.Intent != nil)
		}
		if v, r, h := guard.Redecide(in); v != d.Verdict || r != d.ReasonCode || h != d.PolicyHash {
			t.Errorf("%s: decided again: %s %s", name, v, r)
		}
	}
}

// TestNarrow shows that the intent's sandbox is the strictest of tool, rules and
// ceilings.
func TestNarrow(t *testing.T) {
	in := inputs()
	in.P1.Sandbox = &contract.Sandbox{MemoryMiB: 32, WallMS: 5000, Tier: "container"}
	got := *guard.Decide(in, key(t, "policy")).Intent.Sandbox
	want := contract.Sandbox{CPUMillis: 1000, MemoryMiB: 32, OutputBytes: 100, Pids: 10, Tier: "container", WallMS: 1000}
	if got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func keys(k *sign.Key) guard.KeyAt {
	return func(kid, owner, use string, _ uint64) ([]byte, error) {
		if kid != k.KID || owner != "policy" || use != contract.UseDecision {
			return nil, errors.New("unknown key")
		}
		return k.Public(), nil
	}
}

// TestCheckIntent shows that none of the tested fields of a decision can be changed, and
// that an intent cannot be used by another executor, for another session, tenant or
// call, or after its window.
func TestCheckIntent(t *testing.T) {
	k := key(t, "policy")
	work := func() *contract.Allowed {
		d := guard.Decide(inputs(), k)
		return &contract.Allowed{Decision: d, Call: contract.Call{ID: "c-1", Kind: "tool.echo", Tool: "echo", Args: contract.Content{Commitment: "sha256:a"}}}
	}
	check := func(a *contract.Allowed, tenant, session, executor string, at time.Time) error {
		return guard.CheckIntent(a, tenant, session, executor, at, keys(k))
	}
	if err := check(work(), "t", "s-1", "session-runner", now); err != nil {
		t.Fatal(err)
	}
	if err := check(work(), "t", "s-1", "session-runner", now.Add(61*time.Second)); !errors.Is(err, guard.ErrExpired) {
		t.Fatalf("expired intent: %v", err)
	}
	for name, f := range map[string]func(a *contract.Allowed) error{
		"another executor": func(a *contract.Allowed) error { return check(a, "t", "s-1", "llm-router", now) },
		"another session":  func(a *contract.Allowed) error { return check(a, "t", "s-2", "session-runner", now) },
		"another tenant":   func(a *contract.Allowed) error { return check(a, "u", "s-1", "session-runner", now) },
		"another key": func(a *contract.Allowed) error {
			return guard.CheckIntent(a, "t", "s-1", "session-runner", now, keys(key(t, "evil")))
		},
		"other args": func(a *contract.Allowed) error {
			a.Call.Args.Commitment = "sha256:b"
			return check(a, "t", "s-1", "session-runner", now)
		},
		"other call": func(a *contract.Allowed) error { a.Call.ID = "c-2"; return check(a, "t", "s-1", "session-runner", now) },
	} {
		if f(work()) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// Each of these changes invalidates the decision.
	for name, change := range map[string]func(d *contract.Decision){
		"actor": func(d *contract.Decision) { d.Actor = "bob" }, "verdict": func(d *contract.Decision) { d.Verdict = contract.Deny },
		"reason": func(d *contract.Decision) { d.ReasonCode = "X" }, "expires": func(d *contract.Decision) { d.Intent.Expires = contract.Time(now.Add(time.Hour)) },
		"executor": func(d *contract.Decision) { d.Intent.Executor = "x" }, "secrets": func(d *contract.Decision) { d.Intent.Secrets = []contract.SecretGrant{{Name: "root"}} },
		"memory": func(d *contract.Decision) { d.Intent.Sandbox.MemoryMiB++ }, "policies": func(d *contract.Decision) { d.Policies.P1 = "other" },
		"lamport": func(d *contract.Decision) { d.Lamport++ }, "time": func(d *contract.Decision) {
			d.Time = contract.Time(now.Add(1)) + ""
			d.Time = strings.Replace(d.Time, "2026", "2027", 1)
		},
		"facts": func(d *contract.Decision) { d.Facts = contract.Raw(`{}`) }, "session": func(d *contract.Decision) { d.Session = "s-9" },
		"kid": func(d *contract.Decision) { d.KID = "k-0" }, "sig": func(d *contract.Decision) { d.Sig = "AAAA" }, "id": func(d *contract.Decision) { d.ID = "d-9" },
	} {
		a := work()
		change(&a.Decision)
		if guard.VerifyDecision(&a.Decision, keys(k)) == nil {
			t.Errorf("%s changed and accepted", name)
		}
	}
}

// TestP0 shows that OpenP0 accepts only ceilings that a trusted root key signed and
// whose start window is short enough.
func TestP0(t *testing.T) {
	root, evil := key(t, "root"), key(t, "evil")
	c := guard.Ceilings{Sandbox: box(64, "process"), StartWindowMS: 1000, MaxCents: 1}
	doc := guard.SignP0(root, c)
	roots := func(kid, _, use string, _ uint64) ([]byte, error) {
		if kid != root.KID || use != contract.UseRoot {
			return nil, errors.New("unknown")
		}
		return root.Public(), nil
	}
	if got, err := guard.OpenP0(doc, 1, roots); err != nil || got.Sandbox != c.Sandbox {
		t.Fatal(got, err)
	}
	if _, err := guard.OpenP0(guard.SignP0(evil, c), 1, roots); err == nil {
		t.Fatal("another key's ceilings accepted")
	}
	if _, err := guard.OpenP0([]byte(strings.Replace(string(doc), `"memory_mib":64`, `"memory_mib":65`, 1)), 1, roots); err == nil {
		t.Fatal("changed ceilings accepted")
	}
	c.StartWindowMS = guard.MaxStartWindow.Milliseconds() + 1
	if _, err := guard.OpenP0(guard.SignP0(root, c), 1, roots); err == nil {
		t.Fatal("a window beyond the dedupe window accepted")
	}
}
