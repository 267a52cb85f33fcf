package budget

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
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

// discovery is the interval at which Discover looks for changes of ledgers that this
// instance does not use, which may hold reservations of instances that have failed.
const discovery = 30 * time.Second

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

	mu      sync.RWMutex
	others  map[string]*Ledger
	running atomic.Pointer[context.Context] // context of Run

	discovered time.Time // time of the last call of Discover that has succeeded
	newest     uint64    // sequence of the newest change at that time; 0 = none
}

// New returns ledgers that append through m. home is the tenant whose budget ledger runs
// from the beginning. tenants must be safe for concurrent use. Reserve requires Run:
// while Run is not running, Reserve blocks until its context is done at the latest.
func New(m *emit.Emitter, log *slog.Logger, home string, tenants Tenants) *Ledgers {
	x := &Ledgers{emit: m, log: log, tenants: tenants, others: map[string]*Ledger{}}
	x.home = x.empty(home)
	x.home.outcomes = make(chan limit.Outcome, maxBatch)
	return x
}

// empty returns a new ledger in a tenant.
func (x *Ledgers) empty(tenant string) *Ledger {
	b := newLedger(x.emit, x.log, tenant, func(of string) []guard.Limit { return x.tenants.Limits(cmp.Or(of, tenant)) })
	b.begin = func() func() { return x.start(b) }
	return b
}

// of returns the ledger for calls of a tenant.
func (x *Ledgers) of(tenant string) *Ledger {
	if tenant == x.home.tenant {
		return x.home
	}
	return x.in(x.tenants.Budget(tenant))
}

