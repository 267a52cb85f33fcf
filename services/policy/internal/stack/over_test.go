package stack

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// put returns s with an activation or retirement of a document.
func put(t *testing.T, s Stack, layer, name, digest string, precedence int64, doc any) Stack {
	t.Helper()
	s, err := s.With(&contract.Activated{Layer: layer, Name: name, Digest: digest, Precedence: precedence, Retired: doc == nil}, doc)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shown returns the digests of the documents in force, in order.
func shown(s Stack) string {
	var out []string
	for _, a := range s.InForce() {
		out = append(out, a.Digest)
	}
	return strings.Join(out, " ")
}

// TestOver shows that a tenant has the ceilings and every bundle of the cell, in front of its own
// bundles and overlays, whatever the names and the precedence of its own are and whatever it has
// retired; that a bundle added to the result is the tenant's; and that the cell's stack does not
// change. Before the cell is opened, all bundles are those of the tenant.
func TestOver(t *testing.T) {
	put := func(s Stack, layer, name, digest string, precedence int64, retired bool) Stack {
		doc := map[string]any{"p0": &guard.Ceilings{}, "p1": &rego.Engine{}, "p2": &guard.Overlay{}}[layer]
		if retired {
			doc = nil
		}
		return put(t, s, layer, name, digest, precedence, doc)
	}
	ceilings := put(Stack{}, "p0", "", "P0", 0, false)
	base := put(put(put(ceilings, "p1", "default", "D", 1000, false), "p1", "first", "F", 1, false), "p1", "gone", "G", 2, false)
	own := put(put(put(Stack{}, "p1", "own", "O", 500, false), "p2", "x", "X", 0, false), "p1", "gone", "G", 2, true)
	for _, c := range []struct {
		own  Stack
		want string
	}{
		{Stack{}, "P0 F G D"},
		{own, "P0 F G D O X"},
		{put(own, "p1", "default", "D2", 0, false), "P0 F G D D2 O X"},
		{put(own, "p1", "default", "D", 0, false), "P0 F G D D O X"},
		{put(put(own, "p1", "default", "D2", 10, false), "p1", "default", "D2", 10, true), "P0 F G D O X"},
	} {
		over := c.own.Over(base)
		if got := shown(over); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if got, want := shown(put(over, "p1", "a", "A", -1, false)), strings.Replace(c.want, "G D", "G D A", 1); got != want {
			t.Errorf("with one more: %s, want %s", got, want)
		}
		if got, want := shown(put(over, "p1", "first", "A", 0, true)), c.want; got != want {
			t.Errorf("with one retired: %s, want %s", got, want)
		}
		if c.own.Ceilings() != nil || over.Ceilings() == nil || shown(base) != "P0 F G D" {
			t.Error("the ceilings are wrong, or a stack has changed")
		}
	}
	if got := shown(own.Under(ceilings)); got != "P0 O X" {
		t.Errorf("before the cell is opened: %s", got)
	}
	if got := shown(put(own.Over(base).Of(true), "p1", "first", "F2", 1, false)); got != "P0 F2 G D O X" {
		t.Errorf("with another bundle of the cell: %s", got)
	}
	if !(&Stack{}).Empty() || own.Empty() {
		t.Error("which stack is empty is wrong")
	}
}

// TestOwnBundlesNarrow shows that bundles of a tenant deny, escalate and limit what the
// bundles of the cell allow and never allow more, whatever their name, precedence, package
// and content, also for a delegated call; and that the decision, taken again from what it
// records, is the same. Without Facts.OwnBundles, as earlier releases recorded them, the
// same bundles are one list.
func TestOwnBundlesNarrow(t *testing.T) {
	const deny, escalate = `answer := {"verdict": "DENY", "reason_code": "DENY_CELL"}`, `answer := {"verdict": "ESCALATE", "reason_code": "ESCALATE_CELL"}`
	const silent = `answer := {"verdict": "DENY", "reason_code": "DENY_OTHER"} if input.kind == "tool.other"`
	const delegator = `answer := {"verdict": "DENY", "reason_code": "DENY_BOSS"} if input.actor == "boss"
else := {"verdict": "ALLOW", "reason_code": "RULE_ALL"}`
	signer, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, cell, own string
		delegated       bool
		want, before    string // results with own bundles and as one list, in which the tenant's comes first
	}{
		{name: "the tenant allows what the cell denies", cell: deny, own: permit, want: "DENY_CELL", before: "RULE_ALL"},
		{name: "the tenant allows what the cell escalates", cell: escalate, own: permit, want: "ESCALATE_CELL", before: "RULE_ALL"},
		{name: "the tenant escalates what the cell denies", cell: deny, own: escalate, want: "DENY_CELL", before: "ESCALATE_CELL"},
		{name: "the tenant allows what no bundle of the cell names", cell: silent, own: permit, want: contract.ReasonNoPolicyDefined, before: "RULE_ALL"},
		{name: "the tenant denies", cell: permit, own: strings.Replace(deny, "CELL", "OWN", 1), want: "DENY_OWN", before: "DENY_OWN"},
		{name: "the tenant escalates", cell: permit, own: strings.Replace(escalate, "CELL", "OWN", 1), want: "ESCALATE_OWN", before: "ESCALATE_OWN"},
		{name: "the tenant has no answer", cell: permit, own: silent, want: "RULE_ALL", before: "RULE_ALL"},
		{name: "both allow", cell: permit, own: strings.Replace(permit, "RULE_ALL", "RULE_OWN", 1), want: "RULE_ALL", before: "RULE_OWN"},
		{name: "the cell denies the delegator", cell: delegator, own: permit, delegated: true, want: "DENY_BOSS", before: "RULE_ALL"},
		{name: "the tenant denies the delegator", cell: permit, own: delegator, delegated: true, want: "DENY_BOSS", before: "DENY_BOSS"},
	} {
		base := put(t, Stack{}, "p0", "", "P0", 0, &guard.Ceilings{StartWindowMS: 60000, MaxCents: 1})
		base = put(t, base, "p1", "default", "sha256:cell", 1000, bundleOf(t, c.cell))
		own := put(t, Stack{}, "p1", "default", "sha256:own", -1, bundleOf(t, c.own))
		s := own.Over(base)
		call := Call{ID: "c-1", Args: []byte(`{}`), Facts: guard.Facts{Actor: "alice", Kind: "tool.echo", Tool: "echo", Proposer: "gateway", Session: "s", Tenant: "t",
			ArgsDigest: sign.Digest([]byte(`{}`)), Client: "-", Now: contract.Time(noon), Proposed: contract.Time(noon), Deadline: contract.Time(noon.Add(60e9)), Scopes: []string{}}}
		if c.delegated {
			call.Facts.OnBehalfOf, call.Facts.Delegation, call.Facts.Delegator = "boss", "g-1", &guard.DelegatorFact{}
		}
		b := s.Basis(offer{tool: echo(nil)}, &call.Facts)
		if call.Facts.OwnBundles != 1 || b.Digests.P1 != "sha256:cell+sha256:own" {
			t.Fatalf("%s: %d own bundles of %s", c.name, call.Facts.OwnBundles, b.Digests.P1)
		}
		eval := Evaluate(t.Context(), b, call)
		d := eval.Decide(7, signer)
		if d.ReasonCode != c.want {
			t.Errorf("%s: %s, want %s", c.name, d.ReasonCode, c.want)
		}
		var a Archive
		a.Add("p0", "P0", s.ceilings)
		for _, x := range s.all() {
			a.Add("p1", x.Digest, x.engine)
		}
		a.AddTool(echo(nil))
		again := Call{ID: "c-1", Args: call.Args, Explain: true}
		if err := contract.Decode(d.Facts, &again.Facts); err != nil {
			t.Fatal(err)
		}
		basis, err := a.Basis(&contract.Event{Name: contract.EventAllowed, Version: 6}, &d, &again.Facts)
		if err != nil {
			t.Fatal(err)
		}
		eval = Evaluate(t.Context(), basis, again)
		if verdict, reason, hash := eval.Again(); verdict != d.Verdict || reason != d.ReasonCode || hash != d.PolicyHash {
			t.Errorf("%s: taken again: %s %s", c.name, verdict, reason)
		}
		if rules := ruleSteps(&eval); rules < 1 || rules > 2 {
			t.Errorf("%s: %d bundles are explained", c.name, rules)
		}
		old := again
		old.Facts.OwnBundles, basis.Digests.P1 = 0, "sha256:own+sha256:cell"
		basis.Bundles = []*rego.Engine{s.own[0].engine, s.bundles[0].engine}
		eval = Evaluate(t.Context(), basis, old)
		if got := eval.Verdict(); got.Reason != c.before {
			t.Errorf("%s: as one list: %s, want %s", c.name, got.Reason, c.before)
		}
	}
}

// ruleSteps returns the number of bundles in an explanation.
func ruleSteps(e *Evaluation) (n int) {
	for _, s := range e.Steps() {
		if s.Part == guard.PartRules {
			n++
		}
	}
	return n
}

// TestOwnBundlesCount shows that no recorded number of own bundles makes Evaluate panic,
// and that with a number that is too great no bundle counts as one of the cell.
func TestOwnBundlesCount(t *testing.T) {
	for _, n := range []int64{-1, 0, 1, 2, 3, canon.MaxInt} {
		b := Basis{Bundles: []*rego.Engine{bundleOf(t, permit), bundleOf(t, permit)}}
		got := answerOf(&b, &guard.Facts{OwnBundles: n}, func(int) guard.Answer { return guard.Answer{Verdict: contract.Allow} })
		if (got.Verdict == contract.Allow) != (n < 2) {
			t.Errorf("%d: %q", n, got.Verdict)
		}
	}
}
