// Package propose is how anything is asked to happen: record the proposal of
// a call, then await its outcome on the ledger.
package propose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
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

// Reader is the one consumer an instance that proposes holds on the ledger.
var Reader = bus.Reader{Name: "outcomes", Stream: bus.Events,
	Filters: []string{bus.Filter{Origin: "{instance}", Event: contract.EventEffectRecorded}.String(), bus.Filter{Origin: "{instance}", Event: contract.EventEscalated}.String()}}

// Request is a call to be.
type Request struct {
	ID       string // fresh by NewCallID; repeat it to repeat the same call
	Kind     string
	Tool     string
	Args     []byte // canonical JSON object
	Actor    string
	Client   string
	Session  string
	Token    string // id of the bearer token that the caller showed
	Scopes   []string
	Stream   bool
	Timeout  time.Duration
	IdemKey  string
	TraceCtx string
	Parent   *contract.Event // proposal this call is nested in, or nil

	// Executor is the service that the kind's tool document names, or empty where
	// Proposer.ExecutorOf is to name it. An outcome that another service records, but
	// for policy, is not one.
	Executor string

	Body *Body // what the caller brought beside the args, or nil

	ReportWithin time.Duration // the caller executes the call itself and reports within this time; 0: the tool's executor does

	SessionName string // the caller's own name for the session
	Requested   string // digest of a session id that the caller named and may not use

	Labels     []string // data classes the proposing service saw in what the caller brought
	OnBehalfOf string   // principal the actor says it acts for
	Delegation string   // id of the delegation that rests on
}

// Body is what a call brings beside its args. Where it is not stored, the
// instance that proposed hands it to the executor that asks.
type Body struct {
	Content contract.Content
	Object  []byte // to be stored for Content; nil where there is nothing to store
	Carried []byte // salt and content, for an executor that asks; nil where Content is kept
	For     string // the only service that Carried is handed to
}

// NewCallID is a fresh call id.
func NewCallID() string { return emit.NewID("c") }

// Outcome is how a call ended.
type Outcome struct {
	Seq      uint64
	Event    *contract.Event
	Recorded contract.Recorded
}

// Proposer proposes calls of one instance and waits for their outcomes.
type Proposer struct {
	Reader bus.Reader // as declared; the zero value is Reader

	// ExecutorOf is the service that the catalog names for a kind, or "". It is
	// queried when an outcome arrives of a call whose request named none.
	ExecutorOf func(kind string) string

	Emit     *emit.Emitter
	Blobs    *blob.Store
	Conn     *bus.Conn
	Instance string

	follower *follow.Follower
	mu       sync.Mutex
	waiting  map[string][]*Pending // by call; a repeated call has several
}

