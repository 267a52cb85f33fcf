package budget

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/endless"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/output"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

func TestMain(m *testing.M) { endless.Run(m, 10*time.Second) }

// logged makes an instance write its log to the returned output.
func logged(x *Ledgers) *output.Buffer {
	out := &output.Buffer{}
	x.log = slog.New(slog.NewTextHandler(out, nil))
	x.home.log = x.log
	return out
}

// TestRefusedAppend shows that a failed append grants nothing, that the requests receive its
// error, which is logged, that the whole limit can be used afterwards, and that an instance
// whose allotment cannot be closed logs that when it ends.
func TestRefusedAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), maxTest)
		log := &flaky{Log: &memlog.Log{}}
		x := member(log, "policy-1", three)
		out := logged(x)
		start(ctx, log, x)
		log.refuse(events.AllotmentTakenName)
		for n := range 3 {
			if f, err := allow(ctx, t, log, x, judgeRequest(fmt.Sprint("c-", n))); !errors.Is(err, errRefused) {
				t.Error("a refused append:", f, err)
			}
		}
		synctest.Wait() // the requests are answered before their error is logged
		if text := out.Take(); strings.Count(text, "budget not written") != 3 {
			t.Errorf("three errors are logged as %s", text)
		}
		log.refuse("")
		for n := range 4 {
			want := ""
			if n == 3 {
				want = contract.ReasonConcurrencyExceeded
			}
			if f, err := allow(ctx, t, log, x, judgeRequest(fmt.Sprint("d-", n))); f.Refused != want || err != nil {
				t.Errorf("%d: %q, want %q: %v", n, f.Refused, want, err)
			}
		}
		synctest.Wait()
		if text := out.Take(); text != "" {
			t.Errorf("without an error: %s", text)
		}
		log.refuse(events.AllotmentClosedName)
		cancel()
		time.Sleep(2 * patience)
		synctest.Wait()
		if text := out.Take(); strings.Count(text, "an allotment is not closed") != 1 || strings.Contains(text, "budget not written") {
			t.Errorf("at the end: %s", text)
		}
	})
}

// TestRefusedClosing shows that a request receives the error if an allotment with the missing
// amounts cannot be closed, whether a stopped instance or an earlier run of this one holds it,
// and is granted when it can be closed.
func TestRefusedClosing(t *testing.T) {
	total := []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 100, Window: "total"}}
	for _, holder := range []string{"policy-1", "policy-2"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), maxTest)
			defer func() { cancel(); time.Sleep(2 * patience) }()
			log := &flaky{Log: &memlog.Log{}}
			old := member(log, holder, total)
			stopped := start(ctx, log, old)
			if f, err := allow(ctx, t, log, old, judgeRequest("c-1")); f.Refused != "" || err != nil {
				t.Fatal(f, err)
			}
			stopped.Store(true)
			x := member(log, "policy-2", total)
			start(ctx, log, x)
			log.refuse(events.AllotmentClosedName)
			calls := 1
			next := func() (guard.BudgetFact, error) { return allow(ctx, t, log, x, judgeRequest(fmt.Sprint("d-", calls))) }
			f, err := next()
			for ; err == nil && f.Refused == ""; f, err = next() {
				calls++
			}
			if !errors.Is(err, errRefused) {
				t.Errorf("held by %s: after %d calls %+v, %v", holder, calls, f, err)
			}
			log.refuse("")
			for f, err = next(); err == nil && f.Refused == ""; f, err = next() {
				calls++
			}
			if f.Refused != contract.ReasonBudgetExceeded || calls != 100 {
				t.Errorf("held by %s, when it can be closed: %d of 100 calls, %+v, %v", holder, calls, f, err)
			}
		})
	}
}

// TestLostReturn shows that an instance whose appends of returned amounts are not
// acknowledged returns the amounts once, and that its allotment is not closed.
func TestLostReturn(t *testing.T) {
	total := []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 100, Window: "total"}}
	bubble(t, 2, total, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		if f, err := allow(ctx, t, log, ms[0], judgeRequest("c-0")); f.Refused != "" || err != nil {
			t.Fatal(f, err)
		}
		log.lost, log.fail = events.AllotmentReturnedName, 2
		for n := 1; n < 100; n++ {
			if f, err := allow(ctx, t, log, ms[1], judgeRequest(fmt.Sprint("c-", n))); f.Refused != "" || err != nil {
				t.Fatal(n, f, err)
			}
		}
		if f, err := allow(ctx, t, log, ms[1], judgeRequest("c-100")); f.Refused != contract.ReasonBudgetExceeded || err != nil {
			t.Error("beyond the limit:", f, err)
		}
		if n := of(t, log, events.AllotmentClosedName); n != 0 || spent(ms[0], "t") != 100 {
			t.Errorf("%d allotments are closed, and %d of 100 used", n, spent(ms[0], "t"))
		}
	})
}

