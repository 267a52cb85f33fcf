package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// State is what decisions are made with: catalog, policies in force, and what
// people put in force beside them. It is built by folding ledger events, live
// and in replay alike.
type State struct {
	Catalog catalog.Catalog
	// Open reads a policy document's content; Keys answers for root keys.
	Open func(*contract.Content) ([]byte, error)
	Keys guard.KeyAt
	// Keep retains everything that ever was in force, by digest, for replay.
	Keep bool

	mu        sync.RWMutex
	stack     stack.Stack
	gov       govern.State
	waiting   map[string]*waiting // escalated calls, by call
	truncated bool                // audit found the ledger shorter than it was
	lost      string              // digest of the checkpoint it does not hold any more
	labels    bool                // some session or tool carries labels
	prices    llmrouter.PricesPublished
	accepted  llmrouter.DataAccepted

	archive stack.Archive // with Keep
}

// waiting is an escalated call that is not settled.
type waiting struct {
	event *contract.Event
	doc   contract.Escalated
	votes []contract.Approval
}

// Reads reports whether an event of that name is one that State folds.
func Reads(name string) bool {
	switch name {
	case "tool_registered", "tool_retired", "tool_approved", "policy_activated", "ledger_truncated", "log_epoch_opened", contract.EventEscalated, contract.EventApprovalRecorded,
		events.SessionLabelledName, events.PrincipalRegisteredName, events.PrincipalSuspendedName, events.RoleGrantedName, events.RoleRevokedName, events.DelegationGrantedName, events.DelegationRevokedName,
		events.MeshFrozenName, events.MeshUnfrozenName, events.LimitsSetName, events.BreakGlassOpenedName, events.BreakGlassReviewedName,
		events.VirtualKeyCreatedName, events.VirtualKeyRevokedName, llmrouter.PricesPublishedName, llmrouter.DataAcceptedName,
		events.TokenRevokedName, events.PrincipalResumedName, events.VirtualKeyConsentedName, events.VirtualKeyConsentWithdrawnName,
		events.SessionGrantedName, events.SessionGrantRevokedName:
		return true
	}
	return false
}

