package evidence

import (
	"errors"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
)

// callState is the state of one call after the events read so far. DESIGN.md has the
// table of states and of the events that change them.
type callState struct {
	proposed  *contract.Event
	call      *contract.Call
	digest    string // of call
	escalated *contract.Decision
	votes     map[string]*contract.Approval // votes by id of their event
	// a vote or the expiry of the time to vote has ended the escalation
	settled  bool
	decision *contract.Decision
	decided  string // digest of decision
	outside  bool   // see authentic.outside
	started  bool
	claimer  string
	recorded bool
}

// checkCalls checks the data of a session's events against their schemas, and applies
// the events in the order of the ledger by the rules of DESIGN.md. It returns the number
// of calls without an outcome.
func checkCalls(m *Manifest, d *derived, sys *system) (open int, err error) {
	unfit := make([]error, len(d.events)) // by event, the result of CheckData
	concurrently(len(d.events), func(i int) {
		if unfit[i] = d.events[i].CheckData(); unfit[i] == nil {
			d.data[i].check(sys.reg.At)
		}
	})
	calls := map[string]*callState{}
	tip := receipt.Genesis(m.Tenant, m.Session)
	for i, e := range d.events {
		if err = unfit[i]; err == nil {
			err = checkEvent(e, &d.data[i], calls, &tip, sys)
		}
		if err != nil {
			return 0, fmt.Errorf("event %s (%s): %w", e.ID, e.Name, err)
		}
	}
	return openCalls(calls), nil
}

// openCalls returns the number of calls without an outcome.
func openCalls(calls map[string]*callState) (open int) {
	for _, c := range calls {
		if !c.recorded {
			open++
		}
	}
	return open
}

// checkEvent applies the next event of a session to the state of its call. A proposal
// adds a call to calls, and an outcome sets tip to its receipt. The caller has checked
// the event's data against its schema, decoded it to x and called x.check.
func checkEvent(e *contract.Event, x *data, calls map[string]*callState, tip *receipt.Tip, sys *system) error {
	c := calls[e.CallID]
	if x.call != nil {
		switch {
		case c != nil:
			return errors.New("call proposed twice")
		case x.call.ID != e.CallID || e.CallID == "":
			return errors.New("envelope names another call")
		}
		calls[e.CallID] = &callState{proposed: e, call: x.call, digest: x.alone.call}
		return nil
	}
	if c == nil {
		return errors.New("its call was never proposed")
	}
	return c.next(e, x, tip, sys)
}

// next applies the next event of a call that was proposed. It ignores events without
// data that decode reads.
func (c *callState) next(e *contract.Event, x *data, tip *receipt.Tip, sys *system) error {
	switch {
	case x.allowed != nil:
		return c.allow(e, x, sys)
	case x.escalated != nil:
		return c.escalate(e, x, sys)
	case x.approval != nil:
		return c.vote(e, x.approval, sys)
	case x.started != nil:
		return c.start(e, x.started)
	case x.recorded != nil:
		return c.record(e, x, tip, sys)
	}
	return nil
}

// allow applies an allowed event, which contains policy's ALLOW decision and the call.
func (c *callState) allow(e *contract.Event, x *data, sys *system) error {
	a := x.allowed
	switch {
	case e.Service() != "policy" || c.decision != nil || c.recorded:
		return errors.New("not the one decision of policy on this call")
	case x.alone.call != c.digest:
		return errors.New("decides on another call than the one proposed")
	case a.Decision.Verdict != contract.Allow || a.Decision.Intent == nil || a.Decision.Intent.Executor != e.Target:
		return errors.New("does not address its executor")
	}
	c.decision, c.decided = &a.Decision, x.alone.decision
	return checkDecision(c, c.decision, x.alone.decided, sys)
}

// escalate applies an escalated event, which contains policy's ESCALATE decision and the
// call.
func (c *callState) escalate(e *contract.Event, x *data, sys *system) error {
	d := &x.escalated.Decision
	switch {
	case e.Service() != "policy" || c.escalated != nil || c.decision != nil || c.recorded:
		return errors.New("not the one escalation of this call by policy")
	case d.Verdict != contract.Escalate:
		return errors.New("its decision does not escalate")
	case x.alone.call != c.digest:
		return errors.New("its call differs from the one proposed")
	}
	c.escalated, c.votes = d, map[string]*contract.Approval{}
	return checkDecision(c, c.escalated, x.alone.decided, sys)
}

// vote applies a vote, or the expiry of the time to vote.
func (c *callState) vote(e *contract.Event, a *contract.Approval, sys *system) error {
	if e.Service() != "policy" || c.escalated == nil || c.settled || c.decision != nil || c.recorded || a.CallID != c.call.ID {
		return errors.New("a vote on a call that does not wait for one")
	}
	c.votes[e.ID], c.settled = a, a.Resolved != ""
	if a.Passkey != nil {
		sys.signed++
	}
	return guard.VerifyBallot(a, c.escalated, sys.reg.At, sys.passkey, e.Lamport)
}

