package cpi

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

func ceilings() *guard.Ceilings {
	return &guard.Ceilings{ForbiddenKinds: []string{"tool.rm*"}, StartWindowMS: 1000, MaxCents: 1,
		Approvals: []guard.KindApproval{{Kinds: []string{"tool.pay*"}, Rule: contract.ApprovalRule{Quorum: 2, TimeoutMS: 1000}}},
		Limits:    []guard.Limit{{ID: "day", Level: "agent", Measure: "cents", Max: 100, Window: "day"}},
		Sandbox:   contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 1000, Pids: 8, Tier: "process", WallMS: 1000}}
}

func allow(kind string, chain int, conds ...string) Clause {
	return Clause{At: "a.rego:" + kind, Chain: chain, Kind: kind, Conds: conds, Verdict: contract.Allow, Reason: "RULE_A"}
}

func deny(kind string, chain int, conds ...string) Clause {
	return Clause{At: "a.rego:" + kind, Chain: chain, Kind: kind, Conds: conds, Verdict: contract.Deny, Reason: "DENY_A"}
}

func overlay(rules ...guard.OverlayRule) []guard.Overlay {
	return []guard.Overlay{{ID: "o", Scope: "agent", Subject: "alice", Rules: rules}}
}

func bundle(cs ...Clause) []Bundle { return []Bundle{{Name: "b", Clauses: cs}} }

