// Package stack holds the policy documents that govern calls, and the only
// function that evaluates a call by them.
//
// A decision rests on signed ceilings (P0), bundles of Rego (P1), overlays that
// narrow (P2), limits, the tool's own document, and the facts of the call, such as
// the labels of the data that can have caused it. Evaluate is used for new calls, for
// recorded decisions that replay takes again, for simulations of candidate documents,
// and for explanations.
//
// Evaluate evaluates the documents. Package guard of the trusted core joins their
// answers into a verdict, and only that package signs decisions.
package stack

import (
	"context"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Basis is the set of documents that one call is decided by.
type Basis struct {
	Tool     *contract.Tool   // nil = the tool is unknown
	Ceilings *guard.Ceilings  // nil = no ceilings, so the call is denied
	Bundles  []*rego.Engine   // bundles in the order in which they are evaluated; the last Facts.OwnBundles of them are the tenant's own
	Overlays []*guard.Overlay // overlays that apply to the call
	Digests  contract.PolicyDigests
	Rules    toolschema.Rules // how the tool's input schema is applied
}

// Call is the input of a decision about one call. Args come from the caller; Facts are
// collected by policy.
type Call struct {
	ID      string
	IdemKey string
	Facts   guard.Facts
	Args    []byte // args as JSON; nil if they cannot be read
	// Explain records the answer of each document, and the matching rule of each bundle,
	// for Steps, at the cost of a second evaluation of each bundle.
	Explain bool
}

// Evaluation holds the results (guard.Answer) of the input schema, the bundles and the
// overlays for one call. Verdict, Decide, Again and Steps use the same results. An
// Evaluation must be used by one goroutine only.
type Evaluation struct {
	inputs guard.Inputs
	steps  []guard.Step // answers of the documents, in order; nil unless Call.Explain is set
}

// Evaluate evaluates the input schema, the bundles and the overlays of a basis for a
// call. If the tool is unknown, or if the args are missing or rejected by the tool's
// input schema, no bundle and no overlay is evaluated. The answer of layer P1 is that of
// the first bundle whose answer has a verdict, joined with that of the first such bundle
// among the tenant's own, if it has any (see narrow); for a delegated call, it is joined
// with the answer for the delegator. If a request to a model offers tools, layer P2 also
// obliges the executor to withhold those that guard.Offers names. The answer of a bundle
// that fails is DENY, so Evaluate returns no error.
func Evaluate(ctx context.Context, b Basis, c Call) Evaluation {
	e := Evaluation{inputs: guard.Inputs{CallID: c.ID, IdemKey: c.IdemKey, Facts: c.Facts, Tool: b.Tool, P0: b.Ceilings, Policies: b.Digests}}
	in := &e.inputs
	if in.Tool == nil {
		return e
	}
	model := LLMArgs(in.Facts.Kind, c.Args)
	in.Schema = checkArgs(in, model, c.Args, b.Rules)
	e.note(c.Explain, guard.Step{Part: guard.PartSchema, Digest: in.Facts.ToolDigest}, in.Schema)
	if in.Schema.Verdict != "" {
		return e
	}
	in.P1 = e.bundles(ctx, &b, &c)
	if in.Facts.Delegator != nil {
		other := forDelegator(ctx, in, &b, c.Args)
		e.note(c.Explain, guard.Step{Part: guard.PartDelegator}, other)
		in.P1 = both(in.P1, other)
	}
	for i, o := range b.Overlays {
		a := o.Answer(&in.Facts, in.Tool)
		if c.Explain {
			e.note(true, guard.Step{Part: guard.PartOverlay, Name: o.ID, Digest: nth(b.Digests.P2, i)}, a)
		}
		in.P2 = append(in.P2, a)
	}
	if model != nil && len(model.Tools) > 0 {
		in.P2 = append(in.P2, guard.Offers(model.Tools, in.P0, b.Overlays))
	}
	return e
}

// bundles returns the answer of the bundles, without that for the delegator.
func (e *Evaluation) bundles(ctx context.Context, b *Basis, c *Call) guard.Answer {
	in := &e.inputs
	input := rego.NewInput(&in.Facts, in.Tool, c.Args)
	return answerOf(b, &in.Facts, func(i int) guard.Answer {
		a := b.Bundles[i].Answer(ctx, input)
		if c.Explain {
			e.note(true, guard.Step{Part: guard.PartRules, Digest: nth(b.Digests.P1, i), At: b.Bundles[i].At(ctx, input)}, a)
		}
		return a
	})
}

// answerOf returns the answer of the bundles of b; answer returns that of bundle i. It is
// the first answer with a verdict of the cell's bundles, joined by narrow with the first
// one of the tenant's own. Without own bundles, as in decisions of releases without
// Facts.OwnBundles, the first answer with a verdict of all bundles counts.
func answerOf(b *Basis, f *guard.Facts, answer func(i int) guard.Answer) guard.Answer {
	first := func(from, to int) (a guard.Answer) {
		for i := from; i < to; i++ {
			if a = answer(i); a.Verdict != "" {
				break
			}
		}
		return a
	}
	own := len(b.Bundles) - int(min(max(f.OwnBundles, 0), int64(len(b.Bundles))))
	if own == len(b.Bundles) {
		return first(0, own)
	}
	return narrow(first(0, own), first(own, len(b.Bundles)))
}

// narrow joins the answer of the cell's bundles with that of the tenant's own bundles.
// The tenant's bundles can deny, escalate and limit what the cell's allow, but never
// allow more. If the answer of the cell's bundles has no verdict, neither has the result,
// so the call is denied.
func narrow(cell, own guard.Answer) guard.Answer {
	if cell.Verdict == "" {
		return guard.Answer{}
	}
	return guard.Combine(cell, own)
}

// note adds a document's answer to the steps of the explanation if keep is set.
func (e *Evaluation) note(keep bool, s guard.Step, a guard.Answer) {
	if keep {
		s.Verdict, s.Reason = a.Verdict, a.Reason
		e.steps = append(e.steps, s)
	}
}

// Verdict returns the verdict that follows from the answers, the votes and the
// limits, without signing a decision.
func (e *Evaluation) Verdict() guard.Answer { return guard.Judge(e.inputs) }

// Facts returns the facts of the evaluation, including those that Basis added.
// The caller must not change them.
func (e *Evaluation) Facts() *guard.Facts { return &e.inputs.Facts }

// Tool returns the tool document, or nil if the tool is unknown. The caller must
// not change it.
func (e *Evaluation) Tool() *contract.Tool { return e.inputs.Tool }

// Charge adds the result of the budget ledger to the facts. The documents need
// not be evaluated again, because they do not read that fact.
func (e *Evaluation) Charge(b *guard.BudgetFact) { e.inputs.Facts.Budget = b }

// Decide returns the decision at a Lamport time, signed with key.
func (e *Evaluation) Decide(lamport uint64, key *sign.Key) contract.Decision {
	e.inputs.Lamport = lamport
	return guard.Decide(e.inputs, key)
}

// Again returns the verdict, the reason code and the policy hash without a
// signature, for comparison with a recorded decision.
func (e *Evaluation) Again() (verdict, reason, hash string) { return guard.Redecide(e.inputs) }

// Egress returns the egress rules for the intent, for comparison with those of a recorded
// decision.
func (e *Evaluation) Egress() []contract.EgressRule { return guard.Egress(e.inputs) }

// PartDecision is the part name of the last step of an explanation, which holds
// the verdict.
const PartDecision = "decision"

// Steps returns the result of each part of the decision, in the order in which
// they apply, and the verdict as the last step. Call.Explain must have been set.
func (e *Evaluation) Steps() []guard.Step {
	v, steps := guard.Explain(e.inputs, e.steps)
	for i := range steps {
		switch s := &steps[i]; s.Part {
		case guard.PartCeilings:
			s.Digest = e.inputs.Policies.P0
		case guard.PartLimits:
			s.Name = strings.Join(e.inputs.Facts.Budget.Accounts, " ")
		case guard.PartPeople:
			s.Name = e.inputs.Facts.Resolution
		}
	}
	return append(steps, guard.Step{Part: PartDecision, Verdict: v.Verdict, Reason: v.Reason})
}

// nth returns the i-th of several digests in one field, or "" if there are fewer.
func nth(digests string, i int) string {
	if all := split(digests); i < len(all) {
		return all[i]
	}
	return ""
}

// forDelegator returns the answer of the bundles to the same call as if the delegator
// had made the call itself: with the delegator's roles, without a virtual key, and with
// the scopes of the delegation if they are recorded.
func forDelegator(ctx context.Context, in *guard.Inputs, b *Basis, args []byte) guard.Answer {
	f := in.Facts
	f.Actor, f.Roles, f.OnBehalfOf, f.Delegation, f.Key = f.OnBehalfOf, f.Delegator.Roles, "", "", nil
	if len(f.Delegator.Scopes) > 0 {
		f.Scopes = f.Delegator.Scopes
	}
	f.Delegator = nil
	input := rego.NewInput(&f, in.Tool, args)
	return answerOf(b, &f, func(i int) guard.Answer { return b.Bundles[i].Answer(ctx, input) })
}

// both joins the answers for the actor and for the principal on whose behalf it acts.
// The result has no verdict if either answer has none, so a call is allowed only if both
// answers allow it.
func both(a, b guard.Answer) guard.Answer {
	if a.Verdict == "" || b.Verdict == "" {
		return guard.Answer{}
	}
	return guard.Combine(a, b)
}

var checker toolschema.Checker

// checkArgs returns DENY if the args are missing or violate the tool's input schema, and
// otherwise the zero Answer. model is the result of LLMArgs. Unless rules are those of
// release 0.1, the args must be canonical, because two readers of an object with a
// duplicate name could read different values.
func checkArgs(in *guard.Inputs, model *llm.Args, args []byte, rules toolschema.Rules) guard.Answer {
	reason := contract.ReasonSchemaViolation
	switch {
	case args == nil:
		reason = contract.ReasonArgsUnavailable
	case string(in.Tool.InputSchema) == llm.Schema:
		if model != nil && model.Known() { // decoding and Known are together as strict as the schema; decoding also rejects args that are not canonical
			reason = ""
		}
	case rules != toolschema.Closed || canon.IsCanonical(args):
		reason = checker.InputBy(rules, in.Facts.ToolDigest, in.Tool, args)
	}
	if reason == "" {
		return guard.Answer{}
	}
	return guard.Answer{Verdict: contract.Deny, Reason: reason}
}

// LLMArgs returns the decoded args of a request to a model, or nil for a call of
// another kind and for args that do not decode.
func LLMArgs(kind string, args []byte) *llm.Args {
	if !slices.Contains(llm.Kinds, kind) {
		return nil
	}
	q := new(llm.Args)
	if contract.Decode(args, q) != nil {
		return nil
	}
	return q
}
