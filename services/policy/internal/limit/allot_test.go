package limit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// ledger is a budget ledger with the allotments of its instances.
type ledger struct {
	*testing.T
	s      State
	limits []guard.Limit
	now    time.Time
	held   map[string]*Holding
}

// request grants a request of an instance, takes what that needs, and applies the draws.
// It returns the amounts taken, or the reason of the refusal.
func (l *ledger) request(instance, call string, n int64, force bool) string {
	h := l.held[instance]
	if h == nil {
		h = NewHolding("al-" + instance)
		l.held[instance] = h
	}
	r := ask(call, "alice", n)
	r.Force = force
	g := Plan(&l.s, h, every(l.limits), l.now, []Request{r})
	if f := g.Facts[0]; f.Refused != "" {
		return f.Refused
	}
	var taken []string
	for _, b := range g.Taken.Blocks {
		taken = append(taken, fmt.Sprint(b.Amount))
	}
	if len(taken) > 0 {
		g.Taken.Holder = instance
		l.s.Take(&g.Taken)
	}
	if len(g.Facts[0].Draws) > 0 {
		l.s.Draw(r.Call, "work", &g.Facts[0])
	}
	return strings.Join(taken, "+")
}

// TestPlan checks the blocks that requests take, and which requests are refused. In
// addition to its amount, a request takes a quarter of what then remains under the limit,
// or only its amount if little remains. An amount that an outcome does not use, or that a
// close returns, can be drawn again; an amount in another instance's block cannot.
func TestPlan(t *testing.T) {
	const refused = contract.ReasonBudgetExceeded
	day := time.Date(2026, 11, 24, 23, 0, 0, 0, time.UTC)
	l := &ledger{T: t, now: day, held: map[string]*Holding{}, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "cents", Max: 100, Window: "day"}}}
	for i, c := range []struct {
		do   func() string
		want string
	}{
		{func() string { return l.request("a", "c-1", 10, false) }, "32"}, // 10, and a quarter of the remaining 90
		{func() string { return l.request("a", "c-2", 20, false) }, ""},
		{func() string { return l.request("a", "c-2", 20, false) }, ""}, // a second delivery
		{func() string { return l.request("a", "c-3", 10, false) }, "23"},
		{func() string { return l.request("b", "c-4", 46, false) }, refused}, // 45 remain
		{func() string { return l.request("b", "c-4", 42, false) }, "42"},
		{func() string { return l.request("b", "c-5", 4, false) }, refused},
		{func() string { return l.request("b", "c-5", 3, false) }, "3"},
		{func() string { return l.request("a", "c-6", 16, false) }, refused},
		{func() string { return l.request("a", "c-6", 15, false) }, ""},
		{func() string { return l.request("b", "c-7", 7, true) }, "7"}, // approvers permit it to exceed the limit
		{func() string { return l.request("b", "c-8", 1, false) }, refused},
		{func() string {
			l.s.Settle(Outcome{Call: Call{ID: "c-2"}, Status: contract.Succeeded, Usage: contract.Usage{Cents: 5}}, "work")
			return l.request("a", "c-9", 8, false)
		}, ""}, // of the 15 cents that c-2 did not use, 7 make up for those that c-7 took above the limit
		{func() string { return l.request("a", "c-10", 1, false) }, refused},
		{func() string {
			l.s.Settle(Outcome{Call: Call{ID: "c-4"}, Status: contract.Expired}, "policy")
			if got := l.request("a", "c-11", 8, false); got != refused {
				return got
			}
			for _, instance := range []string{"a", "b"} {
				l.s.Close(&events.AllotmentClosed{Allotment: "al-" + instance, Now: contract.Time(l.now)})
				l.held[instance] = nil
			}
			return l.request("a", "c-11", 1, false)
		}, "11"}, // 1, and a quarter of the remaining 41
		{func() string { l.limits[0].Max = 50; return l.request("a", "c-12", 1, false) }, refused}, // a lower limit applies at once
		{func() string {
			l.limits[0].Max = 100
			l.now = day.Add(2 * time.Hour)
			return l.request("a", "c-13", 100, false)
		}, "100"},
		{func() string { l.now = day; return l.request("b", "c-14", 1, false) }, refused}, // a clock that is set back opens no earlier window
	} {
		if got := c.do(); got != c.want {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
	saved, err := l.s.Save()
	var again State
	if err == nil {
		err = again.Load(saved)
	}
	if err != nil || string(again.Dump()) != string(l.s.Dump()) {
		t.Errorf("%v: loaded\n%s\nwant\n%s", err, again.Dump(), l.s.Dump())
	}
}

// TestPlanTogether shows that requests of one account which are decided together share the rest of
// the allotment, and that one block is taken for the amount that they lack together.
func TestPlanTogether(t *testing.T) {
	l := &ledger{T: t, now: noon, held: map[string]*Holding{}, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "cents", Max: 100, Window: "day"}}}
	if got := l.request("a", "c-1", 10, false); got != "32" {
		t.Fatal(got)
	}
	g := Plan(&l.s, l.held["a"], every(l.limits), l.now, []Request{ask("c-2", "alice", 10), ask("c-3", "alice", 10), ask("c-4", "alice", 10)})
	var rest []int64
	for _, f := range g.Facts {
		for _, d := range f.Draws {
			rest = append(rest, d.Rest)
		}
	}
	// 22 remain of the allotment: the third request lacks 8, and a quarter of the remaining 60 is taken too
	if len(g.Taken.Blocks) != 1 || g.Taken.Blocks[0].Amount != 23 || fmt.Sprint(rest) != "[35 25 15]" {
		t.Errorf("%+v, rest %v", g.Taken.Blocks, rest)
	}
}

