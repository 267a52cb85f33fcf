package guard

import (
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// p0Approvals returns ESCALATE with the approval rules that the ceilings have for the
// call's kind, or an Answer without a verdict if they have none.
func p0Approvals(in *Inputs) Answer {
	var a Answer
	for i := range in.P0.Approvals {
		if k := &in.P0.Approvals[i]; matchAny(k.Kinds, in.Facts.Kind) {
			a.Verdict, a.Reason = contract.Escalate, contract.ReasonApprovalRequired
			a.Approvals = append(a.Approvals, k.Rule)
		}
	}
	return a
}

// dualControl requires the approval of a second person within a day.
var dualControl = Answer{Verdict: contract.Escalate, Reason: contract.ReasonApprovalRequired,
	Approvals: []contract.ApprovalRule{{Quorum: 1, TimeoutMS: (24 * time.Hour).Milliseconds()}}}

// defaultApproval is the rule of an ESCALATE that has none of its own.
var defaultApproval = contract.ApprovalRule{Quorum: 1, TimeoutMS: (5 * time.Minute).Milliseconds()}

// settle returns the verdict that replaces an ESCALATE: DENY or ALLOW if the votes,
// their expiry or a break-glass grant end the escalation, and otherwise the ESCALATE
// itself, with defaultApproval if it has no rule.
func settle(in *Inputs, v Answer) Answer {
	if len(v.Approvals) == 0 {
		v.Approvals = []contract.ApprovalRule{defaultApproval}
	}
	f := &in.Facts
	switch {
	case f.Resolution == contract.ResolvedDenied:
		return denied(contract.ReasonApprovalDenied)
	case f.Resolution == contract.ResolvedExpired:
		return denied(contract.ReasonApprovalTimeout)
	case f.Resolution == contract.ResolvedGranted && Approved(v.Approvals, f.Approvals, f.Actor, f.OnBehalfOf):
		v.Verdict, v.Reason = contract.Allow, contract.ReasonApproved
	case f.Resolution == contract.ResolvedGranted: // the votes that ended the escalation do not meet the rules that now apply
		return denied(contract.ReasonApprovalDenied)
	case f.BreakGlass != "" && !f.DualControl: // break-glass does not replace the second person of dual control
		v.Verdict, v.Reason = contract.Allow, contract.ReasonBreakGlass
	}
	return v
}

// DefaultRole is the role that approvers must hold if an approval rule names no
// role.
const DefaultRole = "approver"

// Approved reports whether the grants among votes meet every rule; a quorum below 1
// counts as 1. Each approver counts once per rule, and only with one of the rule's
// roles, or with DefaultRole if the rule names none. If the rule requires passkeys, only
// votes that a passkey signed count. Votes of callers, the principals
// who proposed the call or for whom it is made, do not count. Without rules, Approved
// returns true.
func Approved(rules []contract.ApprovalRule, votes []ApprovalFact, callers ...string) bool {
	for i := range rules {
		var who []string
		for j := range votes {
			if v := &votes[j]; grants(&rules[i], v) && !slices.Contains(callers, v.Approver) && !slices.Contains(who, v.Approver) {
				who = append(who, v.Approver)
			}
		}
		if int64(len(who)) < max(rules[i].Quorum, 1) {
			return false
		}
	}
	return true
}

// grants reports whether a vote is a grant that counts for a rule by its roles and its signature.
func grants(rule *contract.ApprovalRule, v *ApprovalFact) bool {
	roles := rule.Roles
	if len(roles) == 0 {
		roles = []string{DefaultRole}
	}
	return v.Vote == contract.Grant && (v.Passkey || !rule.Passkey) && slices.ContainsFunc(v.Roles, func(r string) bool { return slices.Contains(roles, r) })
}
