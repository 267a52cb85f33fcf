package guard_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

var rule = contract.ApprovalRule{Quorum: 1, TimeoutMS: 1000}

// TestCombine checks the precedence of verdicts and reasons, the union of approvals and
// obligations, and the minimum of sandbox limits.
func TestCombine(t *testing.T) {
	deny, ask, yes := guard.Answer{Verdict: contract.Deny, Reason: "D"}, guard.Answer{Verdict: contract.Escalate, Reason: "E", Approvals: []contract.ApprovalRule{rule}}, guard.Answer{Verdict: contract.Allow, Reason: "A"}
	two := contract.ApprovalRule{Quorum: 2, TimeoutMS: 1}
	for name, c := range map[string]struct {
		layers []guard.Answer
		want   guard.Answer
	}{
		"none":                      {nil, guard.Answer{}},
		"no opinion":                {[]guard.Answer{{}, {}}, guard.Answer{}},
		"the only one":              {[]guard.Answer{{}, yes, {}}, yes},
		"deny is strongest":         {[]guard.Answer{yes, ask, deny}, guard.Answer{Verdict: contract.Deny, Reason: "D", Approvals: ask.Approvals}},
		"escalate before allow":     {[]guard.Answer{yes, ask}, ask},
		"the earlier reason counts": {[]guard.Answer{yes, {Verdict: contract.Allow, Reason: "B"}}, yes},
		"every approval rule": {[]guard.Answer{ask, {Verdict: contract.Escalate, Reason: "F", Approvals: []contract.ApprovalRule{two}}},
			guard.Answer{Verdict: contract.Escalate, Reason: "E", Approvals: []contract.ApprovalRule{rule, two}}},
		"rules of who does not ask": {[]guard.Answer{{Verdict: contract.Allow, Reason: "A", Approvals: []contract.ApprovalRule{two}}}, yes},
		"every obligation":          {[]guard.Answer{{Obliged: []string{"a"}}, yes, {Obliged: []string{"b"}}}, guard.Answer{Verdict: contract.Allow, Reason: "A", Obliged: []string{"a", "b"}}},
		"an unknown verdict":        {[]guard.Answer{yes, {Verdict: "MAYBE", Obliged: []string{"a"}}}, guard.Answer{Verdict: contract.Deny, Reason: contract.ReasonPrgEvaluationError}},
		"limits by minimum": {[]guard.Answer{{Sandbox: &contract.Sandbox{MemoryMiB: 9, Pids: 1}}, yes, {Sandbox: &contract.Sandbox{MemoryMiB: 3, Pids: 2}}},
			guard.Answer{Verdict: contract.Allow, Reason: "A", Sandbox: &contract.Sandbox{MemoryMiB: 3, Pids: 1}}},
	} {
		if got := guard.Combine(c.layers...); !equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func equal(a, b guard.Answer) bool {
	return a.Verdict == b.Verdict && a.Reason == b.Reason && slices.Equal(a.Obliged, b.Obliged) && reflect.DeepEqual(a.Sandbox, b.Sandbox) &&
		slices.EqualFunc(a.Approvals, b.Approvals, func(x, y contract.ApprovalRule) bool { return reflect.DeepEqual(x, y) })
}

// TestNarrowMeet shows that Narrow takes the smaller value of each limit and the
// stronger tier, from either argument, and that a zero limit is no limit. It also checks
// which tiers satisfy which.
func TestNarrowMeet(t *testing.T) {
	a := contract.Sandbox{CPUMillis: 1, MemoryMiB: 20, OutputBytes: 3, Pids: 40, WallMS: 5}
	b := contract.Sandbox{CPUMillis: 10, MemoryMiB: 2, OutputBytes: 30, Pids: 4, WallMS: 50}
	want := contract.Sandbox{CPUMillis: 1, MemoryMiB: 2, OutputBytes: 3, Pids: 4, WallMS: 5}
	if guard.Narrow(a, b) != want || guard.Narrow(b, a) != want || guard.Narrow(want, want) != want {
		t.Error(guard.Narrow(a, b), guard.Narrow(b, a))
	}
	if none := (contract.Sandbox{}); guard.Narrow(a, none) != a || guard.Narrow(none, a) != a {
		t.Error("a zero limit bounds")
	}
	for _, c := range []struct{ a, b, want string }{
		{"", "", ""}, {"process", "", "process"}, {"", "wasi", "wasi"}, {"process", "wasi", "wasi"}, {"wasi", "process", "wasi"}, {"wasi", "container", "container"},
		{"container", "process", "container"}, {"container", "container", "container"}, {"process", "cardboard", "cardboard"}, {"cardboard", "container", "cardboard"},
	} {
		if got := guard.Narrow(contract.Sandbox{Tier: c.a}, contract.Sandbox{Tier: c.b}).Tier; got != c.want {
			t.Errorf("tier %q and %q: %q, want %q", c.a, c.b, got, c.want)
		}
	}
	for _, c := range []struct {
		have, want string
		ok         bool
	}{
		{"container", "process", true}, {"process", "process", true}, {"process", "wasi", false}, {"wasi", "process", true}, {"wasi", "container", false},
		{"cardboard", "process", false}, {"cardboard", "cardboard", false}, {"", "process", false},
		{"process", "", false}, {"", "", false}, {"container", "cardboard", false}, {"process", "Process", false},
	} {
		if guard.TierSatisfies(c.have, c.want) != c.ok {
			t.Errorf("%q satisfies %q: %v", c.have, c.want, !c.ok)
		}
	}
}

// TestNoRoom shows that a call is denied if a limit is zero in both the tool's sandbox
// and the ceilings, if both have no tier, or if both have an unknown user id.
func TestNoRoom(t *testing.T) {
	for name, shrink := range map[string]func(s *contract.Sandbox){
		"cpu": func(s *contract.Sandbox) { s.CPUMillis = 0 }, "memory": func(s *contract.Sandbox) { s.MemoryMiB = 0 }, "output": func(s *contract.Sandbox) { s.OutputBytes = 0 },
		"pids": func(s *contract.Sandbox) { s.Pids = 0 }, "wall": func(s *contract.Sandbox) { s.WallMS = 0 }, "tier": func(s *contract.Sandbox) { s.Tier = "" }, "uid": func(s *contract.Sandbox) { s.UID = "root" },
	} {
		in := inputs()
		shrink(in.Tool.Sandbox)
		shrink(&in.P0.Sandbox)
		if v := guard.Judge(in); v.Verdict != contract.Deny || v.Reason != contract.ReasonSandboxViolation {
			t.Errorf("%s: %s %s", name, v.Verdict, v.Reason)
		}
	}
}

// TestParts checks which parts Explain lists and in which order, the verdict of the last
// part, and that the verdict of Explain equals Judge's.
func TestParts(t *testing.T) {
	layers := []guard.Step{{Part: guard.PartSchema}, {Part: guard.PartRules, Name: "r", Verdict: contract.Allow}}
	for name, c := range map[string]struct {
		change func(in *guard.Inputs)
		parts  []string
		last   string // expected verdict of the last part; empty = it has none
	}{
		"allowed": {func(*guard.Inputs) {}, []string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings}, ""},
		"dual control": {func(in *guard.Inputs) { in.Facts.DualControl = true },
			[]string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings, guard.PartDualControl, guard.PartPeople}, contract.Escalate},
		"limits": {func(in *guard.Inputs) { in.Facts.Budget = &guard.BudgetFact{} },
			[]string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings, guard.PartLimits}, ""},
		"exceeded": {func(in *guard.Inputs) { in.Facts.Budget = &guard.BudgetFact{Refused: "R"} },
			[]string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings, guard.PartLimits}, contract.Deny},
		"exceeded, escalates": {func(in *guard.Inputs) { in.Facts.Budget = &guard.BudgetFact{Refused: "R", Escalate: true} },
			[]string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings, guard.PartLimits, guard.PartPeople}, contract.Escalate},
		"denied, limits are not applied": {func(in *guard.Inputs) { in.P1 = guard.Answer{}; in.Facts.Budget = &guard.BudgetFact{Refused: "R"} },
			[]string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings}, ""},
		"no room": {func(in *guard.Inputs) { in.P0.Sandbox.Pids = -1 },
			[]string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings, guard.PartSandbox}, contract.Deny},
		"no tool sandbox, no room needed": {func(in *guard.Inputs) { in.Tool.Sandbox, in.P0.Sandbox.Pids = nil, -1 },
			[]string{guard.PartGates, guard.PartSchema, guard.PartRules, guard.PartCeilings}, ""},
		"gate": {func(in *guard.Inputs) { in.Tool = nil }, []string{guard.PartGates}, contract.Deny},
	} {
		in := inputs()
		c.change(&in)
		v, steps := guard.Explain(in, layers)
		var parts []string
		for _, s := range steps {
			parts = append(parts, s.Part)
		}
		if !slices.Equal(parts, c.parts) || steps[len(steps)-1].Verdict != c.last {
			t.Errorf("%s: %v, %q last; want %v, %q", name, parts, steps[len(steps)-1].Verdict, c.parts, c.last)
		}
		if !equal(v, guard.Judge(in)) {
			t.Errorf("%s: explained as %+v, judged as %+v", name, v, guard.Judge(in))
		}
	}
}

