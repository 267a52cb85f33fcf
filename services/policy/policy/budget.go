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

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// outcomesReader tells how calls ended, so that their reservations are
// settled. It is read only while there are limits.
var outcomesReader = bus.Reader{Name: "outcomes", Stream: bus.Events, Filters: []string{"evt.*.*.*.effect_recorded.>"}}

const (
	budgetKey = "budget"
	// maxBatch bounds what one append reserves and settles.
	maxBatch = 256
	// linger is how long settlements wait for a reservation to be written with
	// them. Until then they hold back too much, never too little.
	linger = 5 * time.Millisecond
	// takeOver is how long a reservation may stay open before any instance
	// looks for its call's outcome; the one that saw it comes first.
	takeOver = 3 * time.Second
)

// book is one instance's hold on the account book. All that waits is decided
// together and appended as one event, with the expectation that the book has
// not changed since; whoever loses reads on and decides again. So two
// instances, or 64 callers, never spend the same room.
type book struct {
	env    *run.Env
	limits func() []guard.Limit

	requests chan request
	outcomes chan limit.Outcome

	mu    sync.Mutex
	state limit.State
	last  uint64               // sequence of the last change folded in
	since map[string]openSince // of open reservations

	executors map[string]string // of calls that this instance reserved for, until they are settled
}

