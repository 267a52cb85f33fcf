package policy

import (
	"cmp"
	"context"
	"encoding/json"
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
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

var checker toolschema.Checker

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
	stack     stack
	gov       govern.State
	waiting   map[string]*waiting // escalated calls, by call
	truncated bool                // audit found the ledger shorter than it was
	lost      string              // digest of the checkpoint it does not hold any more
	labels    bool                // some session or tool carries labels
	prices    llmrouter.PricesPublished
	accepted  llmrouter.DataAccepted

	kept  map[string]any // by layer and digest: *guard.Ceilings, *rego.Engine, *guard.Overlay
	tools map[string]*contract.Tool
}

// stack is the policies in force. It is replaced as a whole, so that a
// decision sees one stack from beginning to end.
type stack struct {
	p0       *guard.Ceilings
	p0Digest string
	p1       []bundle  // in order of precedence
	p2       []overlay // by name
	history  []*contract.Activated
}

type bundle struct {
	name       string
	precedence int64
	digest     string
	engine     *rego.Engine
}

type overlay struct {
	name, digest string
	doc          *guard.Overlay
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
	case "tool_registered", "tool_retired", "tool_approved", "policy_activated", "ledger_truncated", "log_epoch_opened", "escalated", "approval_recorded",
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
	case "escalated", "approval_recorded":
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
	if st.tools == nil {
		st.tools = map[string]*contract.Tool{}
	}
	st.tools[contract.Digest(&t)] = &t
	return nil
}

