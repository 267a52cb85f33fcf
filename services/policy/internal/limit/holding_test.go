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

// cents returns a block of n cents of the account of an agent.
func cents(agent string, n int64) events.Block {
	return events.Block{Account: "l/agent:" + agent, Amount: n, Measure: "cents", Window: "total"}
}

// take opens an allotment or adds blocks to it.
func take(s *State, id string, blocks ...events.Block) {
	s.Take(&events.AllotmentTaken{Allotment: id, Holder: "of " + id, Now: "2026-01-01T00:00:00.000Z", Blocks: blocks})
}

// TestUnused checks which allotments have unused amounts that another one may request,
// and who holds them.
func TestUnused(t *testing.T) {
	var s State
	if s.Changed() {
		t.Error("the zero value has changed")
	}
	take(&s, "al-1", cents("a", 5))
	take(&s, "al-2", cents("a", 5), cents("b", 0))
	take(&s, "al-3", cents("b", 5))
	if !s.Changed() {
		t.Error("the state has not changed")
	}
	for _, c := range []struct{ own, agent, want string }{
		{"al-1", "a", "[al-2]"},
		{"al-3", "a", "[al-1 al-2]"},
		{"al-1", "b", "[al-3]"}, // al-2 has a block without an unused amount
		{"al-3", "b", "[]"},
		{"al-1", "c", "[]"},
	} {
		if got := fmt.Sprint(s.Unused(c.own, []events.Block{cents(c.agent, 1)})); got != c.want {
			t.Errorf("of %s for %s: %s, want %s", c.agent, c.own, got, c.want)
		}
	}
	if a, b := s.Holder("al-1"), s.Holder("al-9"); a != "of al-1" || b != "" {
		t.Errorf("%q %q", a, b)
	}
}