// start applies the claim of an executor, or policy's expiry of an unclaimed
// call.
func (c *callState) start(e *contract.Event, s *contract.Started) error {
	switch {
	case c.decision == nil || c.started || c.recorded:
		return errors.New("started without a decision, or twice")
	case s.CallID != c.call.ID || s.DecisionID != c.decision.ID || s.IntentID != c.decision.Intent.ID:
		return errors.New("starts another call, decision or intent than the one allowed")
	}
	owner := c.decision.Intent.Executor
	if e.Name == contract.EventStartExpired {
		owner = "policy"
	}
	if e.Service() != owner {
		return fmt.Errorf("claimed by %s, want %s", e.Service(), owner)
	}
	if s.ExecutedBy != executedBy(owner) {
		return errors.New("executed_by does not match the intent's executor")
	}
	c.started, c.claimer = true, owner
	return nil
}

// executedBy returns the value that executed_by must have in a claim by owner:
// contract.Caller if owner is contract.CallerExecutor, and "" otherwise.
func executedBy(owner string) string {
	if owner == contract.CallerExecutor {
		return contract.Caller
	}
	return ""
}

// checkDecision returns an error unless verified, the result of guard.VerifyDecision, is
// nil, the decision is about the proposed call and its caller, and the policies that it
// names were activated (see activated). An intent must be for the caller if the proposal
// states that the caller executes the call, and for an executor otherwise. After an
// escalation, the votes in the decision's facts must be recorded, and an ALLOW requires
// that the escalation has ended.
func checkDecision(c *callState, d *contract.Decision, verified error, sys *system) error {
	switch {
	case verified != nil:
		return verified
	case !c.sameCall(d):
		return errors.New("decision is about another call")
	case !c.sameCaller(d):
		return errors.New("decision names another caller")
	case d.Intent != nil && (d.Intent.Executor == contract.CallerExecutor) != (c.call.ReportWithin > 0):
		return errors.New("the intent's executor does not match the proposal")
	case !sys.activated(d):
		return errors.New("decision names a policy that was never activated")
	}
	if c.escalated == nil || d == c.escalated {
		return nil
	}
	return checkVotes(c, d)
}

// sameCall reports whether the decision is about the proposed call.
func (c *callState) sameCall(d *contract.Decision) bool {
	return d.CallID == c.call.ID && d.ArgsDigest == c.call.Args.Commitment && d.Kind == c.call.Kind && d.Tool == c.call.Tool
}

// sameCaller reports whether the decision names the caller, session and tenant of
// the proposal.
func (c *callState) sameCaller(d *contract.Decision) bool {
	p := c.proposed
	return d.Actor == p.Actor && d.Client == p.Client && d.Session == p.Session && d.Tenant == p.Tenant
}

// checkVotes returns an error unless every vote in the facts of the decision is recorded
// and, if the decision is an ALLOW, the escalation has ended.
func checkVotes(c *callState, d *contract.Decision) error {
	votes, err := votesOf(d.Facts)
	if err != nil {
		return fmt.Errorf("decision's facts: %w", err)
	}
	for _, v := range votes {
		a, ok := c.votes[v.EventID]
		if !ok || a.Approver != v.Approver || a.Vote != v.Vote || !slices.Equal(a.Roles, v.Roles) || (a.Passkey != nil) != v.Passkey {
			return fmt.Errorf("decision counts a vote of %s that is not recorded", v.Approver)
		}
	}
	if d.Verdict == contract.Allow && !c.settled {
		return errors.New("allowed before the escalation was settled")
	}
	return nil
}

// record applies the outcome of the call, and sets tip to its receipt.
func (c *callState) record(e *contract.Event, x *data, tip *receipt.Tip, sys *system) error {
	if c.recorded {
		return errors.New("second outcome of one call")
	}
	r := x.recorded
	d, digest, err := c.decisionOn(x, sys)
	if err != nil {
		return err
	}
	if x.alone.recorded != nil {
		return x.alone.recorded
	}
	if err := receipt.CheckDecided(r, d, digest); err != nil {
		return err
	}
	if err := c.checkRecorder(e, r, d); err != nil {
		return err
	}
	if err := receipt.CheckLink(*tip, &r.Receipt); err != nil {
		return err
	}
	if d.Intent == nil && d.Verdict != contract.Deny {
		return errors.New("denied, but its decision is not DENY")
	}
	*tip = x.alone.tip
	*c = callState{recorded: true} // later events of the call need only this flag, so the rest of the state is released
	return nil
}

// checkRecorder returns an error unless the outcome in e was published by the service
// that signed its receipt and that, if an effect was allowed, claimed the call.
func (c *callState) checkRecorder(e *contract.Event, r *contract.Recorded, d *contract.Decision) error {
	if e.Service() != r.Receipt.Executor {
		return errors.New("published by another service than the one that signed it")
	}
	if d.Intent != nil && (!c.started || c.claimer != e.Service()) {
		return errors.New("outcome of an effect that its recorder did not claim")
	}
	return nil
}

// decisionOn returns the decision on which an outcome rests, with its digest: the recorded
// ALLOW or, if the outcome contains a decision, that decision, which it checks. It returns
// nil if there is neither, and an error if there are both.
func (c *callState) decisionOn(x *data, sys *system) (d *contract.Decision, digest string, err error) {
	d = x.recorded.Decision
	switch {
	case d == nil:
		return c.decision, c.decided, nil
	case c.decision != nil:
		return nil, "", errors.New("second decision on one call")
	}
	return d, x.alone.decision, checkDecision(c, d, x.alone.decided, sys)
}
