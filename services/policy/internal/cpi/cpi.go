// Package cpi is the consistency check of a stack of policies before any of it
// comes into force. It finds malformed documents, references to unknown names,
// contradictions, rules and limits of lower layers that exceed P0, rules that can never
// apply, an overlay that has expired before its activation, and overlays that could not
// be retired.
//
// It is pure, and imports no policy language: package rego describes bundles as
// clauses. The check is conservative: rules that it cannot prove to be disjoint
// are treated as overlapping.
package cpi

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Clause is one rule of a bundle, as far as it can be read without evaluating it.
// The rule applies to calls whose kind matches Kind and for which every condition
// holds.
type Clause struct {
	At      string   // file:line of the rule
	Chain   int      // clauses with the same number are tried in order; those with different numbers are independent
	Conds   []string // normalized texts of the conditions; conditions with equal text are equal
	Kind    string   // kind of call, or a prefix of kinds that ends in "*"
	Verdict string   // verdict of the rule; empty if the rule computes it
	Reason  string
	Fault   string // reason why every result of the rule is rejected, or empty
	Sandbox *contract.Sandbox
	Egress  [][]contract.EgressRule // rules that limit the requests of tools
}

// Bundle is one P1 bundle: its clauses in order, and the constant strings that it
// compares with its input (see Reference).
type Bundle struct {
	Name       string
	Clauses    []Clause
	References []Reference
	Own        bool // the bundle is a tenant's own and evaluated beside those of the cell, not after them
}

// Stack is the set of documents that would be in force together if the checked
// document were activated.
type Stack struct {
	P0       *guard.Ceilings
	Bundles  []Bundle // bundles in order of precedence
	Overlays []guard.Overlay
	Limits   []guard.Limit
	Known    *Known // nil = neither the existence of names nor the expiry of overlays is checked
}

// Finding is one fault of a stack. A stack with a finding of severity "error"
// cannot be activated.
type Finding struct {
	Severity string `json:"severity"` // error or warning
	Check    string `json:"check"`    // structure, reference, expired, contradiction, widening, unreachable, lockout
	Where    string `json:"where"`
	Pointer  string `json:"pointer,omitempty"` // JSON pointer into the document (RFC 6901)
	Message  string `json:"message"`
}

// String returns the finding in one line: severity, check, place and message.
func (f Finding) String() string {
	if f.Pointer != "" {
		return fmt.Sprintf("%s: %s: %s %s: %s", f.Severity, f.Check, f.Where, f.Pointer, f.Message)
	}
	return fmt.Sprintf("%s: %s: %s: %s", f.Severity, f.Check, f.Where, f.Message)
}

// Errors returns the findings that prevent activation, in their order. It does
// not change fs.
func Errors(fs []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(fs), func(f Finding) bool { return f.Severity != "error" })
}

// families lists the prefixes of all kinds that can exist, up to and including the first
// dot.
var families = kindPrefixes()

func kindPrefixes() []string {
	out := services.Families()
	for i := range out {
		out[i] += "."
	}
	return out
}

// checker collects the findings about one stack.
type checker struct {
	s   *Stack
	out []Finding
}

func (c *checker) add(severity, check, where, format string, args ...any) {
	c.out = append(c.out, Finding{Severity: severity, Check: check, Where: where, Message: fmt.Sprintf(format, args...)})
}

// Validate returns the findings about a stack, ordered by layer: ceilings, bundles,
// overlays, limits, then references.
func Validate(s *Stack) []Finding {
	c := &checker{s: s}
	c.ceilings()
	for i := range s.Bundles {
		c.bundle(&s.Bundles[i])
	}
	c.between()
	for i := range s.Overlays {
		c.overlay(&s.Overlays[i])
	}
	c.limits()
	c.references()
	return c.out
}

// ceilings checks that ceilings exist, are valid, and name kinds that can exist.
func (c *checker) ceilings() {
	switch p := c.s.P0; {
	case p == nil:
		c.add("error", "structure", "p0", "there are no ceilings: everything is denied")
	default:
		if err := p.Validate(); err != nil {
			c.add("error", "structure", "p0", "%v", err)
		}
		for _, k := range p.ForbiddenKinds {
			c.kind("p0.forbidden_kinds", k)
		}
		for _, k := range p.CallerKinds {
			c.kind("p0.forbidden_caller_kinds", k)
		}
		for i := range p.Approvals {
			for _, k := range p.Approvals[i].Kinds {
				c.kind(fmt.Sprintf("p0.approvals[%d]", i), k)
			}
		}
	}
}