// TestAnswer shows that amounts that are recalled several times are returned once, and that
// close returns after its event is applied.
func TestAnswer(t *testing.T) {
	bubble(t, 1, []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 100, Window: "total"}}, func(ctx context.Context, log *flaky, ms []*Ledgers) {
		x := ms[0]
		if f, err := allow(ctx, t, log, x, judgeRequest("c-0")); f.Refused != "" || err != nil {
			t.Fatal(f, err)
		}
		spent(x, "t")
		b := x.home.share
		x.mu.Lock()
		id := b.hold.ID
		block := events.Block{Account: "l/agent:alice", Window: "total"}
		b.recalled = []events.Block{block, block}
		x.mu.Unlock()
		if err := b.answer(ctx); err != nil {
			t.Fatal(err)
		}
		for en, err := range log.Scan(ctx, "evt.t.policy.*."+events.AllotmentReturnedName+".>", 1) {
			if n := bytes.Count(en.Data, []byte(`"account":`)); n != 1 || err != nil {
				t.Errorf("%d blocks are returned: %s, %v", n, en.Data, err)
			}
		}
		if n := of(t, log, events.AllotmentReturnedName); n != 1 {
			t.Errorf("%d returns", n)
		}
		if err := b.close(ctx, id); err != nil || b.valid(&guard.BudgetFact{Allotment: id}) || !b.valid(&guard.BudgetFact{}) {
			t.Error("close has returned and its event is not applied:", err)
		}
	})
}

// TestSilent checks which allotments count as those of instances that have returned nothing
// since a recall.
func TestSilent(t *testing.T) {
	x := member(&memlog.Log{}, "policy-1", nil)
	block := []events.Block{{Account: "l/agent:alice", Amount: 1, Window: "total"}}
	for id, holder := range map[string]string{"al-1": "policy-1", "al-2": "policy-2"} {
		x.home.state().Take(&events.AllotmentTaken{Allotment: id, Holder: holder, Blocks: block, Now: "2026-01-02T00:00:00.000Z"})
	}
	b := x.home.share
	b.returned["al-2"] = 5
	for after, want := range map[uint64]string{0: "[al-1] [al-2]", 4: "[al-1] []", 5: "[al-1] [al-2]", 6: "[al-1] [al-2]"} {
		if own, others := b.unused(block, after); fmt.Sprint(own, " ", others) != want {
			t.Errorf("after %d: %v %v, want %s", after, own, others, want)
		}
	}
}

// TestCollect checks that at most maxBatch requests and outcomes are processed together, and
// that collect returns nothing after the idle time.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := member(&memlog.Log{}, "policy-1", nil).home
		for range maxBatch {
			b.outcomes <- limit.Outcome{}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 3 {
			go func() {
				select {
				case b.requests <- request{}:
				case <-ctx.Done():
				}
			}()
		}
		synctest.Wait()
		if rs, os := b.collect(ctx); len(rs)+len(os) != maxBatch || len(rs) == 0 {
			t.Errorf("%d requests and %d outcomes", len(rs), len(os))
		}
		for len(b.outcomes) > 0 {
			b.collect(ctx)
		}
		synctest.Wait()
		for rest := true; rest; {
			select {
			case <-b.requests:
			default:
				rest = false
			}
		}
		b.idle = time.Second
		began := time.Now()
		if rs, os := b.collect(ctx); len(rs)+len(os) != 0 || time.Since(began) != time.Second {
			t.Errorf("when idle: %d requests and %d outcomes after %v", len(rs), len(os), time.Since(began))
		}
	})
}

// TestUsers checks that a ledger of an organization starts with its first user only,
// keeps its outcomes while it runs, and ends only if it has neither a user nor an
// outcome.
func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := member(&memlog.Log{}, "policy-1", nil)
		x.tenants = fixed{"acme_web_prod": three}
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); time.Sleep(time.Second) }()
		go x.Run(ctx)
		synctest.Wait()
		b := x.of("acme_web_prod")
		active := func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return b.active
		}
		if x.wake(b); active() {
			t.Error("a ledger without users runs")
		}
		done := x.start(b)
		outcomes := b.outcomes
		if !active() || outcomes == nil {
			t.Error("a ledger with a user does not run")
		}
		x.start(b)()
		if b.outcomes != outcomes {
			t.Error("the outcomes are replaced")
		}
		time.Sleep(3 * idle)
		if !active() || b.retire() {
			t.Error("a ledger with a user ends")
		}
		done()
		time.Sleep(3 * idle)
		if active() {
			t.Error("a ledger without a user does not end")
		}
		b.outcomes <- limit.Outcome{}
		if b.retire() {
			t.Error("a ledger with an outcome ends")
		}
	})
}

// TestEmpty checks that Read returns at once if there are no events of a budget ledger, also
// before Run.
func TestEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := member(&memlog.Log{}, "policy-1", three).Read(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
