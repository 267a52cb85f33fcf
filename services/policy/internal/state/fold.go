package state

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// folds maps the name of an event to the function that applies it. The table of
// governing events is in package govern.
var folds = map[string]func(*State, *contract.Event) error{
	contract.EventToolRegistered:   toolRegistered,
	contract.EventToolRetired:      toolChanged,
	contract.EventToolApproved:     toolChanged,
	contract.EventPolicyActivated:  own(policyActivated),
	contract.EventLedgerTruncated:  ledgerTruncated,
	contract.EventLogEpochOpened:   logEpochOpened,
	contract.EventEscalated:        own(escalated),
	contract.EventApprovalRecorded: own(approvalRecorded),
	llmrouter.PricesPublishedName:  published(func(v *View, d *llmrouter.PricesPublished) { v.prices = *d }),
	llmrouter.DataAcceptedName:     published(func(v *View, d *llmrouter.DataAccepted) { v.accepted = *d }),
}

// Reads reports whether Apply processes events with this name. The filters of the live
// reader must select the same events.
func Reads(name string) bool { return folds[name] != nil || govern.Folds(name) }

// Apply applies one event; events with other names change nothing. A malformed event of
// a service other than policy is ignored, except that a ledger_truncated event is an
// alarm in any form. Apply returns an error if an event of policy or a policy document
// cannot be read, after which the state must not be used: later decisions would rest on
// the wrong documents.
func (st *State) Apply(e *contract.Event) error {
	if f := folds[e.Name]; f != nil {
		return f(st, e)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return govern.Evolve(&st.view.People, e)
}

// own returns a fold that applies events of policy only.
func own(f func(*State, *contract.Event) error) func(*State, *contract.Event) error {
	return func(st *State, e *contract.Event) error {
		if e.Service() != "policy" {
			return nil
		}
		return f(st, e)
	}
}

// published returns a fold for documents of the llm-router. It ignores events of other
// services, and malformed ones, because an event that another service stored must not
// make policy exit.
func published[T any, P interface {
	*T
	canon.Document
}](set func(*View, P)) func(*State, *contract.Event) error {
	return func(st *State, e *contract.Event) error {
		d := P(new(T))
		if e.Service() != "llm-router" {
			return nil
		}
		if err := contract.Decode(e.Data, d); err != nil {
			slog.Error("malformed document of the llm-router", "event", e.ID, "err", err)
			return nil
		}
		st.write(func(v *View) { set(v, d) })
		return nil
	}
}

func toolChanged(st *State, e *contract.Event) error { return st.Catalog.Apply(e) }

// toolRegistered adds a tool document to the catalog and, if Keep is set, to the archive.
func toolRegistered(st *State, e *contract.Event) error {
	if st.Keep {
		var t contract.Tool
		if err := contract.Decode(e.Data, &t); err != nil {
			return nil // the catalog ignores it too
		}
		st.archive.AddTool(&t)
	}
	return st.Catalog.Apply(e)
}

// policyActivated puts a document in force, or retires one.
func policyActivated(st *State, e *contract.Event) error {
	var a contract.Activated
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	doc, err := st.document(&a, e.Lamport)
	if err != nil {
		return err
	}
	next, err := st.Stack().With(&a, doc)
	if err != nil {
		return err
	}
	st.write(func(v *View) { v.Stack = next })
	if st.Keep && doc != nil {
		st.archive.Add(a.Layer, a.Digest, doc)
	}
	return nil
}

// document returns the compiled document of an activation, or nil for a retirement. If
// Keep is set and the content is erased or encrypted, it returns a stack.Erased value;
// decisions that rest on that document cannot be taken again.
func (st *State) document(a *contract.Activated, lamport uint64) (any, error) {
	if a.Retired {
		return nil, nil
	}
	body, err := st.Open(&a.Bundle)
	switch gone := errors.Is(err, contract.ErrErased) || errors.Is(err, contract.ErrEncrypted); {
	case err == nil:
		return stack.Compile(a.Layer, body, lamport, st.Keys)
	case st.Keep && gone:
		return stack.Erased{Layer: a.Layer}, nil
	}
	return nil, fmt.Errorf("policy %s cannot be read: %w", a.Digest, err)
}

// ledgerTruncated causes every call to be denied until logEpochOpened ends the denial.
// An event that audit did not produce, or that cannot be decoded, has the same effect,
// but its checkpoint counts as empty.
func ledgerTruncated(st *State, e *contract.Event) error {
	var l audit.LedgerTruncated
	if e.Service() != "audit" || contract.Decode(e.Data, &l) != nil {
		l.Checkpoint = ""
	}
	st.write(func(v *View) { v.truncated, v.lost = true, l.Checkpoint })
	return nil
}

// logEpochOpened ends the denial of every call if the event's document is signed by a
// root key and names the checkpoint of the last ledger_truncated event. It ignores any
// other event.
func logEpochOpened(st *State, e *contract.Event) error {
	l, err := trust.VerifyEpoch(e, st.Keys)
	st.write(func(v *View) {
		if err == nil && l.Checkpoint == v.lost {
			v.truncated, v.lost = false, ""
		}
	})
	return nil
}

// escalated adds a call to those that wait for votes.
func escalated(st *State, e *contract.Event) error {
	w := &Waiting{Event: e}
	if err := contract.Decode(slices.Clone(e.Data), &w.Escalated); err != nil {
		return err
	}
	st.write(func(v *View) {
		if v.waiting == nil {
			v.waiting = map[string]*Waiting{}
		}
		v.waiting[e.CallID] = w
	})
	return nil
}

// approvalRecorded adds a vote to a waiting call, or removes the call if the vote
// settles it.
func approvalRecorded(st *State, e *contract.Event) error {
	var a contract.Approval
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	st.write(func(v *View) {
		w := v.waiting[e.CallID]
		switch {
		case w == nil:
		case a.Resolved != "":
			delete(v.waiting, e.CallID)
		default:
			w.Votes = append(w.Votes, a)
		}
	})
	return nil
}
