// Package budget computes the budget ledgers: the amounts that calls hold and have used
// under every limit. An instance of policy takes a part of what remains under the limits,
// its allotment, and grants amounts to calls from it. Package limit, which is pure,
// decides; this package appends the events of a budget ledger with the expected sequence
// of the last one, so that an event that was computed from an outdated state is rejected
// and computed again.
package budget

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

const (
	aggregate = "budget"
	// maxBatch is the greatest number of requests and outcomes that are processed
	// together.
	maxBatch = 256
	// linger is the longest time that an outcome waits for a request. Outcomes that
	// arrive meanwhile are settled with it in one append. Until then the whole reserved
	// amount counts against the limits.
	linger = 5 * time.Millisecond
	// takeOver is how long a reservation that a release before 0.6 made may stay open
	// before Sweep searches for the outcome of its call.
	takeOver = 3 * time.Second
	// lookBack is the number of entries before the reservation at which the search for the
	// outcome of a call begins. If a proposal is delivered twice, the second delivery may
	// reserve after the outcome of the first one was recorded.
	lookBack = 1 << 18
)

// Ledger is one instance's access to one budget ledger. A run of an instance holds at
// most one allotment of it, from which Reserve grants amounts without an append. If the
// allotment does not suffice, the pending requests, at most maxBatch, take what they lack
// in one append with the expected sequence; the losing writer reads the ledger and
// decides again. Concurrent callers and instances therefore never take the same remaining
// amount. Methods may be called concurrently.
type Ledger struct {
	x      *Ledgers
	emit   *emit.Emitter
	log    *slog.Logger
	tenant string
	limits limit.Limits

	requests chan request
	outcomes chan limit.Outcome // outcomes of calls with reservations of releases before 0.6; created before serve is called

	begin func() (done func()) // starts the ledger if it is not running, and prevents it from ending when idle until done is called
	idle  time.Duration        // time after which serve returns if nothing happens; 0 = never

	active bool                     // whether Ledgers.wake has started serve and serve has not returned
	users  int                      // number of callers that may still send requests or outcomes
	last   uint64                   // sequence of the last event of the ledger that was applied; 0 = none
	since  map[limit.Call]openSince // reservations that releases before 0.6 made and that are open

	share *share
}

// newLedger returns an empty budget ledger whose events are events of tenant. The caller
// must set begin before it uses the ledger, and must make outcomes before it calls serve.
func newLedger(x *Ledgers, tenant string, limits limit.Limits) *Ledger {
	b := &Ledger{x: x, emit: x.emit, log: x.log, tenant: tenant, limits: limits, requests: make(chan request), since: map[limit.Call]openSince{}}
	b.share = &share{Ledger: b, returned: map[string]uint64{}}
	return b
}

// state returns the state of the ledger. The caller holds x.mu.
func (b *Ledger) state() *limit.State { return b.x.book.in(b.tenant) }

// openSince is the time at which an open reservation was added to the state, and the
// part of the ledger in which to search for the outcome of its call.
type openSince struct {
	seq  uint64    // sequence of the change that made the reservation
	from uint64    // sequence at which the next search by Sweep begins
	at   time.Time // time at which this instance applied the change or loaded it from a snapshot
}

// request is a request that the instance's allotment does not suffice for. answer
// receives the result.
type request struct {
	limit.Request
	answer chan answered
}

// answered is the result of a request: its fact, or the error of grant.
type answered struct {
	fact guard.BudgetFact
	err  error
}

// call returns the call of a tenant as the budget ledger identifies it.
func (b *Ledger) call(tenant, id string) limit.Call { return local(b.tenant, tenant, id) }

// tenantOf returns the tenant of a call.
func (b *Ledger) tenantOf(c limit.Call) string { return cmp.Or(c.Tenant, b.tenant) }

// tenantOf returns the tenant in a subject of an event, or "".
func tenantOf(subject string) string {
	_, rest, _ := strings.Cut(subject, ".")
	tenant, _, _ := strings.Cut(rest, ".")
	return tenant
}

// filter returns the filter for the events of the budget ledger.
func (b *Ledger) filter() string { return bus.AggregateFilter(b.tenant, services.Policy, aggregate) }

// reserve passes a request to serve, and returns its result or the error of ctx.
func (b *Ledger) reserve(ctx context.Context, r limit.Request) (guard.BudgetFact, error) {
	q := request{r, make(chan answered, 1)}
	select {
	case b.requests <- q:
	case <-ctx.Done():
		return guard.BudgetFact{}, ctx.Err()
	}
	select {
	case a := <-q.answer:
		return a.fact, a.err
	case <-ctx.Done():
		return guard.BudgetFact{}, ctx.Err()
	}
}

// serve answers requests and appends settlements of reservations until ctx is done or, if
// b.idle is not zero, until that time passes without a request or an outcome and the
// ledger has no user. If the ledger cannot be read or written, the callers of Reserve
// receive the error, so that no caller waits until the log is available again.
func (b *Ledger) serve(ctx context.Context) {
	for {
		rs, os := b.collect(ctx)
		if len(rs)+len(os) == 0 {
			if ctx.Err() != nil || b.retire() {
				return
			}
			continue
		}
		var err error
		if len(os) > 0 {
			err = b.settle(ctx, os)
		}
		if len(rs) > 0 {
			err = errors.Join(err, b.share.grant(ctx, rs))
		}
		if err != nil && ctx.Err() == nil {
			b.log.Warn("budget not written", "err", err) // the outcomes are not lost: Sweep reads them from the ledger
		}
	}
}

