package budget

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// flaky is a log that loses acknowledgements and refuses appends. While fail is positive, an
// append by AppendExpect of an event with the name lost, or of any event if lost is empty, is
// stored, but decrements fail and returns errLost. An append of an event with the name
// refused returns errRefused and is not stored.
type flaky struct {
	*memlog.Log
	mu            sync.Mutex
	fail          int
	lost, refused string
}

var errLost, errRefused = errors.New("the answer is lost"), errors.New("the append is refused")

// refuse sets the name of the events whose appends are refused; empty means none.
func (l *flaky) refuse(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = name
}

func (l *flaky) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	l.mu.Lock()
	refused := l.refused != "" && eventOf(subject) == l.refused
	l.mu.Unlock()
	if refused {
		return 0, errRefused
	}
	seq, err := l.Log.AppendExpect(ctx, subject, id, data, filter, expect)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.fail > 0 && (l.lost == "" || eventOf(subject) == l.lost) {
		l.fail--
		return 0, errLost
	}
	return seq, err
}

var three = []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 3, Window: "concurrent"}}

// member returns the budget ledger of the policy instance with the given name, without
// running it.
func member(log eventlog.Log, name string, limits []guard.Limit) *Ledgers {
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/" + name, Now: time.Now}
	return New(m, slog.New(slog.NewTextHandler(io.Discard, nil)), "t", fixed{"t": limits})
}

// start runs an instance and applies new entries every millisecond. The instance stops
// applying entries while the returned value is true. If stop is done, the instance ends,
// and closes its allotments.
func start(stop context.Context, log eventlog.Log, x *Ledgers) (stopped *atomic.Bool) {
	stopped = &atomic.Bool{}
	following, end := context.WithCancel(context.WithoutCancel(stop))
	x.Follow(1)
	go func() {
		for next := uint64(1); following.Err() == nil; time.Sleep(time.Millisecond) {
			if stopped.Load() {
				continue
			}
			for en, err := range log.Scan(following, eventlog.Every, next) {
				if err != nil {
					break
				}
				if bus.MatchAny(Filters, en.Subject) {
					if err := x.Apply(en); err != nil {
						panic(err)
					}
				}
				next = en.Seq + 1
			}
		}
	}()
	go func() { x.Run(stop); end() }()
	return stopped
}

// fixed implements Tenants with limits by tenant.
type fixed map[string][]guard.Limit

func (f fixed) Budget(tenant string) string        { return contract.BudgetTenant(tenant) }
func (f fixed) Limits(tenant string) []guard.Limit { return f[tenant] }
func (f fixed) Budgets() (out []string) {
	for tenant := range f {
		out = append(out, f.Budget(tenant))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// rows returns the accounts of a tenant.
func rows(b *Ledgers, tenant string) []limit.Row {
	out, err := b.Rows(context.Background(), tenant)
	if err != nil {
		panic(err)
	}
	return out
}

// maxTest is the time, in a synctest bubble, after which a test whose Reserve does not
// return fails.
const maxTest = time.Minute

// bubble runs f in a synctest bubble with n running instances of the budget ledger over
// one log, for the limits.
func bubble(t *testing.T, n int, limits []guard.Limit, f func(ctx context.Context, log *flaky, ms []*Ledgers)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), maxTest)
		defer func() { cancel(); time.Sleep(2 * patience) }() // until allotments are closed
		log := &flaky{Log: &memlog.Log{}}
		var ms []*Ledgers
		for i := range n {
			ms = append(ms, member(log, fmt.Sprint("policy-", i), limits))
			start(ctx, log, ms[i])
		}
		f(ctx, log, ms)
	})
}

func judgeRequest(call string) limit.Request {
	return limit.Request{Call: limit.Call{ID: call}, Facts: &guard.Facts{Actor: "alice", Session: "s-1", Tenant: "t"}, Amounts: contract.Amounts{Calls: 1}}
}