type openSince struct {
	seq uint64
	at  time.Time
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

func newBook(env *run.Env, limits func() []guard.Limit) *book {
	return &book{env: env, limits: limits, requests: make(chan request), outcomes: make(chan limit.Outcome, maxBatch), since: map[string]openSince{}, executors: map[string]string{}}
}

func (b *book) filter() string { return bus.AggregateFilter(b.env.Tenant, "policy", budgetKey) }

// reserve sets aside what a call may use. What it returns is certain where it
// refuses. Where it grants, it is on its way to the ledger, and certain once
// final has returned the same.
func (b *book) reserve(ctx context.Context, r limit.Request, executor string) (fact guard.BudgetFact, final func() (guard.BudgetFact, error), err error) {
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

// run writes the book until ctx ends; starting ends when there is no use in
// reading it any more.
func (b *book) run(ctx, starting context.Context) error {
	if err := b.read(starting); err != nil {
		if starting.Err() != nil {
			return nil
		}
		return err
	}
	for {
		var rs []request
		var os []limit.Outcome
		select {
		case <-ctx.Done():
			return nil
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
		for more := true; more && len(rs)+len(os) < maxBatch; {
			select {
			case r := <-b.requests:
				rs = append(rs, r)
			case o := <-b.outcomes:
				os = append(os, o)
			default:
				more = false
			}
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
			b.env.Log.Warn("budget not written", "err", err) // outcomes come again by sweep
		}
	}
}

func (b *book) write(ctx context.Context, rs []request, os []limit.Outcome) ([]guard.BudgetFact, error) {
	asks := make([]limit.Request, len(rs))
	for i := range rs {
		asks[i] = rs[i].Request
	}
	for first := true; ; first = false {
		b.mu.Lock()
		ev, facts := limit.Decide(&b.state, b.limits(), b.env.Emit.Now(), asks, os)
		last := b.last
		b.mu.Unlock()
		for i := range rs {
			if first && facts[i].Refused == "" {
				rs[i].early <- answered{fact: facts[i]}
			}
		}
		if len(ev.Reserved) == 0 && len(ev.Settled) == 0 {
			// Nothing to write, but the answer must rest on the book as it is.
			behind, err := b.behind(ctx, last)
			if err != nil {
				return nil, err
			}
			if !behind {
				return facts, nil
			}
		} else {
			e := b.env.Emit.New(events.BudgetChangedName, budgetKey, contract.Bytes(&ev), nil)
			raw, err := e.Encode()
			if err != nil {
				return nil, err
			}
			seq, err := b.env.Emit.Log.AppendExpect(ctx, e.Subject(), e.ID, raw, b.filter(), last)
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

func (b *book) behind(ctx context.Context, last uint64) (bool, error) {
	en, err := b.env.Emit.Log.Last(ctx, b.filter())
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return en.Seq > last, err
}

// read folds what others wrote.
func (b *book) read(ctx context.Context) error {
	b.mu.Lock()
	from := b.last + 1
	b.mu.Unlock()
	for en, err := range b.env.Emit.Log.Scan(ctx, b.filter(), from) {
		if err != nil {
			return err
		}
		e, err := eventlog.Open(en)
		if err != nil {
			continue
		}
		b.env.Emit.See(e.Lamport)
		var ev events.BudgetChanged
		if err := contract.Decode(e.Data, &ev); err != nil {
			return fmt.Errorf("budget change at %d: %w", en.Seq, err)
		}
		b.fold(en.Seq, &ev)
	}
	return nil
}

func (b *book) fold(seq uint64, ev *events.BudgetChanged) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit.Evolve(&b.state, ev)
	b.last = seq
	for _, r := range ev.Reserved {
		b.since[r.CallID] = openSince{seq, time.Now()}
	}
	for _, s := range ev.Settled {
		delete(b.since, s.CallID)
		delete(b.executors, s.CallID)
	}
}

// executes notes which services may end the calls that hold a reservation.
func (b *book) executes(rs []request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rs {
		if b.state.IsOpen(r.CallID) {
			b.executors[r.CallID] = r.executor
		}
	}
}

// follow settles reservations as their calls end.
func (b *book) follow(ctx context.Context) error {
	for len(b.limits()) == 0 && !b.anyOpen() {
		if sleep(ctx, 200*time.Millisecond); ctx.Err() != nil {
			return nil
		}
	}
	tail, err := b.env.Conn.Tail(ctx, bus.Events)
	if err != nil {
		return nil // ctx ended
	}
	from := tail + 1 // outcomes lie behind their reservations
	b.mu.Lock()
	for _, s := range b.since {
		from = min(from, s.seq)
	}
	b.mu.Unlock()
	f := follow.New(b.env.Conn, b.env.Instance, outcomesReader, func(en eventlog.Entry) error {
		b.mu.Lock()
		call := contract.PeekCallID(en.Data)
		open, executor := b.state.IsOpen(call), b.executors[call]
		b.mu.Unlock()
		if open {
			b.ended(ctx, en, executor)
		}
		return nil
	})
	go b.sweep(ctx)
	return f.Run(ctx, from)
}

// release settles a reservation that was made for a call whose outcome, after its
// proposal at sequence from, was recorded before: of two deliveries of a proposal the
// later one reserves once more when the first is settled already.
func (b *book) release(ctx context.Context, proposal *contract.Event, from uint64) {
	b.mu.Lock()
	open := b.state.IsOpen(proposal.CallID)
	b.mu.Unlock()
	if !open {
		return
	}
	for en, err := range b.env.Emit.Log.Scan(ctx, bus.ChainFilter(proposal.Tenant, proposal.Session), max(from, 1)) {
		if err != nil {
			b.env.Log.Warn("reservation not released", "call", proposal.CallID, "err", err)
			return
		}
		if contract.PeekCallID(en.Data) == proposal.CallID {
			b.ended(ctx, en, b.executorOf(ctx, en))
		}
	}
}

// executorOf is the service that recorded an outcome, if policy allowed it the
// call; else it is empty. The reservation may be younger than the permission, where a
// proposal was delivered twice.
func (b *book) executorOf(ctx context.Context, outcome eventlog.Entry) string {
	e, err := eventlog.Open(outcome)
	if err != nil {
		return ""
	}
	for en, err := range b.env.Emit.Log.Scan(ctx, bus.Filter{Tenant: e.Tenant, Service: "policy", Event: contract.EventAllowed + "_" + e.Service(), Key: e.Session}.String(), 1) {
		if err != nil {
			break
		}
		if contract.PeekCallID(en.Data) == e.CallID {
			return e.Service()
		}
	}
	return ""
}

func (b *book) anyOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.since) > 0
}

// ended settles a call by an outcome that its executor or policy recorded, and
// by no other. Where executor is empty, another instance reserved for the
// call: it settles, or sweep does.
func (b *book) ended(ctx context.Context, en eventlog.Entry, executor string) {
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

// sweep finds the outcomes of reservations that stayed open: of instances
// that died, and of calls that ended while nobody listened.
func (b *book) sweep(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, time.Second)
		if err := b.read(ctx); err != nil {
			continue
		}
		type late struct {
			call, session string
			seq           uint64
		}
		var old []late
		b.mu.Lock()
		for call, s := range b.since {
			if time.Since(s.at) > takeOver {
				old = append(old, late{call, b.state.Session(call), s.seq})
			}
		}
		b.mu.Unlock()
		slices.SortFunc(old, func(x, y late) int { return cmp.Or(cmp.Compare(x.seq, y.seq), cmp.Compare(x.call, y.call)) })
		for _, l := range old {
			for en, err := range b.env.Emit.Log.Scan(ctx, bus.ChainFilter(b.env.Tenant, l.session), l.seq) {
				if err != nil {
					break
				}
				if contract.PeekCallID(en.Data) == l.call {
					b.ended(ctx, en, b.executorOf(ctx, en))
				}
			}
		}
	}
}

// rows answers what stands on the accounts.
func (b *book) rows(prefix string) []limit.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []limit.Row{}
	for _, r := range b.state.Rows() {
		if strings.HasPrefix(r.Account, prefix) {
			out = append(out, r)
		}
	}
	return out
}

// dump is the book's view, and the position it stands at.
func (b *book) dump() (json.RawMessage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return json.Marshal(map[string]any{"name": "policy.budget", "position": b.last, "dump": string(b.state.Dump())})
}

// Book is the account book's view for replay.
type Book struct{ state limit.State }

// Apply folds one budget_changed event in.
func (b *Book) Apply(e *contract.Event) error {
	var ev events.BudgetChanged
	if err := contract.Decode(e.Data, &ev); err != nil || e.Service() != "policy" {
		return err
	}
	limit.Evolve(&b.state, &ev)
	return nil
}

// Dump is the view's canonical form.
func (b *Book) Dump() []byte { return b.state.Dump() }
