package budget

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// idle is the time without a request or an outcome after which the goroutine of an
// organization's budget ledger ends.
const idle = time.Minute

// Tenants describes the tenants that the budget ledgers serve.
type Tenants interface {
	// Budget returns the tenant in which the budget ledger for calls of a tenant is
	// stored.
	Budget(tenant string) string
	// Budgets returns the results of Budget for all tenants, sorted and without
	// duplicates.
	Budgets() []string
	// Limits returns the limits in force for calls of a tenant.
	Limits(tenant string) []guard.Limit
}

// Ledgers is one instance's access to all budget ledgers: the ledger of its home tenant,
// which always runs, and the ledgers of organizations, which are made when they are
// needed. Calls of tenants with different ledgers are independent. Methods may be called
// concurrently.
type Ledgers struct {
	emit    *emit.Emitter
	log     *slog.Logger
	tenants Tenants
	home    *Ledger
	running atomic.Pointer[context.Context] // context of Run; nil before Run

	recalling chan struct{} // receives a value when a ledger has amounts to return

	place  // its lock guards the fields below, too, and those of the ledgers
	others map[string]*Ledger
	book   book
}

// New returns ledgers that append through m. home is the tenant whose budget ledger runs
// from the beginning. tenants must be safe for concurrent use. Reserve requires that Run
// is running and that Apply is called for new entries: before that, Reserve blocks until
// its context is done at the latest.
func New(m *emit.Emitter, log *slog.Logger, home string, tenants Tenants) *Ledgers {
	x := &Ledgers{emit: m, log: log, tenants: tenants, others: map[string]*Ledger{}, place: place{wanted: make(chan struct{})}, recalling: make(chan struct{}, 1)}
	x.home = x.empty(home)
	x.home.outcomes = make(chan limit.Outcome, maxBatch)
	return x
}

// instance returns the name of the instance.
func (x *Ledgers) instance() string {
	_, name, _ := strings.Cut(x.emit.Source, "/")
	return name
}

// empty returns a new ledger in a tenant.
func (x *Ledgers) empty(tenant string) *Ledger {
	b := newLedger(x, tenant, func(of string) []guard.Limit { return x.tenants.Limits(cmp.Or(of, tenant)) })
	b.begin = func() func() { return x.start(b) }
	return b
}

// of returns the ledger for calls of a tenant.
func (x *Ledgers) of(tenant string) *Ledger {
	if tenant == x.home.tenant {
		return x.home
	}
	in := x.tenants.Budget(tenant)
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.in(in)
}

// in returns the ledger in a tenant, which it makes if there is none. The caller holds
// x.mu.
func (x *Ledgers) in(tenant string) *Ledger {
	if tenant == x.home.tenant {
		return x.home
	}
	b := x.others[tenant]
	if b == nil {
		b = x.empty(tenant)
		b.idle = idle
		x.others[tenant] = b
	}
	return b
}

// made returns the ledgers that exist, that of the home tenant first.
func (x *Ledgers) made() []*Ledger {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := []*Ledger{x.home}
	for _, tenant := range slices.Sorted(maps.Keys(x.others)) {
		out = append(out, x.others[tenant])
	}
	return out
}

// start starts the ledger if it is not running; if Run has not been called yet, Run
// starts it. Until the returned function is called, the ledger does not end because it
// is idle. start does nothing for the ledger of the home tenant.
func (x *Ledgers) start(b *Ledger) (done func()) {
	if b == x.home {
		return nothing
	}
	x.mu.Lock()
	b.users++
	if b.outcomes == nil {
		b.outcomes = make(chan limit.Outcome, maxBatch)
	}
	x.mu.Unlock()
	x.wake(b)
	return func() {
		x.mu.Lock()
		b.users--
		x.mu.Unlock()
	}
}

// wake starts a ledger that has users and is not running. Before Run is called it does
// nothing; Run calls it for the ledgers that exist then.
func (x *Ledgers) wake(b *Ledger) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if ctx := x.running.Load(); ctx != nil && !b.active && b.users > 0 {
		b.active = true
		go b.serve(*ctx)
	}
}

// nothing is the function that start returns for a ledger that always runs.
func nothing() {}

// Reserve grants the amounts that a call may use. The tenant of the call is that of its
// facts. fact.Refused is the reason code of a refusal, or "". The granted amounts are
// held for the call until an event of policy about the call is applied: a decision whose
// append has failed may still be stored. Valid reports whether a fact is still true. Run
// must be running. Reserve returns the error of ctx when it is done, and the error that
// prevents the result if the ledger cannot be read or written.
func (x *Ledgers) Reserve(ctx context.Context, r limit.Request) (guard.BudgetFact, error) {
	b := x.of(r.Facts.Tenant)
	r.Call = b.call(r.Facts.Tenant, r.ID)
	if fact, ok := b.share.draw(r); ok {
		return fact, nil
	}
	defer b.begin()()
	return b.reserve(ctx, r)
}

