// Package recorded rebuilds policy's views from a ledger, and takes recorded decisions
// again. It is used by programs that read a ledger themselves instead of querying the
// policy service, for replay and simulations. A view is built from the
// first event on, in the order of the ledger, by one goroutine. Its dump equals that of
// the live view at the same position, byte for byte. The package makes no network
// connections; its caller reads the events and contents.
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

// State is the view policy.state, together with every policy document that was ever in
// force and every registered tool document, which decisions of the past need.
type State struct{ in state.States }

// NewState returns the empty state. keys returns root keys by Lamport time. open
// returns the content of a policy document, and fails with contract.ErrErased or
// ErrEncrypted if the content is not readable; decisions that rest on such a
// document cannot be taken again.
func NewState(keys guard.KeyAt, open func(tenant string, c *contract.Content) ([]byte, error)) *State {
	return &State{in: state.States{Keep: true, Keys: keys, Open: open}}
}

// Reads reports whether Apply processes events with this name; a caller may skip other
// events.
func (*State) Reads(name string) bool { return state.Reads(name) }

// Apply applies the next event of the ledger. An error means that an event of policy or
// a policy document cannot be read or applied; the state must then not be used.
func (s *State) Apply(e *contract.Event) error { return s.in.Apply(e) }

// Dump returns the canonical form of the view, lines of JSON in a fixed order, which
// replay compares with the live view.
func (s *State) Dump() []byte { return s.in.Dump() }

// Recalled is a recorded decision with the documents that it names.
type Recalled struct {
	basis stack.Basis
	call  stack.Call
}

// Recall returns the recorded decision d with the tool document and the policies that d
// names, as far as the events applied so far contain them. e is the event that recorded
// d. Recall fails with contract.ErrErased if the content of a policy is not readable, and
// with another error if a document is not known or the facts of d cannot be decoded.
func (s *State) Recall(e *contract.Event, d *contract.Decision) (*Recalled, error) {
	b, c, err := s.in.Recall(e, d)
	return &Recalled{b, c}, err
}

// Redecide takes the decision again, and returns the verdict, the reason code, the policy
// hash and the intent's rules for requests. args are nil if they cannot be read. It is a
// pure function of the recalled decision and args, and may be called concurrently with
// every method of a State.
func (r *Recalled) Redecide(ctx context.Context, args []byte) (verdict, reason, hash string, egress []contract.EgressRule) {
	c := r.call
	c.Args = args
	eval := stack.Evaluate(ctx, r.basis, c)
	verdict, reason, hash = eval.Again()
	return verdict, reason, hash, eval.Egress()
}

// Budget is the view policy.budget, built from budget events. The zero value is
// the empty view.
type Budget = budget.View

// Starts is the view policy.starts: the allowed calls that have not started yet, and the
// expired calls without an outcome. The zero value is the empty view.
type Starts = starts.View

// StartsReads reports whether Starts processes events with this name; a caller may skip
// other events.
func StartsReads(name string) bool { return starts.Reads(name) }
