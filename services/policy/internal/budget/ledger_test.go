package budget

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
func member(log eventlog.Log, name string, limits []guard.Limit) *Ledger {
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/" + name, Now: time.Now}
	return New(m, slog.New(slog.NewTextHandler(io.Discard, nil)), func() []guard.Limit { return limits })
}

// bubble runs f in a synctest bubble with n running instances of the budget ledger over
// one log.
func bubble(t *testing.T, n int, f func(ctx context.Context, log *flaky, ms []*Ledger)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		log := &flaky{Log: &memlog.Log{}}
		var ms []*Ledger
		for i := range n {
			ms = append(ms, member(log, fmt.Sprint("policy-", i), three))
			go ms[i].Run(ctx, ctx)
		}
		synctest.Wait() // wait until every instance has read the empty log
		f(ctx, log, ms)
	})
}

func judgeRequest(call string) limit.Request {
	return limit.Request{CallID: call, Facts: &guard.Facts{Actor: "alice", Session: "s-1", Tenant: "t"}, Amounts: contract.Amounts{Calls: 1}}
}

// take makes a reservation and waits until it is durable. refused is the reason code if
// it was refused.
func take(ctx context.Context, b *Ledger, call string) (refused string, err error) {
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
	bubble(t, 3, func(ctx context.Context, log *flaky, ms []*Ledger) {
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
		if dumps[0] != dumps[1] || dumps[1] != dumps[2] || ms[0].Rows()[0].Reserved != 3 {
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
	bubble(t, 1, func(ctx context.Context, log *flaky, ms []*Ledger) {
		b := ms[0]
		reserved := func() (n int64) {
			time.Sleep(10 * linger)
			for _, r := range b.Rows() {
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
	bubble(t, 2, func(ctx context.Context, log *flaky, ms []*Ledger) {
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
		if b.Rows()[0].Reserved != 2 || b.From(99) != 1 {
			t.Errorf("%+v before its time, from %d", b.Rows(), b.From(99))
		}
		time.Sleep(10 * time.Second)
		if b.Rows()[0].Reserved != 1 {
			t.Errorf("%+v", b.Rows())
		}
		outcomeOf(t, log, "judge", "c-2")
		time.Sleep(10 * time.Second)
		if b.Rows()[0].Reserved != 0 {
			t.Errorf("%+v", b.Rows())
		}
		if refused, err := take(ctx, b, "c-1"); refused != "" || err != nil || b.Rows()[0].Reserved != 1 {
			t.Fatal(refused, err)
		}
		time.Sleep(10 * time.Second)
		if b.Rows()[0].Reserved != 0 {
			t.Errorf("a reservation for a call that has ended stays: %+v", b.Rows())
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