// TestHolding checks that grants reduce what remains of an allotment until they are
// dropped, and which grants wait until the allotment has their amounts.
func TestHolding(t *testing.T) {
	var s State
	take(&s, "al-1", cents("a", 5), cents("b", 5))
	h := NewHolding("al-1")
	rest := func() string {
		var out []string
		for _, b := range h.Rest(&s, []events.Block{cents("a", 0), cents("b", 0), cents("c", 0)}) {
			out = append(out, fmt.Sprint(b.Account, " ", b.Amount))
		}
		return strings.Join(out, ", ")
	}
	for _, c := range []struct {
		name string
		do   func()
		want string
	}{
		{"no grant", func() {}, "l/agent:a 5, l/agent:b 5"},
		{"two grants", func() {
			h.Add("x", guard.BudgetFact{}, []events.Block{cents("a", 2)})
			h.Add("y", guard.BudgetFact{}, []events.Block{cents("a", 1), cents("b", 5)})
		}, "l/agent:a 2"},
		{"a second grant of one call", func() { h.Add("x", guard.BudgetFact{}, []events.Block{cents("a", 2)}) }, "l/agent:a 2"},
		{"one dropped", func() { h.Drop("x") }, "l/agent:a 4"},
		{"one dropped twice", func() { h.Drop("x") }, "l/agent:a 4"},
		{"more than the allotment has", func() { h.Add("z", guard.BudgetFact{}, []events.Block{cents("a", 9)}) }, ""},
		{"all dropped", func() { h.Drop("y"); h.Drop("z") }, "l/agent:a 5, l/agent:b 5"},
	} {
		c.do()
		if got := rest(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if len(h.busy) != 0 {
		t.Errorf("%v is busy without a grant", h.busy)
	}
	if h.Waits("x") || h.Has("x") {
		t.Error("a grant that does not exist waits")
	}
	h.Ready("x")
	if h.Has("x") {
		t.Error("Ready has added a grant")
	}
	h.Add("x", guard.BudgetFact{}, nil)
	if !h.Waits("x") || !h.Has("x") {
		t.Error("a new grant does not wait")
	}
	if h.Ready("x"); h.Waits("x") || !h.Has("x") {
		t.Error("a ready grant waits")
	}
}

// TestOver checks at which time a window has ended, and the bounds of the last month of a
// year.
func TestOver(t *testing.T) {
	s := State{now: "2026-03-01T00:00:00.000Z"}
	for window, want := range map[string]bool{
		"total": false, concurrent: false, "day:": false, "day:bad": false,
		"day:2026-02-28T00:00:00.000Z": true, "day:2026-03-01T00:00:00.000Z": false,
		"month:2026-02-01T00:00:00.000Z": true, "month:2026-03-01T00:00:00.000Z": false,
	} {
		if got := s.over(window); got != want {
			t.Errorf("%s: %v", window, got)
		}
	}
	from, to := bounds(time.Date(2026, 12, 31, 23, 0, 0, 0, time.UTC), "month")
	if contract.Time(from) != "2026-12-01T00:00:00.000Z" || contract.Time(to) != "2027-01-01T00:00:00.000Z" {
		t.Error(from, to)
	}
}

// TestPruned checks which accounts, and which blocks of an allotment, prune removes.
func TestPruned(t *testing.T) {
	const old = "day:2026-02-27T00:00:00.000Z"
	s := State{now: "2026-03-01T00:00:00.000Z"}
	s.init()
	for k, a := range map[key]account{
		{"reserved", old}:               {reserved: 1},
		{"unused", old}:                 {unused: 1}, // in no block, so prune does not return it
		{"ended", old}:                  {committed: 1},
		{"total", "total"}:              {},
		{"concurrent", concurrent}:      {},
		{"in a call", concurrent}:       {reserved: 1},
		{"in a block", old}:             {unused: 3},
		{"in a block", "total"}:         {unused: 4},
		{"in an allotment", concurrent}: {unused: 1},
	} {
		s.accounts[k] = &a
	}
	s.allotments["al"] = &allotment{"p", map[key]*block{{"in a block", old}: {"cents", 3}, {"in a block", "total"}: {"cents", 4}}}
	s.prune()
	var left []string
	for _, r := range s.Rows() {
		unit, _, _ := strings.Cut(r.Window, ":")
		left = append(left, fmt.Sprintf("%s %d %s", r.Account, r.Unused, unit))
	}
	if got, want := strings.Join(left, ", "), "in a block 4 total, in a call 0 concurrent, in an allotment 1 concurrent, reserved 0 day, total 0 total, unused 1 day"; got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if b := s.allotments["al"].blocks; len(b) != 1 || b[key{"in a block", "total"}].rest != 4 {
		t.Errorf("%v", b)
	}
	if text := string(s.Dump()); strings.Count(text, `"unused":`) != 3 || strings.Contains(text, `"unused":0`) {
		t.Error(text)
	}
}

// TestRefusal checks the reason code and the time of a retry that follow from a limit.
func TestRefusal(t *testing.T) {
	now := time.Date(2026, 11, 24, 23, 30, 10, 0, time.UTC)
	for _, c := range []struct{ measure, window, exceed, want, retry string }{
		{"calls", "minute", "", contract.ReasonTemporalThrottle, "2026-11-24T23:31:00.000Z"},
		{"calls", "minute", "escalate", contract.ReasonTemporalIntervention, "2026-11-24T23:31:00.000Z"},
		{"calls", "day", "", contract.ReasonBudgetExceeded, "2026-11-25T00:00:00.000Z"},
		{"cents", "minute", "escalate", contract.ReasonBudgetExceeded, "2026-11-24T23:31:00.000Z"},
		{"cents", "month", "", contract.ReasonBudgetExceeded, "2026-12-01T00:00:00.000Z"},
		{"calls", concurrent, "escalate", contract.ReasonConcurrencyExceeded, ""},
		{"cents", "total", "", contract.ReasonBudgetExceeded, ""},
	} {
		l := guard.Limit{ID: "l", Level: "agent", Measure: c.measure, Window: c.window, OnExceed: c.exceed}
		f := refuse(&l, "l/agent:a", contract.Amounts{}, now)
		if f.Refused != c.want || f.RetryAt != c.retry || f.Escalate != (c.exceed == "escalate") {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// TestReturned checks what an outcome of a call that drew from an allotment charges, and what
// it returns to the allotment, by the window, the status and the usage.
func TestReturned(t *testing.T) {
	for _, c := range []struct {
		window, status string
		usage          contract.Usage
		attested       bool
		want           string // committed and unused
	}{
		{"total", contract.Succeeded, contract.Usage{InputTokens: 2, OutputTokens: 1}, false, "3 7"},
		{"total", contract.Succeeded, contract.Usage{InputTokens: 2, OutputTokens: 1}, true, "3 7"},
		{"total", contract.Succeeded, contract.Usage{InputTokens: -2}, false, "0 10"},
		{"total", contract.Unknown, contract.Usage{}, false, "5 5"},
		{"total", contract.Expired, contract.Usage{}, false, "0 10"},
		{concurrent, contract.Unknown, contract.Usage{}, false, "0 10"},
		{concurrent, contract.Succeeded, contract.Usage{InputTokens: 2}, false, "0 10"},
	} {
		var s State
		take(&s, "al-1", events.Block{Account: "l/agent:a", Amount: 10, Measure: "tokens", Window: c.window})
		s.Draw(Call{ID: "c-1"}, "work", &guard.BudgetFact{Allotment: "al-1", Draws: []guard.DrawFact{{Account: "l/agent:a", Amount: 5, Window: c.window}}})
		if !s.Settle(Outcome{Call: Call{ID: "c-1"}, Status: c.status, Usage: c.usage, Attested: c.attested}, "work") {
			t.Fatal("not settled")
		}
		r := s.Rows()[0]
		if got := fmt.Sprint(r.Committed, " ", r.Unused); got != c.want || r.Reserved != 0 || s.allotments["al-1"].blocks[key{"l/agent:a", c.window}].rest != r.Unused {
			t.Errorf("%s, %s, %+v: %s, want %s", c.window, c.status, c.usage, got, c.want)
		}
	}
}
