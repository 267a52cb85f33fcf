package route

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

func table() *Table {
	return &Table{
		Aliases: map[string]string{"fast": "a/small", "any": "mixed"},
		Virtual: []Virtual{
			{Name: "mixed", Strategy: "order", Targets: []Target{{Model: "a/big"}, {Model: "b/big"}}},
			{Name: "near", Strategy: "cost", Targets: []Target{{Model: "a/eu", Tags: []string{"eu"}}, {Model: "b/eu", Tags: []string{"eu", "cheap"}}, {Model: "c/us", Tags: []string{"us"}}, {Model: "a/small"}}},
		},
		Fallbacks: []Rule{{Primary: "fast", Fallbacks: []string{"b/small", "mixed"}, Triggers: []string{Timeout}}, {Primary: "a/big", Fallbacks: []string{"c/big"}}},
		Prices:    Prices{Version: "1", Models: []Price{{Model: "a/eu", Input: 10, Output: 10}, {Model: "b/eu", Input: 1, Output: 1}, {Model: "a/small", Input: 3, Output: 9, Cached: 1, CacheWrite: 4}, {Model: "b/small", Input: 5, Output: 2}}},
	}
}

func has(p string) bool { return strings.Contains("abc", p) }

func plan(t *Table, want string, q Query) string {
	var out []string
	for _, c := range t.Plan(want, q, has) {
		s := c.ID()
		if c.Rule != "" {
			s += "<" + c.Rule
		}
		if len(c.Triggers) > 0 {
			s += "?" + strings.Join(c.Triggers, ",")
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestPlan(t *testing.T) {
	tb := table()
	if err := tb.Check(has); err != nil {
		t.Fatal(err)
	}
	for want, expect := range map[string]string{
		"a/x":     "a/x",
		"z/x":     "",
		"a/":      "",
		"/x":      "",
		"nothing": "",
		"fast":    "a/small b/small<fallback:fast?timeout a/big<fallback:fast?timeout b/big<virtual:mixed",
		"any":     "a/big b/big<virtual:mixed",
		"a/big":   "a/big c/big<fallback:a/big",
		"near":    "a/small",
	} {
		if got := plan(tb, want, Query{}); got != expect {
			t.Errorf("%s:\n got %s\nwant %s", want, got, expect)
		}
	}
	// A tag selects the targets that have it; other requests get the targets without
	// tags.
	for tags, expect := range map[string]string{"eu": "b/eu a/eu<virtual:near", "us": "c/us", "cheap": "b/eu", "other": "a/small"} {
		if got := plan(tb, "near", Query{Tags: []string{tags}}); got != expect {
			t.Errorf("tag %s: %s, want %s", tags, got, expect)
		}
	}
}

func TestCheck(t *testing.T) {
	for field, change := range map[string]func(*Table){
		"aliases":               func(t *Table) { t.Aliases["x/y"] = "a/b" },
		"aliases.gone":          func(t *Table) { t.Aliases["gone"] = "z/b" },
		"virtual[0].strategy":   func(t *Table) { t.Virtual[0].Strategy = "best" },
		"virtual[0].targets":    func(t *Table) { t.Virtual[0].Targets = nil },
		"virtual[1].targets[0]": func(t *Table) { t.Virtual[1].Targets[0].Model = "x" },
		"virtual[1].name":       func(t *Table) { t.Virtual[1].Name = "fast" },
		"fallbacks[0]":          func(t *Table) { t.Fallbacks[0].Fallbacks = []string{"zzz"} },
		"fallbacks[1].triggers": func(t *Table) { t.Fallbacks[1].Triggers = []string{"sometimes"} },
		"prices.models[2]":      func(t *Table) { t.Prices.Models[2].Output = -1 },
		"prices.version":        func(t *Table) { t.Prices.Version = "" },
	} {
		tb := table()
		change(tb)
		if err := tb.Check(has); err == nil || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestCost(t *testing.T) {
	tb := table()
	// In millions of tokens: 100 in, of which 50 are read from the cache and 10 written
	// into it, and 20 out: 40*3 + 50*1 + 10*4 + 20*9 = 390.
	if c, ok := tb.Cost("a/small", 100_000_000, 50_000_000, 10_000_000, 20_000_000); !ok || c != 390 {
		t.Errorf("cost %d %v", c, ok)
	}
	if c, ok := tb.Cost("a/small", 1, 0, 0, 0); !ok || c != 1 {
		t.Errorf("a part of a millionth is one: %d", c)
	}
	if _, ok := tb.Cost("c/x", 1, 0, 0, 1); ok {
		t.Error("a model without a price has a cost")
	}
}

// TestMost shows that Most sums every candidate that may be billed, at its highest input
// price, and returns the largest limits, and that Reach contains every candidate of a
// plan.
func TestMost(t *testing.T) {
	tb := table()
	if m := tb.Most("fast"); m.Priced || m.Attempts != 4 {
		t.Errorf("mixed has no price, so fast has none: %+v", m)
	}
	tb.Fallbacks[0].Fallbacks = []string{"b/small", "a/small"}
	tb.Prices.Models[2].MaxOutput, tb.Prices.Models[2].Context = 8000, 200_000
	// The plan contains a/small, at its price of cache writes, and b/small, each once.
	if m := tb.Most("fast"); !m.Priced || m.Attempts != 2 || m.Input != 4+5 || m.Output != 9+2 || m.Limits != (llm.Limits{Output: 128 << 10}) {
		t.Errorf("%+v", m)
	}
	// A limit that a candidate lacks counts as the assumed one, whether the candidate is
	// the first or the last.
	tb.Prices.Models[2].Image = 7
	rule, rules := tb.Fallbacks[0], tb.Fallbacks
	rule.Primary, rule.Fallbacks = "b/small", []string{"a/small"}
	tb.Fallbacks = append(rules[:1:1], rule)
	for _, want := range []string{"fast", "b/small"} {
		if m := tb.Most(want); m.Attempts != 2 || m.Limits != (llm.Limits{Image: 48 << 10, Output: 128 << 10}) {
			t.Errorf("%s: %+v", want, m)
		}
	}
	tb.Fallbacks, tb.Prices.Models[2].Image = rules, 0
	if m := tb.Most("a/small"); m.Attempts != 1 || m.Limits != (llm.Limits{Context: 200_000, Output: 8000}) {
		t.Errorf("%+v", m)
	}
	if c, ok := tb.Worst("a/small", 1_000_000, 1_000_000); !ok || c != 13 {
		t.Errorf("%d %v", c, ok)
	}
	// Reach contains every candidate of a plan.
	for _, want := range []string{"fast", "any", "mixed", "near", "a/big", "a/small"} {
		for _, tags := range [][]string{nil, {"eu"}, {"us"}} {
			for _, c := range tb.Plan(want, Query{Tags: tags}, has) {
				if !slices.Contains(tb.Reach(want), c.ID()) {
					t.Errorf("%s %v: %s is not counted", want, tags, c.ID())
				}
			}
		}
	}
}

func TestBreaker(t *testing.T) {
	now := time.Unix(1000, 0)
	b := Breaker{Break: Break{Failures: 3, OpenMS: 1000}}
	fail := func() { b.Failure(now) }
	fail()
	fail()
	b.Success()
	fail()
	fail()
	if !b.Allow(now) {
		t.Fatal("open after two")
	}
	fail()
	if b.Allow(now.Add(999*time.Millisecond)) || b.Open(now).IsZero() {
		t.Fatal("closed after three")
	}
	now = now.Add(time.Second)
	if !b.Allow(now) || b.Allow(now) {
		t.Fatal("not exactly one may try")
	}
	b.Undecided()
	if !b.Allow(now) {
		t.Fatal("the place of one who left is lost")
	}
	fail()
	if b.Allow(now) {
		t.Fatal("closed after the one that tried failed")
	}
	now = now.Add(time.Second)
	if !b.Allow(now) {
		t.Fatal("no candidate may be retried")
	}
	b.Success()
	for range 2 {
		if !b.Allow(now) {
			t.Fatal("still open")
		}
	}
}
