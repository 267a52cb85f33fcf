// Package guard decides whether a call is permitted, and checks that a
// permission is what it claims to be. It joins the verdicts of the policy
// layers, applies the P0 ceilings, makes the execution intent, and later
// verifies both. Nothing else makes a Decision or an ExecutionIntent.
//
// Every function is a pure function of its arguments. Rego, JSON Schema and
// storage stay outside; their results are arguments.
package guard

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Inputs is everything that a decision is computed from.
type Inputs struct {
	CallID   string
	IdemKey  string // idempotency key; empty = the call's id
	Facts    Facts
	Tool     *contract.Tool // nil: unknown
	Schema   Answer         // DENY with its reason, or zero when the args fit
	P1       Answer
	P2       []Answer  // of the overlays that apply
	P0       *Ceilings // nil: missing, denied
	Policies contract.PolicyDigests
	Lamport  uint64
}

// Decide returns the decision on a call, signed with key. It has no error to
// return: whatever is missing, unknown or malformed is a DENY with its reason.
// An ALLOW holds the execution intent.
func Decide(in Inputs, key *sign.Key) contract.Decision {
	v := judge(&in, nil)
	f := contract.Bytes(&in.Facts)
	d := contract.Decision{
		Actor: in.Facts.Actor, ArgsDigest: in.Facts.ArgsDigest, CallID: in.CallID, CatalogDigest: in.Facts.CatalogDigest,
		Client: in.Facts.Client, Facts: f, FactsDigest: sign.Digest(f), ID: "d-" + in.CallID,
		KID: key.KID, Kind: in.Facts.Kind, Lamport: int64(in.Lamport), Policies: in.Policies,
		ReasonCode: v.Reason, Session: in.Facts.Session, Tenant: in.Facts.Tenant, Time: in.Facts.Now,
		Tool: in.Facts.Tool, ToolDigest: in.Facts.ToolDigest, Verdict: v.Verdict,
	}
	switch v.Verdict {
	case contract.Allow:
		d.Intent = mint(&in, v)
	case contract.Escalate:
		d.ID = EscalationID(in.CallID)
	}
	d.PolicyHash = policyHash(&d)
	d.Sig = key.Sign(sign.DomainDecision, contract.Bytes(&d))
	return d
}

// EscalationID is the id of the decision that escalates a call. The decision
// that ends the wait has the call's decision id.
func EscalationID(callID string) string { return "q-" + callID }

// Redecide computes the verdict, reason and policy decision hash again from
// recorded inputs, for replay. They equal those of the recorded decision where
// the inputs do.
func Redecide(in Inputs) (verdict, reason, hash string) {
	v := judge(&in, nil)
	d := contract.Decision{ArgsDigest: in.Facts.ArgsDigest, FactsDigest: contract.Digest(&in.Facts), Policies: in.Policies,
		ReasonCode: v.Reason, Verdict: v.Verdict}
	return v.Verdict, v.Reason, policyHash(&d)
}

// policyHash binds verdict and reason to the facts, args and policies.
func policyHash(d *contract.Decision) string {
	w := canon.Object(nil)
	w.Str("args_digest", d.ArgsDigest)
	w.Str("facts_digest", d.FactsDigest)
	w.Raw("policies", contract.Bytes(&d.Policies))
	w.Str("reason_code", d.ReasonCode)
	w.Str("verdict", d.Verdict)
	return sign.Digest(w.End())
}

// Judge returns the verdict alone. The first gate that fails denies. After the
// gates the layers are joined, and then the votes of approvers and the limits
// are applied.
func Judge(in Inputs) Answer { return judge(&in, nil) }

// judge is Judge; note, if set, receives the answer of each part in order.
func judge(in *Inputs, note func(part string, a Answer)) Answer {
	j := judging{in, note}
	if reason := gate(in); reason != "" {
		return j.noted(PartGates, denied(reason))
	}
	j.noted(PartGates, Answer{})
	v := j.limited(j.feasible(j.joined()))
	if v.Verdict == contract.Escalate {
		return j.noted(PartPeople, settle(in, v))
	}
	return v
}

// judging is one run of judge.
type judging struct {
	*Inputs
	note func(part string, a Answer)
}

func (j *judging) noted(part string, a Answer) Answer {
	if j.note != nil {
		j.note(part, a)
	}
	return a
}

// joined joins the layers in order of precedence.
func (j *judging) joined() Answer {
	layers := append([]Answer{j.Schema, j.noted(PartCeilings, p0Approvals(j.Inputs)), orDeny(j.P1)}, j.P2...)
	if j.Facts.DualControl {
		layers = append(layers, j.noted(PartDualControl, dualControl))
	}
	return Combine(layers...)
}

// feasible denies a call that no executor can run within the limits of all layers.
func (j *judging) feasible(v Answer) Answer {
	switch {
	case v.Verdict == contract.Deny:
		return v
	case j.Facts.ReportWithin != 0 && len(v.Obliged) > 0: // a caller meets no obligation
		return j.noted(PartCaller, denied(contract.ReasonCallerExecutionRefused))
	case j.Tool.Sandbox != nil && !runs(narrowed(j.Inputs, v)):
		return j.noted(PartSandbox, denied(contract.ReasonSandboxViolation))
	}
	return v
}

// limited joins what the limits answered.
func (j *judging) limited(v Answer) Answer {
	b := j.Facts.Budget
	if v.Verdict == contract.Deny || b == nil {
		return v
	}
	return Combine(j.noted(PartLimits, exceeded(b)), v)
}

func exceeded(b *BudgetFact) Answer {
	switch {
	case b.Refused == "":
		return Answer{}
	case b.Escalate:
		return Answer{Verdict: contract.Escalate, Reason: b.Refused}
	}
	return denied(b.Refused)
}
