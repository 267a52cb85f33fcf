package limit

import (
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

var noon = time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)

func facts(actor, session string) *guard.Facts {
	return &guard.Facts{Actor: actor, Session: session, Tenant: "acme_web_prod"}
}

func ask(id, actor string, cents int64) Request {
	return Request{Call: Call{ID: id}, Facts: facts(actor, "s-"+actor), Amounts: contract.Amounts{Calls: 1, Cents: cents}}
}

// book is a budget ledger with a fixed set of limits.
type book struct {
	t      *testing.T
	s      State
	limits []guard.Limit
}

// one requests a reservation for one call, and returns the reason code of the refusal,
// or "" if it is granted.
func (b *book) one(at time.Time, r Request) string {
	b.t.Helper()
	ev, out := Decide(&b.s, every(b.limits), at, []Request{r}, nil)
	Evolve(&b.s, &ev)
	return out[0].Refused
}

func (b *book) settle(at time.Time, id, status string, u contract.Usage) {
	ev, _ := Decide(&b.s, every(b.limits), at, nil, []Outcome{{Call: Call{ID: id}, Status: status, Usage: u}})
	Evolve(&b.s, &ev)
}

func (b *book) want(got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("refused %q, want %q", got, want)
	}
}

// TestWindows shows that a limit is reset in the next window of each calendar unit, and
// in the same month of the next year, and that an earlier time does not open a previous
// window again.
func TestWindows(t *testing.T) {
	for unit, next := range map[string]time.Time{
		"second": noon.Add(time.Second), "minute": noon.Add(time.Minute), "hour": noon.Add(time.Hour),
		"day": noon.AddDate(0, 0, 1), "month": noon.AddDate(0, 1, 0),
	} {
		b := &book{t: t, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "cents", Max: 10, Window: unit}}}
		b.want(b.one(noon, ask("c1", "a", 10)), "")
		b.want(b.one(noon, ask("c2", "a", 1)), contract.ReasonBudgetExceeded)
		b.want(b.one(noon, ask("c3", "b", 10)), "") // an account of another agent
		b.settle(noon, "c1", contract.Succeeded, contract.Usage{Cents: 10})
		b.want(b.one(next.Add(-time.Nanosecond).Truncate(time.Millisecond), ask("c4", "a", 1)), map[bool]string{true: contract.ReasonBudgetExceeded}[unit == "second" || unit == "minute" || unit == "hour"])
		b.want(b.one(next, ask("c5", "a", 9)), "")
	}
	b := &book{t: t, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "cents", Max: 10, Window: "month"}}}
	b.want(b.one(noon, ask("c1", "a", 10)), "")
	b.want(b.one(noon.AddDate(1, 0, 0), ask("c2", "a", 10)), "") // the same month of the next year
	// An earlier time does not open a previous window again.
	b.want(b.one(noon, ask("c3", "a", 10)), contract.ReasonBudgetExceeded)
}

