package budget

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
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

// flaky is a log that loses acknowledgements. While fail is positive, an append by
// AppendExpect is stored, but decrements fail and returns an error.
type flaky struct {
	*memlog.Log
	mu   sync.Mutex
	fail int
}

var errLost = errors.New("the answer is lost")

func (l *flaky) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	seq, err := l.Log.AppendExpect(ctx, subject, id, data, filter, expect)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.fail > 0 {
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

// bubble runs f in a synctest bubble with n running instances of the budget ledger over
// one log.
func bubble(t *testing.T, n int, f func(ctx context.Context, log *flaky, ms []*Ledgers)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		log := &flaky{Log: &memlog.Log{}}
		var ms []*Ledgers
		for i := range n {
			ms = append(ms, member(log, fmt.Sprint("policy-", i), three))
			go ms[i].Run(ctx, ctx)
		}
		synctest.Wait() // wait until every instance has read the empty log
		f(ctx, log, ms)
	})
}

func judgeRequest(call string) limit.Request {
	return limit.Request{Call: limit.Call{ID: call}, Facts: &guard.Facts{Actor: "alice", Session: "s-1", Tenant: "t"}, Amounts: contract.Amounts{Calls: 1}}
}

// take makes a reservation and waits until it is durable. refused is the reason code if
// it was refused.
func take(ctx context.Context, b *Ledgers, call string) (refused string, err error) {
	_, final, err := b.Reserve(ctx, judgeRequest(call), "judge")
	if err != nil {
		return "", err
	}
	f, err := final()
	return f.Refused, err
}

// record appends an event of the call to the log, with the given service as its source,
// and returns the stored entry.
func record(t *testing.T, log eventlog.Log, service, name, target, call string, data []byte) eventlog.Entry {
	t.Helper()
	m := &emit.Emitter{Log: log, Tenant: "t", Source: service + "/" + service + "-1", Now: time.Now}
	e := m.New(name, "s-1", data, nil)
	e.CallID, e.Session, e.Target, e.Actor = call, "s-1", target, "alice"
	seq, err := m.Append(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	en, err := log.Get(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}
	return en
}

// outcomeOf appends a successful outcome of the call, with the given service as its
// source, and returns the stored entry.
func outcomeOf(t *testing.T, log eventlog.Log, service, call string) eventlog.Entry {
	return record(t, log, service, contract.EventEffectRecorded, "", call, contract.Bytes(&contract.Recorded{Effect: contract.Effect{CallID: call, Status: contract.Succeeded}}))
}

// TestNeverOverspent shows that as many calls are granted as the limit permits, although
// several instances reserve concurrently and acknowledgements are lost, and that all
// instances and a View of the same events have the same dump.
func TestNeverOverspent(t *testing.T) {
	bubble(t, 3, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		log.fail = 2
		var mu sync.Mutex
		granted := map[string]bool{}
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				call := fmt.Sprint("c-", i)
				for { // the proposal is delivered again until a delivery has a final result
					refused, err := take(ctx, ms[i%3], call)
					if err != nil {
						continue
					}
					mu.Lock()
					granted[call] = refused == ""
					mu.Unlock()
					return
				}
			})
		}
		wg.Wait()
		n := 0
		for _, ok := range granted {
			if ok {
				n++
			}
		}
		if n != 3 {
			t.Errorf("%d calls are granted, want 3", n)
		}
		var dumps []string
		for _, b := range ms {
			if err := b.Read(ctx); err != nil {
				t.Fatal(err)
			}
			at, lines := b.Dump()
			dumps = append(dumps, fmt.Sprintf("%d %s", at, lines))
		}
		if dumps[0] != dumps[1] || dumps[1] != dumps[2] || rows(ms[0], "t")[0].Reserved != 3 {
			t.Errorf("the members differ: %q", dumps)
		}
		var v View
		for en, err := range log.Scan(ctx, "evt.>", 1) {
			if err != nil {
				t.Fatal(err)
			}
			e, err := eventlog.Open(en, eventlog.Every)
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
		if !strings.HasSuffix(dumps[0], " "+string(v.Dump())) {
			t.Errorf("folded event by event it is %s", v.Dump())
		}
	})
}

