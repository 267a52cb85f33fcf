// Package propose proposes calls: it records the proposal of a call on the ledger and
// waits there for the call's outcome. Every effect in the mesh starts with a proposal.
package propose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Reader is the reader through which an instance that proposes calls receives their
// escalations and outcomes.
var Reader = bus.Reader{Name: "outcomes", Stream: bus.Events,
	Filters: []string{bus.Filter{Origin: "{instance}", Event: contract.EventEffectRecorded}.String(), bus.Filter{Origin: "{instance}", Event: contract.EventEscalated}.String()}}

// Request describes a call that is to be proposed.
type Request struct {
	ID       string // new id from NewCallID; a repeated proposal of the same call has the same id
	Tenant   string // tenant of the call, or "" for that of Proposer.Emit; a nested call has its parent's instead
	Kind     string
	Tool     string
	Args     []byte // canonical JSON object
	Actor    string
	Client   string
	Session  string
	Token    string // id of the bearer token with which the caller authenticated
	Scopes   []string
	Stream   bool
	Timeout  time.Duration
	IdemKey  string
	TraceCtx string
	Patience time.Duration   // time for which the append of the proposal is repeated while the ledger is unavailable, below the ledger's duplicate window; 0 means the attempts of one append
	Parent   *contract.Event // event of the parent call that this call is nested in, or nil

	// Executor is the service that the tool document of the kind names, or "" if
	// Proposer.ExecutorOf is to return it. Outcomes that a service other than Executor
	// or policy records are ignored. If ReportWithin is set, Executor has no effect.
	Executor string

	Body *Body // body that the caller sent in addition to the arguments, or nil

	ReportWithin time.Duration // if not 0, the caller executes the call itself and reports the outcome within this time

	SessionName string // name that the caller gave the session, or ""
	Requested   string // digest of the session id that the caller requested but may not use

	// Encrypt is whether the args are encrypted, under the content key that Key selects.
	Encrypt bool
	Key     blob.Under

	Labels     []string // data classes that the proposing service detected in the caller's content
	OnBehalfOf string   // principal that the actor acts for, as stated by the caller, or ""
	Delegation string   // id of the delegation that OnBehalfOf is based on, or ""
}

// Body is the body of a call, in addition to its arguments. If it is not stored, the
// proposing instance sends it to the executor on request.
type Body struct {
	Content contract.Content
	Object  []byte // object to store for Content; nil if there is nothing to store
	Carried []byte // salt and content, sent to the executor on request; nil if Content is stored
	For     string // the only service to which Carried is sent
}

// Commit stores a JSON document of the call in s, encrypted if Encrypt is set. Its errors are
// those of blob.Store's Commit and CommitSealed.
func (r *Request) Commit(ctx context.Context, s *blob.Store, doc []byte) (contract.Content, error) {
	if r.Encrypt {
		return s.CommitSealed(ctx, r.Key, doc, "application/json")
	}
	return s.Commit(ctx, doc, "application/json")
}

// Inherit lets the contents of a nested call be encrypted under the key of those of its parent, if
// these are encrypted.
func (r *Request) Inherit(parent *contract.Call) {
	if id := parent.KeyID(); id != "" {
		r.Encrypt, r.Key = true, blob.Under{KeyID: id}
	}
}

// NewCallID returns a new random call id.
func NewCallID() string { return emit.NewID(contract.IDCall) }

// Outcome is the outcome of a call, with its event and ledger sequence.
type Outcome struct {
	Seq      uint64
	Event    *contract.Event
	Recorded contract.Recorded
}

// Proposer proposes the calls of one instance and waits for their outcomes. The exported
// fields are set before its first use; its methods are safe for concurrent use.
type Proposer struct {
	Reader bus.Reader // the reader that the service declares; the zero value means the variable Reader

	// ExecutorOf returns the service that the catalog names for a kind, or "". It is
	// called for an event that a service other than policy recorded about a call, unless
	// the Request names the call's executor or the caller executes the call. It may be
	// nil.
	ExecutorOf func(kind string) string

	Emit     *emit.Emitter
	Blobs    *blob.Store
	Conn     *bus.Conn
	Instance string

	follower *follow.Follower
	mu       sync.Mutex
	waiting  map[string][]*Pending // by call id; one for each Propose and each Join of the call
}