// TestSettle shows the amount that remains charged for each of six statuses of an
// outcome, that reservations and settlements apply once, that a settled call frees its
// place under a concurrency limit, and that only a forced request may exceed a limit.
func TestSettle(t *testing.T) {
	limits := []guard.Limit{{ID: "cents", Level: "agent", Measure: "cents", Max: 100, Window: "total"}, {ID: "now", Level: "agent", Measure: "calls", Max: 2, Window: "concurrent"},
		{ID: "tok", Level: "agent", Measure: "tokens", Max: 1000, Window: "total"}}
	for status, left := range map[string]int64{contract.Denied: 0, contract.Expired: 0, contract.Unknown: 60, contract.DeadLettered: 60, contract.Succeeded: 7, contract.Failed: 7} {
		b := &book{t: t, limits: limits}
		r := ask("c1", "a", 60)
		r.Amounts.Tokens = 900
		b.want(b.one(noon, r), "")
		b.want(b.one(noon, ask("c2", "a", 60)), contract.ReasonBudgetExceeded)
		b.settle(noon, "c1", status, contract.Usage{Cents: 7, InputTokens: 3})
		b.settle(noon, "c1", status, contract.Usage{Cents: 7}) // a second settlement changes nothing
		if rows := b.s.Rows(); rows[0].Committed != left || rows[0].Reserved != 0 || len(b.s.Open()) != 0 {
			t.Errorf("%s: %+v", status, rows)
		}
	}
	b := &book{t: t, limits: limits}
	b.want(b.one(noon, ask("c1", "a", 1)), "")
	b.want(b.one(noon, ask("c1", "a", 1)), "") // the second delivery makes no second reservation
	b.want(b.one(noon, ask("c2", "a", 1)), "")
	b.want(b.one(noon, ask("c3", "a", 1)), contract.ReasonConcurrencyExceeded)
	b.settle(noon, "c1", contract.Succeeded, contract.Usage{})
	b.want(b.one(noon, ask("c3", "a", 1)), "")
	b.want(b.one(noon, ask("c4", "a", 101)), contract.ReasonBudgetExceeded)
	b.want(b.one(noon, Request{Call: Call{ID: "c5"}, Facts: facts("a", "s"), Amounts: contract.Amounts{Cents: 1 << 53}}), contract.ReasonBudgetExceeded)
	forced := ask("c6", "a", 500)
	forced.Force = true
	b.want(b.one(noon, forced), "")
}

// TestMeasured shows that measured values are charged, that at least the reservation is
// charged for values that could not be measured, and that outcomes of releases that do
// not list measures are charged as in those releases.
func TestMeasured(t *testing.T) {
	for _, c := range []struct {
		measure  string
		usage    contract.Usage
		reserved int64
		want     int64
	}{
		{"compute_ms", contract.Usage{CPUMillis: 7, Measured: []string{"compute_ms", "egress_bytes"}}, 60, 7},
		{"compute_ms", contract.Usage{CPUMillis: 70, Measured: []string{"compute_ms"}}, 60, 70},
		{"compute_ms", contract.Usage{CPUMillis: 7, Measured: []string{"egress_bytes"}}, 60, 60},
		{"compute_ms", contract.Usage{CPUMillis: 70, Measured: []string{"egress_bytes"}}, 60, 70},
		{"compute_ms", contract.Usage{CPUMillis: 7}, 60, 7},
		{"egress_bytes", contract.Usage{Measured: []string{"egress_bytes"}}, 60, 0},
		{"egress_bytes", contract.Usage{EgressBytes: 9, Measured: []string{"egress_bytes"}}, 60, 9},
		{"egress_bytes", contract.Usage{}, 60, 60},
	} {
		b := &book{t: t, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: c.measure, Max: 100, Window: "total"}}}
		b.want(b.one(noon, Request{Call: Call{ID: "c1"}, Facts: facts("a", "s"), Amounts: contract.Amounts{ComputeMillis: c.reserved, EgressBytes: c.reserved}}), "")
		b.settle(noon, "c1", contract.Succeeded, c.usage)
		if rows := b.s.Rows(); rows[0].Committed != c.want || rows[0].Reserved != 0 {
			t.Errorf("%s of %+v: %+v, want %d", c.measure, c.usage, rows, c.want)
		}
	}
}

// TestCallerAttested shows that for a call that the caller executed itself, the reported
// usage is charged up to the reserved amount, and the reserved amount if the caller
// reports none.
func TestCallerAttested(t *testing.T) {
	limits := []guard.Limit{{ID: "cents", Level: "agent", Measure: "cents", Max: 100, Window: "total"}}
	for reported, want := range map[int64]int64{0: 60, 7: 7, 60: 60, 1000: 60} {
		b := &book{t: t, limits: limits}
		b.want(b.one(noon, ask("c1", "a", 60)), "")
		ev, _ := Decide(&b.s, every(limits), noon, nil, []Outcome{{Call: Call{ID: "c1"}, Status: contract.Succeeded, Usage: contract.Usage{Cents: reported}, Attested: true}})
		Evolve(&b.s, &ev)
		if rows := b.s.Rows(); rows[0].Committed != want || rows[0].Reserved != 0 {
			t.Errorf("%d reported: %+v, want %d committed", reported, rows, want)
		}
	}
}

