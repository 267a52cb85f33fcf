// Package budget stores the amounts that calls have reserved and used under every limit:
// the budget ledger. Reservations and settlements are events of one aggregate. Package
// limit, which is pure, computes these events; this package appends them with the
// expected sequence of the last change, so that an event that was computed from an
// outdated state is rejected and computed again.
package budget

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

// Ledger is one instance's access to one budget ledger. Pending requests, at most
// maxBatch, are decided together and appended as one event with the expected sequence;
// the losing writer reloads and retries. Concurrent callers and instances therefore
// never reserve the same remaining amount. Methods may be called concurrently.
type Ledger struct {
	emit   *emit.Emitter
	log    *slog.Logger
	tenant string
	limits limit.Limits

	requests chan request
	outcomes chan limit.Outcome // made before run is called

	begin func() (done func()) // starts the ledger if it is not running, and prevents it from ending when idle until done is called
	idle  time.Duration        // time after which run returns if nothing happens; 0 = never

	mu     sync.Mutex
	active bool // whether run was started by Ledgers.start and has not returned
	users  int  // number of callers that may still send requests or outcomes
	state  limit.State
	last   uint64                   // sequence of the last change that state includes; 0 = none
	since  map[limit.Call]openSince // open reservations

	executors map[limit.Call]string // executor of the call, for open reservations of this instance
}

// newLedger returns an empty budget ledger whose changes are events of tenant. The caller
// must set begin before it uses the ledger, and must make outcomes before it calls run.
func newLedger(m *emit.Emitter, log *slog.Logger, tenant string, limits limit.Limits) *Ledger {
	return &Ledger{emit: m, log: log, tenant: tenant, limits: limits, requests: make(chan request),
		since: map[limit.Call]openSince{}, executors: map[limit.Call]string{}}
}

