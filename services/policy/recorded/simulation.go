package recorded

import (
	"context"
	"fmt"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// Simulation takes recorded decisions again, once with the documents in force now
// and once with a candidate added. A difference between the record and the first
// result is a change since then; a difference between the two results is the
// effect of the candidate.
type Simulation struct {
	now             *State
	force, proposed stack.Stack
}

// NewSimulation returns a simulation of adding candidate to the documents in force in
// now, which must be the state at the end of the ledger. Overlays in force that have
// expired at the time at are omitted; candidate is not. NewSimulation returns an error
// if candidate cannot be compiled, and one that wraps contract.ErrErased if a document
// in force cannot be read.
func NewSimulation(now *State, candidate *draft.Document, at time.Time) (*Simulation, error) {
	force := now.in.Stack().WithoutExpired(contract.Time(at))
	if err := force.Readable(); err != nil {
		return nil, fmt.Errorf("the documents in force decide nothing again: %w: put another document in force in its place, or retire it", err)
	}
	proposed, err := draft.With(force, candidate)
	if err != nil {
		return nil, err
	}
	return &Simulation{now, force, proposed}, nil
}

// Opinion is the verdict of a simulated decision and its reason code.
type Opinion struct {
	Verdict string `json:"verdict"`
	Reason  string `json:"reason_code"`
}

// Decide takes the decision about a recorded call with the documents in force now and
// with the candidate. args are nil if they cannot be read. Tools, their approvals,
// policies, roles and suspensions are the current ones. Facts of the call itself, such
// as its time, its labels, the result of its limits and its votes, are the recorded
// ones. Decide returns an error if the facts of d cannot be decoded.
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