// ServeBodies registers the handler of the query for the body of a call that waits in
// this instance. Only executors may send the query, and only the service in Body.For
// receives Body.Carried, in a query for the call's tenant; any other executor, or a
// query for another tenant or for a call without such a body, gets the error not_found.
func (p *Proposer) ServeBodies(transport rpc.Registrar) {
	q := query.BodyQuery
	q.Callers = services.Executors()
	rpc.ServeBytes(&rpc.Server{Transport: transport}, q, func(ctx context.Context, q *query.BodyRequest, w io.Writer) error {
		var body []byte
		p.mu.Lock()
		for _, pending := range p.waiting[q.CallID] {
			if pending.bodyFor == transient.From(ctx) && pending.Event.Tenant == transient.Tenant(ctx) {
				body = pending.body
			}
		}
		p.mu.Unlock()
		if body == nil {
			return rpc.Errorf(contract.CodeNotFound, "no call with this body waits in this instance")
		}
		for len(body) > 0 {
			n := min(len(body), bodyPart)
			if _, err := w.Write(body[:n:n]); err != nil {
				return err
			}
			body = body[n:]
		}
		return nil
	})
}

// bodyPart is the maximum number of bytes of a body in one frame.
const bodyPart = 512 << 10

// Run receives outcomes until ctx ends, and then returns nil. It calls ready when the
// reader has caught up with the ledger.
func (p *Proposer) Run(ctx context.Context, ready func()) error {
	p.mu.Lock()
	if p.waiting == nil {
		p.waiting = map[string][]*Pending{}
	}
	if p.Reader.Name == "" {
		p.Reader = Reader
	}
	p.follower = follow.New(p.Conn, p.Instance, p.Reader, p.Deliver)
	p.mu.Unlock()
	// Calls are proposed only after ready has been called, so their outcomes are stored
	// after the current end of the ledger.
	last, err := p.Conn.Tail(ctx, bus.Events)
	if err != nil {
		return nil // ctx ended
	}
	go func() {
		select {
		case <-p.follower.Ready():
			ready()
		case <-ctx.Done():
		}
	}()
	return p.follower.Run(ctx, last+1)
}

// Deliver passes a ledger entry to the calls that wait for it and ignores all other entries. An
// invalid entry, or an event of a waiting call whose producer may not record it, is rejected and
// logged. Run delivers the entries that the instance's reader receives. A caller may deliver
// entries that it read in another way, before or after Run does: a second delivery of an outcome
// has no effect while the first is still in the channel. The error is always nil.
func (p *Proposer) Deliver(en eventlog.Entry) error {
	e, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		slog.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	p.Emit.See(e.Lamport)
	p.mu.Lock()
	pending := slices.Clone(p.waiting[e.CallID])
	p.mu.Unlock()
	pending = slices.DeleteFunc(pending, func(w *Pending) bool { return !w.Expects(e) })
	if len(pending) == 0 {
		return nil
	}
	if e.Name == contract.EventAllowed || e.Name == contract.EventEffectStarted {
		for _, pend := range pending {
			pend.handOut(e)
		}
		return nil
	}
	if e.Name == contract.EventEscalated {
		var x contract.Escalated
		if err := contract.Decode(e.Data, &x); err != nil {
			slog.Error("escalation refused", "seq", en.Seq, "err", err)
			return nil
		}
		for _, pend := range pending {
			select {
			case pend.escalated <- x:
			default:
			}
		}
		return nil
	}
	out := Outcome{Seq: en.Seq, Event: e}
	if err := contract.Decode(e.Data, &out.Recorded); err != nil {
		slog.Error("outcome refused", "seq", en.Seq, "err", err)
		return nil
	}
	for _, pend := range pending {
		select {
		case pend.ch <- out:
		default: // a second delivery; the channel still holds the first one
		}
	}
	return nil
}

// Pending is a proposed call whose outcome has not been received yet. The channels that
// its methods return hold one value at most.
type Pending struct {
	Event *contract.Event

	executor  string
	allowedTo atomic.Pointer[string] // the executor that policy has addressed the call to; nil if that event was not passed to Expects
	kind      string
	ch        chan Outcome
	escalated chan contract.Escalated
	allowed   chan *contract.Event
	started   chan *contract.Event
	p         *Proposer
	body      []byte
	bodyFor   string // the only service to which body is sent
	store     chan error
	stored    chan struct{} // closed when the append of the proposal has ended; seq and lost are its results
	seq       uint64
	lost      error
}

// handOut delivers the event that allows a call which its caller executes, or the claim
// of such a call. It ignores the events of other calls.
func (c *Pending) handOut(e *contract.Event) {
	if c.executor != contract.CallerExecutor {
		return
	}
	to := c.allowed
	if e.Name == contract.EventEffectStarted {
		to = c.started
	}
	select {
	case to <- e:
	default:
	}
}

