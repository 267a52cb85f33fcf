// Package budget stores what calls have reserved and used under every limit: the budget
// ledger. Reservations and settlements are events of one aggregate. The pure package
// limit decides about them; this package appends the resulting event with the expected
// sequence of the last change, so that a decision on an outdated state is rejected and
// made again. The package reads the ledger and the clock, but no policy documents. A new
// measure is added in packages guard and limit, not here.
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
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

const (
	aggregate = "budget"
	// maxBatch is the greatest number of reservations and settlements in one
	// append.
	maxBatch = 256
	// linger is the longest time that a settlement waits for a reservation, so that both
	// are written in one append. Meanwhile the whole reserved amount still counts
	// against the limits.
	linger = 5 * time.Millisecond
	// takeOver is how long a reservation may stay open before every instance searches
	// for the outcome of its call. Before that, instances other than the one that made
	// the reservation process only outcomes that policy recorded.
	takeOver = 3 * time.Second
	// lookBack is how many entries before the reservation the search for the outcome of
	// a call begins. If a proposal is delivered twice, the second delivery may reserve
	// after the outcome of the first one was recorded.
	lookBack = 1 << 18
)

// Ledger is one instance's access to the budget ledger. Pending requests, at most
// maxBatch, are decided together and appended as one event with the expected sequence;
// the losing writer reloads and retries. Concurrent callers and instances therefore
// never reserve the same remaining amount. Methods may be called concurrently.
type Ledger struct {
	emit   *emit.Emitter
	log    *slog.Logger
	limits func() []guard.Limit

	requests chan request
	outcomes chan limit.Outcome

	mu    sync.Mutex
	state limit.State
	last  uint64               // sequence of the last change that state includes
	since map[string]openSince // open reservations, by call id

	executors map[string]string // executor by call id, for open reservations of this instance
}

// New returns a ledger that appends through m. limits returns the limits in force, and
// must be safe for concurrent use. Reserve blocks until Run is started or the context of
// Reserve is done.
func New(m *emit.Emitter, log *slog.Logger, limits func() []guard.Limit) *Ledger {
	return &Ledger{emit: m, log: log, limits: limits, requests: make(chan request), outcomes: make(chan limit.Outcome, maxBatch),
		since: map[string]openSince{}, executors: map[string]string{}}
}

// openSince is the time at which an open reservation was added to the state, and the
// part of the ledger in which to search for the outcome of its call.
type openSince struct {
	seq  uint64    // sequence of the change that made the reservation
	from uint64    // sequence at which the next search by Sweep begins
	at   time.Time // when this instance applied the change
}

// request is a reservation that Run has not written yet. early receives the expected
// fact if the reservation is to be granted; answer receives the final result.
type request struct {
	limit.Request
	executor      string // service that will execute the call
	early, answer chan answered
}

// answered is the result of a request: its fact, or the error of write.
type answered struct {
	fact guard.BudgetFact
	err  error
}

// filter returns the filter for the events of the budget ledger.
func (b *Ledger) filter() string { return bus.AggregateFilter(b.emit.Tenant, "policy", aggregate) }

// Reserve reserves the amounts that a call of an executor may use. fact.Refused is the
// reason code of a refusal, or "". A refusal is final when Reserve returns. A granted
// reservation may still have to be appended: it is durable once the function final has
// returned the same fact. final may return another fact if another instance appended
// first; it must be called only once. Run must be running. Both functions return the
// error of ctx when it is done, and the error of the log if it prevents the result.
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

// Run appends reservations and settlements until ctx is done, and then returns nil. It
// first reads the ledger, and returns nil if starting is done before that read is
// complete. It returns the error of this first read; later errors are logged and
// returned to the callers of Reserve.
func (b *Ledger) Run(ctx, starting context.Context) error {
	if err := eventlog.Retry(starting, func() error { return b.Read(starting) }); err != nil {
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
			b.log.Warn("budget not written", "err", err) // the outcomes are not lost: Sweep reads them from the ledger
		}
	}
}

// collect waits for a request or an outcome, and returns the pending ones, at most
// maxBatch. It returns none only when ctx is done.
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

