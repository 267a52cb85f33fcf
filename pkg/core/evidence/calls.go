package evidence

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
)

// callState follows one call through the ledger.
type callState struct {
	proposed  *contract.Event
	call      *contract.Call
	escalated *contract.Decision
	votes     map[string]*contract.Approval // by event id
	settled   bool
	decision  *contract.Decision
	started   bool
	claimer   string
	recorded  bool
}

// checkCalls walks the session in ledger order: intent before decision before
// start before outcome, each once, each signed by who may sign it.
func checkCalls(m *Manifest, d *derived, sys *system) (open int, err error) {
	calls := map[string]*callState{}
	tip := receipt.Genesis(m.Tenant, m.Session)
	for i, e := range d.events {
		if err = e.CheckData(); err == nil {
			err = checkEvent(e, &d.data[i], calls, &tip, sys)
		}
		if err != nil {
			return 0, fmt.Errorf("event %s (%s): %w", e.ID, e.Name, err)
		}
	}
	return openCalls(calls), nil
}

// openCalls counts the calls without an outcome.
func openCalls(calls map[string]*callState) (open int) {
	for _, c := range calls {
		if !c.recorded {
			open++
		}
	}
	return open
}

// checkEvent takes the next event of a session, whose data fits its schema and
// was decoded to x.
func checkEvent(e *contract.Event, x *data, calls map[string]*callState, tip *receipt.Tip, sys *system) error {
	c := calls[e.CallID]
	switch {
	case x.call != nil && c != nil:
		return errors.New("call proposed twice")
	case x.call != nil && (x.call.ID != e.CallID || e.CallID == ""):
		return errors.New("envelope names another call")
	case x.call != nil:
		calls[e.CallID] = &callState{proposed: e, call: x.call}
		return nil
	case c == nil:
		return errors.New("its call was never proposed")
	case x.allowed != nil:
		return c.allow(e, x.allowed, sys)
	case x.escalated != nil:
		return c.escalate(e, x.escalated, sys)
	case x.approval != nil:
		return c.vote(e, x.approval, sys)
	case x.started != nil:
		return c.start(e, x.started)
	case x.recorded != nil:
		return checkOutcome(e, c, x.recorded, tip, sys)
	}
	return nil
}

func (c *callState) allow(e *contract.Event, a *contract.Allowed, sys *system) error {
	switch {
	case e.Service() != "policy" || c.decision != nil || c.recorded:
		return errors.New("not the one decision of policy on this call")
	case contract.Digest(&a.Call) != contract.Digest(c.call):
		return errors.New("decides on another call than the one proposed")
	case a.Decision.Verdict != contract.Allow || a.Decision.Intent == nil || a.Decision.Intent.Executor != e.Target:
		return errors.New("does not address its executor")
	}
	c.decision = &a.Decision
	return checkDecision(c, c.decision, sys)
}

func (c *callState) escalate(e *contract.Event, x *contract.Escalated, sys *system) error {
	switch {
	case e.Service() != "policy" || c.escalated != nil || c.decision != nil || c.recorded:
		return errors.New("not the one escalation of this call by policy")
	case x.Decision.Verdict != contract.Escalate:
		return errors.New("its decision does not escalate")
	case contract.Digest(&x.Call) != contract.Digest(c.call):
		return errors.New("speaks of another call than the one proposed")
	}
	c.escalated, c.votes = &x.Decision, map[string]*contract.Approval{}
	return checkDecision(c, c.escalated, sys)
}

func (c *callState) vote(e *contract.Event, a *contract.Approval, sys *system) error {
	if e.Service() != "policy" || c.escalated == nil || c.settled || c.decision != nil || c.recorded || a.CallID != c.call.ID {
		return errors.New("a vote on a call that does not wait for one")
	}
	c.votes[e.ID], c.settled = a, a.Resolved != ""
	return guard.VerifyBallot(a, c.escalated, sys.reg.At, e.Lamport)
}

