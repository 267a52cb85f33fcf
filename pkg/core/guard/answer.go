package guard

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Answer is what one policy layer returned for a call. The zero Answer is no
// opinion; P1 without an opinion is a denial.
type Answer struct {
	Verdict   string // contract.Deny, Escalate or Allow; empty = no opinion
	Reason    string
	Approvals []contract.ApprovalRule // what ESCALATE requires; all of them must be met
	Sandbox   *contract.Sandbox       // narrows the tool's; nil = no limit of its own
	Obliged   []string                // what the executor must do on the way; see CheckObligation
}

func denied(reason string) Answer { return Answer{Verdict: contract.Deny, Reason: reason} }

// orDeny makes a denial of no opinion, and of an answer that is incomplete.
func orDeny(a Answer) Answer {
	if a.Verdict == "" {
		return denied(contract.ReasonNoPolicyDefined)
	}
	if rank(a.Verdict) == 0 || a.Reason == "" {
		return denied(contract.ReasonPrgEvaluationError)
	}
	return a
}

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

// Combine joins layers: DENY > ESCALATE > ALLOW; of two equal verdicts the
// reason of the earlier layer counts; sandbox limits are joined by Narrow;
// approval rules and obligations of all layers are collected in order. Layers
// without an opinion add their sandbox and obligations only. A verdict that is
// none of the three is a denial.
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
		if rank(a.Verdict) > rank(out.Verdict) {
			out.Verdict, out.Reason = a.Verdict, a.Reason
		}
	}
	return out
}
