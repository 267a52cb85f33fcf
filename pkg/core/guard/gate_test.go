package guard_test

import (
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// gateCases lists changes for which a gate denies an allowed call, in the order in which
// the gates check them.
var gateCases = []struct {
	name   string
	spoil  func(in *guard.Inputs)
	reason string
}{
	{"no ceilings", func(in *guard.Inputs) { in.P0 = nil }, contract.ReasonNoPolicyDefined},
	{"truncated ledger", func(in *guard.Inputs) { in.Facts.Truncated = true }, contract.ReasonLedgerTruncated},
	{"another tenant", func(in *guard.Inputs) { in.Facts.MeshTenant = "m" }, contract.ReasonTenantIsolation},
	{"a kind for the cell", func(in *guard.Inputs) { in.Facts.OutsideCell = true }, contract.ReasonTenantIsolation},
	{"a suspended tenant", func(in *guard.Inputs) { in.Facts.TenantSuspended = true }, contract.ReasonTenantSuspended},
	{"no operator", func(in *guard.Inputs) { in.Facts.Tenant = contract.CellTenant }, contract.ReasonOperatorRequired},
	{"a tool that is not ASCII", func(in *guard.Inputs) { in.Facts.Tool = "\u0435cho" }, contract.ReasonUnicodeObfuscationDetected},
	{"a kind without a name", func(in *guard.Inputs) { in.Facts.Kind = "" }, contract.ReasonEnvelopeInvalid},
	{"frozen", func(in *guard.Inputs) { in.Facts.Frozen = "f-1" }, contract.ReasonSystemFrozen},
	{"unknown tool", func(in *guard.Inputs) { in.Tool = nil }, contract.ReasonUnknownTool},
	{"late", func(in *guard.Inputs) { in.Facts.Now = contract.Time(now.Add(61 * time.Second)) }, contract.ReasonProposalExpired},
	{"dead parent", func(in *guard.Inputs) { in.Facts.Parent = "c-0" }, contract.ReasonProvenanceFailure},
	{"suspended", func(in *guard.Inputs) { in.Facts.Suspended = true }, contract.ReasonPrincipalSuspended},
	{"revoked", func(in *guard.Inputs) { in.Facts.Revoked = true }, contract.ReasonCredentialRevoked},
	{"faulty key", func(in *guard.Inputs) { in.Facts.Key = &guard.KeyFact{ID: "k", Fault: "KEY_FAULT"} }, "KEY_FAULT"},
	{"another's session", func(in *guard.Inputs) { in.Facts.SessionOwner = "bob" }, contract.ReasonIdentityIsolationViolation},
	{"tool not approved", func(in *guard.Inputs) { in.Facts.ToolPinned = "none" }, contract.ReasonToolNotApproved},
	{"delegation ended", func(in *guard.Inputs) { in.Facts.DelegationBad = contract.ReasonDelegationInvalid }, contract.ReasonDelegationInvalid},
	{"unverified args", func(in *guard.Inputs) { in.Facts.Unverified = true }, contract.ReasonVerificationFailure},
	{"review due", func(in *guard.Inputs) { in.Facts.ReviewDue = true }, contract.ReasonBreakGlassReviewDue},
	{"forbidden kind", func(in *guard.Inputs) { in.P0.ForbiddenKinds = []string{"tool.echo"} }, contract.ReasonPolicyViolation},
	{"caller may not", func(in *guard.Inputs) { in.Facts.ReportWithin = -1 }, contract.ReasonCallerExecutionRefused},
	{"egress", func(in *guard.Inputs) { in.Tool.Egress = []string{"evil.org"} }, contract.ReasonDataEgressBlocked},
	{"too dear", func(in *guard.Inputs) { in.Tool.Reserve = &contract.Amounts{Cents: 2} }, contract.ReasonBudgetExceeded},
}

// TestGateOrder applies every pair of gateCases to the same call. The reason of the
// earlier one must count, and no layer may be applied.
func TestGateOrder(t *testing.T) {
	for i, first := range gateCases {
		for _, second := range gateCases[i:] {
			in := inputs()
			second.spoil(&in)
			if first.name != second.name {
				first.spoil(&in)
			}
			v, steps := guard.Explain(in, []guard.Step{{Part: guard.PartRules}})
			if v.Verdict != contract.Deny || v.Reason != first.reason {
				t.Errorf("%s and %s: %s %s", first.name, second.name, v.Verdict, v.Reason)
			}
			if len(steps) != 1 || steps[0].Part != guard.PartGates || steps[0].Reason != first.reason {
				t.Errorf("%s and %s: %+v", first.name, second.name, steps)
			}
		}
	}
}

// TestGateEdges checks values at the limits of the gates' conditions, and just beyond
// them.
func TestGateEdges(t *testing.T) {
	at := func(d time.Duration) string { return contract.Time(now.Add(d)) }
	for name, c := range map[string]struct {
		spoil  func(in *guard.Inputs)
		reason string // expected reason code; empty = passes
	}{
		"the longest name":            {func(in *guard.Inputs) { in.Facts.Tool = strings.Repeat("x", 128) }, ""},
		"a longer name":               {func(in *guard.Inputs) { in.Facts.Tool = strings.Repeat("x", 129) }, contract.ReasonEnvelopeInvalid},
		"every byte of a name":        {func(in *guard.Inputs) { in.Facts.Tool = "azAZ09._-" }, ""},
		"no tool name":                {func(in *guard.Inputs) { in.Facts.Tool = "" }, contract.ReasonEnvelopeInvalid},
		"a slash":                     {func(in *guard.Inputs) { in.Facts.Kind = "tool/echo" }, contract.ReasonEnvelopeInvalid},
		"DEL":                         {func(in *guard.Inputs) { in.Facts.Kind = "tool.\x7f" }, contract.ReasonEnvelopeInvalid},
		"the first byte above ASCII":  {func(in *guard.Inputs) { in.Facts.Kind = "tool.\u0080" }, contract.ReasonUnicodeObfuscationDetected},
		"invalid UTF-8":               {func(in *guard.Inputs) { in.Facts.Kind = "tool.\xff" }, contract.ReasonUnicodeObfuscationDetected},
		"at the end of the window":    {func(in *guard.Inputs) { in.Facts.Now = at(time.Minute) }, ""},
		"a millisecond after":         {func(in *guard.Inputs) { in.Facts.Now = at(time.Minute + time.Millisecond) }, contract.ReasonProposalExpired},
		"the ceilings' window counts": {func(in *guard.Inputs) { in.P0.StartWindowMS = 1000; in.Facts.Now = at(1001 * time.Millisecond) }, contract.ReasonProposalExpired},
		"no window above the largest": {func(in *guard.Inputs) {
			in.P0.StartWindowMS, in.Facts.Deadline = time.Hour.Milliseconds(), at(time.Hour)
			in.Facts.Now = at(guard.MaxStartWindow + time.Millisecond)
		}, contract.ReasonProposalExpired},
		"the largest window": {func(in *guard.Inputs) {
			in.P0.StartWindowMS, in.Facts.Deadline = time.Hour.Milliseconds(), at(time.Hour)
			in.Facts.Now = at(guard.MaxStartWindow)
		}, ""},
		"now is no time":               {func(in *guard.Inputs) { in.Facts.Now = "now" }, contract.ReasonProposalExpired},
		"the proposal's time is none":  {func(in *guard.Inputs) { in.Facts.Proposed = "then" }, contract.ReasonProposalExpired},
		"when it was settled is none":  {func(in *guard.Inputs) { in.Facts.Resolved = "soon" }, contract.ReasonProposalExpired},
		"a service with a live parent": {func(in *guard.Inputs) { in.Facts.Proposer, in.Facts.ParentLive = "work", true }, ""},
		"a named session of another":   {func(in *guard.Inputs) { in.Facts.Requested = "sha256:0" }, contract.ReasonIdentityIsolationViolation},
		"a key without a fault":        {func(in *guard.Inputs) { in.Facts.Key = &guard.KeyFact{ID: "k"} }, ""},
		"a drifted tool":               {func(in *guard.Inputs) { in.Facts.ToolPinned = "sha256:0" }, contract.ReasonToolDrift},
		"a review that is due":         {func(in *guard.Inputs) { in.Facts.ReviewDue, in.Facts.Kind = true, guard.KindReview }, ""},
		"as dear as the ceilings":      {func(in *guard.Inputs) { in.Tool.Reserve = &contract.Amounts{Cents: 1} }, ""},
		"one host of two is forbidden": {func(in *guard.Inputs) {
			in.Tool.Egress, in.P0.EgressHosts = []string{"a.org", "b.org"}, []string{"a.org"}
		}, contract.ReasonDataEgressBlocked},
		"each host by its own pattern": {func(in *guard.Inputs) {
			in.Tool.Egress, in.P0.EgressHosts = []string{"a.org", "x.b.org"}, []string{"a.org", "*.b.org"}
		}, ""},
	} {
		in := inputs()
		c.spoil(&in)
		v := guard.Judge(in)
		if want := contract.Allow; c.reason == "" && v.Verdict != want || c.reason != "" && (v.Verdict != contract.Deny || v.Reason != c.reason) {
			t.Errorf("%s: %s %s, want %q", name, v.Verdict, v.Reason, c.reason)
		}
	}
}

// TestPatterns checks which kinds and hosts patterns match.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, kind string
		want          bool
	}{
		{"tool.echo", "tool.echo", true}, {"tool.echo", "tool.echo2", false}, {"tool.*", "tool.echo", true}, {"tool.*", "tool.", true}, {"tool.*", "tool", false},
		{"*", "anything", true}, {"", "tool", false}, {"to*l", "tool", false}, {"tool.*", "vault.tool.x", false},
	} {
		if guard.MatchKind(c.pattern, c.kind) != c.want {
			t.Errorf("kind %q under %q: %v", c.kind, c.pattern, !c.want)
		}
	}
	for _, c := range []struct {
		pattern, host string
		want          bool
	}{
		{"a.org", "a.org", true}, {"a.org", "x.a.org", false}, {"*.a.org", "x.a.org", true}, {"*.a.org", "x.y.a.org", true}, {"*.a.org", "a.org", false},
		{"*.a.org", "evil-a.org", false}, {"*a.org", "evil-a.org", false}, {"*", "any.where", true}, {"*.", "a.", true}, {"a.*", "a.org", false}, {"", "a.org", false},
	} {
		if guard.MatchHost(c.pattern, c.host) != c.want {
			t.Errorf("host %q under %q: %v", c.host, c.pattern, !c.want)
		}
	}
}

// TestGovernsCell shows which kinds of calls govern the whole mesh, and which of them
// change tenants.
func TestGovernsCell(t *testing.T) {
	for kind, want := range map[string][2]bool{
		"tenant.create": {true, true}, "tenant.": {true, true}, "policy.freeze": {true, false}, "image.import": {true, false}, guard.KindUnfreeze: {true, false},
		"tenant": {}, "tool.tenant.create": {}, "policy.freezer": {}, guard.KindReview: {}, "": {},
	} {
		if got := [2]bool{guard.GovernsCell(kind), guard.ChangesTenants(kind)}; got != want {
			t.Errorf("%q: %v, want %v", kind, got, want)
		}
	}
}
