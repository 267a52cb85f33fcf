package guard

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Answer is the result of one policy layer for a call. The zero Answer has no verdict,
// and does not change the verdict of the other layers. If the answer of the P1 layer has
// no verdict, the call is denied.
type Answer struct {
	Verdict   string // contract.Deny, Escalate or Allow; empty = none
	Reason    string
	Approvals []contract.ApprovalRule // approval rules of an ESCALATE, all of which must be met
	Sandbox   *contract.Sandbox       // upper limits on the tool's sandbox; nil = none
	Egress    [][]contract.EgressRule // lists of rules, each of which must allow a request of the execution; none = no limit
	Obliged   []string                // obligations of the executor; see CheckObligation
}

// denied returns a DENY with this reason code.
func denied(reason string) Answer { return Answer{Verdict: contract.Deny, Reason: reason} }

// orDeny returns a DENY if a has no verdict, an unknown verdict or no reason, and
// otherwise a itself.
func orDeny(a Answer) Answer {
	if a.Verdict == "" {
		return denied(contract.ReasonNoPolicyDefined)
	}
	if rank(a.Verdict) == 0 || a.Reason == "" {
		return denied(contract.ReasonPrgEvaluationError)
	}
	return a
}

// rank orders verdicts by strength; a string that is no verdict has rank 0.
func rank(verdict string) int {
	switch verdict {
	case contract.Deny:
		return 3
	case contract.Escalate:
		return 2
	case contract.Allow:
		return 1
	}
	return 0
}

// Combine joins the answers of layers: DENY is stronger than ESCALATE, and ESCALATE stronger
// than ALLOW. Of two equal verdicts, the reason of the earlier layer counts. Sandbox limits are
// joined by Narrow; the lists of egress rules and the obligations of all layers, and the
// approval rules of the layers that escalate, are collected in order. An answer without a
// verdict contributes only its limits and obligations. An answer with an unknown verdict counts
// as a DENY without limits and obligations. The arguments are not changed, but the result may
// share a sandbox with one of them.
func Combine(layers ...Answer) Answer {
	var out Answer
	for _, a := range layers {
		if a.Verdict != "" && rank(a.Verdict) == 0 {
			a = denied(contract.ReasonPrgEvaluationError)
		}
		if a.Sandbox != nil && out.Sandbox != nil {
			n := Narrow(*out.Sandbox, *a.Sandbox)
			out.Sandbox = &n
		} else if a.Sandbox != nil {
			out.Sandbox = a.Sandbox
		}
		if a.Verdict == contract.Escalate {
			out.Approvals = append(slices.Clip(out.Approvals), a.Approvals...)
		}
		out.Obliged = append(slices.Clip(out.Obliged), a.Obliged...)
		out.Egress = append(slices.Clip(out.Egress), a.Egress...)
		if rank(a.Verdict) > rank(out.Verdict) {
			out.Verdict, out.Reason = a.Verdict, a.Reason
		}
	}
	return out
}
