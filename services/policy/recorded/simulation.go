package recorded

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// Simulation decides recorded calls again: with what is in force now, and with a
// candidate beside it. What differs between the record and now has changed since;
// what differs between now and the candidate is the candidate's effect.
type Simulation struct {
	now             *State
	force, proposed stack.Stack
}

// NewSimulation places a candidate among what is in force in now, a state at the
// end of the ledger. Overlays that have expired at the time at are left out.
func NewSimulation(now *State, candidate *draft.Document, at time.Time) (*Simulation, error) {
	force := now.in.Stack().WithoutExpired(contract.Time(at))
	proposed, err := draft.With(force, candidate)
	if err != nil {
		return nil, err
	}
	return &Simulation{now, force, proposed}, nil
}

// Opinion is a verdict and why.
type Opinion struct {
	Verdict string `json:"verdict"`
	Reason  string `json:"reason_code"`
}

// Decide decides a recorded call under what is in force now and under the
// candidate. Tools, their approvals, policies, roles and suspensions are today's;
// what the call itself brought, its time, its labels and what its limits and its
// approvers said stay as they were recorded.
func (s *Simulation) Decide(ctx context.Context, d *contract.Decision, args []byte) (now, would Opinion, err error) {
	c := stack.Call{ID: d.CallID, Args: args}
	if err := contract.Decode(d.Facts, &c.Facts); err != nil {
		return now, would, err
	}
	s.now.in.Read(func(v *state.View) { v.AddStanding(&c.Facts) })
	of := func(by stack.Stack) Opinion {
		eval := s.now.in.EvaluateBy(ctx, by, c)
		a := eval.Verdict()
		return Opinion{a.Verdict, a.Reason}
	}
	return of(s.force), of(s.proposed), nil
}
