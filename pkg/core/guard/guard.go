// Package guard decides whether a call is permitted, and checks that a permission
// is authentic. It joins the answers of the policy layers, applies the P0
// ceilings, makes the execution intent of an allowed call, and verifies decisions
// and intents. Except in tests, no other package makes a Decision or an
// ExecutionIntent.
//
// The order of a decision is fixed: gates, then the layers (input schema, P0, P1, P2, dual
// control, access list of secrets), then whether the call can be executed with the obligations
// and in the sandbox that the layers require, then the budget limits, then the votes. A DENY at
// any step is final. Missing ceilings, rules or tools, unknown verdicts and malformed times
// result in a DENY, so that such a fault in a caller of this package does not permit an effect.
//
// Every function is a pure function of its arguments. The package evaluates no policy
// language and no JSON Schema and reads no storage: the answers of policies and schemas
// and the facts are arguments. Replay and verifiers can therefore compute a recorded
// decision again. A new reason to deny is a fact in Facts and a case in one of the
// gates.
package guard

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Inputs holds the inputs of a decision. The package does not change the values that the
// fields refer to, but an intent shares slices with them.
type Inputs struct {
	CallID   string
	IdemKey  string // empty = the call's id
	Facts    Facts
	Tool     *contract.Tool // nil = unknown tool
	Schema   Answer         // DENY with its reason, or zero if the args match the tool's schema
	P1       Answer
	P2       []Answer  // answers of the overlays that apply, and that of Offers
	P0       *Ceilings // nil = missing; every call is denied
	Policies contract.PolicyDigests
	Lamport  uint64
}

// Decide returns the decision on a call, signed with key. It returns no error: missing
// ceilings, rules or tools, unknown verdicts and malformed times result in a DENY with a
// reason code. An ALLOW holds the execution intent. An ESCALATE has an id of its own, so
// that the later decision about the same call is a second document.
func Decide(in Inputs, key *sign.Key) contract.Decision {
	v := judge(&in, nil)
	f := contract.Bytes(&in.Facts)
	d := contract.Decision{
		Actor: in.Facts.Actor, ArgsDigest: in.Facts.ArgsDigest, CallID: in.CallID, CatalogDigest: in.Facts.CatalogDigest,
		Client: in.Facts.Client, Facts: f, FactsDigest: sign.Digest(f), ID: contract.IDDecision + in.CallID,
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
	d.Sig = contract.Sign(key, sign.DomainDecision, &d)
	return d
}

// EscalationID returns the id of the ESCALATE decision on a call. The decision that
// follows the escalation has the call's ordinary decision id.
func EscalationID(callID string) string { return contract.IDEscalation + callID }

// Redecide computes verdict, reason code and policy decision hash again from
// recorded inputs. Replay compares them with the recorded decision; they are
// equal if the inputs are.
func Redecide(in Inputs) (verdict, reason, hash string) {
	v := judge(&in, nil)
	d := contract.Decision{ArgsDigest: in.Facts.ArgsDigest, FactsDigest: contract.Digest(&in.Facts), Policies: in.Policies,
		ReasonCode: v.Reason, Verdict: v.Verdict}
	return v.Verdict, v.Reason, policyHash(&d)
}

// Egress returns the rules of the intent that Decide makes if it allows the call. Replay
// compares them with the recorded ones. It returns nil if the call is not allowed.
func Egress(in Inputs) []contract.EgressRule {
	if in.Tool == nil || !declaresEgress(in.Tool) {
		return nil
	}
	v := judge(&in, nil)
	if v.Verdict != contract.Allow {
		return nil
	}
	return egressOf(&in, v)
}

// policyHash returns the digest that binds verdict and reason to the facts, the
// args and the policies.
func policyHash(d *contract.Decision) string { return contract.Digest((*bound)(d)) }

// bound is the document of the members of a decision that its policy hash binds. It is
// only written.
type bound contract.Decision

// Canonical implements canon.Document.
func (d *bound) Canonical(c *canon.Codec) {
	c.Str("args_digest", &d.ArgsDigest)
	c.Str("facts_digest", &d.FactsDigest)
	c.Doc("policies", &d.Policies)
	c.Str("reason_code", &d.ReasonCode)
	c.Str("verdict", &d.Verdict)
}

// Judge returns the verdict without a signed decision. The first gate that fails denies.
// After the gates, Judge joins the layers, checks that the call can be executed with the
// obligations and in the sandbox that they require, applies the budget limits, and then
// the votes of approvers.
func Judge(in Inputs) Answer { return judge(&in, nil) }

// judge implements Judge. note, if not nil, is called with the answers of the parts that
// judge itself computes, in order.
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

// judging holds the inputs of one run of judge and the function that records its
// parts.
type judging struct {
	*Inputs
	note func(part string, a Answer)
}

// noted passes the answer of a part to note, if it is set, and returns the answer.
func (j *judging) noted(part string, a Answer) Answer {
	if j.note != nil {
		j.note(part, a)
	}
	return a
}

// joined joins the answers of the layers in order of precedence.
func (j *judging) joined() Answer {
	layers := append([]Answer{j.Schema, j.noted(PartCeilings, p0Approvals(j.Inputs)), orDeny(j.P1)}, j.P2...)
	if j.Facts.DualControl {
		layers = append(layers, j.noted(PartDualControl, dualControl))
	}
	if a := secretApproval(&j.Facts); a.Verdict != "" {
		layers = append(layers, j.noted(PartSecrets, a))
	}
	return Combine(layers...)
}

// feasible denies a call that cannot be executed as the layers require: a call with
// obligations that the caller would execute itself, a call in whose sandbox no program
// could run, or a call for which the layers permit none of the requests that its tool
// declares.
func (j *judging) feasible(v Answer) Answer {
	switch {
	case v.Verdict == contract.Deny:
		return v
	case j.Facts.ReportWithin != 0 && len(v.Obliged) > 0: // callers cannot be trusted to fulfil obligations
		return j.noted(PartCaller, denied(contract.ReasonCallerExecutionRefused))
	case j.Tool.Sandbox != nil && !runs(narrowed(j.Inputs, v)):
		return j.noted(PartSandbox, denied(contract.ReasonSandboxViolation))
	case declaresEgress(j.Tool) && !reaches(j.Inputs, v):
		return j.noted(PartEgress, denied(contract.ReasonDataEgressBlocked))
	}
	return v
}

// limited joins v with the result of the limits. A DENY is returned unchanged.
func (j *judging) limited(v Answer) Answer {
	b := j.Facts.Budget
	if v.Verdict == contract.Deny || b == nil {
		return v
	}
	return Combine(j.noted(PartLimits, exceeded(b)), v)
}

// exceeded returns the answer that follows from the result of the limits: no verdict if
// they do not refuse the amounts, otherwise DENY, or ESCALATE if the limit permits
// approval.
func exceeded(b *BudgetFact) Answer {
	switch {
	case b.Refused == "":
		return Answer{}
	case b.Escalate:
		return Answer{Verdict: contract.Escalate, Reason: b.Refused}
	}
	return denied(b.Refused)
}