// Expects reports whether an event of the call was recorded by a service that may do so:
// policy, or, for claims and outcomes, the call's executor. That is the one of the Request or, for
// a call that Join returned, the one to which an event addressed it that was passed to Expects
// before, or else the one of the catalog, which does not have tools that were retired since. It
// logs an event that it rejects.
func (c *Pending) Expects(e *contract.Event) bool {
	from, want := e.Service(), c.executor
	if from == services.Policy {
		if e.Name == contract.EventAllowed && e.Target != "" {
			c.allowedTo.Store(&e.Target)
		}
		return true
	}
	if to := c.allowedTo.Load(); want == "" && to != nil {
		want = *to
	}
	if want == "" && c.p.ExecutorOf != nil {
		want = c.p.ExecutorOf(c.kind)
	}
	if want == from && (e.Name == contract.EventEffectRecorded || e.Name == contract.EventEffectStarted) {
		return true
	}
	slog.Error("outcome refused: another service recorded it", "call", e.CallID, "service", from, "want", want)
	return false
}

// Propose starts to append the proposal and returns without waiting for it or for the
// call's outcome. It waits only until the arguments are stored, and returns an error if
// they cannot be. The append continues if ctx ends. If the proposal cannot be appended,
// the error is received once: by Wait or from the channel of Failed. If the body cannot
// be stored, the error is only logged. The caller must close the Pending.
func (p *Proposer) Propose(ctx context.Context, r Request) (*Pending, error) {
	by, parent := p.Emit, r.Parent
	switch {
	case parent != nil:
		by = by.In(parent.Tenant)
	case r.Tenant != "":
		by = by.In(r.Tenant)
	}
	blobs := p.Blobs.In(by.Tenant)
	args, err := r.Commit(ctx, blobs, r.Args)
	if err != nil {
		return nil, err
	}
	c := contract.Call{Args: args, Deadline: contract.Time(p.Emit.Now().Add(r.Timeout)), ID: r.ID, IdemKey: r.IdemKey,
		Kind: r.Kind, Scopes: r.Scopes, Stream: r.Stream, Tool: r.Tool, Labels: r.Labels, OnBehalfOf: r.OnBehalfOf, Delegation: r.Delegation, ReportWithin: r.ReportWithin.Milliseconds(),
		Requested: r.Requested, SessionName: r.SessionName, Token: r.Token}
	if r.Body != nil {
		c.Body = &r.Body.Content
	}
	if c.Scopes == nil {
		c.Scopes = []string{}
	}
	if parent != nil {
		c.Parent, c.ParentSession = parent.CallID, parent.Session
	}
	e := by.New(contract.EventCallProposed, r.Session, contract.Bytes(&c), parent)
	e.ID, e.Actor, e.Client, e.Session, e.CallID, e.Origin = contract.IDProposal+r.ID, r.Actor, r.Client, r.Session, r.ID, p.Instance
	if r.TraceCtx != "" {
		e.TraceCtx = r.TraceCtx
	}
	pend := &Pending{Event: e, executor: r.Executor, kind: r.Kind, ch: make(chan Outcome, 1), escalated: make(chan contract.Escalated, 1), allowed: make(chan *contract.Event, 1), started: make(chan *contract.Event, 1), p: p, store: make(chan error, 1), stored: make(chan struct{})}
	if r.ReportWithin > 0 {
		pend.executor = contract.CallerExecutor
	}
	if r.Body != nil {
		pend.body, pend.bodyFor = r.Body.Carried, r.Body.For
	}
	// The call is registered before its proposal is appended, so that Deliver passes on
	// all of its events.
	p.wait(pend)
	go func() { // Propose need not wait, because an outcome implies that the proposal was stored
		defer close(pend.stored)
		ctx := context.WithoutCancel(ctx)
		if r.Body != nil && r.Body.Object != nil {
			// The body is stored concurrently with the proposal: readers of the content
			// wait until it is stored.
			go func() {
				if err := blobs.Put(ctx, c.Body, r.Body.Object); err != nil {
					slog.Error("a call's body was not stored", "call", r.ID, "err", err)
				}
			}()
		}
		seq, err := p.Emit.Append(ctx, e)
		if r.Patience > 0 && errors.Is(err, eventlog.ErrUnavailable) {
			patient, cancel := context.WithTimeout(ctx, r.Patience)
			defer cancel()
			err = eventlog.Retry(patient, func() (err error) { seq, err = p.Emit.Append(patient, e); return err })
		}
		if pend.seq, pend.lost = seq, err; err != nil {
			pend.store <- err
		}
	}()
	return pend, nil
}