// allow reserves the amounts of a request and, if they are granted, records that the call
// is allowed to the judge. It returns the fact.
func allow(ctx context.Context, t *testing.T, log eventlog.Log, x *Ledgers, r limit.Request) (guard.BudgetFact, error) {
	t.Helper()
	f, err := x.Reserve(ctx, r)
	if err == nil && f.Refused == "" {
		record(t, log, r.Facts.Tenant, "policy", contract.EventAllowed, "judge", r.ID, allowedData(&f))
	}
	return f, err
}

// allowedData returns the data of an event that allows a call with a budget fact.
func allowedData(f *guard.BudgetFact) []byte {
	facts := contract.Bytes(&guard.Facts{Budget: f})
	return contract.Bytes(&contract.Allowed{Decision: contract.Decision{Facts: facts, Intent: &contract.ExecutionIntent{Executor: "judge"}}})
}

// record appends an event of the call to the log, with the given service as its source.
func record(t *testing.T, log eventlog.Log, tenant, service, name, target, call string, data []byte) {
	t.Helper()
	m := &emit.Emitter{Log: log, Tenant: tenant, Source: service + "/" + service + "-1", Now: time.Now}
	e := m.New(name, "s-1", data, nil)
	e.CallID, e.Session, e.Target, e.Actor = call, "s-1", target, "alice"
	if _, err := m.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// end appends the outcome of a call.
func end(t *testing.T, log eventlog.Log, tenant, service, call, status string) {
	t.Helper()
	record(t, log, tenant, service, contract.EventEffectRecorded, "", call, contract.Bytes(&contract.Recorded{Effect: contract.Effect{CallID: call, Status: status}}))
}

// folded returns the dump of a View of the log.
func folded(t *testing.T, log eventlog.Log) string {
	t.Helper()
	var v View
	for en, err := range log.Scan(t.Context(), eventlog.Every, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if !bus.MatchAny(Filters, en.Subject) {
			continue
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err == nil {
			err = v.Apply(e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return string(v.Dump())
}

// spent returns the sum of what is reserved and committed on all accounts of a tenant.
func spent(x *Ledgers, tenant string) (n int64) {
	time.Sleep(10 * time.Millisecond) // until the last allowed call is applied
	for _, r := range rows(x, tenant) {
		n += r.Reserved + r.Committed
	}
	return n
}

// of counts the events with a name.
func of(t *testing.T, log eventlog.Log, name string) (n int) {
	t.Helper()
	for _, err := range log.Scan(t.Context(), bus.Filter{Event: name}.String(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// TestNeverOverspent shows that exactly as many calls are granted as the limit permits,
// although 64 clients use three instances and acknowledgements are lost, that the limit
// is used to its last unit, that all instances and a View of the same events agree, and
// that at most one block is taken for two granted calls.
func TestNeverOverspent(t *testing.T) {
	const most = 500
	total := []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: most, Window: "total"}, {ID: "s", Level: "session", Measure: "calls", Max: most + 1, Window: "day"}}
	bubble(t, 3, total, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		log.fail = 5
		var granted, refused atomic.Int64
		var wg sync.WaitGroup
		for client := range 64 {
			wg.Go(func() {
				for n := range 10 {
					call := fmt.Sprintf("c-%d-%d", client, n)
					for try := 0; ; try++ { // the proposal is delivered again until a delivery has a final result
						f, err := allow(ctx, t, log, ms[client%3], judgeRequest(call))
						if err != nil && try < 100 {
							continue
						}
						if err != nil {
							t.Errorf("%s is not decided after %d deliveries: %v", call, try, err)
							return
						}
						if f.Refused == "" {
							granted.Add(1)
							end(t, log, "t", "judge", call, contract.Succeeded)
						} else {
							refused.Add(1)
						}
						break
					}
				}
			})
		}
		wg.Wait()
		if granted.Load() != most || refused.Load() != 640-most {
			t.Errorf("%d calls are granted and %d refused, want %d and %d", granted.Load(), refused.Load(), most, 640-most)
		}
		want := folded(t, log)
		for _, x := range ms {
			if n := spent(x, "t"); n != 2*most {
				t.Errorf("%d used, want %d", n, 2*most)
			}
			if _, got := x.Dump(); string(got) != want {
				t.Errorf("the dump is\n%s\nwant\n%s", got, want)
			}
		}
		if n := of(t, log, events.AllotmentTakenName); n > most/2 {
			t.Errorf("%d blocks are taken for %d calls", n, most)
		}
	})
}

// TestUnusedIsRecalled shows that a call is refused only when no instance has unused
// amounts: one instance uses what another one has taken and does not use, without waiting
// for lease and without closing an allotment. A second delivery of a call that another
// instance has allowed draws nothing.
func TestUnusedIsRecalled(t *testing.T) {
	total := []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 100, Window: "total"}}
	bubble(t, 2, total, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		if f, err := allow(ctx, t, log, ms[0], judgeRequest("c-0")); f.Refused != "" || err != nil {
			t.Fatal(f, err)
		}
		if time.Sleep(time.Second); spent(ms[1], "t") != 1 {
			t.Error(rows(ms[1], "t"))
		}
		if f, err := ms[1].Reserve(ctx, judgeRequest("c-0")); f.Refused != "" || len(f.Draws) != 0 || err != nil {
			t.Error("a second delivery of a call that another instance has allowed:", f, err)
		}
		began := time.Now()
		for n := 1; n < 100; n++ {
			if f, err := allow(ctx, t, log, ms[1], judgeRequest(fmt.Sprint("c-", n))); f.Refused != "" || err != nil {
				t.Fatal(n, f, err)
			}
		}
		if time.Since(began) > lease {
			t.Errorf("an instance that responds is waited for: %v", time.Since(began))
		}
		if f, err := allow(ctx, t, log, ms[1], judgeRequest("c-100")); f.Refused != contract.ReasonBudgetExceeded || err != nil {
			t.Error("beyond the limit:", f, err)
		}
		if n := of(t, log, events.AllotmentClosedName); n != 0 {
			t.Errorf("%d allotments are closed", n)
		}
	})
}

// TestStoppedHolder shows that the allotment of an instance that is stopped is closed
// when another one needs what it holds, that the draws of a call from this allotment are
// void if the call is allowed after that, and that the instance continues with a new
// allotment.
func TestStoppedHolder(t *testing.T) {
	total := []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 100, Window: "total"}}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), maxTest)
		defer func() { cancel(); time.Sleep(2 * patience) }()
		log := &flaky{Log: &memlog.Log{}}
		one, two := member(log, "policy-1", total), member(log, "policy-2", total)
		stopped := start(ctx, log, one)
		start(ctx, log, two)
		if f, err := allow(ctx, t, log, one, judgeRequest("c-0")); f.Refused != "" || err != nil {
			t.Fatal(f, err)
		}
		late, err := one.Reserve(ctx, judgeRequest("c-late"))
		if err != nil || late.Allotment == "" {
			t.Fatal(late, err)
		}
		stopped.Store(true)
		for n := 1; n < 100; n++ {
			if f, err := allow(ctx, t, log, two, judgeRequest(fmt.Sprint("c-", n))); f.Refused != "" || err != nil {
				t.Fatal(n, f, err)
			}
		}
		if f, err := allow(ctx, t, log, two, judgeRequest("c-100")); f.Refused != contract.ReasonBudgetExceeded || err != nil {
			t.Error("beyond the limit:", f, err)
		}
		if !one.Valid("t", &late) {
			t.Error("the stopped instance knows that its allotment is closed")
		}
		record(t, log, "t", "policy", contract.EventAllowed, "judge", "c-late", allowedData(&late))
		stopped.Store(false)
		time.Sleep(time.Second)
		if one.Valid("t", &late) || spent(one, "t") != 100 || spent(two, "t") != 100 {
			t.Errorf("a void draw counts: %d and %d of 100", spent(one, "t"), spent(two, "t"))
		}
		end(t, log, "t", "judge", "c-late", contract.Cancelled)
		end(t, log, "t", "judge", "c-7", contract.Expired)
		if f, err := allow(ctx, t, log, one, judgeRequest("c-101")); f.Refused != "" || f.Allotment == late.Allotment || err != nil {
			t.Error("the resumed instance:", f, err)
		}
		time.Sleep(time.Second)
		if _, got := one.Dump(); string(got) != folded(t, log) {
			t.Errorf("the dump is\n%s\nwant\n%s", got, folded(t, log))
		}
	})
}

