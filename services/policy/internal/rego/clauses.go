package rego

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
)

// Clauses returns the rules named answer in the package binnacle.p1 as clauses for the
// consistency check. It reads their syntax and evaluates nothing.
func (e *Engine) Clauses() []cpi.Clause {
	var out, last []cpi.Clause
	chain := 0
	for _, name := range slices.Sorted(maps.Keys(e.modules)) {
		m := e.modules[name]
		if m.Package.Path.String() != "data.binnacle.p1" {
			continue
		}
		for _, r := range m.Rules {
			if string(r.Head.Name) != "answer" {
				continue
			}
			if r.Default {
				c := clause(r)
				c.Chain = -1
				last = append(last, c)
				continue
			}
			for x := r; x != nil; x = x.Else {
				c := clause(x)
				c.Chain = chain
				out = append(out, c)
			}
			chain++
		}
	}
	if chain == 1 { // there is only one chain, so the default rule is its last clause
		for i := range last {
			last[i].Chain = 0
		}
	}
	return append(out, last...)
}

// clause returns the part of a rule that can be read without evaluation: its place, its
// conditions and, if it is constant, its answer. The first condition that requires the
// kind to equal a constant, or to begin with one, becomes Kind; the other conditions are
// stored as text. If a constant answer is invalid, Fault is the reason.
func clause(r *ast.Rule) cpi.Clause {
	c := cpi.Clause{At: fmt.Sprintf("%s:%d", strings.TrimPrefix(r.Location.File, "/"), r.Location.Row), Kind: "*"}
	for _, x := range r.Body {
		text := x.String()
		if text == "true" {
			continue
		}
		if k := kindOf(x); k != "" && c.Kind == "*" && !x.Negated {
			c.Kind = k
			continue
		}
		c.Conds = append(c.Conds, normal(x, text))
	}
	if r.Head.Value == nil || !ast.IsConstant(r.Head.Value.Value) {
		return c
	}
	v, err := ast.JSON(r.Head.Value.Value)
	m, ok := v.(map[string]any)
	if err != nil || !ok {
		c.Fault = "the answer is not an object with verdict and reason_code"
		return c
	}
	a, err := answerOf(m)
	if err != nil {
		c.Fault = err.Error()
	}
	c.Verdict, c.Reason, c.Sandbox, c.Egress = a.Verdict, a.Reason, a.Sandbox, a.Egress
	return c
}

// References returns the constant strings that the modules of a bundle compare with
// parts of their input, by equality or inequality, or whose membership in a part of the
// input they test.
func (e *Engine) References() []cpi.Reference {
	var out []cpi.Reference
	for _, name := range slices.Sorted(maps.Keys(e.modules)) {
		ast.WalkExprs(e.modules[name], func(x *ast.Expr) bool {
			if !x.IsCall() {
				return false
			}
			ops := x.Operands()
			switch op := x.Operator().String(); {
			case len(ops) != 2:
				return false
			case op == "internal.member_2":
			case op == "equal" || op == "eq" || op == "neq":
				if _, ok := ops[1].Value.(ast.String); ok {
					ops = []*ast.Term{ops[1], ops[0]}
				}
			default:
				return false
			}
			value, ok1 := ops[0].Value.(ast.String)
			ref, ok2 := ops[1].Value.(ast.Ref)
			if ok1 && ok2 && ref[0].Equal(ast.InputRootDocument) {
				out = append(out, cpi.Reference{At: fmt.Sprintf("%s:%d", strings.TrimPrefix(x.Location.File, "/"), x.Location.Row), Path: ref.String(), Value: string(value)})
			}
			return false
		})
	}
	return out
}

// kindOf returns the pattern of kinds that an expression, regardless of its negation,
// compares input.kind with, or "" if it is not such a comparison. The caller must check
// x.Negated.
func kindOf(x *ast.Expr) string {
	if !x.IsCall() {
		return ""
	}
	ops := x.Operands()
	if len(ops) != 2 {
		return ""
	}
	text := func(t *ast.Term) (string, bool) { s, ok := t.Value.(ast.String); return string(s), ok }
	isKind := func(t *ast.Term) bool { return t.String() == "input.kind" }
	switch x.Operator().String() {
	case "equal", "eq":
		if s, ok := text(ops[1]); ok && isKind(ops[0]) {
			return s
		}
		if s, ok := text(ops[0]); ok && isKind(ops[1]) {
			return s
		}
	case "startswith":
		if s, ok := text(ops[1]); ok && isKind(ops[0]) {
			return s + "*"
		}
	}
	return ""
}

// normal returns the text of the expression x, which the caller passes as text. It writes
// an equality that is not negated with "==". If one operand is a reference, a reference
// comes first, so that equalities can be compared.
func normal(x *ast.Expr, text string) string {
	if x.IsCall() && !x.Negated {
		if ops := x.Operands(); len(ops) == 2 && (x.Operator().String() == "equal" || x.Operator().String() == "eq") {
			a, b := ops[0].String(), ops[1].String()
			if _, ok := ops[0].Value.(ast.Ref); !ok {
				a, b = b, a
			}
			return a + " == " + b
		}
	}
	return text
}