// wait registers a pending call, to which Deliver passes events until Pending.Close.
func (p *Proposer) wait(pend *Pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[string][]*Pending{}
	}
	p.waiting[pend.Event.CallID] = append(p.waiting[pend.Event.CallID], pend)
}

// Join returns a Pending for a call c that event e proposed earlier. Join appends
// nothing and reads nothing: the Pending receives later events of the call if this
// instance proposed it, and entries that the caller passes to Deliver. Cancel has the
// same effect as for the instance that proposed the call. The caller must close the
// Pending.
func (p *Proposer) Join(e *contract.Event, c *contract.Call) *Pending {
	pend := &Pending{Event: e, kind: c.Kind, ch: make(chan Outcome, 1), escalated: make(chan contract.Escalated, 1), allowed: make(chan *contract.Event, 1),
		started: make(chan *contract.Event, 1), p: p, store: make(chan error, 1), stored: make(chan struct{})}
	if c.ReportWithin > 0 {
		pend.executor = contract.CallerExecutor
	}
	close(pend.stored)
	p.wait(pend)
	return pend
}

// ErrUnknownOutcome is returned by Wait if its context ends before the outcome arrives.
// The call may still end; the outcome can then be fetched by the call's receipt id.
var ErrUnknownOutcome = errors.New("no outcome yet")

// Wait waits for the outcome of the call and returns it. It returns an error if the
// proposal could not be recorded, or ErrUnknownOutcome joined with the error of ctx.
func (c *Pending) Wait(ctx context.Context) (*Outcome, error) {
	select {
	case out := <-c.ch:
		return &out, nil
	case err := <-c.store:
		return nil, fmt.Errorf("proposal not recorded: %w", err)
	case <-ctx.Done():
		return nil, errors.Join(ErrUnknownOutcome, ctx.Err())
	}
}

// Outcome returns the channel that receives the outcome of the call.
func (c *Pending) Outcome() <-chan Outcome { return c.ch }

// Escalated returns a channel that receives a value when the call waits for approval by
// people, which may take long.
func (c *Pending) Escalated() <-chan contract.Escalated { return c.escalated }

// Allowed returns a channel that receives the event that allows a call which the caller
// executes itself, if that event is passed to Deliver. The intent in the event may then
// be handed out. The variable Reader does not select such events.
func (c *Pending) Allowed() <-chan *contract.Event { return c.allowed }

// Started returns a channel that receives the claim of a call which the caller executes
// itself, if the claim is passed to Deliver. The variable Reader does not select claims.
func (c *Pending) Started() <-chan *contract.Event { return c.started }

// Failed returns a channel that receives the error if the proposal could not be
// recorded. Wait receives from the same channel.
func (c *Pending) Failed() <-chan error { return c.store }

// Stored returns a channel that is closed when the append of the proposal has ended,
// whether it succeeded or failed.
func (c *Pending) Stored() <-chan struct{} { return c.stored }

// Seq returns the ledger sequence of the proposal, or 0 if the append of it has not ended or
// has failed, or if Join returned c. No other event of the call has a lower sequence.
func (c *Pending) Seq() uint64 {
	select {
	case <-c.stored:
		return c.seq
	default:
		return 0
	}
}

// Cancel appends an event that requests the call's cancellation. It first waits until
// the append of the proposal has ended, so that the request follows the proposal on the
// ledger. If the proposal could not be recorded, Cancel does nothing and returns nil.
// Its errors are those of ctx and of Emitter.Append; in general, eventlog.ErrIDConflict
// means that the cancellation was requested before.
func (c *Pending) Cancel(ctx context.Context) error {
	select {
	case <-c.stored:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.lost != nil {
		return nil
	}
	e := c.p.Emit.New(contract.EventCancelRequested, c.Event.Key, []byte("{}"), c.Event)
	e.ID = contract.IDCancel + c.Event.CallID
	_, err := c.p.Emit.Append(ctx, e)
	return err
}

// Close stops waiting for the call's events. It does not cancel the call.
func (c *Pending) Close() {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	left := slices.DeleteFunc(c.p.waiting[c.Event.CallID], func(x *Pending) bool { return x == c })
	if c.p.waiting[c.Event.CallID] = left; len(left) == 0 {
		delete(c.p.waiting, c.Event.CallID)
	}
}

// Position returns the reader's position on the ledger and its lag in events, or zeros
// before Run.
func (p *Proposer) Position() (position, pending uint64) {
	p.mu.Lock()
	f := p.follower
	p.mu.Unlock()
	if f == nil {
		return 0, 0
	}
	return f.Position(), f.Pending()
}