// retire marks the ledger as not running. It returns false, and marks nothing, if the
// ledger has a user or an outcome to settle.
func (b *Ledger) retire() bool {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	if b.users > 0 || len(b.outcomes) > 0 {
		return false
	}
	b.active = false
	return true
}

// collect waits for a request or an outcome, and returns the pending ones, at most
// maxBatch. It returns none when ctx is done or, if b.idle is not zero, after b.idle.
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

// settle appends the settlements of reservations whose calls have ended.
func (b *Ledger) settle(ctx context.Context, os []limit.Outcome) error {
	return b.change(ctx, func() (string, canon.Document) {
		ev, _ := limit.Decide(b.state(), b.limits, b.emit.Now(), nil, os)
		if len(ev.Settled) == 0 {
			return "", nil
		}
		return events.BudgetChangedName, &ev
	})
}

// change appends the event that decide returns, with the expected sequence of the last
// event of the ledger, and waits until it is applied. If another instance appended first,
// it reads the ledger and calls decide again. decide is called with x.mu held; if it
// returns no name, there is nothing to append.
func (b *Ledger) change(ctx context.Context, decide func() (name string, data canon.Document)) error {
	for {
		b.x.mu.Lock()
		name, data := decide()
		last := b.last
		b.x.mu.Unlock()
		if name == "" {
			return nil
		}
		seq, err := b.append(ctx, emit.NewID(contract.IDEvent), name, data, last)
		if err == nil {
			return b.x.await(ctx, seq)
		}
		if !errors.Is(err, eventlog.ErrConflict) {
			return err
		}
		if err := b.reach(ctx); err != nil {
			return err
		}
	}
}

// append appends an event with the given id to the budget ledger, and returns its sequence.
// The error is eventlog.ErrConflict if last is not the sequence of the ledger's last event.
func (b *Ledger) append(ctx context.Context, id, name string, data canon.Document, last uint64) (uint64, error) {
	e := b.emit.In(b.tenant).New(name, aggregate, contract.Bytes(data), nil)
	e.ID = id
	raw, err := e.Encode()
	if err != nil {
		return 0, err
	}
	return b.emit.Log.AppendExpect(ctx, e.Subject(), e.ID, raw, b.filter(), last)
}

// reach waits until the events of the ledger, and the outcomes of calls, that are stored
// now are applied. It returns the error of the log or of ctx, or errLag.
func (b *Ledger) reach(ctx context.Context) error {
	var last uint64
	for _, f := range []string{b.filter(), outcomes} {
		en, err := b.emit.Log.Last(ctx, f)
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return err
		}
		last = max(last, en.Seq)
	}
	return b.x.await(ctx, last)
}

// fold updates the ledger after the event at a sequence was applied to the book. by is
// the source of the event. The caller holds x.mu.
func (b *Ledger) fold(seq uint64, by string, c *change) {
	b.last = max(b.last, seq)
	if c.legacy != nil {
		b.foldLegacy(seq, c.legacy)
	}
	b.share.fold(seq, by, c)
}

// foldLegacy adds the reservations of a budget_changed event to since, and removes those
// that it settles.
func (b *Ledger) foldLegacy(seq uint64, ev *events.BudgetChanged) {
	for _, r := range ev.Reserved {
		b.since[limit.Call{Tenant: r.Tenant, ID: r.CallID}] = openSince{seq, seq - min(seq-1, lookBack), time.Now()}
	}
	for _, s := range ev.Settled {
		delete(b.since, limit.Call{Tenant: s.Tenant, ID: s.CallID})
	}
}

// outcomes is the filter of the outcomes of calls.
var outcomes = bus.Filter{Event: contract.EventEffectRecorded}.String()

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

// ended passes the outcome of a call to serve if policy or the service executor recorded
// it, and ignores it otherwise. If executor is empty, it passes the outcome only if
// policy recorded it.
func (b *Ledger) ended(ctx context.Context, en eventlog.Entry, executor string) {
	e, err := eventlog.Open(en, outcomes)
	if err != nil || e.Service() != services.Policy && e.Service() != executor {
		return
	}
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return
	}
	defer b.begin()()
	select {
	case b.outcomes <- outcomeIn(b.tenant, e, &rec):
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
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	if s, ok := b.since[l.call]; ok && s.seq == l.seq {
		s.from = next
		b.since[l.call] = s
	}
}

// allowedSince reports whether policy allowed a call after its reservation was made. The
// outcome of the call is then later than the reservation, so that earlier entries need
// not be searched.
func (b *Ledger) allowedSince(ctx context.Context, l lateCall) (bool, error) {
	f := bus.Filter{Tenant: b.tenantOf(l.call), Service: services.Policy, Key: l.session}
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
	b.x.mu.Lock()
	for call, s := range b.since {
		if time.Since(s.at) > takeOver {
			out = append(out, lateCall{call, b.state().Session(call), s.seq, s.from})
		}
	}
	b.x.mu.Unlock()
	slices.SortFunc(out, func(x, y lateCall) int {
		return cmp.Or(cmp.Compare(x.seq, y.seq), cmp.Compare(x.call.Tenant, y.call.Tenant), cmp.Compare(x.call.ID, y.call.ID))
	})
	return out
}
