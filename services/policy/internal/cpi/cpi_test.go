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
		"P2 sandbox above P0":       {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Sandbox: &contract.Sandbox{WallMS: 5000, Tier: "process"}}}}, "error: widening"},
		"P2 that cannot be retired": {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Only: []string{"tool.*"}}}}, "error: lockout"},
		"P2 that denies governing":  {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"*"}, Reason: "DENY_A", Verdict: contract.Deny}}}}}, "error: lockout"},
		"P2 that ends by itself":    {Stack{P0: ceilings(), Overlays: []guard.Overlay{{ID: "o", Scope: "tenant", Subject: "t", Expires: "2030-01-01T00:00:00.000Z", Only: []string{"tool.*"}}}}, ""},
		"limits above P0":           {Stack{P0: ceilings(), Limits: []guard.Limit{{ID: "x", Level: "agent", Measure: "cents", Max: 101, Window: "day"}}}, "error: widening"},
		"limits below P0":           {Stack{P0: ceilings(), Limits: []guard.Limit{{ID: "x", Level: "agent", Measure: "cents", Max: 99, Window: "day"}}}, ""},
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
