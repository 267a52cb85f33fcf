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
	now       *State
	candidate *draft.Document
	tenant    string // tenant in which the candidate would be activated
	at        string
	by        map[string]*stacks // documents by tenant, filled when they are needed
}

// stacks are the documents in force for a tenant, without and with the candidate.
type stacks struct{ force, proposed stack.Stack }

// NewSimulation returns a simulation of adding candidate to the documents in force in
// now, which must be the state at the end of the ledger. Ceilings are added for every
// tenant, and so are bundles if tenant is the cell's own. Any other document is added for
// the given tenant only, or for the original tenant if tenant is empty. Overlays in force
// that have expired at the time at are omitted; candidate is not. NewSimulation returns
// an error if the tenant does not exist or if candidate cannot be read as a document of
// its layer, and an error that wraps contract.ErrErased if a document in force for the
// tenant cannot be read.
func NewSimulation(now *State, candidate *draft.Document, tenant string, at time.Time) (*Simulation, error) {
	if tenant == "" {
		_, tenant = state.Tenants(&now.in)
	}
	if now.in.Of(tenant) == nil {
		return nil, fmt.Errorf("tenant %s does not exist", tenant)
	}
	s := &Simulation{now, candidate, tenant, contract.Time(at), map[string]*stacks{}}
	_, err := s.stacks(tenant)
	return s, err
}

// stacks returns the documents by which the calls of a tenant are decided.
func (s *Simulation) stacks(tenant string) (*stacks, error) {
	if found := s.by[tenant]; found != nil {
		return found, nil
	}
	x := &stacks{force: s.now.in.Nearest(tenant).Stack().WithoutExpired(s.at)}
	if err := x.force.Readable(); err != nil {
		return nil, fmt.Errorf("a document in force cannot be read: %w: put another document in force in its place, or retire it", err)
	}
	x.proposed = x.force
	if s.candidate.Layer == "p0" || tenant == s.tenant || s.candidate.Layer == "p1" && s.tenant == s.now.in.Cell() {
		var err error
		if x.proposed, err = draft.With(x.force.Of(s.tenant == s.now.in.Cell()), s.candidate); err != nil {
			return nil, err
		}
	}
	s.by[tenant] = x
	return x, nil
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
// ones. Decide returns an error if the facts of d cannot be decoded, and one that wraps
// contract.ErrErased if a document in force for its tenant cannot be read.
func (s *Simulation) Decide(ctx context.Context, d *contract.Decision, args []byte) (now, would Opinion, err error) {
	c := stack.Call{ID: d.CallID, Args: args}
	if err := contract.Decode(d.Facts, &c.Facts); err != nil {
		return now, would, err
	}
	by, err := s.stacks(d.Tenant)
	if err != nil {
		return now, would, err
	}
	st := s.now.in.Nearest(d.Tenant)
	st.Read(func(v *state.View) { v.AddStanding(&c.Facts) })
	of := func(by stack.Stack) Opinion {
		eval := st.EvaluateBy(ctx, by, c)
		a := eval.Verdict()
		return Opinion{a.Verdict, a.Reason}
	}
	return of(by.force), of(by.proposed), nil
}