// openSince is the time at which an open reservation was added to the state, and the
// part of the ledger in which to search for the outcome of its call.
type openSince struct {
	seq  uint64    // sequence of the change that made the reservation
	from uint64    // sequence at which the next search by Sweep begins
	at   time.Time // time at which this instance applied the change or loaded it from a snapshot
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

// call returns the call of a tenant as the budget ledger identifies it.
func (b *Ledger) call(tenant, id string) limit.Call {
	if tenant == b.tenant {
		tenant = ""
	}
	return limit.Call{Tenant: tenant, ID: id}
}

// tenantOf returns the tenant of a call.
func (b *Ledger) tenantOf(c limit.Call) string { return cmp.Or(c.Tenant, b.tenant) }

// tenantOf returns the tenant of an entry, according to its subject, or "".
func tenantOf(en eventlog.Entry) string {
	_, rest, _ := strings.Cut(en.Subject, ".")
	tenant, _, _ := strings.Cut(rest, ".")
	return tenant
}

// filter returns the filter for the events of the budget ledger.
func (b *Ledger) filter() string { return bus.AggregateFilter(b.tenant, "policy", aggregate) }

// reserve is Ledgers.Reserve for one ledger.
func (b *Ledger) reserve(ctx context.Context, r limit.Request, executor string) (fact guard.BudgetFact, final func() (guard.BudgetFact, error), err error) {
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

// run is Ledgers.Run for one ledger.
func (b *Ledger) run(ctx, starting context.Context) error {
	if err := eventlog.Retry(starting, func() error { return b.read(starting) }); err != nil {
		if starting.Err() != nil {
			return nil
		}
		return err
	}
	b.serve(ctx, true)
	return nil
}

// serve appends reservations and settlements until ctx is done or, if b.idle is not zero,
// until there was no request, outcome or user for that time. Unless current is set, serve
// reads the ledger before the first append. If that fails, the callers of Reserve receive
// the error, and serve reads again for the next request, so that no caller waits until the
// log is available again.
func (b *Ledger) serve(ctx context.Context, current bool) {
	for {
		rs, os := b.collect(ctx)
		if len(rs)+len(os) == 0 {
			if ctx.Err() != nil || b.retire() {
				return
			}
			continue
		}
		var facts []guard.BudgetFact
		var err error
		if !current {
			err = b.read(ctx)
			current = err == nil
		}
		if err == nil {
			facts, err = b.write(ctx, rs, os)
		}
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

// retire marks the ledger as not running. It returns false, and marks nothing, if the
// ledger has a user or an outcome to settle.
func (b *Ledger) retire() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users > 0 || len(b.outcomes) > 0 {
		return false
	}
	b.active = false
	return true
}

// collect waits for a request or an outcome, and returns the pending ones, at most
// maxBatch. It returns none when ctx is done or, if b.idle is not zero, after that time.
func (b *Ledger) collect(ctx context.Context) (rs []request, os []limit.Outcome) {
	var late <-chan time.Time
	if b.idle > 0 {
		late = time.After(b.idle)
	}
	select {
	case <-ctx.Done():
		return nil, nil
	case <-late:
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

// write computes the event for the requests and outcomes and appends it. It tries again
// if another instance appended first. Before the first append, it sends each request
// that is to be granted its fact on the channel early. It returns one fact for each
// request, in order, or the error of read, of the log or of encoding the event.
func (b *Ledger) write(ctx context.Context, rs []request, os []limit.Outcome) ([]guard.BudgetFact, error) {
	reqs := make([]limit.Request, len(rs))
	for i := range rs {
		reqs[i] = rs[i].Request
	}
	for first := true; ; first = false {
		b.mu.Lock()
		ev, facts := limit.Decide(&b.state, b.limits, b.emit.Now(), reqs, os)
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
			e := b.emit.In(b.tenant).New(events.BudgetChangedName, aggregate, contract.Bytes(&ev), nil)
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
		if err := b.read(ctx); err != nil {
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

// read applies the changes that follow the last one applied. It skips entries that are
// not events of the budget ledger. It returns the error of the log, or an error for a
// change that cannot be decoded.
func (b *Ledger) read(ctx context.Context) error {
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
		ev, err := changeOf(e)
		if err != nil {
			return fmt.Errorf("budget change at %d: %w", en.Seq, err)
		}
		b.fold(en.Seq, ev)
	}
	return nil
}

// changeOf decodes a budget_changed event.
func changeOf(e *contract.Event) (*events.BudgetChanged, error) {
	var ev events.BudgetChanged
	return &ev, contract.Decode(e.Data, &ev)
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
		b.since[limit.Call{Tenant: r.Tenant, ID: r.CallID}] = openSince{seq, seq - min(seq-1, lookBack), time.Now()}
	}
	for _, s := range ev.Settled {
		call := limit.Call{Tenant: s.Tenant, ID: s.CallID}
		delete(b.since, call)
		delete(b.executors, call)
	}
}

// executes records, for each request whose reservation is open, the service that
// executes the call and may therefore record its outcome.
func (b *Ledger) executes(rs []request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rs {
		if b.state.IsOpen(r.Call) {
			b.executors[r.Call] = r.executor
		}
	}
}

// open reports whether a reservation is open.
func (b *Ledger) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.since) > 0
}

// oldest returns the sequence of the oldest open reservation, or the argument none if
// that is smaller or no reservation is open.
func (b *Ledger) oldest(none uint64) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.since {
		none = min(none, s.seq)
	}
	return none
}

// outcomes is the filter of the events that Outcome processes.
var outcomes = bus.Filter{Event: contract.EventEffectRecorded}.String()

// outcome is Ledgers.Outcome for one ledger.
func (b *Ledger) outcome(ctx context.Context, en eventlog.Entry) {
	call := b.call(tenantOf(en), contract.PeekCallID(en.Data))
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

// ended passes the outcome of a call to run if policy or the service executor recorded
// it, and ignores it otherwise. If executor is empty, it passes the outcome only if
// policy recorded it.
func (b *Ledger) ended(ctx context.Context, en eventlog.Entry, executor string) {
	e, err := eventlog.Open(en, outcomes)
	if err != nil || e.Service() != "policy" && e.Service() != executor {
		return
	}
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return
	}
	o := limit.Outcome{Call: b.call(e.Tenant, e.CallID), Status: rec.Effect.Status, Attested: rec.Effect.AttestedBy != ""}
	if rec.Effect.Usage != nil {
		o.Usage = *rec.Effect.Usage
	}
	defer b.begin()()
	select {
	case b.outcomes <- o:
	case <-ctx.Done():
	}
}

// lookUp processes the outcomes of a late call that are on the ledger. If there are
// none, it records where the search ended, so that the next search continues from there.
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
	for en, err := range b.emit.Log.Scan(ctx, bus.ChainFilter(b.tenantOf(l.call), l.session), l.from) {
		if err != nil {
			return
		}
		next = max(next, en.Seq+1)
		if contract.PeekCallID(en.Data) == l.call.ID {
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
	f := bus.Filter{Tenant: b.tenantOf(l.call), Service: "policy", Key: l.session}
	_, err := eventlog.First(ctx, b.emit.Log, f.String(), l.seq, eventlog.OfCall(l.call.ID, func(e *contract.Event) bool { return e.Name == contract.EventAllowed }))
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// lateCall is a call whose reservation has been open for longer than takeOver.
type lateCall struct {
	call      limit.Call
	session   string
	seq, from uint64 // seq and from of the reservation's openSince
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
	slices.SortFunc(out, func(x, y lateCall) int {
		return cmp.Or(cmp.Compare(x.seq, y.seq), cmp.Compare(x.call.Tenant, y.call.Tenant), cmp.Compare(x.call.ID, y.call.ID))
	})
	return out
}