// TestCrashLoop shows that an instance that crashes after each call and, after it, another
// instance can use a limit to its last unit, although the crashed runs have not closed
// their allotments.
func TestCrashLoop(t *testing.T) {
	total := []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 60, Window: "total"}}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), maxTest)
		defer func() { cancel(); time.Sleep(2 * patience) }()
		log := &flaky{Log: &memlog.Log{}}
		calls := 0
		next := func(x *Ledgers) string {
			calls++
			f, err := allow(ctx, t, log, x, judgeRequest(fmt.Sprint("c-", calls)))
			if err != nil {
				t.Fatal(err)
			}
			return f.Refused
		}
		for range 20 { // each run crashes after one call: its entries are not applied any more
			x := member(log, "policy-1", total)
			stopped := start(ctx, log, x)
			if refused := next(x); refused != "" {
				t.Fatal(calls, refused)
			}
			stopped.Store(true)
		}
		x := member(log, "policy-2", total)
		start(ctx, log, x)
		for range 40 {
			if refused := next(x); refused != "" {
				t.Fatal(calls, refused)
			}
		}
		if refused := next(x); refused != contract.ReasonBudgetExceeded || spent(x, "t") != 60 {
			t.Errorf("%q with %d of 60", refused, spent(x, "t"))
		}
	})
}

