// Package state holds what decisions are made with: tool documents, the policies in
// force, the results of governing calls, calls that wait for approval, prices, the
// labels of data that models may receive, and whether the ledger is complete. The
// service and replay compute the state with the same code, from ledger events and the
// policy documents that these refer to. Its dump is the view policy.state. The package
// does not read the clock or the ledger. To add an event, add it to folds, or to the
// table of package govern if a governing call records it, and to the filters of the
// reader (TestFilters compares them).
package state

import (
	"context"
	"slices"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// State is the view policy.state. The zero value is the empty state; Open and Keys must
// be set before the first Apply. Apply must be called by one goroutine at a time; the
// other methods, except Redecide, may be called concurrently with it.
type State struct {
	// Open returns the content of a policy document. It fails with contract.ErrErased or
	// ErrEncrypted if the content is erased or encrypted.
	Open func(*contract.Content) ([]byte, error)
	// Keys looks up the public half of a key that was a root key at a Lamport time.
	Keys guard.KeyAt
	// Keep makes the state retain every policy document that was ever in force and every
	// registered tool document, which Redecide needs. It must be set before the first
	// Apply.
	Keep bool

	// Catalog holds the tool documents in force. It has a lock of its own.
	Catalog catalog.Catalog

	mu      sync.RWMutex
	view    View
	archive stack.Archive // filled only if Keep is set; Apply and Redecide use it, and must not run concurrently
}

// View is the content of a state at one position of the ledger. It must not be
// used after Read returns.
type View struct {
	Stack  stack.Stack
	People govern.State

	waiting   map[string]*Waiting // escalations by call id
	truncated bool                // whether every call is denied because the ledger was reported as truncated
	lost      string              // digest of the checkpoint that the report of the truncation named, or empty
	prices    llmrouter.PricesPublished
	accepted  llmrouter.DataAccepted
}

// Read calls f with a view that does not change during the call. f must not
// block, since Apply waits for it.
func (st *State) Read(f func(*View)) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	f(&st.view)
}

func (st *State) write(f func(*View)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f(&st.view)
}

// Stack returns the policy documents in force. The value does not change when
// others are activated.
func (st *State) Stack() (s stack.Stack) {
	st.Read(func(v *View) { s = v.Stack })
	return s
}

// MayVote implements govern.View. It returns an error if the principal may not
// vote, as govern.State.MayVote does.
func (st *State) MayVote(principal string) (err error) {
	st.Read(func(v *View) { err = v.People.MayVote(principal) })
	return err
}

// EndedAt implements govern.View. It returns when all credentials of a principal were
// last revoked (contract.TimeFormat), or "" if they never were.
func (st *State) EndedAt(principal string) (at string) {
	st.Read(func(v *View) { at = v.People.EndedAt(principal) })
	return at
}

// Evaluate evaluates a new call with the policy and tool documents in force.
func (st *State) Evaluate(ctx context.Context, c stack.Call) stack.Evaluation {
	return st.EvaluateBy(ctx, st.Stack(), c)
}

// EvaluateBy evaluates a call with the stack s, which need not be in force, and
// with the tool documents in force.
func (st *State) EvaluateBy(ctx context.Context, s stack.Stack, c stack.Call) stack.Evaluation {
	b := s.Basis(&st.Catalog, &c.Facts)
	return stack.Evaluate(ctx, b, c)
}

// Redecide evaluates the call of the recorded decision d again, with the documents that
// d names; e is the event that recorded d. Keep must be set. args are nil if they cannot
// be read. Redecide fails with contract.ErrErased if the content of a policy is erased
// or encrypted, and with another error if a document is not known or the facts cannot be
// decoded.
func (st *State) Redecide(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte, explain bool) (stack.Evaluation, error) {
	c := stack.Call{ID: d.CallID, Args: args, Explain: explain}
	if err := contract.Decode(d.Facts, &c.Facts); err != nil {
		return stack.Evaluation{}, err
	}
	b, err := st.archive.Basis(e, d, &c.Facts)
	if err != nil {
		return stack.Evaluation{}, err
	}
	return stack.Evaluate(ctx, b, c), nil
}

// InForce is a policy document in force: its activation and its body.
type InForce struct {
	contract.Activated
	Body []byte `json:"body"`
}

// InForce returns the policy documents in force, in the order of stack.Stack.InForce.
// Body is nil if the content cannot be read, for example because it was erased.
func (st *State) InForce() []InForce {
	s := st.Stack()
	out := []InForce{}
	for _, a := range s.InForce() {
		x := InForce{Activated: *a}
		x.Body, _ = st.Open(&a.Bundle)
		out = append(out, x)
	}
	return out
}

// Dump returns the canonical form of the view, lines of JSON in a fixed order. Two
// states after the same events have the same dump.
func (st *State) Dump() []byte {
	b := st.Catalog.Dump()
	st.Read(func(v *View) { b = v.dump(b) })
	return b
}

// dump appends the lines of the view in a fixed order.
func (v *View) dump(b []byte) []byte {
	for _, x := range v.Stack.InForce() {
		b = append(canon.Append(b, x), '\n')
	}
	b = append(b, v.People.Dump()...)
	if v.prices.Version != "" {
		b = append(canon.Append(b, &v.prices), '\n')
	}
	if len(v.accepted.Models) > 0 {
		b = append(canon.Append(b, &v.accepted), '\n')
	}
	ids := make([]string, 0, len(v.waiting))
	for id := range v.waiting {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		w := canon.Object(b)
		w.Str(contract.EventEscalated, id)
		w.Int("votes", int64(len(v.waiting[id].Votes)))
		b = append(w.End(), '\n')
	}
	return b
}