// Valid reports whether a fact that Reserve returned for a call of a tenant is still
// true: the allotment that it names, if any, is not closed, as far as this instance has
// read the ledger.
func (x *Ledgers) Valid(tenant string, f *guard.BudgetFact) bool { return x.of(tenant).share.valid(f) }

// Run answers the callers of Reserve and gives recalled amounts back to their accounts until
// ctx is done. Then it closes the allotments of this instance and returns.
func (x *Ledgers) Run(ctx context.Context) {
	x.running.Store(&ctx)
	for _, b := range x.made()[1:] {
		x.wake(b)
	}
	var wg sync.WaitGroup
	wg.Go(func() { x.home.serve(ctx) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-x.recalling:
		}
		for _, b := range x.made() {
			if err := b.share.answer(ctx); err != nil && ctx.Err() == nil {
				x.log.Warn("budget not written", "err", err)
				x.signal()
			}
		}
	}
	wg.Wait()
	x.end(context.WithoutCancel(ctx))
}

// ending is the maximum time that end spends on closing allotments. If end fails, another
// instance closes them when it needs what they hold.
const ending = time.Second

// end closes the allotments of this instance.
func (x *Ledgers) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ending)
	defer cancel()
	for _, b := range x.made() {
		x.mu.Lock()
		hold := b.share.hold
		x.mu.Unlock()
		if hold != nil {
			if err := b.share.close(ctx, hold.ID); err != nil {
				x.log.Warn("an allotment is not closed", "allotment", hold.ID, "err", err)
			}
		}
	}
}

// signal wakes Run, which returns recalled amounts to their accounts. It does not block.
func (x *Ledgers) signal() {
	select {
	case x.recalling <- struct{}{}:
	default:
	}
}

// Read waits until every event of a budget ledger, and every outcome, that is stored now
// is applied. If there is no event of a budget ledger, it returns at once. It returns the
// error of the log or of ctx, or errLag.
func (x *Ledgers) Read(ctx context.Context) error {
	last, err := x.newest(ctx)
	if err != nil || last == 0 {
		return err
	}
	if err := x.following(ctx); err != nil {
		return err
	}
	en, err := x.emit.Log.Last(ctx, outcomes)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	return x.await(ctx, max(last, en.Seq))
}

// names are the names of the events of budget ledgers.
var names = []string{events.BudgetChangedName, events.AllotmentTakenName, events.AllotmentRecalledName, events.AllotmentReturnedName, events.AllotmentClosedName}

// newest returns the sequence of the newest event of a budget ledger, or 0 if there is
// none.
func (x *Ledgers) newest(ctx context.Context) (last uint64, err error) {
	for _, name := range names {
		en, err := x.emit.Log.Last(ctx, bus.Filter{Service: services.Policy, Event: name}.String())
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return 0, err
		}
		last = max(last, en.Seq)
	}
	return last, nil
}

// Sweep searches the ledger once a second, until ctx is done, for the outcomes of calls
// whose reservation of a release before 0.6 has been open for longer than takeOver, and
// settles these reservations. Run must be running.
func (x *Ledgers) Sweep(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		for _, b := range x.made() {
			for _, l := range b.late() {
				b.lookUp(ctx, l)
			}
		}
	}
}

// Rows returns the accounts of the budget ledger for calls of a tenant, sorted by account
// and window, after Read. Accounts of other tenants of the same organization are omitted.
// The caller owns the slice. The error is that of Read.
func (x *Ledgers) Rows(ctx context.Context, tenant string) ([]limit.Row, error) {
	if err := x.Read(ctx); err != nil {
		return nil, err
	}
	b := x.of(tenant)
	x.mu.Lock()
	defer x.mu.Unlock()
	rows := b.state().Rows()
	if b.tenant == tenant { // not shared, so no account names a tenant
		return rows, nil
	}
	return slices.DeleteFunc(rows, func(r limit.Row) bool { return !limit.Visible(r.Account, tenant) }), nil
}

// Dump returns the canonical form of the budget ledgers, each after a line with its
// tenant, and the sequence of the last entry applied, for comparison with replay. A ledger
// without changes is omitted.
func (x *Ledgers) Dump() (at uint64, lines []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.position, x.book.dump()
}

// dump appends a line with the tenant, and the canonical form of its budget ledger.
func dump(b []byte, tenant string, s *limit.State) []byte {
	w := canon.Object(b)
	w.Str("tenant", tenant)
	return append(append(w.End(), '\n'), s.Dump()...)
}

// View is the budget ledgers built from events, without the ability to append. It is the
// view policy.budget of replay. The zero value is the empty view.
type View struct{ book book }

// Apply applies the next event that Filters select. It returns an error if the data of an
// event of policy cannot be decoded.
func (v *View) Apply(e *contract.Event) error {
	_, err := v.book.apply(e)
	return err
}

// Dump returns the canonical form of the view, as Ledgers.Dump does.
func (v *View) Dump() (lines []byte) { return v.book.dump() }
