// Package approval settles escalated calls: who may vote, when enough have,
// and when the time is over. It is pure.
package approval

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// Why a vote does not count.
var (
	ErrSettled = errors.New("the escalation is already settled")
	ErrEarly   = errors.New("the escalation's time is not over")
)

// Vote is what somebody says about an escalated call.
type Vote struct {
	Approver string
	Roles    []string // held now
	Vote     string   // contract.Grant, Refuse or TimeOut
	Reason   string
	KID, Sig string // of a signed ballot, verified before
}

// Decide returns what to record of a vote, given the votes recorded before it. It
// fails with ErrSettled where those settled the call, with ErrEarly for a TimeOut
// before the escalation's end, and with an error that names the argument where the
// vote does not count.
func Decide(esc *contract.Escalated, before []contract.Approval, v Vote, now time.Time) (*contract.Approval, error) {
	expires, err := contract.ParseTime(esc.Expires)
	if err != nil {
		return nil, err
	}
	a := &contract.Approval{Approver: v.Approver, CallID: esc.Call.ID, KID: v.KID, Reason: v.Reason, Roles: v.Roles, Sig: v.Sig,
		Tenant: esc.Decision.Tenant, Vote: v.Vote}
	over := !now.Before(expires)
	switch {
	case len(before) > 0 && before[len(before)-1].Resolved != "":
		return nil, ErrSettled
	case v.Vote == contract.TimeOut && !over:
		return nil, ErrEarly
	case v.Vote == contract.TimeOut:
		a.Approver, a.Resolved = "-", "timed_out"
		return a, nil
	case over:
		return nil, errors.New("the time to vote is over")
	}
	if err := counts(esc, before, &v); err != nil {
		return nil, err
	}
	switch v.Vote {
	case contract.Refuse:
		a.Resolved = "denied"
	case contract.Grant:
		if guard.Approved(esc.Rules, Facts(append(slices.Clip(before), *a), nil), esc.Decision.Actor, esc.Call.OnBehalfOf) {
			a.Resolved = "granted"
		}
	default:
		return nil, errors.New(`vote: want "grant" or "deny"`)
	}
	return a, nil
}

// counts returns why somebody's vote on a call does not count, or nil.
func counts(esc *contract.Escalated, before []contract.Approval, v *Vote) error {
	switch {
	case v.Reason == "":
		return errors.New("reason: say why")
	case v.Approver == esc.Decision.Actor || v.Approver == esc.Call.OnBehalfOf:
		return errors.New("approver: nobody decides on a call of their own")
	case slices.ContainsFunc(before, func(b contract.Approval) bool { return b.Approver == v.Approver }):
		return errors.New("approver: has voted already")
	case !entitled(esc.Rules, v.Roles):
		return fmt.Errorf("approver: holds none of the roles asked for: %v", rolesOf(esc.Rules))
	}
	return nil
}

// Facts is the votes as a decision sees them; ids are their events' ids, or
// nil.
func Facts(votes []contract.Approval, ids []string) []guard.ApprovalFact {
	var out []guard.ApprovalFact
	for i, v := range votes {
		if v.Vote == contract.TimeOut {
			continue
		}
		f := guard.ApprovalFact{Approver: v.Approver, Roles: v.Roles, Vote: v.Vote}
		if ids != nil {
			f.EventID = ids[i]
		}
		out = append(out, f)
	}
	return out
}

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

func entitled(rules []contract.ApprovalRule, roles []string) bool {
	want := rolesOf(rules)
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(want, r) })
}

// Expiry is when an escalation that began now ends: the shortest of its rules'
// times.
func Expiry(rules []contract.ApprovalRule, now time.Time) time.Time {
	end := guard.MaxApprovalTime
	for i := range rules {
		if d := time.Duration(rules[i].TimeoutMS) * time.Millisecond; d > 0 && d < end {
			end = d
		}
	}
	return now.Add(end)
}