// TestBatch shows that the requests of one batch share the remaining amount.
func TestBatch(t *testing.T) {
	s := State{}
	limits := []guard.Limit{{ID: "l", Level: "organization", Measure: "cents", Max: 10, Window: "day"}}
	var rs []Request
	for i := range 64 {
		rs = append(rs, ask(fmt.Sprint("c", i), fmt.Sprint("agent", i), 3))
	}
	ev, out := Decide(&s, every(limits), noon, rs, nil)
	granted := 0
	for _, o := range out {
		if o.Refused == "" {
			granted++
		} else if o.RetryAt != "2026-03-04T00:00:00.000Z" {
			t.Error(o)
		}
	}
	if granted != 3 || len(ev.Reserved) != 3 {
		t.Fatalf("%d granted", granted)
	}
}

// TestBesideAllotments shows that a reservation, as earlier releases made them, cannot have an amount
// that an allotment holds unused, and that the settlement of a call that never started has no charges.
func TestBesideAllotments(t *testing.T) {
	b := &book{t: t, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "cents", Max: 10, Window: "total"}}}
	take(&b.s, "al-1", cents("alice", 4))
	b.want(b.one(noon, ask("c-1", "alice", 7)), contract.ReasonBudgetExceeded)
	b.want(b.one(noon, ask("c-1", "alice", 6)), "")
	ev, _ := Decide(&b.s, every(b.limits), noon, nil, []Outcome{{Call: Call{ID: "c-1"}, Status: contract.Expired}})
	if len(ev.Settled) != 1 || len(ev.Settled[0].Charges) != 0 {
		t.Errorf("%+v", ev.Settled)
	}
}

// TestPrune shows that accounts of ended windows are removed.
func TestPrune(t *testing.T) {
	b := &book{t: t, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 1, Window: "second"}, {ID: "n", Level: "agent", Measure: "calls", Max: 9, Window: "concurrent"}}}
	for i := range 4 * pruneEvery {
		id := fmt.Sprint("c", i)
		at := noon.Add(time.Duration(i) * time.Second)
		b.want(b.one(at, ask(id, "a", 0)), "")
		b.settle(at, id, contract.Succeeded, contract.Usage{})
	}
	if n := len(b.s.Rows()); n > pruneEvery {
		t.Errorf("%d accounts are kept", n)
	}
}

// TestExceedEscalates shows that a limit may require approval for a call that exceeds
// it, instead of denying the call.
func TestExceedEscalates(t *testing.T) {
	b := &book{t: t, limits: []guard.Limit{{ID: "l", Level: "session", Measure: "calls", Max: 1, Window: "minute", OnExceed: "escalate"}}}
	b.want(b.one(noon, ask("c1", "a", 0)), "")
	ev, out := Decide(&b.s, every(b.limits), noon, []Request{ask("c2", "a", 0)}, nil)
	if out[0].Refused != contract.ReasonTemporalIntervention || !out[0].Escalate || len(ev.Reserved) != 0 {
		t.Errorf("%+v", out[0])
	}
}

// TestLateDelivery shows that a second delivery of a proposal reserves nothing if
// its call is settled in the same event. The outcome is on the ledger already, so
// nothing would settle a new reservation.
func TestLateDelivery(t *testing.T) {
	b := &book{t: t, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 9, Window: "total"}}}
	b.want(b.one(noon, ask("c1", "a", 0)), "")
	ev, out := Decide(&b.s, every(b.limits), noon, []Request{ask("c1", "a", 0)}, []Outcome{{Call: Call{ID: "c1"}, Status: contract.Succeeded}})
	if out[0].Refused != "" || len(ev.Reserved) != 0 || len(ev.Settled) != 1 {
		t.Fatalf("%+v %+v", ev, out)
	}
}