// TestValidate checks the finding that Validate returns for the stack of each case; ""
// means no finding.
func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		stack Stack
		want  string
	}{
		"sound":                        {Stack{P0: ceilings(), Bundles: bundle(deny("tool.x", 0), allow("tool.*", 0))}, ""},
		"no ceilings":                  {Stack{}, "error: structure: p0"},
		"empty bundle":                 {Stack{P0: ceilings(), Bundles: bundle()}, "error: structure: p1 b"},
		"answer that is none":          {Stack{P0: ceilings(), Bundles: bundle(Clause{Kind: "tool.x", Fault: "verdict"})}, "error: structure"},
		"unknown family":               {Stack{P0: ceilings(), Bundles: bundle(allow("tools.x", 0))}, "error: reference"},
		"kind not in the catalog":      {Stack{P0: ceilings(), Known: &Known{Kinds: []string{"tool.y", "tool.rm", "tool.pay"}}, Bundles: bundle(allow("tool.x*", 0))}, "warning: reference"},
		"behind a catch-all":           {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0), deny("tool.x", 0))}, "error: unreachable"},
		"behind fewer conditions":      {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0, "p"), deny("tool.x", 0, "p", "q"))}, "error: unreachable"},
		"behind other conditions":      {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0, "p"), deny("tool.x", 0, "q"))}, ""},
		"two chains, both":             {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0), deny("tool.x", 1))}, "error: contradiction"},
		"two chains, other kinds":      {Stack{P0: ceilings(), Bundles: bundle(allow("tool.a*", 0), deny("tool.x", 1))}, ""},
		"two chains, one negated":      {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0, "p"), deny("tool.*", 1, "not p"))}, ""},
		"two chains, other constants":  {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0, `input.actor == "a"`), deny("tool.*", 1, `input.actor == "b"`))}, ""},
		"an earlier bundle":            {Stack{P0: ceilings(), Bundles: append(bundle(deny("tool.*", 0)), bundle(allow("tool.x", 0))...)}, "warning: unreachable"},
		"P1 allows the forbidden":      {Stack{P0: ceilings(), Bundles: bundle(allow("tool.rmdir", 0))}, "error: widening"},
		"P1 allows what P0 escalates":  {Stack{P0: ceilings(), Bundles: bundle(allow("tool.pay", 0))}, "error: widening"},
		"P1 denies the forbidden":      {Stack{P0: ceilings(), Bundles: bundle(deny("tool.rmdir", 0))}, ""},
		"two chains, any of both":      {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0, "p"), deny("tool.*", 1, "q"))}, "error: contradiction"},
		"two chains, same answer":      {Stack{P0: ceilings(), Bundles: bundle(allow("tool.*", 0), allow("tool.x", 1))}, ""},
		"other kinds than earlier":     {Stack{P0: ceilings(), Bundles: append(bundle(deny("tool.a", 0)), bundle(allow("tool.x", 0))...)}, ""},
		"beginning of a family":        {Stack{P0: ceilings(), Bundles: bundle(deny("too*", 0))}, ""},
		"beginning without a star":     {Stack{P0: ceilings(), Bundles: bundle(deny("too", 0))}, "error: reference"},
		"P1 sandbox above P0":          {Stack{P0: ceilings(), Bundles: bundle(Clause{Kind: "tool.x", Verdict: contract.Allow, Reason: "RULE_A", Sandbox: &contract.Sandbox{MemoryMiB: 65}})}, "error: widening"},
		"P2 allows":                    {Stack{P0: ceilings(), Overlays: overlay(guard.OverlayRule{Kinds: []string{"tool.pay"}, Reason: "RULE_A", Verdict: contract.Allow})}, "error: widening"},
		"P2 narrows":                   {Stack{P0: ceilings(), Overlays: overlay(guard.OverlayRule{Kinds: []string{"tool.*"}, Reason: "DENY_A", Verdict: contract.Deny})}, ""},
		"P2 reason of another verdict": {Stack{P0: ceilings(), Overlays: overlay(guard.OverlayRule{Kinds: []string{"tool.*"}, Reason: "APPROVAL_REQUIRED", Verdict: contract.Deny})}, "error: reference"},
		"P2 contradicts itself": {Stack{P0: ceilings(), Overlays: overlay(guard.OverlayRule{Kinds: []string{"tool.*"}, Reason: "DENY_A", Verdict: contract.Deny},
			guard.OverlayRule{Kinds: []string{"tool.*"}, Reason: "ESCALATE_A", Verdict: contract.Escalate})}, "error: contradiction"},
		"P2 unreachable": {Stack{P0: ceilings(), Overlays: overlay(guard.OverlayRule{Kinds: []string{"tool.*"}, Reason: "DENY_A", Verdict: contract.Deny},
			guard.OverlayRule{Kinds: []string{"tool.x"}, Labels: []string{"web"}, Reason: "DENY_B", Verdict: contract.Deny})}, "error: unreachable"},
		"P2 not on its list": {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "agent", Subject: "t", Only: []string{"llm.*"},
			Rules: []guard.OverlayRule{{Kinds: []string{"tool.x"}, Reason: "DENY_A", Verdict: contract.Deny}}}}}, "error: unreachable"},
		"P1 egress beyond P0":         {Stack{P0: ceilings(), Bundles: bundle(Clause{Kind: "tool.x", Verdict: contract.Allow, Reason: "RULE_A", Egress: [][]contract.EgressRule{{{Host: "evil.example"}}}})}, "error: widening"},
		"P1 egress of any host":       {Stack{P0: ceilings(), Bundles: bundle(Clause{Kind: "tool.x", Verdict: contract.Allow, Reason: "RULE_A", Egress: [][]contract.EgressRule{{{Host: "*", Methods: []string{"GET"}}}}})}, ""},
		"P2 egress beyond P0":         {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Egress: []contract.EgressRule{{Host: "evil.example"}}}}}, "error: widening"},
		"P2 egress with a credential": {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Egress: []contract.EgressRule{{Host: "*", Credential: &contract.EgressCredential{Secret: "s", Header: "h"}}}}}}, "error: structure"},
		"P2 sandbox above P0":         {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Sandbox: &contract.Sandbox{WallMS: 5000, Tier: "process"}}}}, "error: widening"},
		"P2 that cannot be retired":   {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Only: []string{"tool.*"}}}}, "error: lockout"},
		"P2 that denies governing":    {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"*"}, Reason: "DENY_A", Verdict: contract.Deny}}}}}, "error: lockout"},
		"P2 that denies some governing to some": {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_A", Verdict: contract.Deny},
			{Kinds: []string{"*"}, Labels: []string{"web"}, Reason: "DENY_A", Verdict: contract.Deny}, {Kinds: []string{"policy.*"}, Reason: "ESCALATE_A", Verdict: contract.Escalate}}}}}, ""},
		"P2 that ends by itself": {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Expires: "2030-01-01T00:00:00.000Z", Only: []string{"tool.*"}}}}, ""},
		"limits above P0":        {Stack{P0: ceilings(), Limits: []guard.Limit{{ID: "x", Level: "agent", Measure: "cents", Max: 101, Window: "day"}}}, "error: widening"},
		"limits below P0":        {Stack{P0: ceilings(), Limits: []guard.Limit{{ID: "x", Level: "agent", Measure: "cents", Max: 99, Window: "day"}}}, ""},
	} {
		got := Validate(&c.stack)
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: %v", name, got)
		case c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0].String(), c.want)):
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// TestDiffer checks which conditions on one term exclude each other. Constants are
// compared by value, not by their text.
func TestDiffer(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"1", "2", true}, {"1", "1", false}, {"1", "1.0", false}, {"-0", "0", false}, {"0.50", "0.5", false}, {"10", "1e1", false}, {"1.5", "1.25", true},
		{`"a"`, `"b"`, true}, {`"a"`, `"a"`, false}, {`"1"`, "1", true}, {"true", "false", true}, {"true", "1", true}, {"", "1", false}, {"1-2", "3", false}, {"input.b", "1", false},
	} {
		if got := differ("input.a == "+c.a, "input.a == "+c.b); got != c.want {
			t.Errorf("%s and %s: %t", c.a, c.b, got)
		}
	}
	if differ("input.a == 1", "input.b == 2") || differ("input.a", "input.a == 1") {
		t.Error("conditions on different terms exclude each other")
	}
}