// ServeBodies answers executors that ask for the body of a call that waits
// here, in binary parts.
func (p *Proposer) ServeBodies(box *transient.Box) {
	q := query.BodyQuery
	q.Callers = services.Executors()
	rpc.ServeBytes(&rpc.Server{Box: box}, q, func(ctx context.Context, q *query.BodyRequest, w io.Writer) error {
		var body []byte
		p.mu.Lock()
		for _, pending := range p.waiting[q.CallID] {
			if pending.bodyFor == transient.From(ctx) {
				body = pending.body
			}
		}
		p.mu.Unlock()
		if body == nil {
			return rpc.Errorf(contract.CodeNotFound, "no such call waits here")
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

// bodyPart is how many bytes of a body one frame holds.
const bodyPart = 512 << 10

// Run receives outcomes until ctx ends. Ready is closed when it listens.
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

// Deliver hands an entry of the ledger to the calls that wait for it; others are
// passed over. An event that is not from a service that may record it is refused
// and logged. Run delivers what the instance's reader receives; entries that were
// read in another way may be delivered too, before or after it: what is delivered
// twice counts once. The error is always nil, as followers expect.
func (p *Proposer) Deliver(en eventlog.Entry) error {
	e, err := eventlog.Open(en)
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
		default: // a second outcome: the first counts
		}
	}
	return nil
}

// Pending is a proposed call.
type Pending struct {
	Event *contract.Event

	executor  string
	kind      string
	ch        chan Outcome
	escalated chan contract.Escalated
	allowed   chan *contract.Event
	started   chan *contract.Event
	p         *Proposer
	body      []byte
	bodyFor   string // the only service that gets it
	store     chan error
	stored    chan struct{} // closed when the append has ended, with lost saying how
	lost      error
}

// handOut delivers the decision that allows a call which its caller executes, or
// the claim of one whose intent was handed out.
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

// Expects reports whether an event of the call comes from a service that may record it:
// policy escalates and denies, and the call's executor ends it.
func (c *Pending) Expects(e *contract.Event) bool {
	from, want := e.Service(), c.executor
	if from == "policy" {
		return true
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

// Propose records the proposal and returns without waiting for its outcome.
// Close the pending call when done with it.
func (p *Proposer) Propose(ctx context.Context, r Request) (*Pending, error) {
	args, err := p.Blobs.Commit(ctx, r.Args, "application/json")
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
	if r.Parent != nil {
		c.Parent, c.ParentSession = r.Parent.CallID, r.Parent.Session
	}
	e := p.Emit.New(contract.EventCallProposed, r.Session, contract.Bytes(&c), r.Parent)
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
	p.wait(pend)
	go func() { // an outcome implies that the proposal was stored
		defer close(pend.stored)
		ctx := context.WithoutCancel(ctx)
		if r.Body != nil && r.Body.Object != nil {
			// Beside the proposal: whoever needs the content waits for it.
			go func() {
				if err := p.Blobs.Put(ctx, c.Body, r.Body.Object); err != nil {
					slog.Error("a call's body was not stored", "call", r.ID, "err", err)
				}
			}()
		}
		_, err := p.Emit.Append(ctx, e)
		if pend.lost = err; err != nil {
			pend.store <- err
		}
	}()
	return pend, nil
}

func (p *Proposer) wait(pend *Pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[string][]*Pending{}
	}
	p.waiting[pend.Event.CallID] = append(p.waiting[pend.Event.CallID], pend)
}

// Join waits for a call that was proposed before, by the event e that proposed c. It
// appends nothing and reads nothing: the call's events from now on arrive if this
// instance proposed it, and whatever the caller hands to Deliver. Close the pending
// call when done with it; Cancel withdraws the call as its proposer's would.
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

// ErrUnknownOutcome: the caller stopped waiting; the call may still end, and
// its outcome can be fetched by its receipt id.
var ErrUnknownOutcome = errors.New("no outcome yet")

// Wait returns the outcome.
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

// Outcome is ready when the call ended.
func (c *Pending) Outcome() <-chan Outcome { return c.ch }

// Escalated is ready when the call waits for people; its outcome may be long
// in coming.
func (c *Pending) Escalated() <-chan contract.Escalated { return c.escalated }

// Allowed is ready when a call that the caller executes itself may be handed out;
// it holds the event that allows the call.
func (c *Pending) Allowed() <-chan *contract.Event { return c.allowed }

// Started is ready when the intent of a call that the caller executes itself was
// handed out before; it holds the claim. Only a joined call has one.
func (c *Pending) Started() <-chan *contract.Event { return c.started }

// Failed is ready when the proposal could not be recorded.
func (c *Pending) Failed() <-chan error { return c.store }

// Cancel records, behind the proposal, that the caller no longer wants the
// call. Where the proposal could not be recorded, there is nothing to cancel.
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

// Close stops waiting.
func (c *Pending) Close() {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	left := slices.DeleteFunc(c.p.waiting[c.Event.CallID], func(x *Pending) bool { return x == c })
	if c.p.waiting[c.Event.CallID] = left; len(left) == 0 {
		delete(c.p.waiting, c.Event.CallID)
	}
}

// Position is the reader's position on the ledger, and its lag in events.
func (p *Proposer) Position() (position, pending uint64) {
	p.mu.Lock()
	f := p.follower
	p.mu.Unlock()
	if f == nil {
		return 0, 0
	}
	return f.Position(), f.Pending()
}
