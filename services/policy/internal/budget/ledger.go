// Package budget is the budget ledger: what calls have reserved and used, of every
// limit. Reservations and settlements are events of one aggregate; package limit
// decides them, and an append that expects the last of them makes the decision hold
// against every other instance.
package budget

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

const (
	aggregate = "budget"
	// maxBatch bounds what one append reserves and settles.
	maxBatch = 256
	// linger is how long settlements wait for a reservation to be written with
	// them. Until then they hold back too much, never too little.
	linger = 5 * time.Millisecond
	// takeOver is how long a reservation may stay open before any instance
	// looks for its call's outcome; the one that saw it comes first.
	takeOver = 3 * time.Second
	// lookBack is how many entries before a reservation its call's outcome may be.
	// Of two deliveries of a proposal, the later one may reserve after the other's
	// outcome was recorded, and its instance may fail before it notices.
	lookBack = 1 << 18
)

// Ledger is one instance's hold on the budget ledger. All that waits is decided
// together and appended as one event, with the expectation that the ledger has not
// changed since; the losing writer reloads and retries. So two instances, or 64
// callers, never spend the same room.
type Ledger struct {
	emit   *emit.Emitter
	log    *slog.Logger
	limits func() []guard.Limit

	requests chan request
	outcomes chan limit.Outcome

	mu    sync.Mutex
	state limit.State
	last  uint64               // sequence of the last change folded in
	since map[string]openSince // of open reservations

	executors map[string]string // of calls that this instance reserved for, until they are settled
}

// New makes a ledger that appends through m. limits returns the limits in force;
// it must be safe for concurrent use.
func New(m *emit.Emitter, log *slog.Logger, limits func() []guard.Limit) *Ledger {
	return &Ledger{emit: m, log: log, limits: limits, requests: make(chan request), outcomes: make(chan limit.Outcome, maxBatch),
		since: map[string]openSince{}, executors: map[string]string{}}
}

// openSince is what an instance knows of an open reservation.
type openSince struct {
	seq  uint64 // of the change that made it
	from uint64 // where the sweep begins to look for the call's outcome
	at   time.Time
}

type request struct {
	limit.Request
	executor      string // of the call
	early, answer chan answered
}

type answered struct {
	fact guard.BudgetFact
	err  error
}

func (b *Ledger) filter() string { return bus.AggregateFilter(b.emit.Tenant, "policy", aggregate) }