// Apply folds one event in. It keeps nothing of e's bytes.
func (st *State) Apply(e *contract.Event) error {
	switch e.Name {
	case "tool_registered", "tool_retired", "tool_approved":
		if st.Keep && e.Name == "tool_registered" {
			if err := st.keepTool(e); err != nil {
				return err
			}
		}
		if err := st.Catalog.Apply(e); err != nil || e.Name != "tool_registered" {
			return err
		}
		for _, t := range st.Catalog.Tools() {
			if len(t.Labels) > 0 || tainting(&t) {
				st.markLabelled()
			}
		}
		return nil
	case events.SessionLabelledName:
		if e.Service() != "policy" {
			return nil
		}
		st.markLabelled()
		return nil
	case "policy_activated":
		var a contract.Activated
		if err := contract.Decode(e.Data, &a); err != nil {
			return err
		}
		if e.Service() != "policy" {
			return nil
		}
		return st.activate(&a, e.Lamport)
	case "ledger_truncated":
		var l audit.LedgerTruncated
		if e.Service() != "audit" || contract.Decode(e.Data, &l) != nil {
			l.Checkpoint = "" // whatever it says, it is an alarm
		}
		st.mu.Lock()
		st.truncated, st.lost = true, l.Checkpoint
		st.mu.Unlock()
		return nil
	case "log_epoch_opened":
		l, err := trust.VerifyEpoch(e, st.Keys)
		st.mu.Lock()
		defer st.mu.Unlock()
		if err == nil && l.Checkpoint == st.lost {
			st.truncated, st.lost = false, ""
		}
		return nil
	case contract.EventEscalated, contract.EventApprovalRecorded:
		if e.Service() != "policy" {
			return nil
		}
		return st.escalation(e)
	case llmrouter.DataAcceptedName:
		var d llmrouter.DataAccepted
		if err := contract.Decode(e.Data, &d); err != nil || e.Service() != "llm-router" {
			return err
		}
		st.mu.Lock()
		st.accepted = d
		st.mu.Unlock()
		return nil
	case llmrouter.PricesPublishedName:
		var p llmrouter.PricesPublished
		if err := contract.Decode(e.Data, &p); err != nil || e.Service() != "llm-router" {
			return err
		}
		st.mu.Lock()
		st.prices = p
		st.mu.Unlock()
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return govern.Evolve(&st.gov, e)
}

// labelled reports whether any session can carry labels: without, nobody needs
// to look for them.
func (st *State) labelled() bool {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.labels
}

func (st *State) markLabelled() {
	st.mu.Lock()
	st.labels = true
	st.mu.Unlock()
}

func (st *State) keepTool(e *contract.Event) error {
	var t contract.Tool
	if err := contract.Decode(e.Data, &t); err != nil {
		return err
	}
	st.archive.AddTool(&t)
	return nil
}

// activate puts a document in force, or takes it out.
func (st *State) activate(a *contract.Activated, lamport uint64) error {
	var doc any
	if !a.Retired {
		body, err := st.Open(&a.Bundle)
		switch {
		case err == nil:
			if doc, err = stack.Compile(a.Layer, body, lamport, st.Keys); err != nil {
				return err
			}
		case st.Keep && gone(err):
			doc = stack.Erased{Layer: a.Layer} // what it decided cannot be decided again
		default:
			return fmt.Errorf("policy %s cannot be read: %w", a.Digest, err)
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	next, err := st.stack.With(a, doc)
	if err != nil {
		return err
	}
	st.stack = next
	if st.Keep && doc != nil {
		st.archive.Add(a.Layer, a.Digest, doc)
	}
	return nil
}

func gone(err error) bool {
	return errors.Is(err, contract.ErrErased) || errors.Is(err, contract.ErrEncrypted)
}

// evaluate evaluates a new call by what is in force. It completes the facts with
// what the catalog says of the tool.
func (st *State) evaluate(ctx context.Context, c stack.Call) stack.Evaluation {
	st.mu.RLock()
	s := st.stack
	st.mu.RUnlock()
	b := s.Basis(&st.Catalog, &c.Facts)
	return stack.Evaluate(ctx, b, c)
}

// recall evaluates a call again that e recorded a decision on, by the documents
// that the decision names. Keep must have been set before they were applied.
func (st *State) recall(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte, explain bool) (stack.Evaluation, error) {
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

// Redecide computes a decision again that e recorded, with the tool document and
// the policies that it names. Keep must have been set before they were applied.
// It fails with contract.ErrErased where the content of a policy was erased.
func (st *State) Redecide(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte) (verdict, reason, hash string, err error) {
	ev, err := st.recall(ctx, e, d, args, false)
	if err != nil {
		return "", "", "", err
	}
	verdict, reason, hash = ev.Again()
	return verdict, reason, hash, nil
}

// Explain takes a recorded decision apart: what each part answered, and last what
// they come to. Its errors are Redecide's.
func (st *State) Explain(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte) ([]guard.Step, error) {
	ev, err := st.recall(ctx, e, d, args, true)
	if err != nil {
		return nil, err
	}
	return ev.Steps(), nil
}

// limits are all that are in force: the ceilings' and people's.
func (st *State) limits() []guard.Limit {
	st.mu.RLock()
	defer st.mu.RUnlock()
	var out []guard.Limit
	if p0 := st.stack.Ceilings(); p0 != nil {
		for _, l := range p0.Limits {
			l.ID = "p0-" + l.ID // people's ids cannot take their place
			out = append(out, l)
		}
	}
	return append(append(out, st.gov.Limits.List()...), st.gov.Keys.Limits()...)
}

// price is the most that a model, as callers name it, costs; ok is false where
// nobody has said.
func (st *State) price(model string) (p llmrouter.ModelPrice, ok bool) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	i, ok := slices.BinarySearchFunc(st.prices.Models, model, func(m llmrouter.ModelPrice, name string) int { return cmp.Compare(m.Model, name) })
	if ok {
		p = st.prices.Models[i]
	}
	return p, ok
}

// sends is how often a request may go to each model that may answer it.
func (st *State) sends() int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.prices.Sends
}

// accepts is the labels of data that a model, as callers name it, may receive.
func (st *State) accepts(model string) []string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	provider, _, _ := strings.Cut(model, "/")
	for _, name := range []string{model, provider + "/"} {
		i, ok := slices.BinarySearchFunc(st.accepted.Models, name, func(m llmrouter.ModelAccepts, name string) int { return cmp.Compare(m.Model, name) })
		if ok {
			return st.accepted.Models[i].Accepts
		}
	}
	return nil
}

// key is the virtual key behind a client's name, or nil.
func (st *State) key(client, actor, kind, now, model string) *guard.KeyFact {
	id, ok := strings.CutPrefix(client, contract.KeyClient)
	if !ok {
		return nil
	}
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.Key(id, actor, kind, now, model)
}

func (st *State) revoked(token, actor, proposed string) bool {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.Tokens.Revoked(token, actor, proposed)
}

func (st *State) grantedBy(session, principal, now string) string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.GrantedBy(session, principal, now)
}