// TestBeyond shows that a limit of a sandbox may equal its ceiling, and that the limit above
// its ceiling is named.
func TestBeyond(t *testing.T) {
	at := contract.Sandbox{CPUMillis: 1, MemoryMiB: 2, OutputBytes: 3, Pids: 4, WallMS: 5}
	if got := beyond(&at, &at); got != "" {
		t.Errorf("equal limits: %s", got)
	}
	for name, change := range map[string]func(*contract.Sandbox){
		"cpu_millis": func(s *contract.Sandbox) { s.CPUMillis++ }, "memory_mib": func(s *contract.Sandbox) { s.MemoryMiB++ }, "output_bytes": func(s *contract.Sandbox) { s.OutputBytes++ },
		"pids": func(s *contract.Sandbox) { s.Pids++ }, "wall_ms": func(s *contract.Sandbox) { s.WallMS++ },
	} {
		s := at
		change(&s)
		if got := beyond(&s, &at); got != name {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestLimitsAbove shows that a limit is compared with the ceilings of the same level, measure
// and window, for the same subject or for every subject.
func TestLimitsAbove(t *testing.T) {
	ceiling := guard.Limit{ID: "c", Level: "agent", Measure: "calls", Max: 10, Window: "day"}
	for name, c := range map[string]struct {
		change func(ceiling, l *guard.Limit)
		above  bool
	}{
		"above":           {func(_, _ *guard.Limit) {}, true},
		"equal":           {func(_, l *guard.Limit) { l.Max = 10 }, false},
		"another level":   {func(_, l *guard.Limit) { l.Level = "session" }, false},
		"another measure": {func(_, l *guard.Limit) { l.Measure = "cents" }, false},
		"another window":  {func(_, l *guard.Limit) { l.Window = "month" }, false},
		"one subject":     {func(_, l *guard.Limit) { l.Subject = "alice" }, true},
		"the subject":     {func(c, l *guard.Limit) { c.Subject, l.Subject = "alice", "alice" }, true},
		"another subject": {func(c, l *guard.Limit) { c.Subject, l.Subject = "alice", "bob" }, false},
	} {
		p, l := ceiling, ceiling
		l.ID, l.Max = "l", 11
		c.change(&p, &l)
		s := Stack{P0: ceilings(), Limits: []guard.Limit{l}}
		s.P0.Limits = []guard.Limit{p}
		got := Validate(&s)
		if above := len(got) == 1 && got[0].Check == "widening" && got[0].Pointer == "/limits/0/max"; above != c.above || !above && len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestMeet shows which patterns can match the same kind, in both orders.
func TestMeet(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"tool.x", "tool.x", true}, {"tool.x", "tool.y", false}, {"tool.*", "tool.x", true}, {"tool.*", "llm.chat", false},
		{"tool.*", "tool.x*", true}, {"tool.*", "llm.*", false}, {"*", "tool.x", true}, {"tool.x*", "tool.", false}, {"tool.x", "tool.xy", false},
	} {
		if meet(c.a, c.b) != c.want || meet(c.b, c.a) != c.want {
			t.Errorf("%s and %s: %t and %t, want %t", c.a, c.b, meet(c.a, c.b), meet(c.b, c.a), c.want)
		}
	}
}

// TestSameAnswer shows that clauses do not have the same answer if a verdict is computed, if
// their verdicts or reasons differ, or if one of them has a sandbox.
func TestSameAnswer(t *testing.T) {
	x := allow("tool.x", 0)
	if y := allow("tool.*", 1); !sameAnswer(&y, &x) {
		t.Error("equal answers differ")
	}
	for name, change := range map[string]func(*Clause){
		"computed": func(c *Clause) { c.Verdict = "" }, "verdict": func(c *Clause) { c.Verdict = contract.Escalate },
		"reason": func(c *Clause) { c.Reason = "RULE_B" }, "sandbox": func(c *Clause) { c.Sandbox = &contract.Sandbox{} },
	} {
		y := x
		change(&y)
		if sameAnswer(&y, &x) || sameAnswer(&x, &y) {
			t.Errorf("%s: the answers are the same", name)
		}
	}
	computed := Clause{Kind: "tool.x"}
	if sameAnswer(&computed, &computed) {
		t.Error("computed answers are the same")
	}
}

// TestRuleAfter shows which rule of an overlay is unreachable, and which contradicts an
// earlier one that matches the same calls.
func TestRuleAfter(t *testing.T) {
	rule := func(verdict string, kinds, labels, classes []string) guard.OverlayRule {
		return guard.OverlayRule{Verdict: verdict, Kinds: kinds, Labels: labels, Classes: classes}
	}
	all, one, web, e1, e12 := []string{"tool.*"}, []string{"tool.x"}, []string{"web"}, []string{"E1"}, []string{"E1", "E2"}
	for name, c := range map[string]struct {
		before, r guard.OverlayRule
		want      string
	}{
		"same calls":              {rule("DENY", all, nil, nil), rule("ESCALATE", all, nil, nil), "contradiction"},
		"same calls and verdict":  {rule("DENY", all, nil, nil), rule("DENY", all, nil, nil), "unreachable"},
		"fewer kinds":             {rule("DENY", all, nil, nil), rule("ESCALATE", one, nil, nil), "unreachable"},
		"more kinds":              {rule("DENY", one, nil, nil), rule("ESCALATE", all, nil, nil), ""},
		"a label more":            {rule("DENY", all, nil, nil), rule("ESCALATE", all, web, nil), "unreachable"},
		"a label less":            {rule("DENY", all, web, nil), rule("ESCALATE", all, nil, nil), ""},
		"a class":                 {rule("DENY", all, nil, nil), rule("ESCALATE", all, nil, e1), "unreachable"},
		"a class before":          {rule("DENY", all, nil, e1), rule("ESCALATE", all, nil, nil), ""},
		"a class less":            {rule("DENY", all, nil, e12), rule("ESCALATE", all, nil, e1), "unreachable"},
		"a class more":            {rule("DENY", all, nil, e1), rule("ESCALATE", all, nil, e12), ""},
		"same classes and labels": {rule("DENY", all, web, e1), rule("ESCALATE", all, web, e1), "contradiction"},
	} {
		var k checker
		k.ruleAfter("at", &c.r, &c.before, 0)
		got := ""
		if len(k.out) > 0 {
			got = k.out[0].Check
		}
		if got != c.want || len(k.out) > 1 {
			t.Errorf("%s: %v, want %q", name, k.out, c.want)
		}
	}
}