// TestWhoSettles shows that a call beyond the limit is refused, that a second delivery
// reserves nothing more, and that an outcome settles a reservation once, and only if the
// call's executor or policy recorded it.
func TestWhoSettles(t *testing.T) {
	bubble(t, 1, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		b := ms[0]
		reserved := func() (n int64) {
			time.Sleep(10 * linger)
			for _, r := range rows(b, "t") {
				n += r.Reserved
			}
			return n
		}
		for _, call := range []string{"c-1", "c-2", "c-3"} {
			if refused, err := take(ctx, b, call); refused != "" || err != nil {
				t.Fatal(refused, err)
			}
		}
		if refused, _ := take(ctx, b, "c-4"); refused != contract.ReasonConcurrencyExceeded {
			t.Error("beyond the limit:", refused)
		}
		if refused, err := take(ctx, b, "c-1"); refused != "" || err != nil || reserved() != 3 {
			t.Error("a second delivery reserves again, or is refused:", refused, err)
		}
		for _, c := range []struct {
			service, call string
			want          int64
		}{{"gateway", "c-1", 3}, {"judge", "c-9", 3}, {"judge", "c-1", 2}, {"judge", "c-1", 2}, {"policy", "c-2", 1}} {
			b.Outcome(ctx, outcomeOf(t, log, c.service, c.call))
			if got := reserved(); got != c.want {
				t.Errorf("after an outcome of %s by %s: %d reserved, want %d", c.call, c.service, got, c.want)
			}
		}
		b.Outcome(ctx, record(t, log, "judge", contract.EventEffectRecorded, "", "c-3", []byte(`{}`)))
		if reserved() != 1 {
			t.Error("what is no outcome settles")
		}
	})
}

// TestSweep shows that an instance settles reservations that another instance made, only
// after some time and with the outcome of the permitted executor, and that a reservation
// made after the outcome is settled, too.
func TestSweep(t *testing.T) {
	bubble(t, 2, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		dead, b := ms[0], ms[1]
		for _, call := range []string{"c-1", "c-2"} {
			if refused, err := take(ctx, dead, call); refused != "" || err != nil {
				t.Fatal(refused, err)
			}
			record(t, log, "policy", contract.EventAllowed, "judge", call, contract.Bytes(&contract.Allowed{}))
		}
		outcomeOf(t, log, "judge", "c-1")
		outcomeOf(t, log, "vault-broker", "c-2") // policy allowed only judge to execute the call
		if b.Watched() != true || b.From(99) != 100 {
			t.Error("where to follow from is wrong before it has read")
		}
		go b.Sweep(ctx)
		time.Sleep(2 * time.Second)
		if rows(b, "t")[0].Reserved != 2 || b.From(99) != 1 {
			t.Errorf("%+v before its time, from %d", rows(b, "t"), b.From(99))
		}
		time.Sleep(10 * time.Second)
		if rows(b, "t")[0].Reserved != 1 {
			t.Errorf("%+v", rows(b, "t"))
		}
		outcomeOf(t, log, "judge", "c-2")
		time.Sleep(10 * time.Second)
		if rows(b, "t")[0].Reserved != 0 {
			t.Errorf("%+v", rows(b, "t"))
		}
		if refused, err := take(ctx, b, "c-1"); refused != "" || err != nil || rows(b, "t")[0].Reserved != 1 {
			t.Fatal(refused, err)
		}
		time.Sleep(10 * time.Second)
		if rows(b, "t")[0].Reserved != 0 {
			t.Errorf("a reservation for a call that has ended stays: %+v", rows(b, "t"))
		}
	})
}