// TestSettle checks the verdict that replaces an ESCALATE for combinations of votes,
// expiry and break-glass. An ESCALATE that is not replaced must have an approval rule
// with at least a minute to vote.
func TestSettle(t *testing.T) {
	vote := func(who, vote string, roles ...string) guard.ApprovalFact {
		return guard.ApprovalFact{Approver: who, EventID: "e-" + who, Roles: roles, Vote: vote}
	}
	approver := guard.DefaultRole
	for name, c := range map[string]struct {
		change          func(in *guard.Inputs)
		verdict, reason string
	}{
		"not settled": {func(*guard.Inputs) {}, contract.Escalate, "ASK"},
		"granted": {func(in *guard.Inputs) {
			in.Facts.Approvals = []guard.ApprovalFact{vote("bob", contract.Grant, approver)}
		}, contract.Allow, contract.ReasonApproved},
		"granted, no votes": {func(*guard.Inputs) {}, contract.Deny, contract.ReasonApprovalDenied},
		"granted by a refusal": {func(in *guard.Inputs) {
			in.Facts.Approvals = []guard.ApprovalFact{vote("bob", contract.Refuse, approver)}
		}, contract.Deny, contract.ReasonApprovalDenied},
		"granted by the actor": {func(in *guard.Inputs) {
			in.Facts.Approvals = []guard.ApprovalFact{vote("alice", contract.Grant, approver)}
		}, contract.Deny, contract.ReasonApprovalDenied},
		"granted by whom it is for": {func(in *guard.Inputs) {
			in.Facts.OnBehalfOf, in.Facts.Approvals = "bob", []guard.ApprovalFact{vote("bob", contract.Grant, approver)}
		}, contract.Deny, contract.ReasonApprovalDenied},
		"the role of the rule": {func(in *guard.Inputs) {
			in.P1.Approvals = []contract.ApprovalRule{{Quorum: 1, Roles: []string{"lead", "ops"}, TimeoutMS: 1}}
			in.Facts.Approvals = []guard.ApprovalFact{vote("bob", contract.Grant, "guest", "ops")}
		}, contract.Allow, contract.ReasonApproved},
		"the default role, where another is named": {func(in *guard.Inputs) {
			in.P1.Approvals = []contract.ApprovalRule{{Quorum: 1, Roles: []string{"lead"}, TimeoutMS: 1}}
			in.Facts.Approvals = []guard.ApprovalFact{vote("bob", contract.Grant, approver)}
		}, contract.Deny, contract.ReasonApprovalDenied},
		"a quorum of none is one": {func(in *guard.Inputs) { in.P1.Approvals = []contract.ApprovalRule{{}} }, contract.Deny, contract.ReasonApprovalDenied},
		"one rule of two": {func(in *guard.Inputs) {
			in.P1.Approvals = []contract.ApprovalRule{rule, {Quorum: 1, Roles: []string{"lead"}}}
			in.Facts.Approvals = []guard.ApprovalFact{vote("bob", contract.Grant, approver)}
		}, contract.Deny, contract.ReasonApprovalDenied},
		"break glass": {func(in *guard.Inputs) { in.Facts.Resolution, in.Facts.BreakGlass = "", "g-1" }, contract.Allow, contract.ReasonBreakGlass},
		"break glass, and dual control": {func(in *guard.Inputs) {
			in.Facts.Resolution, in.Facts.BreakGlass, in.Facts.DualControl = "", "g-1", true
		}, contract.Escalate, "ASK"},
		"denied, and break glass": {func(in *guard.Inputs) { in.Facts.Resolution, in.Facts.BreakGlass = "denied", "g-1" }, contract.Deny, contract.ReasonApprovalDenied},
		"timed out":               {func(in *guard.Inputs) { in.Facts.Resolution = "timed_out" }, contract.Deny, contract.ReasonApprovalTimeout},
	} {
		in := inputs()
		in.P1 = guard.Answer{Verdict: contract.Escalate, Reason: "ASK"}
		if name != "not settled" {
			in.Facts.Resolution, in.Facts.Resolved = "granted", in.Facts.Now
		}
		c.change(&in)
		v := guard.Judge(in)
		if v.Verdict != c.verdict || v.Reason != c.reason {
			t.Errorf("%s: %s %s, want %s %s", name, v.Verdict, v.Reason, c.verdict, c.reason)
		}
		if v.Verdict == contract.Escalate && (len(v.Approvals) == 0 || v.Approvals[0].TimeoutMS < time.Minute.Milliseconds()) {
			t.Errorf("%s: no rule, or too little time: %+v", name, v.Approvals)
		}
	}
}
