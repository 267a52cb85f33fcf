// Package recorded rebuilds policy's views from the ledger and decides recorded calls
// again. It is for those who hold a ledger and no running mesh: replay, simulations
// and explanations in the command line.
//
// A view is folded from the first event on, in ledger order, by one goroutine. Its
// dump is byte for byte the live view's at the same position.
package recorded

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/starts"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// State is the view policy.state, with every document that ever was in force.
type State struct{ in state.State }

// NewState makes an empty state. keys names root keys at a lamport; open returns the
// content of a policy document, and fails with contract.ErrErased or ErrEncrypted
// where it is gone: what such a document decided is not decided again.
func NewState(keys guard.KeyAt, open func(*contract.Content) ([]byte, error)) *State {
	return &State{state.State{Keep: true, Keys: keys, Open: open}}
}

// Reads reports whether the view takes events of a name.
func (*State) Reads(name string) bool { return state.Reads(name) }

// Apply folds one event in.
func (s *State) Apply(e *contract.Event) error { return s.in.Apply(e) }

// Dump is the view's canonical form: sorted JSON lines.
func (s *State) Dump() []byte { return s.in.Dump() }

// Redecide decides a call again that e recorded the decision d on, with the tool
// document and the policies that d names. args are nil where they cannot be read. It
// fails with contract.ErrErased where the content of a policy is gone.
func (s *State) Redecide(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte) (verdict, reason, hash string, err error) {
	eval, err := s.in.Redecide(ctx, e, d, args, false)
	if err != nil {
		return "", "", "", err
	}
	verdict, reason, hash = eval.Again()
	return verdict, reason, hash, nil
}

// Explain takes a recorded decision apart: what each part answered, and last what
// they come to. Its errors are Redecide's.
func (s *State) Explain(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte) ([]guard.Step, error) {
	eval, err := s.in.Redecide(ctx, e, d, args, true)
	if err != nil {
		return nil, err
	}
	return eval.Steps(), nil
}

// PartDecision is the last step of an explanation.
const PartDecision = stack.PartDecision

// Budget is the view policy.budget. The zero value is empty.
type Budget = budget.View

// Starts is the view policy.starts: allowed calls that have not started. The zero
// value is empty.
type Starts = starts.View

// StartsReads reports whether Starts takes events of a name.
func StartsReads(name string) bool { return starts.Reads(name) }