// dualControl reports whether a registration, by its args, needs a second person.
func (st *State) dualControl(args []byte, actor string, now time.Time) bool {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.People.DualControl(args, actor, now)
}

// MayVote implements govern.View.
func (st *State) MayVote(principal string) error {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.MayVote(principal)
}

// EndedAt implements govern.View.
func (st *State) EndedAt(principal string) string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.EndedAt(principal)
}

// govern adds to the facts what people have put in force.
func (st *State) govern(f *guard.Facts, now time.Time) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	f.Truncated, f.Frozen = st.truncated, st.gov.Freeze.ID()
	f.Roles = st.gov.People.Roles(f.Actor, f.Now)
	f.Suspended = st.gov.People.Suspended(f.Actor) || f.OnBehalfOf != "" && st.gov.People.Suspended(f.OnBehalfOf)
	f.BreakGlass, f.ReviewDue = st.gov.Emergencies.Of(f.Actor, f.Now, contract.Time(now.Add(-govern.ReviewWithin)))
	if f.OnBehalfOf == "" && f.Delegation == "" {
		return
	}
	if f.DelegationBad = st.gov.Delegations.Fault(f.Delegation, f.OnBehalfOf, f.Actor, f.Kind, f.Now); f.DelegationBad != "" {
		return
	}
	scopes, _ := st.gov.Delegations.Scopes(f.Delegation)
	f.Delegator = &guard.DelegatorFact{Roles: st.gov.People.Roles(f.OnBehalfOf, f.Now), Scopes: scopes}
	// Breaking the glass is a person's own act; a review that is due stops both.
	_, due := st.gov.Emergencies.Of(f.OnBehalfOf, f.Now, contract.Time(now.Add(-govern.ReviewWithin)))
	f.BreakGlass, f.ReviewDue = "", f.ReviewDue || due
}

func (st *State) escalation(e *contract.Event) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.waiting == nil {
		st.waiting = map[string]*waiting{}
	}
	if e.Name == contract.EventEscalated {
		w := &waiting{event: e}
		if err := contract.Decode(slices.Clone(e.Data), &w.doc); err != nil {
			return err
		}
		st.waiting[e.CallID] = w
		return nil
	}
	var a contract.Approval
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	w := st.waiting[e.CallID]
	switch {
	case w == nil:
	case a.Resolved != "":
		delete(st.waiting, e.CallID)
	default:
		w.votes = append(w.votes, a)
	}
	return nil
}

// escalated returns the escalation of a call that is not settled.
func (st *State) escalated(call string) *waiting {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.waiting[call]
}

// overdue lists the escalations whose time was over at now.
func (st *State) overdue(now string) []*waiting {
	st.mu.RLock()
	defer st.mu.RUnlock()
	var out []*waiting
	for _, w := range st.waiting {
		if w.doc.Expires <= now {
			out = append(out, w)
		}
	}
	return out
}

// Dump is the view's canonical form: sorted JSON lines.
func (st *State) Dump() []byte {
	b := st.Catalog.Dump()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, x := range st.stack.InForce() {
		b = append(canon.Append(b, x), '\n')
	}
	b = append(b, st.gov.Dump()...)
	if st.prices.Version != "" {
		b = append(canon.Append(b, &st.prices), '\n')
	}
	if len(st.accepted.Models) > 0 {
		b = append(canon.Append(b, &st.accepted), '\n')
	}
	ids := make([]string, 0, len(st.waiting))
	for id := range st.waiting {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		w := canon.Object(b)
		w.Str(contract.EventEscalated, id)
		w.Int("votes", int64(len(st.waiting[id].votes)))
		b = append(w.End(), '\n')
	}
	return b
}