// TestWhoSettles shows that an outcome settles what its call has drawn once, and only if
// the executor that the intent names, or policy, recorded it, that a second delivery of a
// proposal draws nothing more, and that an unknown outcome remains charged.
func TestWhoSettles(t *testing.T) {
	bubble(t, 1, []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 9, Window: "concurrent"}, {ID: "sum", Level: "agent", Measure: "calls", Max: 9, Window: "total"}}, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		x := ms[0]
		for _, call := range []string{"c-1", "c-2", "c-3"} {
			if f, err := allow(ctx, t, log, x, judgeRequest(call)); f.Refused != "" || err != nil {
				t.Fatal(f, err)
			}
		}
		spent(x, "t")
		if f, err := x.Reserve(ctx, judgeRequest("c-1")); f.Refused != "" || err != nil || len(f.Draws) != 0 {
			t.Error("a second delivery draws again, or is refused:", f, err)
		}
		for _, c := range []struct {
			service, call, status, want string
		}{
			{"gateway", "c-1", contract.Succeeded, "3+0 3+0"}, {"judge", "c-9", contract.Succeeded, "3+0 3+0"}, {"judge", "c-1", contract.Succeeded, "2+0 2+1"},
			{"judge", "c-1", contract.Succeeded, "2+0 2+1"}, {"policy", "c-2", contract.Expired, "1+0 1+1"}, {"judge", "c-3", contract.Unknown, "0+0 0+2"},
		} {
			end(t, log, "t", c.service, c.call, c.status)
			got := ""
			for _, r := range rows(x, "t") {
				got += fmt.Sprintf("%d+%d ", r.Reserved, r.Committed)
			}
			if strings.TrimSpace(got) != c.want {
				t.Errorf("after an outcome %s of %s by %s: %s, want %s", c.status, c.call, c.service, got, c.want)
			}
		}
	})
}

// TestEnd shows that an instance that ends closes its allotments.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), maxTest)
		log := &flaky{Log: &memlog.Log{}}
		x := member(log, "policy-1", three)
		start(ctx, log, x)
		if f, err := allow(ctx, t, log, x, judgeRequest("c-1")); f.Refused != "" || err != nil {
			t.Fatal(f, err)
		}
		cancel()
		time.Sleep(patience)
		if n := of(t, log, events.AllotmentClosedName); n != 1 {
			t.Errorf("%d allotments are closed", n)
		}
	})
}