// TestAhead shows that a request takes at most 256 times what it needs in addition.
func TestAhead(t *testing.T) {
	l := &ledger{T: t, now: noon, held: map[string]*Holding{}, limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "cents", Max: 1_000_000, Window: "day"}}}
	if got := l.request("a", "c-1", 2, false); got != "514" {
		t.Error(got)
	}
}

// TestVoidDraws shows that a draw from an unknown or closed allotment changes nothing,
// that a call draws once and is settled once, by the executor but not by the gateway, and
// that a return removes the returned amounts from the allotment.
func TestVoidDraws(t *testing.T) {
	var s State
	take := events.AllotmentTaken{Allotment: "al-1", Holder: "p", Now: "x", Blocks: []events.Block{{Account: "l/agent:alice", Amount: 5, Measure: "calls", Window: "total"}}}
	fact := func(id string) *guard.BudgetFact {
		return &guard.BudgetFact{Allotment: id, Draws: []guard.DrawFact{{Account: "l/agent:alice", Amount: 2, Window: "total"}}}
	}
	row := func() string { return fmt.Sprint(s.Rows()) }
	s.Take(&take)
	if s.Draw(Call{ID: "c-0"}, "work", fact("al-2")) || row() != "[{l/agent:alice total 0 0 5}]" {
		t.Error(row())
	}
	if !s.Draw(Call{ID: "c-1"}, "work", fact("al-1")) || s.Draw(Call{ID: "c-1"}, "work", fact("al-1")) || row() != "[{l/agent:alice total 2 0 3}]" {
		t.Error(row())
	}
	s.Return(&events.AllotmentReturned{Allotment: "al-1", Now: "x", Blocks: []events.Block{{Account: "l/agent:alice", Amount: 2, Window: "total"}}})
	if row() != "[{l/agent:alice total 2 0 1}]" {
		t.Error(row())
	}
	s.Close(&events.AllotmentClosed{Allotment: "al-1", Now: "x"})
	if s.Draw(Call{ID: "c-2"}, "work", fact("al-1")) || row() != "[{l/agent:alice total 2 0 0}]" {
		t.Error(row())
	}
	o := Outcome{Call: Call{ID: "c-1"}, Status: contract.Unknown}
	if s.Settle(o, "gateway") || !s.Settle(o, "work") || s.Settle(o, "work") || row() != "[{l/agent:alice total 0 2 0}]" {
		t.Error(row())
	}
}