// Reserve sets aside what a call of an executor may use. What it returns is certain
// where it refuses. Where it grants, the reservation is being appended, and is
// durable once final has returned the same fact. Run must be running.
func (b *Ledger) Reserve(ctx context.Context, r limit.Request, executor string) (fact guard.BudgetFact, final func() (guard.BudgetFact, error), err error) {
	q := request{r, executor, make(chan answered, 1), make(chan answered, 1)}
	select {
	case b.requests <- q:
	case <-ctx.Done():
		return fact, nil, ctx.Err()
	}
	var a answered
	select {
	case a = <-q.early:
		return a.fact, func() (guard.BudgetFact, error) {
			select {
			case a := <-q.answer:
				return a.fact, a.err
			case <-ctx.Done():
				return guard.BudgetFact{}, ctx.Err()
			}
		}, nil
	case a = <-q.answer:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	return a.fact, func() (guard.BudgetFact, error) { return a.fact, nil }, a.err
}

// Run appends reservations and settlements until ctx ends; starting ends when
// there is no use in reading the ledger any more.
func (b *Ledger) Run(ctx, starting context.Context) error {
	if err := b.Read(starting); err != nil {
		if starting.Err() != nil {
			return nil
		}
		return err
	}
	for {
		rs, os := b.collect(ctx)
		if len(rs)+len(os) == 0 {
			return nil
		}
		facts, err := b.write(ctx, rs, os)
		for i, r := range rs {
			a := answered{err: err}
			if err == nil {
				a.fact = facts[i]
			}
			r.answer <- a
		}
		if err != nil && ctx.Err() == nil {
			b.log.Warn("budget not written", "err", err) // Sweep finds the outcomes again
		}
	}
}

// collect waits for requests and outcomes, and returns all that have come; none
// once ctx has ended.
func (b *Ledger) collect(ctx context.Context) (rs []request, os []limit.Outcome) {
	select {
	case <-ctx.Done():
		return nil, nil
	case r := <-b.requests:
		rs = append(rs, r)
	case o := <-b.outcomes:
		os = append(os, o)
		select {
		case r := <-b.requests:
			rs = append(rs, r)
		case <-time.After(linger):
		}
	}
	for len(rs)+len(os) < maxBatch {
		select {
		case r := <-b.requests:
			rs = append(rs, r)
		case o := <-b.outcomes:
			os = append(os, o)
		default:
			return rs, os
		}
	}
	return rs, os
}

// write decides requests and outcomes, appends what they come to, and retries where
// another instance was first. It returns a fact for each request.
func (b *Ledger) write(ctx context.Context, rs []request, os []limit.Outcome) ([]guard.BudgetFact, error) {
	asks := make([]limit.Request, len(rs))
	for i := range rs {
		asks[i] = rs[i].Request
	}
	for first := true; ; first = false {
		b.mu.Lock()
		ev, facts := limit.Decide(&b.state, b.limits(), b.emit.Now(), asks, os)
		last := b.last
		b.mu.Unlock()
		for i := range rs {
			if first && facts[i].Refused == "" {
				rs[i].early <- answered{fact: facts[i]}
			}
		}
		if len(ev.Reserved) == 0 && len(ev.Settled) == 0 {
			// Nothing to write, but the answer must rest on the ledger as it is.
			behind, err := b.behind(ctx, last)
			if err != nil {
				return nil, err
			}
			if !behind {
				return facts, nil
			}
		} else {
			e := b.emit.New(events.BudgetChangedName, aggregate, contract.Bytes(&ev), nil)
			raw, err := e.Encode()
			if err != nil {
				return nil, err
			}
			seq, err := b.emit.Log.AppendExpect(ctx, e.Subject(), e.ID, raw, b.filter(), last)
			if err == nil {
				b.fold(seq, &ev)
				b.executes(rs)
				return facts, nil
			}
			if !errors.Is(err, eventlog.ErrConflict) {
				return nil, err
			}
		}
		if err := b.Read(ctx); err != nil {
			return nil, err
		}
	}
}

// behind reports whether the ledger holds changes after the sequence last.
func (b *Ledger) behind(ctx context.Context, last uint64) (bool, error) {
	en, err := b.emit.Log.Last(ctx, b.filter())
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return en.Seq > last, err
}

// Read folds what other instances appended.
func (b *Ledger) Read(ctx context.Context) error {
	b.mu.Lock()
	from := b.last + 1
	b.mu.Unlock()
	for en, err := range b.emit.Log.Scan(ctx, b.filter(), from) {
		if err != nil {
			return err
		}
		e, err := eventlog.Open(en)
		if err != nil {
			continue
		}
		b.emit.See(e.Lamport)
		var ev events.BudgetChanged
		if err := contract.Decode(e.Data, &ev); err != nil {
			return fmt.Errorf("budget change at %d: %w", en.Seq, err)
		}
		b.fold(en.Seq, &ev)
	}
	return nil
}

// fold folds the change at a sequence in, unless it is in: what this instance
// writes, sweep may read before the append has returned.
func (b *Ledger) fold(seq uint64, ev *events.BudgetChanged) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq <= b.last {
		return
	}
	limit.Evolve(&b.state, ev)
	b.last = seq
	for _, r := range ev.Reserved {
		b.since[r.CallID] = openSince{seq, seq - min(seq-1, lookBack), time.Now()}
	}
	for _, s := range ev.Settled {
		delete(b.since, s.CallID)
		delete(b.executors, s.CallID)
	}
}

// executes notes which services may end the calls that hold a reservation.
func (b *Ledger) executes(rs []request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rs {
		if b.state.IsOpen(r.CallID) {
			b.executors[r.CallID] = r.executor
		}
	}
}

// Watched reports whether outcomes have to be followed: there are limits, or
// reservations that are not settled.
func (b *Ledger) Watched() bool {
	if len(b.limits()) > 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.since) > 0
}

// From returns the sequence from which outcomes have to be followed, given the
// ledger's last one: outcomes come after their reservations, but for those that the
// sweep finds.
func (b *Ledger) From(tail uint64) uint64 {
	from := tail + 1
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.since {
		from = min(from, s.seq)
	}
	return from
}