// TestNotRunning shows that Reserve returns the error of its context if Run is not
// running, that outcomes need not be read without a limit, that Run fails if a change
// cannot be decoded, and that a View ignores a change of another service.
func TestNotRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memlog.Log{}
		b := member(log, "policy-1", three)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := b.Reserve(ctx, judgeRequest("c-1"), "judge"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if member(log, "policy-2", nil).Watched() {
			t.Error("outcomes are followed without a limit")
		}
		m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
		e := m.New(events.BudgetChangedName, aggregate, []byte(`{"x":1}`), nil)
		raw, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Append(t.Context(), e.Subject(), e.ID, raw); err != nil {
			t.Fatal(err)
		}
		if err := b.Run(t.Context(), t.Context()); err == nil || !strings.Contains(err.Error(), "budget change at 1") {
			t.Error(err)
		}
		var v View
		if err := v.Apply(&contract.Event{Source: "gateway/gw1", Name: events.BudgetChangedName, Data: contract.Bytes(&events.BudgetChanged{Now: "x", Reserved: []events.Reserved{{CallID: "c", Session: "s"}}})}); err != nil || len(v.Dump()) != 0 {
			t.Errorf("another service's change is folded: %s, %v", v.Dump(), err)
		}
	})
}

// TestOriginal shows that the accounts of the mesh's original tenant, whose budget ledger
// is in that tenant and not in the home tenant, are listed with the ids of its limits.
func TestOriginal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		x := member(&flaky{Log: &memlog.Log{}}, "policy-1", nil)
		x.tenants = fixed{"default": three}
		go x.Run(ctx, ctx)
		r := judgeRequest("c-1")
		r.Facts.Tenant = "default"
		_, final, err := x.Reserve(ctx, r, "judge")
		if err == nil {
			_, err = final()
		}
		if got := rows(x, "default"); err != nil || len(got) != 1 || got[0].Account != "l/agent:alice" || got[0].Reserved != 1 {
			t.Errorf("%+v %v", got, err)
		}
	})
}