// in returns the ledger in a tenant, which it makes if there is none.
func (x *Ledgers) in(tenant string) *Ledger {
	if tenant == x.home.tenant {
		return x.home
	}
	x.mu.RLock()
	b := x.others[tenant]
	x.mu.RUnlock()
	if b != nil {
		return b
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if b = x.others[tenant]; b == nil {
		b = x.empty(tenant)
		b.idle = idle
		x.others[tenant] = b
	}
	return b
}

// made returns the ledgers that exist, that of the home tenant first.
func (x *Ledgers) made() []*Ledger {
	out := []*Ledger{x.home}
	x.mu.RLock()
	defer x.mu.RUnlock()
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
	b.mu.Lock()
	b.users++
	if b.outcomes == nil {
		b.outcomes = make(chan limit.Outcome, maxBatch)
	}
	b.mu.Unlock()
	x.wake(b)
	return func() {
		b.mu.Lock()
		b.users--
		b.mu.Unlock()
	}
}

// wake starts a ledger that has users and is not running. Before Run is called it does
// nothing; Run calls it for the ledgers that exist then.
func (x *Ledgers) wake(b *Ledger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx := x.running.Load(); ctx != nil && !b.active && b.users > 0 {
		b.active = true
		go b.serve(*ctx, false)
	}
}

// nothing is the function that start returns for a ledger that always runs.
func nothing() {}

// Reserve reserves the amounts that a call may use; executor is the service that will
// execute the call. The tenant of the call is that of its facts. fact.Refused is the
// reason code of a refusal, or "". A refusal is final when Reserve returns. A granted
// reservation may still have to be appended: it is durable once the function final has
// returned the same fact. final may return another fact if another instance appended
// first; it must be called only once. Run must be running. Both functions return the
// error of ctx when it is done, and the error of the log if it prevents the result.
func (x *Ledgers) Reserve(ctx context.Context, r limit.Request, executor string) (fact guard.BudgetFact, final func() (guard.BudgetFact, error), err error) {
	b := x.of(r.Facts.Tenant)
	r.Call = b.call(r.Facts.Tenant, r.ID)
	defer b.begin()()
	return b.reserve(ctx, r, executor)
}

// Run appends reservations and settlements until ctx is done, and then returns nil. It
// first reads the ledger of the home tenant, and returns nil if starting is done before
// that read is complete. It returns the error of this first read; later errors, and those
// of other ledgers, are logged and returned to the callers of Reserve.
func (x *Ledgers) Run(ctx, starting context.Context) error {
	x.running.Store(&ctx)
	for _, b := range x.made()[1:] {
		x.wake(b)
	}
	return x.home.run(ctx, starting)
}

// Read applies the changes that follow the last ones applied, of all budget ledgers. It
// skips entries that are not events of a budget ledger. It returns the error of the log,
// or an error for a change that cannot be decoded.
func (x *Ledgers) Read(ctx context.Context) error {
	if err := x.home.read(ctx); err != nil {
		return err
	}
	for _, tenant := range x.tenants.Budgets() {
		if b := x.in(tenant); b != x.home {
			if err := b.read(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Watched reports whether outcomes must be read, which is the case if there are limits of
// the home tenant or open reservations. Otherwise outcomes have nothing to settle.
func (x *Ledgers) Watched() bool {
	return len(x.tenants.Limits(x.home.tenant)) > 0 || slices.ContainsFunc(x.made(), (*Ledger).open)
}

// From returns the sequence from which outcomes must be read: that of the oldest open
// reservation, or tail+1 if none is open. tail is the last sequence of the ledger.
// Outcomes before the returned sequence are found by Sweep.
func (x *Ledgers) From(tail uint64) uint64 {
	from := tail + 1
	for _, b := range x.made() {
		from = min(from, b.oldest(from))
	}
	return from
}

// Outcome passes the recorded outcome of a call with an open reservation to Run, which
// settles the reservation. It ignores an outcome that neither policy nor the executor of
// the call recorded. If another instance made the reservation, Outcome processes only an
// outcome that policy recorded; that instance or Sweep processes one that the executor
// recorded.
func (x *Ledgers) Outcome(ctx context.Context, en eventlog.Entry) {
	b := x.home
	if tenant := tenantOf(en); tenant != b.tenant {
		in := x.tenants.Budget(tenant)
		x.mu.RLock()
		if b = x.others[in]; in == x.home.tenant {
			b = x.home
		}
		x.mu.RUnlock()
		if b == nil || !b.open() {
			return
		}
	}
	b.outcome(ctx, en)
}

// Sweep searches the ledger once a second, until ctx is done, for the outcomes of calls
// whose reservation has been open for longer than takeOver, and passes them to Run. This
// settles the reservations of failed instances, and of calls that ended while no
// instance read outcomes or before the reservation was made. At the beginning, and at
// intervals of discovery, it reads the ledgers that have changed, including those that
// this instance has not used.
func (x *Ledgers) Sweep(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		x.Discover(ctx)
		for _, b := range x.made() {
			x.sweep(ctx, b)
		}
	}
}

// changes is the largest number of changes that Discover reads to find out which ledgers
// have changed. If there are more, it reads every ledger.
const changes = 1000

// Discover reads the ledgers that have changed since the last call that succeeded, and at
// the first call every ledger. It does nothing within the duration discovery after such a
// call. After it, Watched also considers the reservations of other instances and of an
// earlier process. Discover must not be called concurrently.
func (x *Ledgers) Discover(ctx context.Context) {
	if time.Since(x.discovered) < discovery {
		return
	}
	began := time.Now()
	en, err := x.emit.Log.Last(ctx, anyChange)
	if err == nil && en.Seq > x.newest {
		err = x.readChanged(ctx)
	}
	if err == nil || errors.Is(err, eventlog.ErrNotFound) {
		x.discovered, x.newest = began, max(x.newest, en.Seq)
	}
}

// anyChange is the filter of the changes of all budget ledgers.
var anyChange = bus.Filter{Service: services.Policy, Event: events.BudgetChangedName}.String()

// readChanged reads the ledgers with changes after x.newest, or every ledger if x.newest is
// 0 or if there are more than changes.
func (x *Ledgers) readChanged(ctx context.Context) error {
	if x.newest == 0 {
		return x.Read(ctx)
	}
	changed := map[string]bool{}
	n := 0
	for en, err := range x.emit.Log.Scan(ctx, anyChange, x.newest+1) {
		if err != nil {
			return err
		}
		if n++; n > changes {
			return x.Read(ctx)
		}
		changed[tenantOf(en)] = true
	}
	for tenant := range changed {
		if err := x.in(tenant).read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sweep searches for the outcomes of the late calls of one ledger.
func (x *Ledgers) sweep(ctx context.Context, b *Ledger) {
	if b != x.home && !b.open() {
		return
	}
	if err := b.read(ctx); err != nil {
		return
	}
	for _, l := range b.late() {
		b.lookUp(ctx, l)
	}
}

// Rows returns the accounts of the budget ledger for calls of a tenant, sorted by account
// and window, after it has read the ledger. Accounts of other tenants of the same
// organization are omitted. The caller owns the slice. The error is that of Read.
func (x *Ledgers) Rows(ctx context.Context, tenant string) ([]limit.Row, error) {
	b := x.of(tenant)
	if err := b.read(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	rows := b.state.Rows()
	if b.tenant == tenant { // not shared, so no account names a tenant
		return rows, nil
	}
	return slices.DeleteFunc(rows, func(r limit.Row) bool { return !limit.Visible(r.Account, tenant) }), nil
}

// Dump returns the canonical form of the budget ledgers, each after a line with its
// tenant, and the sequence of the last change in them, for comparison with replay. A
// ledger without changes is omitted.
func (x *Ledgers) Dump() (at uint64, lines []byte) {
	for _, b := range x.sorted() {
		b.mu.Lock()
		if b.last > 0 {
			at, lines = max(at, b.last), dump(lines, b.tenant, &b.state)
		}
		b.mu.Unlock()
	}
	return at, lines
}

// sorted returns the ledgers that exist, in the order of their tenants.
func (x *Ledgers) sorted() []*Ledger {
	return slices.SortedFunc(slices.Values(x.made()), func(a, b *Ledger) int { return cmp.Compare(a.tenant, b.tenant) })
}

// dump appends a line with the tenant, and the canonical form of its budget ledger.
func dump(b []byte, tenant string, s *limit.State) []byte {
	w := canon.Object(b)
	w.Str("tenant", tenant)
	return append(append(w.End(), '\n'), s.Dump()...)
}

// View is the budget ledgers built from events, without the ability to append. It is the
// view policy.budget of replay. The zero value is the empty view.
type View struct{ by map[string]*limit.State }

// Apply applies one budget_changed event. It returns an error if the data cannot be
// decoded. Events of services other than policy change nothing; otherwise those services
// could forge settlements.
func (v *View) Apply(e *contract.Event) error {
	ev, err := changeOf(e)
	if err != nil || e.Service() != "policy" {
		return err
	}
	if v.by == nil {
		v.by = map[string]*limit.State{}
	}
	if v.by[e.Tenant] == nil {
		v.by[e.Tenant] = &limit.State{}
	}
	limit.Evolve(v.by[e.Tenant], ev)
	return nil
}

// Dump returns the canonical form of the view, as Ledgers.Dump does.
func (v *View) Dump() (lines []byte) {
	for _, tenant := range slices.Sorted(maps.Keys(v.by)) {
		lines = dump(lines, tenant, v.by[tenant])
	}
	return lines
}