// kind checks that a pattern can match a kind. It warns if a pattern that ends in "*"
// matches none in the catalog, provided that the catalog is known.
func (c *checker) kind(where, pattern string) {
	if pattern == "*" {
		return
	}
	text := strings.TrimSuffix(pattern, "*")
	if !slices.ContainsFunc(families, func(f string) bool {
		return strings.HasPrefix(text, f) || pattern != text && strings.HasPrefix(f, text)
	}) {
		c.add("error", "reference", where, "kind %q belongs to no family of kinds (%s)", pattern, strings.Join(families, " "))
		return
	}
	if k := c.s.Known; k != nil && text != pattern && !slices.ContainsFunc(k.Kinds, func(k string) bool { return guard.MatchKind(pattern, k) }) {
		c.add("warning", "reference", where, "kind %q matches nothing in the catalog", pattern)
	}
}

// bundle checks that a bundle has clauses, each clause by itself, and every pair of them
// for rules that never apply or that contradict each other.
func (c *checker) bundle(b *Bundle) {
	for i := range b.Clauses {
		x := &b.Clauses[i]
		where := "p1 " + b.Name + " " + x.At
		if x.Fault != "" {
			c.add("error", "structure", where, "%s", x.Fault)
		}
		if x.Verdict == "" && x.Fault == "" {
			c.add("warning", "structure", where, "the answer is computed; it is checked only when it is given")
		}
		if x.Kind != "*" {
			c.kind(where, x.Kind)
		}
		c.widens(where, x)
		for j := range b.Clauses[:i] {
			y := &b.Clauses[j]
			switch {
			case y.Chain == x.Chain && subsumes(y, x):
				c.add("error", "unreachable", where, "the rule at %s answers before it, always", y.At)
			case y.Chain != x.Chain && overlap(y, x) && !sameAnswer(y, x):
				c.add("error", "contradiction", where, "the rule at %s can answer the same call otherwise; join them with else", y.At)
			}
		}
	}
	if len(b.Clauses) == 0 {
		c.add("error", "structure", "p1 "+b.Name, "no rule named answer in package binnacle.p1")
	}
}

// widens finds clauses of P1 whose sandbox or egress exceeds the ceiling, that allow or escalate
// only kinds which P0 forbids, or that allow only kinds for which P0 requires approvers.
func (c *checker) widens(where string, x *Clause) {
	p := c.s.P0
	if p == nil {
		return
	}
	if x.Sandbox != nil {
		if field := beyond(x.Sandbox, &p.Sandbox); field != "" {
			c.add("error", "widening", where, "sandbox.%s is above the ceiling", field)
		}
	}
	for _, list := range x.Egress {
		c.egress(where, list)
	}
	if x.Verdict == contract.Deny || x.Verdict == "" {
		return
	}
	for _, k := range p.ForbiddenKinds {
		if covers(k, x.Kind) {
			c.add("error", "widening", where, "%s for %s, which P0 forbids (%s)", x.Verdict, x.Kind, k)
		}
	}
	for i := range p.Approvals {
		for _, k := range p.Approvals[i].Kinds {
			if x.Verdict == contract.Allow && covers(k, x.Kind) {
				c.add("error", "widening", where, "ALLOW for %s, which P0 lets people decide (%s); write ESCALATE", x.Kind, k)
			}
		}
	}
}

// egress adds a finding for each rule of a layer that states a host, mode, port, method or
// path which the ceilings do not permit; see guard.Ceilings.PermitsEgress. The ceilings
// narrow such a rule when a call is decided, but its author expects that it permits what
// it states.
func (c *checker) egress(where string, rules []contract.EgressRule) {
	if c.s.P0 == nil {
		return
	}
	for i := range rules {
		if !c.s.P0.PermitsEgress(&rules[i]) {
			c.add("error", "widening", where, "egress[%d] permits requests to %s that the ceilings do not permit; narrow it, or add them to the ceilings offline", i, rules[i].Host)
		}
	}
}

// beyond returns the name of the first limit of s that exceeds the ceiling, or
// "".
func beyond(s, ceiling *contract.Sandbox) string {
	for _, f := range []struct {
		name   string
		v, max int64
	}{{"cpu_millis", s.CPUMillis, ceiling.CPUMillis}, {"memory_mib", s.MemoryMiB, ceiling.MemoryMiB}, {"output_bytes", s.OutputBytes, ceiling.OutputBytes},
		{"pids", s.Pids, ceiling.Pids}, {"wall_ms", s.WallMS, ceiling.WallMS}} {
		if f.v > f.max {
			return f.name
		}
	}
	return ""
}