// every returns the same limits for every tenant.
func every(limits []guard.Limit) Limits { return func(string) []guard.Limit { return limits } }

// TestMeasures shows that limits of one organization that two tenants set with the same
// id, but for different measures, have separate accounts.
func TestMeasures(t *testing.T) {
	own := func(tenant string) []guard.Limit {
		l := guard.Limit{ID: "all", Level: "organization", Measure: "calls", Max: 2, Window: "total"}
		if tenant == "acme_web_test" {
			l.Measure, l.Max = "tokens", 100
		}
		l.ID = Own(tenant, &l)
		return []guard.Limit{l}
	}
	ask := func(tenant, id string) Request {
		return Request{Call: Call{tenant, id}, Facts: &guard.Facts{Actor: "bob", Session: "s", Tenant: tenant}, Amounts: contract.Amounts{Calls: 1, Tokens: 90}}
	}
	var s State
	ev, out := Decide(&s, own, noon, []Request{ask("acme_web_test", "c1"), ask("acme_web_prod", "c2"), ask("acme_web_prod", "c3"), ask("acme_web_prod", "c4")}, nil)
	if out[0].Refused != "" || out[1].Refused != "" || out[2].Refused != "" || out[3].Refused == "" {
		t.Errorf("%+v", out)
	}
	Evolve(&s, &ev)
	if rows := fmt.Sprint(s.Rows()); rows != "[{all:calls/organization:acme total 2 0 0} {all:tokens/organization:acme total 90 0 0}]" {
		t.Error(rows)
	}
}

// TestTenants shows that calls of two tenants in one budget ledger have separate
// accounts under limits of their own, even if the calls have one id, and share the
// accounts of the organization, and which accounts are visible to each tenant.
func TestTenants(t *testing.T) {
	const a, b = "acme_web_prod", "acme_web_test"
	own := func(tenant string) []guard.Limit {
		ls := []guard.Limit{{ID: "daily", Level: "agent", Measure: "calls", Max: 1, Window: "concurrent"}, {ID: "all", Level: "organization", Measure: "calls", Max: 3, Window: "concurrent"}}
		for i := range ls {
			ls[i].ID = Own(tenant, &ls[i])
		}
		return ls
	}
	ask := func(tenant, id string) Request {
		return Request{Call: Call{tenant, id}, Facts: &guard.Facts{Actor: "bob", Session: "s", Tenant: tenant}, Amounts: contract.Amounts{Calls: 1}}
	}
	var s State
	ev, out := Decide(&s, own, noon, []Request{ask(a, "c1"), ask(b, "c1"), ask(a, "c2")}, nil)
	if out[0].Refused != "" || out[1].Refused != "" || out[2].Refused != contract.ReasonConcurrencyExceeded || len(ev.Reserved) != 2 {
		t.Errorf("%+v", out)
	}
	Evolve(&s, &ev)
	seen := map[string]string{}
	for _, r := range s.Rows() {
		for _, tenant := range []string{a, b, "acme_shop_prod", "other_web_prod"} {
			if Visible(r.Account, tenant) {
				seen[tenant] += fmt.Sprint(r.Account, " ", r.Reserved, ";")
			}
		}
	}
	if seen[a] != "acme_web_prod.daily/agent:bob 1;all:calls/organization:acme 2;" || seen[b] != "acme_web_test.daily/agent:bob 1;all:calls/organization:acme 2;" || seen["acme_shop_prod"] != "all:calls/organization:acme 2;" || seen["other_web_prod"] != "" {
		t.Errorf("%q", seen)
	}
	ev, _ = Decide(&s, own, noon, nil, []Outcome{{Call: Call{b, "c1"}, Status: contract.Succeeded}, {Call: Call{"", "c1"}, Status: contract.Succeeded}})
	Evolve(&s, &ev)
	if len(ev.Settled) != 1 || !s.IsOpen(Call{a, "c1"}) || s.IsOpen(Call{b, "c1"}) {
		t.Errorf("%+v", ev.Settled)
	}
}