// Outcome settles the reservation of a call as its outcome is recorded. It is passed
// over where the call holds no reservation of this instance's.
func (b *Ledger) Outcome(ctx context.Context, en eventlog.Entry) {
	call := contract.PeekCallID(en.Data)
	b.mu.Lock()
	open, executor := b.state.IsOpen(call), b.executors[call]
	b.mu.Unlock()
	if open {
		b.ended(ctx, en, executor)
	}
}

// executorOf returns the service that recorded an outcome, if policy allowed it the
// call, or "". The reservation may be younger than the permission, where a proposal
// was delivered twice.
func (b *Ledger) executorOf(ctx context.Context, outcome eventlog.Entry) string {
	e, err := eventlog.Open(outcome)
	if err != nil {
		return ""
	}
	allowed := bus.Filter{Tenant: e.Tenant, Service: "policy", Event: contract.EventAllowed + "_" + e.Service(), Key: e.Session}
	for en, err := range b.emit.Log.Scan(ctx, allowed.String(), 1) {
		if err != nil {
			break
		}
		if contract.PeekCallID(en.Data) == e.CallID {
			return e.Service()
		}
	}
	return ""
}

// ended settles a call by an outcome that its executor or policy recorded, and
// by no other. Where executor is empty, another instance reserved for the
// call: it settles, or sweep does.
func (b *Ledger) ended(ctx context.Context, en eventlog.Entry, executor string) {
	e, err := eventlog.Open(en)
	if err != nil || e.Service() != "policy" && e.Service() != executor {
		return
	}
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return
	}
	o := limit.Outcome{CallID: e.CallID, Status: rec.Effect.Status, Attested: rec.Effect.AttestedBy != ""}
	if rec.Effect.Usage != nil {
		o.Usage = *rec.Effect.Usage
	}
	select {
	case b.outcomes <- o:
	case <-ctx.Done():
	}
}

// Sweep settles, once a second until ctx ends, reservations that stayed open: of
// instances that failed, of calls that ended while no instance followed, and of
// calls that had ended before their reservation was made.
func (b *Ledger) Sweep(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		if err := b.Read(ctx); err != nil {
			continue
		}
		for _, l := range b.late() {
			b.lookUp(ctx, l)
		}
	}
}

// lookUp settles a late call's reservation if the call's outcome is on the ledger.
// Where it is not, the next look begins at the reservation.
func (b *Ledger) lookUp(ctx context.Context, l lateCall) {
	found := false
	for en, err := range b.emit.Log.Scan(ctx, bus.ChainFilter(b.emit.Tenant, l.session), l.from) {
		if err != nil {
			return
		}
		if contract.PeekCallID(en.Data) == l.call {
			found = true
			b.ended(ctx, en, b.executorOf(ctx, en))
		}
	}
	if found {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.since[l.call]; ok && s.seq == l.seq {
		s.from = s.seq
		b.since[l.call] = s
	}
}

// lateCall is a call whose reservation has been open for longer than takeOver.
type lateCall struct {
	call, session string
	seq, from     uint64 // as in openSince
}

// late lists them, the oldest reservation first.
func (b *Ledger) late() []lateCall {
	var out []lateCall
	b.mu.Lock()
	for call, s := range b.since {
		if time.Since(s.at) > takeOver {
			out = append(out, lateCall{call, b.state.Session(call), s.seq, s.from})
		}
	}
	b.mu.Unlock()
	slices.SortFunc(out, func(x, y lateCall) int { return cmp.Or(cmp.Compare(x.seq, y.seq), cmp.Compare(x.call, y.call)) })
	return out
}

// Rows lists the accounts, sorted.
func (b *Ledger) Rows() []limit.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.Rows()
}

// Dump returns the canonical form of what the ledger holds, and the sequence that
// it was last changed by.
func (b *Ledger) Dump() (at uint64, lines []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.state.Dump()
}

// View is the budget ledger folded event by event, without a hold on it: the view
// policy.budget, in replay. The zero value is empty.
type View struct{ state limit.State }

// Apply folds one budget_changed event in; of another service it is passed over.
func (v *View) Apply(e *contract.Event) error {
	var ev events.BudgetChanged
	if err := contract.Decode(e.Data, &ev); err != nil || e.Service() != "policy" {
		return err
	}
	limit.Evolve(&v.state, &ev)
	return nil
}

// Dump is the view's canonical form: sorted JSON lines.
func (v *View) Dump() []byte { return v.state.Dump() }