// activate puts a document in force, or takes it out.
func (st *State) activate(a *contract.Activated, lamport uint64) error {
	var doc any
	if !a.Retired {
		body, err := st.Open(&a.Bundle)
		switch {
		case err == nil:
			if doc, err = compile(a.Layer, body, lamport, st.Keys); err != nil {
				return err
			}
		case st.Keep && gone(err):
			doc = erased{a.Layer} // what it decided cannot be decided again
		default:
			return fmt.Errorf("policy %s cannot be read: %w", a.Digest, err)
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	next, err := st.stack.with(a, doc)
	if err != nil {
		return err
	}
	st.stack = next
	if st.Keep && doc != nil {
		if st.kept == nil {
			st.kept = map[string]any{}
		}
		st.kept[a.Layer+a.Digest] = doc
	}
	return nil
}

// erased stands for a policy document, in replay, whose content is gone.
type erased struct{ layer string }

func gone(err error) bool {
	return errors.Is(err, contract.ErrErased) || errors.Is(err, contract.ErrEncrypted)
}

// compile reads a policy document of a layer.
func compile(layer string, body []byte, lamport uint64, keys guard.KeyAt) (any, error) {
	switch layer {
	case "p0":
		return guard.OpenP0(body, lamport, keys)
	case "p1":
		return rego.Compile(context.Background(), body)
	case "p2":
		var o guard.Overlay
		if err := contract.Decode(body, &o); err != nil {
			return nil, fmt.Errorf("overlay: %w", err)
		}
		return &o, o.Validate()
	}
	return nil, fmt.Errorf("policy layer %q is unknown", layer)
}

// with is the stack after an activation.
func (s stack) with(a *contract.Activated, doc any) (stack, error) {
	s.history = append(slices.Clip(s.history), a)
	s.p1 = slices.DeleteFunc(slices.Clone(s.p1), func(b bundle) bool { return a.Layer == "p1" && b.name == a.Name })
	s.p2 = slices.DeleteFunc(slices.Clone(s.p2), func(o overlay) bool { return a.Layer == "p2" && o.name == a.Name })
	if a.Retired {
		if a.Layer == "p0" {
			return s, errors.New("the ceilings cannot be retired")
		}
		return s, nil
	}
	if x, ok := doc.(erased); ok {
		doc = map[string]any{"p0": (*guard.Ceilings)(nil), "p1": (*rego.Engine)(nil), "p2": (*guard.Overlay)(nil)}[x.layer]
	}
	switch d := doc.(type) {
	case *guard.Ceilings:
		s.p0, s.p0Digest = d, a.Digest
	case *rego.Engine:
		s.p1 = append(s.p1, bundle{a.Name, a.Precedence, a.Digest, d})
		slices.SortFunc(s.p1, func(x, y bundle) int {
			return cmp.Or(cmp.Compare(x.precedence, y.precedence), cmp.Compare(x.name, y.name))
		})
	case *guard.Overlay:
		s.p2 = append(s.p2, overlay{a.Name, a.Digest, d})
		slices.SortFunc(s.p2, func(x, y overlay) int { return cmp.Compare(x.name, y.name) })
	}
	return s, nil
}

// digests names the policies that a decision on f rests on.
func (s *stack) digests(f *guard.Facts) contract.PolicyDigests {
	d := contract.PolicyDigests{P0: s.p0Digest}
	var p1, p2 []string
	for i := range s.p1 {
		p1 = append(p1, s.p1[i].digest)
	}
	for i := range s.p2 {
		if s.p2[i].doc.Applies(f) {
			p2 = append(p2, s.p2[i].digest)
		}
	}
	d.P1, d.P2 = strings.Join(p1, "+"), strings.Join(p2, "+")
	return d
}

// inputs gathers what guard.Decide looks at. args nil means they cannot be
// read.
func (st *State) inputs(ctx context.Context, callID, idem string, f guard.Facts, args []byte) guard.Inputs {
	st.mu.RLock()
	s := st.stack
	st.mu.RUnlock()
	return st.under(ctx, &s, callID, idem, f, args)
}

// under is inputs under a stack that need not be the one in force.
func (st *State) under(ctx context.Context, s *stack, callID, idem string, f guard.Facts, args []byte) guard.Inputs {
	f.ToolPinned = ""
	tool, digest := st.Catalog.Lookup(f.Kind)
	if tool != nil && tool.Tool != f.Tool {
		tool, digest = nil, "none"
	}
	f.ToolDigest, f.CatalogDigest = digest, st.Catalog.Digest()
	if tool != nil {
		approved, explicit := st.Catalog.Approved(f.Kind)
		switch {
		case tool.Executor == "policy":
		case !explicit && s.p0 != nil && s.p0.ExplicitTools:
			f.ToolPinned = "none"
		case approved != digest:
			f.ToolPinned = approved
		}
	}
	in := guard.Inputs{CallID: callID, IdemKey: idem, Facts: f, Tool: tool, P0: s.p0, Policies: s.digests(&f)}
	answer(ctx, &in, documents{s.engines(), s.overlays(&f)}, args, toolschema.Closed, nil)
	return in
}

func (s *stack) engines() []*rego.Engine {
	out := make([]*rego.Engine, len(s.p1))
	for i := range s.p1 {
		out[i] = s.p1[i].engine
	}
	return out
}

func (s *stack) overlays(f *guard.Facts) []*guard.Overlay {
	var out []*guard.Overlay
	for i := range s.p2 {
		if s.p2[i].doc.Applies(f) {
			out = append(out, s.p2[i].doc)
		}
	}
	return out
}

// documents are the compiled policies that a decision rests on, beside the
// ceilings.
type documents struct {
	engines  []*rego.Engine // in order of precedence
	overlays []*guard.Overlay
}

// answer fills in what schema, bundles and overlays say. Of the bundles, the
// first with an opinion speaks for the layer. It passes each answer to note, if
// set, in the order of the documents. Every decision is taken by it and
// guard.Judge: live, in replay, in simulations and where one is explained.
func answer(ctx context.Context, in *guard.Inputs, docs documents, args []byte, rules toolschema.Rules, note func(guard.Step)) {
	if in.Tool == nil {
		return
	}
	said := func(part, name, at string, a guard.Answer) guard.Answer {
		if note != nil {
			note(guard.Step{Part: part, Name: name, Verdict: a.Verdict, Reason: a.Reason, At: at})
		}
		return a
	}
	q := llmArgs(in.Facts.Kind, args)
	if in.Schema = said(guard.PartSchema, "", "", fits(in, q, args, rules)); in.Schema.Verdict != "" {
		return
	}
	input := rego.NewInput(&in.Facts, in.Tool, args)
	for _, e := range docs.engines {
		at := ""
		if in.P1 = e.Answer(ctx, input); note != nil {
			at = e.At(ctx, input)
		}
		if said(guard.PartRules, "", at, in.P1).Verdict != "" {
			break
		}
	}
	if in.Facts.Delegator != nil {
		in.P1 = both(in.P1, said(guard.PartDelegator, "", "", forDelegator(ctx, in, docs.engines, args)))
	}
	for _, o := range docs.overlays {
		in.P2 = append(in.P2, said(guard.PartOverlay, o.ID, "", o.Answer(&in.Facts, in.Tool)))
	}
	if q != nil && len(q.Tools) > 0 {
		in.P2 = append(in.P2, guard.Offers(q.Tools, in.P0, docs.overlays))
	}
}

// forDelegator is what the bundles say if the principal that a call is done for
// made it itself.
func forDelegator(ctx context.Context, in *guard.Inputs, engines []*rego.Engine, args []byte) (a guard.Answer) {
	f := in.Facts
	f.Actor, f.Roles, f.OnBehalfOf, f.Delegation, f.Key = f.OnBehalfOf, f.Delegator.Roles, "", "", nil
	if len(f.Delegator.Scopes) > 0 {
		f.Scopes = f.Delegator.Scopes
	}
	f.Delegator = nil
	input := rego.NewInput(&f, in.Tool, args)
	for _, e := range engines {
		if a = e.Answer(ctx, input); a.Verdict != "" {
			break
		}
	}
	return a
}

// both is what two principals may do together: no opinion on one of them is none.
func both(a, b guard.Answer) guard.Answer {
	if a.Verdict == "" || b.Verdict == "" {
		return guard.Answer{}
	}
	return guard.Combine(a, b)
}

// fits is the input schema's answer. q is set where args are a request's to a
// model.
func fits(in *guard.Inputs, q *llm.Args, args []byte, rules toolschema.Rules) guard.Answer {
	// One spelling: of a doubled name each reader could take another value.
	reason := contract.ReasonSchemaViolation
	switch {
	case args == nil:
		reason = contract.ReasonArgsUnavailable
	case string(in.Tool.InputSchema) == llm.Schema:
		if q != nil { // as strict, and canonical
			reason = ""
		}
	case rules != toolschema.Closed || canon.IsCanonical(args):
		reason = checker.InputBy(rules, in.Facts.ToolDigest, in.Tool, args)
	}
	if reason == "" {
		return guard.Answer{}
	}
	return guard.Answer{Verdict: contract.Deny, Reason: reason}
}

// rulesOf is how the release that recorded a decision read schemas. The first
// versions of the events that hold decisions are release 0.1's.
func rulesOf(e *contract.Event) toolschema.Rules {
	if e.Version == 1 && (e.Name == "allowed" || e.Name == "effect_recorded") {
		return toolschema.Open
	}
	return toolschema.Closed
}

// Redecide computes a decision again that e recorded, with the tool document and
// the policies it names. Keep must have been set before they were applied.
func (st *State) Redecide(ctx context.Context, e *contract.Event, d *contract.Decision, args []byte) (verdict, reason, hash string, err error) {
	in, docs, err := st.recall(d)
	if err != nil {
		return "", "", "", err
	}
	answer(ctx, &in, docs, args, rulesOf(e), nil)
	verdict, reason, hash = guard.Redecide(in)
	return verdict, reason, hash, nil
}

// recall is what a recorded decision was taken from, without its args.
func (st *State) recall(d *contract.Decision) (in guard.Inputs, docs documents, err error) {
	in = guard.Inputs{CallID: d.CallID, Policies: d.Policies}
	if err := contract.Decode(d.Facts, &in.Facts); err != nil {
		return in, docs, err
	}
	for _, x := range []struct{ layer, digests string }{{"p0", d.Policies.P0}, {"p1", d.Policies.P1}, {"p2", d.Policies.P2}} {
		for _, digest := range split(x.digests) {
			switch doc := st.kept[x.layer+digest].(type) {
			case *guard.Ceilings:
				in.P0 = doc
			case *rego.Engine:
				docs.engines = append(docs.engines, doc)
			case *guard.Overlay:
				docs.overlays = append(docs.overlays, doc)
			case erased:
				return in, docs, fmt.Errorf("policy %s: %w", digest, contract.ErrErased)
			default:
				return in, docs, errors.New("a policy it names was never activated")
			}
		}
	}
	if in.Facts.ToolDigest != "none" {
		if in.Tool = st.tools[in.Facts.ToolDigest]; in.Tool == nil {
			return in, docs, errors.New("the tool document it names was never registered")
		}
	}
	return in, docs, nil
}

func split(digests string) []string {
	if digests == "" {
		return nil
	}
	return strings.Split(digests, "+")
}

// limits are all that are in force: the ceilings' and people's.
func (st *State) limits() []guard.Limit {
	st.mu.RLock()
	defer st.mu.RUnlock()
	var out []guard.Limit
	if st.stack.p0 != nil {
		for _, l := range st.stack.p0.Limits {
			l.ID = "p0-" + l.ID // people's ids cannot take their place
			out = append(out, l)
		}
	}
	return append(append(out, st.gov.Limits()...), st.gov.KeyLimits()...)
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
	return st.gov.Revoked(token, actor, proposed)
}

func (st *State) grantedBy(session, principal, now string) string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.GrantedBy(session, principal, now)
}

// dualControl reports whether a registration, by its args, needs a second person.
func (st *State) dualControl(args []byte, actor string, now time.Time) bool {
	c := govern.Command{Kind: govern.KindRegister, Actor: actor, Now: now}
	if json.Unmarshal(args, &c) != nil {
		return true // the schema speaks about the rest
	}
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.DualControl(c)
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
	f.Truncated, f.Frozen = st.truncated, st.gov.Frozen()
	f.Roles = st.gov.Roles(f.Actor, f.Now)
	f.Suspended = st.gov.Suspended(f.Actor) || f.OnBehalfOf != "" && st.gov.Suspended(f.OnBehalfOf)
	f.BreakGlass, f.ReviewDue = st.gov.BreakGlass(f.Actor, f.Now, contract.Time(now.Add(-govern.ReviewWithin)))
	if f.OnBehalfOf == "" && f.Delegation == "" {
		return
	}
	if f.DelegationBad = st.gov.Delegation(f.Delegation, f.OnBehalfOf, f.Actor, f.Kind, f.Now); f.DelegationBad != "" {
		return
	}
	scopes, _ := st.gov.Delegator(f.Delegation)
	f.Delegator = &guard.DelegatorFact{Roles: st.gov.Roles(f.OnBehalfOf, f.Now), Scopes: scopes}
	// Breaking the glass is a person's own act; a review that is due stops both.
	_, due := st.gov.BreakGlass(f.OnBehalfOf, f.Now, contract.Time(now.Add(-govern.ReviewWithin)))
	f.BreakGlass, f.ReviewDue = "", f.ReviewDue || due
}

func (st *State) escalation(e *contract.Event) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.waiting == nil {
		st.waiting = map[string]*waiting{}
	}
	if e.Name == "escalated" {
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
	for _, x := range st.stack.list() {
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
		w.Str("escalated", id)
		w.Int("votes", int64(len(st.waiting[id].votes)))
		b = append(w.End(), '\n')
	}
	return b
}

// list is the activations in force: p0, bundles by precedence, overlays.
func (s *stack) list() []*contract.Activated {
	find := func(layer, name, digest string) *contract.Activated {
		for _, a := range slices.Backward(s.history) {
			if a.Layer == layer && a.Name == name && a.Digest == digest && !a.Retired {
				return a
			}
		}
		return nil
	}
	var out []*contract.Activated
	if s.p0 != nil {
		out = append(out, find("p0", "", s.p0Digest))
	}
	for _, b := range s.p1 {
		out = append(out, find("p1", b.name, b.digest))
	}
	for _, o := range s.p2 {
		out = append(out, find("p2", o.name, o.digest))
	}
	return out
}