func (c *callState) start(e *contract.Event, s *contract.Started) error {
	switch {
	case c.decision == nil || c.started || c.recorded:
		return errors.New("started without a decision, or twice")
	case s.CallID != c.call.ID || s.DecisionID != c.decision.ID || s.IntentID != c.decision.Intent.ID:
		return errors.New("starts something else than was allowed")
	}
	owner := c.decision.Intent.Executor
	if e.Name == "start_expired" {
		owner = "policy"
	}
	if e.Service() != owner {
		return fmt.Errorf("claimed by %s, want %s", e.Service(), owner)
	}
	if (s.ExecutedBy == contract.Caller) != (owner == contract.CallerExecutor) || s.ExecutedBy != "" && s.ExecutedBy != contract.Caller {
		return errors.New("executed_by is not whom the intent is for")
	}
	c.started, c.claimer = true, owner
	return nil
}

func checkDecision(c *callState, d *contract.Decision, sys *system) error {
	if err := guard.VerifyDecision(d, sys.reg.At); err != nil {
		return err
	}
	p := c.proposed
	switch {
	case d.CallID != c.call.ID || d.ArgsDigest != c.call.Args.Commitment || d.Kind != c.call.Kind || d.Tool != c.call.Tool:
		return errors.New("decision is about another call")
	case d.Actor != p.Actor || d.Client != p.Client || d.Session != p.Session || d.Tenant != p.Tenant:
		return errors.New("decision names another caller")
	case d.Intent != nil && (d.Intent.Executor == contract.CallerExecutor) != (c.call.ReportWithin > 0):
		return errors.New("the intent is for the caller, or not, otherwise than proposed")
	case d.Verdict != contract.Deny && (!known(sys.policies, "p0", d.Policies.P0) || !known(sys.policies, "p1", d.Policies.P1)) || !known(sys.policies, "p2", d.Policies.P2) && d.Policies.P2 != "":
		return errors.New("decision names a policy that was never activated")
	}
	if c.escalated == nil || d == c.escalated {
		return nil
	}
	return checkVotes(c, d)
}

// known reports whether every digest of a layer was activated.
func known(policies map[string]bool, layer, digests string) bool {
	for digest := range strings.SplitSeq(digests, "+") {
		if !policies[layer+digest] {
			return false
		}
	}
	return true
}

// checkVotes: what the decision says people said is what they said.
func checkVotes(c *callState, d *contract.Decision) error {
	votes, err := votesOf(d.Facts)
	if err != nil {
		return fmt.Errorf("decision's facts: %w", err)
	}
	for _, v := range votes {
		a, ok := c.votes[v.EventID]
		if !ok || a.Approver != v.Approver || a.Vote != v.Vote || !slices.Equal(a.Roles, v.Roles) {
			return fmt.Errorf("decision counts a vote of %s that is not recorded", v.Approver)
		}
	}
	if d.Verdict == contract.Allow && !c.settled {
		return errors.New("allowed before the escalation was settled")
	}
	return nil
}

func checkOutcome(e *contract.Event, c *callState, r *contract.Recorded, tip *receipt.Tip, sys *system) error {
	if c.recorded {
		return errors.New("second outcome of one call")
	}
	d := c.decision
	if r.Decision != nil {
		if d != nil {
			return errors.New("second decision on one call")
		}
		d = r.Decision
		if err := checkDecision(c, d, sys); err != nil {
			return err
		}
	}
	if err := receipt.Check(r, d, sys.reg.At); err != nil {
		return err
	}
	if e.Service() != r.Receipt.Executor {
		return errors.New("published by another service than signed it")
	}
	if d.Intent != nil && (!c.started || c.claimer != e.Service()) {
		return errors.New("outcome of an effect its recorder never claimed")
	}
	if err := receipt.CheckLink(*tip, &r.Receipt); err != nil {
		return err
	}
	*tip = receipt.TipOf(&r.Receipt)
	*c = callState{recorded: true} // nothing may follow that needs more
	return nil
}
