// Package state is what decisions are made with: tool documents, the policies in
// force, what people have put in force beside them, calls that wait for approval,
// prices, and whether the ledger is whole. It is a fold of ledger events, live and
// in replay alike; its dump is the view policy.state.
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

// State is the fold. The zero value is empty; Open and Keys must be set before the
// first Apply. Apply is called by one goroutine at a time; the other methods are
// safe beside it.
type State struct {
	// Open returns the content of a policy document. It fails with
	// contract.ErrErased or ErrEncrypted where it is gone.
	Open func(*contract.Content) ([]byte, error)
	// Keys names root keys.
	Keys guard.KeyAt
	// Keep retains every document that ever was in force, for Redecide and Explain.
	// Set it before the first Apply.
	Keep bool

	// Catalog is the tool documents in force. It has a lock of its own.
	Catalog catalog.Catalog

	mu      sync.RWMutex
	view    View
	archive stack.Archive // with Keep; touched by Apply and by Redecide alone
}

// View is what Read shows of a state. It must not be used after Read returns.
type View struct {
	Stack  stack.Stack
	People govern.State

	waiting   map[string]*Waiting // by call
	truncated bool                // audit found the ledger shorter than it was
	lost      string              // digest of the checkpoint that the ledger does not hold any more
	labels    bool                // some session or tool carries labels
	prices    llmrouter.PricesPublished
	accepted  llmrouter.DataAccepted
}

// Read calls f with a view that does not change meanwhile. f must not block.
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

// Stack returns the policies in force.
func (st *State) Stack() (s stack.Stack) {
	st.Read(func(v *View) { s = v.Stack })
	return s
}

// Labelled reports whether any session can carry labels. While none can, nobody
// needs to look for them.
func (st *State) Labelled() (yes bool) {
	st.Read(func(v *View) { yes = v.labels })
	return yes
}

// MarkLabelled makes Labelled true, ahead of the event that says so.
func (st *State) MarkLabelled() {
	st.write(func(v *View) { v.labels = true })
}

// MayVote implements govern.View.
func (st *State) MayVote(principal string) (err error) {
	st.Read(func(v *View) { err = v.People.MayVote(principal) })
	return err
}

// EndedAt implements govern.View.
func (st *State) EndedAt(principal string) (at string) {
	st.Read(func(v *View) { at = v.People.EndedAt(principal) })
	return at
}

// Evaluate evaluates a new call by what is in force.
func (st *State) Evaluate(ctx context.Context, c stack.Call) stack.Evaluation {
	return st.EvaluateBy(ctx, st.Stack(), c)
}

// EvaluateBy evaluates a call by a stack that need not be the one in force, and
// by the tool documents that are.
func (st *State) EvaluateBy(ctx context.Context, s stack.Stack, c stack.Call) stack.Evaluation {
	b := s.Basis(&st.Catalog, &c.Facts)
	return stack.Evaluate(ctx, b, c)
}

// Redecide evaluates a call again that e recorded the decision d on, by the
// documents that d names. args are nil where they cannot be read. It fails with
// contract.ErrErased where the content of a policy was erased.
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

// InForce is a policy document in force, with its body.
type InForce struct {
	contract.Activated
	Body []byte `json:"body"`
}

// InForce lists the policy documents in force in order of layer and precedence.
// The body is nil where its content was erased.
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

// Dump is the view's canonical form: sorted JSON lines.
func (st *State) Dump() []byte {
	b := st.Catalog.Dump()
	st.Read(func(v *View) { b = v.dump(b) })
	return b
}

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