// TestLegacy shows that reservations of releases before 0.6 count against the limit, and
// that an instance settles them with outcomes of the permitted executor that were recorded
// before or after the reservation, once each.
func TestLegacy(t *testing.T) {
	bubble(t, 0, nil, func(ctx context.Context, log *flaky, _ []*Ledgers) {
		m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/policy-9", Now: time.Now}
		record(t, log, "t", "policy", contract.EventAllowed, "judge", "c-1", contract.Bytes(&contract.Allowed{}))
		end(t, log, "t", "judge", "c-1", contract.Succeeded)
		charge := []events.Charge{{Account: "l/agent:alice", Amount: 1, Window: "concurrent"}}
		if _, err := m.Append(ctx, m.New(events.BudgetChangedName, aggregate, contract.Bytes(&events.BudgetChanged{Now: contract.Time(time.Now()), Reserved: []events.Reserved{
			{CallID: "c-1", Charges: charge, Session: "s-1"}, {CallID: "c-2", Charges: charge, Session: "s-1"}}}), nil)); err != nil {
			t.Fatal(err)
		}
		record(t, log, "t", "policy", contract.EventAllowed, "judge", "c-2", contract.Bytes(&contract.Allowed{}))
		end(t, log, "t", "vault-broker", "c-2", contract.Succeeded) // policy allowed only judge to execute the call
		x := member(log, "policy-1", three)
		start(ctx, log, x)
		go x.Sweep(ctx)
		if f, err := allow(ctx, t, log, x, judgeRequest("c-3")); f.Refused != "" || err != nil {
			t.Fatal(f, err)
		}
		if f, err := x.Reserve(ctx, judgeRequest("c-4")); f.Refused != contract.ReasonConcurrencyExceeded || err != nil {
			t.Fatal("with three of three reserved:", f, err)
		}
		time.Sleep(10 * time.Second)
		if n := spent(x, "t"); n != 2 {
			t.Errorf("%d reserved, want 2", n)
		}
		end(t, log, "t", "judge", "c-2", contract.Succeeded)
		time.Sleep(10 * time.Second)
		if n := spent(x, "t"); n != 1 || of(t, log, events.BudgetChangedName) != 3 {
			t.Errorf("%d reserved after %d changes, want 1 after 3", n, of(t, log, events.BudgetChangedName))
		}
		if _, got := x.Dump(); string(got) != folded(t, log) {
			t.Errorf("the dump is\n%s\nwant\n%s", got, folded(t, log))
		}
	})
}

// TestNotRunning shows that Reserve returns the error of its context if Run is not running,
// that nothing is read without events or requests, that a change that cannot be decoded is
// an error, and that a View ignores a change of another service.
func TestNotRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memlog.Log{}
		x := member(log, "policy-1", three)
		if err := x.Discover(t.Context()); err != nil || wanted(x) {
			t.Error("the ledger is read without events and requests:", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := x.Reserve(ctx, judgeRequest("c-1")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
		seq, err := m.Append(t.Context(), m.New(events.BudgetChangedName, aggregate, []byte(`{"x":1}`), nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Discover(t.Context()); err != nil || !wanted(x) {
			t.Error("the ledger is not read:", err)
		}
		en, err := log.Get(t.Context(), seq)
		if err == nil {
			err = x.Apply(en)
		}
		if err == nil || !strings.Contains(err.Error(), "budget change at 1") {
			t.Error(err)
		}
		var v View
		if err := v.Apply(&contract.Event{Source: "gateway/gw1", Name: events.AllotmentTakenName, Data: contract.Bytes(&events.AllotmentTaken{Allotment: "al-x", Holder: "x", Now: "x"})}); err != nil || len(v.Dump()) != 0 {
			t.Errorf("another service's change is folded: %s, %v", v.Dump(), err)
		}
	})
}

// wanted reports whether the channel of Wanted is closed. It does not block.
func wanted(x *Ledgers) bool {
	select {
	case <-x.Wanted():
		return true
	default:
		return false
	}
}
