// Package approval decides about votes on escalated calls: who may vote, which vote
// resolves the call, and when the time to vote is over. It is pure: the caller loads the
// earlier votes and appends the result with the expected sequence, so that two
// concurrent votes cannot both resolve a call.
package approval

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// The errors of Decide that callers distinguish.
var (
	ErrSettled = errors.New("the escalation is already settled")
	ErrEarly   = errors.New("the escalation's time is not over")
)

// Vote is a vote on an escalated call, before it is known whether it counts.
type Vote struct {
	Approver string
	Roles    []string // roles that the approver holds now
	Vote     string   // contract.Grant, contract.Refuse or contract.TimeOut
	Reason   string
	// Passkey is the signature of a passkey of the approver, verified by the caller; nil if
	// none signed the vote.
	Passkey  *contract.Assertion
	KID, Sig string // key id and signature of a ballot, both verified by the caller; empty if the ballot is not signed
}

// Decide returns the approval to record for a vote, given the votes recorded before it.
// Resolved of the approval is empty unless the vote resolves the call. Decide returns
// ErrSettled if an earlier vote resolved the call, and ErrEarly for a TimeOut before the
// end of the time to vote. Any other error is the reason why the vote does not count, or
// the error of a malformed esc.Expires.
func Decide(esc *contract.Escalated, before []contract.Approval, v Vote, now time.Time) (*contract.Approval, error) {
	expires, err := contract.ParseTime(esc.Expires)
	if err != nil {
		return nil, err
	}
	a := &contract.Approval{Approver: v.Approver, CallID: esc.Call.ID, KID: v.KID, Passkey: v.Passkey, Reason: v.Reason, Roles: v.Roles, Sig: v.Sig,
		Tenant: esc.Decision.Tenant, Vote: v.Vote}
	over := !now.Before(expires)
	switch {
	case len(before) > 0 && before[len(before)-1].Resolved != "":
		return nil, ErrSettled
	case v.Vote == contract.TimeOut && !over:
		return nil, ErrEarly
	case v.Vote == contract.TimeOut:
		a.Approver, a.Resolved = "-", contract.ResolvedExpired
		return a, nil
	case over:
		return nil, errors.New("the time to vote is over")
	}
	if err := counts(esc, before, &v); err != nil {
		return nil, err
	}
	switch v.Vote {
	case contract.Refuse:
		a.Resolved = contract.ResolvedDenied
	case contract.Grant:
		if guard.Approved(esc.Rules, Facts(append(slices.Clip(before), *a), nil), esc.Decision.Actor, esc.Call.OnBehalfOf) {
			a.Resolved = contract.ResolvedGranted
		}
	default:
		return nil, errors.New(`vote: want "grant" or "deny"`)
	}
	return a, nil
}

// counts returns the reason why the vote does not count, or nil.
func counts(esc *contract.Escalated, before []contract.Approval, v *Vote) error {
	switch {
	case v.Reason == "":
		return errors.New("reason: is required")
	case v.Approver == esc.Decision.Actor || v.Approver == esc.Call.OnBehalfOf:
		return errors.New("approver: an actor cannot decide on a call of their own")
	case slices.ContainsFunc(before, func(b contract.Approval) bool { return b.Approver == v.Approver }):
		return errors.New("approver: has voted already")
	case v.Passkey == nil && slices.ContainsFunc(esc.Rules, func(r contract.ApprovalRule) bool { return r.Passkey }):
		return errors.New("passkey: the rules count only votes that a passkey of the approver signs; vote on the page /auth/approvals")
	case !entitled(esc.Rules, v.Roles):
		return fmt.Errorf("approver: holds none of the required roles: %v", rolesOf(esc.Rules))
	}
	return nil
}

// Facts returns the votes as facts of a decision, without the votes that record a
// TimeOut. ids holds the ids of the votes' events, in the order of votes, or is nil.
func Facts(votes []contract.Approval, ids []string) []guard.ApprovalFact {
	var out []guard.ApprovalFact
	for i, v := range votes {
		if v.Vote == contract.TimeOut {
			continue
		}
		f := guard.ApprovalFact{Approver: v.Approver, Passkey: v.Passkey != nil, Roles: v.Roles, Vote: v.Vote}
		if ids != nil {
			f.EventID = ids[i]
		}
		out = append(out, f)
	}
	return out
}

// rolesOf returns the roles that give a vote under any of the rules, sorted and without
// duplicates. Under a rule without roles, that is guard.DefaultRole.
func rolesOf(rules []contract.ApprovalRule) []string {
	var out []string
	for i := range rules {
		if len(rules[i].Roles) == 0 {
			out = append(out, guard.DefaultRole)
		}
		out = append(out, rules[i].Roles...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// entitled reports whether one of the roles gives its holder a vote under any of the
// rules.
func entitled(rules []contract.ApprovalRule, roles []string) bool {
	want := rolesOf(rules)
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(want, r) })
}

// Expiry returns when an escalation that begins now expires: after the shortest
// time of its rules, and after guard.MaxApprovalTime at the latest.
func Expiry(rules []contract.ApprovalRule, now time.Time) time.Time {
	end := guard.MaxApprovalTime
	for i := range rules {
		if d := time.Duration(rules[i].TimeoutMS) * time.Millisecond; d > 0 && d < end {
			end = d
		}
	}
	return now.Add(end)
}