// TestOrganizations shows that tenants of one organization share its limit and not their
// own, that a reservation that is requested before Run is called is made, that the
// outcome of a call settles no reservation of another tenant's call with the same id,
// that the event names the tenant of each reservation, that the ledger of an
// organization ends when it is idle and runs again, and that another instance and a View
// can load the state that an instance saved.
func TestOrganizations(t *testing.T) {
	const a, b, in = "acme_web_prod", "acme_web_test", "_org-acme"
	own := func(tenant string) []guard.Limit {
		return []guard.Limit{{ID: tenant + ".l", Level: "agent", Measure: "calls", Max: 2, Window: "concurrent"}, {ID: "org", Level: "organization", Measure: "calls", Max: 3, Window: "concurrent"}}
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		log := &flaky{Log: &memlog.Log{}}
		tenants := fixed{"t": three, a: own(a), b: own(b)}
		made := func(name string) *Ledgers {
			x := member(log, name, nil)
			x.tenants = tenants
			return x
		}
		x := made("policy-1")
		early := make(chan error)
		go func() { // a reservation that is requested before Run
			r := judgeRequest("c-0")
			r.Facts.Tenant = a
			_, final, err := x.Reserve(ctx, r, "judge")
			if err == nil {
				_, err = final()
			}
			early <- err
		}()
		synctest.Wait()
		go x.Run(ctx, ctx)
		go x.Sweep(ctx)
		if err := <-early; err != nil {
			t.Fatal(err)
		}
		ask := func(tenant, call string) string {
			r := judgeRequest(call)
			r.Facts.Tenant = tenant
			_, final, err := x.Reserve(ctx, r, "judge")
			if err != nil {
				t.Fatal(err)
			}
			f, err := final()
			if err != nil {
				t.Fatal(err)
			}
			return f.Refused
		}
		reserved := func() string {
			time.Sleep(10 * linger)
			out := ""
			for _, tenant := range []string{"t", a, b} {
				for _, r := range rows(x, tenant) {
					out += fmt.Sprint(r.Account, "=", r.Reserved, " ")
				}
			}
			return out
		}
		for _, c := range []struct{ tenant, call, want string }{{"t", "c-1", ""}, {a, "c-1", ""}, {b, "c-1", ""}, {a, "c-3", contract.ReasonConcurrencyExceeded}, {b, "c-3", contract.ReasonConcurrencyExceeded}} {
			if got := ask(c.tenant, c.call); got != c.want {
				t.Errorf("%s in %s: %q, want %q", c.call, c.tenant, got, c.want)
			}
		}
		if got := reserved(); got != "l/agent:alice=1 acme_web_prod.l/agent:alice=2 org/organization:acme=3 acme_web_test.l/agent:alice=1 org/organization:acme=3 " {
			t.Error(got)
		}
		outcome := func(tenant, call string) {
			m := &emit.Emitter{Log: log, Tenant: tenant, Source: "judge/judge-1", Now: time.Now}
			e := m.New(contract.EventEffectRecorded, "s-1", contract.Bytes(&contract.Recorded{Effect: contract.Effect{CallID: call, Status: contract.Succeeded}}), nil)
			e.CallID, e.Session, e.Actor = call, "s-1", "alice"
			seq, err := m.Append(ctx, e)
			if err != nil {
				t.Fatal(err)
			}
			en, err := log.Get(ctx, seq)
			if err != nil {
				t.Fatal(err)
			}
			x.Outcome(ctx, en)
		}
		time.Sleep(2 * idle)
		org := x.in(in)
		org.mu.Lock()
		active := org.active
		org.mu.Unlock()
		if active {
			t.Error("the ledger of an idle organization runs")
		}
		outcome(b, "c-1")
		outcome("other_web_prod", "c-1")
		if got := reserved(); got != "l/agent:alice=1 acme_web_prod.l/agent:alice=2 org/organization:acme=2 acme_web_test.l/agent:alice=0 org/organization:acme=2 " {
			t.Error("after the outcome of a call of b:", got)
		}
		at, dump := x.Dump()
		if n := strings.Count(string(dump), "{\"tenant\""); n != 2 || strings.Count(string(dump), `"tenant":"acme_web_prod"`) != 2 {
			t.Errorf("%s", dump)
		}
		saved, last, err := x.Save(ctx)
		if err != nil || last != at {
			t.Fatal(last, at, err)
		}
		again, view, folded := made("policy-2"), View{}, View{}
		if again.Load(saved) != nil || view.Load(saved) != nil {
			t.Fatal("what was saved cannot be loaded")
		}
		for en, err := range log.Scan(ctx, bus.Filter{Event: events.BudgetChangedName}.String(), 1) {
			if err != nil {
				t.Fatal(err)
			}
			e, err := eventlog.Open(en, eventlog.Every)
			if err != nil || folded.Apply(e) != nil {
				t.Fatal(err)
			}
			if e.Tenant != "t" && e.Tenant != in {
				t.Error("a budget ledger is in", e.Tenant)
			}
		}
		if _, got := again.Dump(); string(got) != string(dump) || string(view.Dump()) != string(dump) || string(folded.Dump()) != string(dump) {
			t.Errorf("%s, %s and %s, want %s", got, view.Dump(), folded.Dump(), dump)
		}
		if !again.Watched() || again.From(99) == 100 {
			t.Error("open reservations of an organization are not followed")
		}
	})
}

// TestOrganizationUnread shows that Reserve returns the error of the log if the budget
// ledger of an organization cannot be read, and reserves once it can be read again.
func TestOrganizationUnread(t *testing.T) {
	const tenant = "acme_web_prod"
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		log := &memlog.Log{}
		x := member(memlog.Outage{Log: log, Until: time.Now().Add(time.Hour)}, "policy-1", nil)
		x.tenants = fixed{tenant: []guard.Limit{{ID: "org", Level: "organization", Measure: "calls", Max: 3, Window: "total"}}}
		x.running.Store(&ctx)
		reserve := func() error {
			r := judgeRequest("c-1")
			r.Facts.Tenant = tenant
			_, final, err := x.Reserve(ctx, r, "judge")
			if err == nil {
				_, err = final()
			}
			return err
		}
		if err := reserve(); !errors.Is(err, eventlog.ErrUnavailable) {
			t.Fatalf("reserved during an outage: %v", err)
		}
		time.Sleep(time.Hour)
		if err := reserve(); err != nil || log.Size() != 1 {
			t.Errorf("%d events after the outage, %v", log.Size(), err)
		}
	})
}