// write decides about the requests and outcomes and appends the resulting event. It
// tries again if another instance appended first. Before the first append, it sends each
// request that is to be granted its fact on the channel early. It returns one fact for
// each request, in order, or the error of the log.
func (b *Ledger) write(ctx context.Context, rs []request, os []limit.Outcome) ([]guard.BudgetFact, error) {
	reqs := make([]limit.Request, len(rs))
	for i := range rs {
		reqs[i] = rs[i].Request
	}
	for first := true; ; first = false {
		b.mu.Lock()
		ev, facts := limit.Decide(&b.state, b.limits(), b.emit.Now(), reqs, os)
		last := b.last
		b.mu.Unlock()
		for i := range rs {
			if first && facts[i].Refused == "" {
				rs[i].early <- answered{fact: facts[i]}
			}
		}
		if len(ev.Reserved) == 0 && len(ev.Settled) == 0 {
			// The event is empty, but the facts must be based on the current ledger.
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

// behind reports whether the ledger has changes after the sequence last.
func (b *Ledger) behind(ctx context.Context, last uint64) (bool, error) {
	en, err := b.emit.Log.Last(ctx, b.filter())
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return en.Seq > last, err
}

// Read applies the changes that follow the last one applied. It skips entries that are
// not events of the budget ledger. It returns the error of the log, or an error for a
// change that cannot be decoded.
func (b *Ledger) Read(ctx context.Context) error {
	b.mu.Lock()
	from := b.last + 1
	b.mu.Unlock()
	for en, err := range b.emit.Log.Scan(ctx, b.filter(), from) {
		if err != nil {
			return err
		}
		e, err := eventlog.Open(en, b.filter())
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

// fold applies the change at a sequence unless it was applied before: Sweep may read a
// change of this instance before the append of the change has returned.
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

// executes records, for each request whose reservation is open, the service that
// executes the call and may therefore record its outcome.
func (b *Ledger) executes(rs []request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rs {
		if b.state.IsOpen(r.CallID) {
			b.executors[r.CallID] = r.executor
		}
	}
}

// Watched reports whether outcomes must be read, which is the case if there are limits
// or open reservations. Otherwise outcomes have nothing to settle.
func (b *Ledger) Watched() bool {
	if len(b.limits()) > 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.since) > 0
}

// From returns the sequence from which outcomes must be read: that of the oldest open
// reservation, or tail+1 if none is open. tail is the last sequence of the ledger.
// Outcomes before the returned sequence are found by Sweep.
func (b *Ledger) From(tail uint64) uint64 {
	from := tail + 1
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.since {
		from = min(from, s.seq)
	}
	return from
}

// outcomes is the filter of the events that Outcome processes.
var outcomes = bus.Filter{Event: contract.EventEffectRecorded}.String()

// Outcome passes the recorded outcome of a call with an open reservation to Run, which
// settles the reservation. It ignores an outcome that neither policy nor the executor of
// the call recorded. If another instance made the reservation, Outcome processes only an
// outcome that policy recorded; that instance or Sweep processes one that the executor
// recorded.
func (b *Ledger) Outcome(ctx context.Context, en eventlog.Entry) {
	call := contract.PeekCallID(en.Data)
	b.mu.Lock()
	open, executor := b.state.IsOpen(call), b.executors[call]
	b.mu.Unlock()
	if open {
		b.ended(ctx, en, executor)
	}
}

// executorOf returns the service that recorded an outcome if policy allowed that service
// to execute the call. Otherwise, or if the log cannot be read, it returns "". It
// searches backwards from the outcome, because a second delivery may have made a
// reservation after the call was allowed.
func (b *Ledger) executorOf(ctx context.Context, en eventlog.Entry) string {
	e, err := eventlog.Open(en, outcomes)
	if err != nil {
		return ""
	}
	c := outcome.CallOf(e, e.Service())
	if _, _, err := c.Allowed(ctx, b.emit.Log, en.Seq); err != nil {
		return ""
	}
	return c.Executor
}

// ended passes the outcome of a call to Run if policy or the service executor recorded
// it, and ignores it otherwise. executor is empty if this instance does not know the
// executor of the call, or if policy did not allow the service that recorded the outcome
// to execute the call.
func (b *Ledger) ended(ctx context.Context, en eventlog.Entry, executor string) {
	e, err := eventlog.Open(en, outcomes)
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

// Sweep searches the ledger once a second, until ctx is done, for the outcomes of calls
// whose reservation has been open for longer than takeOver, and passes them to Run. So
// the reservations of failed instances are settled, and those of calls that ended while
// no instance read outcomes or before the reservation was made.
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

// lookUp processes the outcomes of a late call that are on the ledger. If there are
// none, it records where the search ended, so that the next one continues from there.
func (b *Ledger) lookUp(ctx context.Context, l lateCall) {
	if l.from < l.seq {
		allowed, err := b.allowedSince(ctx, l)
		if err != nil {
			return
		}
		if allowed {
			l.from = l.seq
		}
	}
	found, next := false, l.seq
	for en, err := range b.emit.Log.Scan(ctx, bus.ChainFilter(b.emit.Tenant, l.session), l.from) {
		if err != nil {
			return
		}
		next = max(next, en.Seq+1)
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
		s.from = next
		b.since[l.call] = s
	}
}

// allowedSince reports whether policy allowed a call after its reservation was made. The
// outcome of the call is then later than the reservation, so that earlier entries need
// not be searched.
func (b *Ledger) allowedSince(ctx context.Context, l lateCall) (bool, error) {
	f := bus.Filter{Tenant: b.emit.Tenant, Service: "policy", Key: l.session}
	_, err := eventlog.First(ctx, b.emit.Log, f.String(), l.seq, eventlog.OfCall(l.call, func(e *contract.Event) bool { return e.Name == contract.EventAllowed }))
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// lateCall is a call whose reservation has been open for longer than takeOver.
type lateCall struct {
	call, session string
	seq, from     uint64 // the sequences of the same names in openSince
}

// late returns the late calls in the order in which their reservations were made.
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

// Rows returns the accounts, sorted by account and window. The caller owns the
// slice.
func (b *Ledger) Rows() []limit.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.Rows()
}

// Dump returns the canonical form of the budget ledger and the sequence of the
// last change in it, for comparison with replay.
func (b *Ledger) Dump() (at uint64, lines []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.state.Dump()
}

// View is the budget ledger built from events, without the ability to append. It is the
// view policy.budget of replay. The zero value is the empty view.
type View struct{ state limit.State }

// Apply applies one budget_changed event. It returns an error if the data cannot be
// decoded. Events of services other than policy change nothing; otherwise those services
// could forge settlements.
func (v *View) Apply(e *contract.Event) error {
	var ev events.BudgetChanged
	if err := contract.Decode(e.Data, &ev); err != nil || e.Service() != "policy" {
		return err
	}
	limit.Evolve(&v.state, &ev)
	return nil
}

// Dump returns the canonical form of the view, sorted lines of JSON, as
// Ledger.Dump does.
func (v *View) Dump() []byte { return v.state.Dump() }