// between finds clauses of later bundles that never apply, because an earlier bundle has
// an answer for every call that they match.
func (c *checker) between() {
	for i := range c.s.Bundles {
		for j := range c.s.Bundles[:i] {
			before, b := &c.s.Bundles[j], &c.s.Bundles[i]
			if before.Own != b.Own {
				continue // the tenant's bundles are evaluated even if one of the cell answers
			}
			for k := range b.Clauses {
				x := &b.Clauses[k]
				for l := range before.Clauses {
					if y := &before.Clauses[l]; y.Fault == "" && subsumes(y, x) {
						c.add("warning", "unreachable", "p1 "+b.Name+" "+x.At, "bundle %s answers before it, at %s", before.Name, y.At)
						break
					}
				}
			}
		}
	}
}

// limits checks that the limits are valid, and finds those whose maximum is above that
// of a limit in the ceilings with the same level, measure and window, for the same
// subject or for every subject.
func (c *checker) limits() {
	if err := guard.CheckLimits(c.s.Limits); err != nil {
		c.add("error", "structure", "limits", "%v", err)
	}
	if c.s.P0 == nil {
		return
	}
	for i := range c.s.Limits {
		l := &c.s.Limits[i]
		for j := range c.s.P0.Limits {
			p := &c.s.P0.Limits[j]
			if p.Level == l.Level && p.Measure == l.Measure && p.Window == l.Window && (p.Subject == "" || p.Subject == l.Subject) && l.Max > p.Max {
				c.out = append(c.out, Finding{Severity: "error", Check: "widening", Where: "limits " + l.ID, Pointer: fmt.Sprintf("/limits/%d/max", i),
					Message: fmt.Sprintf("max %d is above the ceiling of %d (%s)", l.Max, p.Max, p.ID)})
			}
		}
	}
}

// covers reports whether pattern a matches every kind that pattern b matches.
func covers(a, b string) bool {
	prefix, wild := strings.CutSuffix(a, "*")
	return a == b || wild && strings.HasPrefix(strings.TrimSuffix(b, "*"), prefix)
}

// meet reports whether some kind could match both patterns.
func meet(a, b string) bool {
	ta, wa := strings.CutSuffix(a, "*")
	tb, wb := strings.CutSuffix(b, "*")
	switch {
	case wa && wb:
		return strings.HasPrefix(ta, tb) || strings.HasPrefix(tb, ta)
	case wa:
		return strings.HasPrefix(tb, ta)
	case wb:
		return strings.HasPrefix(ta, tb)
	}
	return ta == tb
}

// coversAll reports whether every pattern of b is covered by a pattern of a.
func coversAll(a, b []string) bool {
	return !slices.ContainsFunc(b, func(k string) bool {
		return !slices.ContainsFunc(a, func(p string) bool { return covers(p, k) })
	})
}

// subset reports whether b holds every element of a.
func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(x string) bool { return !slices.Contains(b, x) })
}

// subsumes reports whether it is certain that clause y applies to every call that clause
// x applies to.
func subsumes(y, x *Clause) bool { return covers(y.Kind, x.Kind) && subset(y.Conds, x.Conds) }

// overlap reports whether some call could match both clauses. It returns false only if
// it is certain that none can.
func overlap(y, x *Clause) bool {
	if !meet(y.Kind, x.Kind) {
		return false
	}
	for _, a := range y.Conds {
		for _, b := range x.Conds {
			if a == "not "+b || b == "not "+a || differ(a, b) {
				return false
			}
		}
	}
	return true
}

// differ reports whether both conditions are equalities (==) of the same term with
// constants of different values, so that they cannot both hold.
func differ(a, b string) bool {
	la, ra, ok1 := strings.Cut(a, " == ")
	lb, rb, ok2 := strings.Cut(b, " == ")
	if !ok1 || !ok2 || la != lb {
		return false
	}
	va, ok1 := constant(ra)
	vb, ok2 := constant(rb)
	return ok1 && ok2 && va != vb
}

// constant returns the canonical text of a term that is a string, a boolean or a number
// without an exponent. Constants with the same value, such as 1 and 1.0, have the same
// text. The second result is false for other terms.
func constant(s string) (string, bool) {
	if strings.HasPrefix(s, `"`) || s == "true" || s == "false" {
		return s, true
	}
	if strings.Trim(s, "0123456789.-") != "" {
		return "", false
	}
	n, ok := new(big.Rat).SetString(s)
	if !ok {
		return "", false
	}
	return n.RatString(), true
}

// sameAnswer reports whether both clauses have the same constant answer and no limits,
// so that their overlap is harmless.
func sameAnswer(y, x *Clause) bool {
	return y.Verdict != "" && y.Verdict == x.Verdict && y.Reason == x.Reason && y.Sandbox == nil && x.Sandbox == nil && len(y.Egress)+len(x.Egress) == 0
}
