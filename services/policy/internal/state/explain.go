package state

import (
	"context"
	"fmt"
	"iter"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// Explain evaluates the call of the recorded decision d again, and retains the steps. It uses
// the documents in force and, only if d names a document that is not, those that the events
// in past activate or register; it stops reading past when it has all that d names. e is the
// event that recorded d. args are nil if they cannot be read. Keep need not be set, and
// Explain may be called concurrently with Apply. Its errors are those of Recall, of past, and
// of reading or compiling a document.
func (st *State) Explain(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte, past iter.Seq2[*contract.Event, error]) (stack.Evaluation, error) {
	c := stack.Call{ID: d.CallID, Args: args, Explain: true}
	if err := contract.Decode(d.Facts, &c.Facts); err != nil {
		return stack.Evaluation{}, err
	}
	var a stack.Archive
	s := st.Stack()
	a.AddStack(&s)
	if t, digest := st.tools().Lookup(c.Facts.Kind); digest == c.Facts.ToolDigest && t != nil {
		a.AddTool(t)
	}
	b, err := a.Basis(e, d, &c.Facts)
	if err != nil {
		if b, err = st.recall(e, d, &c.Facts, &a, past); err != nil {
			return stack.Evaluation{}, err
		}
	}
	return stack.Evaluate(ctx, b, c), nil
}

// recall adds documents from past to a until a contains all that d names, and returns
// them. f holds the facts of d.
func (st *State) recall(e *contract.Event, d *contract.Decision, f *guard.Facts, a *stack.Archive, past iter.Seq2[*contract.Event, error]) (b stack.Basis, err error) {
	for then, err := range past {
		if err != nil {
			return b, err
		}
		added, err := st.all.restore(a, then, d, f)
		if err != nil {
			return b, err
		}
		if !added {
			continue
		}
		if b, err := a.Basis(e, d, f); err == nil {
			return b, nil
		}
	}
	return a.Basis(e, d, f)
}

// restore adds the document of an event to a if d names it and a lacks it, and reports whether
// it added the document. f holds the facts of d. The error is one about reading or compiling
// the document.
func (st *States) restore(a *stack.Archive, e *contract.Event, d *contract.Decision, f *guard.Facts) (added bool, err error) {
	switch e.Name {
	case contract.EventToolRegistered:
		var t contract.Tool
		if contract.Decode(e.Data, &t) != nil || contract.Digest(&t) != f.ToolDigest {
			return false, nil
		}
		a.AddTool(&t)
		return true, nil
	case contract.EventPolicyActivated:
		var x contract.Activated
		if e.Service() != services.Policy || contract.Decode(e.Data, &x) != nil || x.Retired || !a.Lacks(d, x.Layer, x.Digest) {
			return false, nil
		}
		body, err := st.Open(e.Tenant, &x.Bundle)
		if err != nil {
			return false, fmt.Errorf("policy %s cannot be read: %w", x.Digest, err)
		}
		doc, err := stack.Compile(x.Layer, body, e.Lamport, st.Keys)
		if err != nil {
			return false, fmt.Errorf("policy %s: %w", x.Digest, err)
		}
		a.Add(x.Layer, x.Digest, doc)
		return true, nil
	}
	return false, nil
}