// TestSweepOrganization shows that an instance settles the reservation of another one
// that has ended, in the budget ledger of an organization that it has not used itself.
func TestSweepOrganization(t *testing.T) {
	const tenant = "acme_web_prod"
	bubble(t, 2, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		for _, m := range ms {
			m.tenants = fixed{"t": three, tenant: []guard.Limit{{ID: "org", Level: "organization", Measure: "calls", Max: 3, Window: "concurrent"}}}
		}
		r := judgeRequest("c-1")
		r.Facts.Tenant = tenant
		_, final, err := ms[0].Reserve(ctx, r, "judge")
		if err == nil {
			_, err = final()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []contract.Event{
			{Source: "policy/policy-1", Name: contract.EventAllowed, Target: "judge", Data: contract.Bytes(&contract.Allowed{})},
			{Source: "judge/judge-1", Name: contract.EventEffectRecorded, Data: contract.Bytes(&contract.Recorded{Effect: contract.Effect{CallID: "c-1", Status: contract.Succeeded}})}} {
			m := &emit.Emitter{Log: log, Tenant: tenant, Source: e.Source, Now: time.Now}
			stored := m.New(e.Name, "s-1", e.Data, nil)
			stored.CallID, stored.Session, stored.Target, stored.Actor = "c-1", "s-1", e.Target, "alice"
			if _, err := m.Append(ctx, stored); err != nil {
				t.Fatal(err)
			}
		}
		ms[1].Discover(ctx)
		if !ms[1].Watched() {
			t.Error("the reservation of another instance is not watched")
		}
		go ms[1].Sweep(ctx)
		time.Sleep(2*discovery + idle)
		if got := rows(ms[1], tenant); len(got) != 1 || got[0].Reserved != 0 {
			t.Errorf("not settled: %+v", got)
		}
	})
}

// scans is a log that counts the scans of each filter.
type scans struct {
	*memlog.Log
	by map[string]int
}

func (l *scans) Scan(ctx context.Context, filter string, from uint64) iter.Seq2[eventlog.Entry, error] {
	l.by[filter]++
	return l.Log.Scan(ctx, filter, from)
}

// TestDiscover shows that an instance reads every budget ledger at first, and later only
// those that have changed, unless there are many changes.
func TestDiscover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &scans{&memlog.Log{}, map[string]int{}}
		x := member(log, "policy-1", nil)
		tenants := fixed{"t": nil}
		for i := range 5 {
			tenants[fmt.Sprintf("org%d_web_prod", i)] = nil
		}
		x.tenants = tenants
		n := 0
		change := func(tenant string) {
			n++
			m := &emit.Emitter{Log: log.Log, Tenant: tenant, Source: "policy/policy-2", Now: time.Now}
			ev := events.BudgetChanged{Now: contract.Time(time.Now()), Reserved: []events.Reserved{{CallID: fmt.Sprint("c-", n), Charges: []events.Charge{{Account: "l/agent:a", Amount: 1, Window: "total"}}, Session: "s"}}}
			if _, err := m.Append(t.Context(), m.New(events.BudgetChangedName, aggregate, contract.Bytes(&ev), nil)); err != nil {
				t.Fatal(err)
			}
		}
		read := func() (names []string) {
			clear(log.by)
			time.Sleep(discovery)
			x.Discover(t.Context())
			for _, b := range x.made() {
				if log.by[b.filter()] > 0 {
					names = append(names, b.tenant)
				}
			}
			return names
		}
		change("_org-org1")
		if got := read(); len(got) != 6 {
			t.Errorf("the first call reads %v, want every ledger", got)
		}
		if got := read(); len(got) != 0 {
			t.Errorf("without a change %v are read", got)
		}
		change("_org-org2")
		change("t")
		if got := read(); !slices.Equal(got, []string{"t", "_org-org2"}) || !x.in("_org-org2").open() || x.in("_org-org2").last == 0 {
			t.Errorf("after changes of two ledgers %v are read", got)
		}
		for range changes + 1 {
			change("_org-org3")
		}
		if got := read(); len(got) != 6 {
			t.Errorf("after many changes %v are read, want every ledger", got)
		}
	})
}
