package route

import (
	"math"
	"strings"
	"testing"
)

// TestCheckMembers shows that invalid members are rejected with their path, and that a valid
// table and an empty one are accepted.
func TestCheckMembers(t *testing.T) {
	has := func(p string) bool { return p == "a" || p == "b" }
	two := []Target{{Model: "a/m"}, {Model: "b/m", Weight: 2}}
	good := Table{Aliases: map[string]string{"x": "a/m", "y": "v"}, Virtual: []Virtual{{Name: "v", Strategy: "weighted", Targets: two}, {Name: "w", Targets: two[:1]}},
		Fallbacks: []Rule{{Primary: "x", Fallbacks: []string{"v", "b/m"}, Triggers: []string{RateLimit, Timeout, Error}}}, Prices: Prices{Version: "1", Models: []Price{{Model: "a/m", Input: 1}}}}
	if err := good.Check(has); err != nil {
		t.Fatal(err)
	}
	if err := (&Table{}).Check(has); err != nil {
		t.Errorf("an empty table: %v", err)
	}
	for want, change := range map[string]func(*Table){
		`aliases: "a/b": `:                                        func(t *Table) { t.Aliases = map[string]string{"a/b": "a/m"} },
		`aliases: "": `:                                           func(t *Table) { t.Aliases = map[string]string{"": "a/m"} },
		`aliases.z: "c/m" is neither`:                             func(t *Table) { t.Aliases = map[string]string{"z": "c/m", "x": "a/m", "y": "v"} },
		`aliases.z: "a/" is neither`:                              func(t *Table) { t.Aliases = map[string]string{"z": "a/"} },
		`virtual[0].name: `:                                       func(t *Table) { t.Virtual = []Virtual{{Targets: two}} },
		`virtual[1].name: `:                                       func(t *Table) { t.Virtual = []Virtual{{Name: "v", Targets: two}, {Name: "x", Targets: two}} },
		`virtual[2].name: "v" is taken`:                           func(t *Table) { t.Virtual = append(t.Virtual[:2:2], Virtual{Name: "v", Targets: two}) },
		`virtual[0].strategy: `:                                   func(t *Table) { t.Virtual = []Virtual{{Name: "v", Strategy: "best", Targets: two}} },
		`virtual[0].targets: `:                                    func(t *Table) { t.Virtual = []Virtual{{Name: "v"}} },
		`virtual[0].targets[1].model: "v" `:                       func(t *Table) { t.Virtual = []Virtual{{Name: "v", Targets: []Target{{Model: "a/m"}, {Model: "v"}}}} },
		`virtual[0].targets[0].weight: `:                          func(t *Table) { t.Virtual = []Virtual{{Name: "v", Targets: []Target{{Model: "a/m", Weight: -1}}}} },
		`fallbacks[0]: "c/m" is not a model`:                      func(t *Table) { t.Fallbacks = []Rule{{Primary: "c/m"}} },
		`fallbacks[0]: "u" is not a model`:                        func(t *Table) { t.Fallbacks = []Rule{{Primary: "a/m", Fallbacks: []string{"u"}}} },
		`fallbacks[0].triggers: "late"`:                           func(t *Table) { t.Fallbacks = []Rule{{Primary: "a/m", Triggers: []string{"late"}}} },
		`prices.models[1].image_tokens: -1: want a number from 0`: func(t *Table) { t.Prices.Models = []Price{{Model: "a/m"}, {Model: "b/m", Image: -1}} },
		`prices.models[0].input: 9223372036854775807: want `:      func(t *Table) { t.Prices.Models = []Price{{Model: "a/m", Input: math.MaxInt64}} },
		`virtual[0].targets[1].weight: 9223372036854775807: `: func(t *Table) {
			t.Virtual = []Virtual{{Name: "v", Targets: []Target{{Model: "a/m"}, {Model: "b/m", Weight: math.MaxInt64}}}}
		},
		`prices.models[1].model: "a/m" has an entry`: func(t *Table) { t.Prices.Models = []Price{{Model: "a/m"}, {Model: "a/m", Input: 2}} },
		`prices.version: `:                           func(t *Table) { t.Prices.Version = "" },
	} {
		bad := good
		if strings.HasPrefix(want, "virtual") { // remove references to the virtual model, so that only the member under test is invalid
			bad.Aliases, bad.Fallbacks = map[string]string{"x": "a/m"}, nil
		}
		change(&bad)
		if err := bad.Check(has); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestTags shows that a request with tags is sent to the targets that have one of them,
// and that a request without tags, or whose tags no target has, is sent to the targets
// without tags.
func TestTags(t *testing.T) {
	table := Table{Virtual: []Virtual{{Name: "v", Targets: []Target{{Model: "a/m"}, {Model: "b/eu", Tags: []string{"eu", "gdpr"}}, {Model: "b/us", Tags: []string{"us"}}}}}}
	for tags, want := range map[string]string{"": "a/m", "eu": "b/eu", "us,gdpr": "b/eu b/us", "asia": "a/m"} {
		var got []string
		for _, c := range table.Plan("v", Query{Tags: strings.FieldsFunc(tags, func(r rune) bool { return r == ',' })}, func(string) bool { return true }) {
			got = append(got, c.ID())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v, want %s", tags, got, want)
		}
	}
}

// TestNames shows which names requests may use besides provider/model.
func TestNames(t *testing.T) {
	table := Table{Aliases: map[string]string{"z": "a/m", "b": "a/m"}, Virtual: []Virtual{{Name: "k"}}}
	if got := strings.Join(table.Names(), " "); got != "b k z" {
		t.Error(got)
	}
}

// TestCosts shows that costs are rounded up, that tokens read from or written to a cache
// are charged at their own price, and that cached tokens are charged at the input price
// if the model has no price for them. For a model without an entry, Cost and Worst report
// no price and Limits no limit of the output.
func TestCosts(t *testing.T) {
	table := Table{Prices: Prices{Models: []Price{{Model: "a/m", Input: 3_000_000, Cached: 300_000, CacheWrite: 4_000_000, Output: 15_000_000, MaxOutput: 7}, {Model: "a/plain", Input: 1, Output: 1}}}}
	for _, c := range []struct {
		id                       string
		in, cached, written, out int64
		want                     int64
		ok                       bool
	}{
		{"a/m", 10, 0, 0, 1, 45, true}, {"a/m", 10, 10, 0, 0, 3, true}, {"a/m", 10, 4, 2, 0, 22, true}, {"a/plain", 1, 1, 0, 0, 1, true}, {"a/plain", 0, 0, 0, 0, 0, true}, {"b/m", 9, 0, 0, 9, 0, false},
	} {
		if got, ok := table.Cost(c.id, c.in, c.cached, c.written, c.out); got != c.want || ok != c.ok {
			t.Errorf("%+v: %d %v", c, got, ok)
		}
	}
	if got, ok := table.Worst("a/m", 10, 2); got != 70 || !ok {
		t.Errorf("the worst: %d %v", got, ok)
	}
	if _, ok := table.Worst("b/m", 1, 1); ok {
		t.Error("a model without a price has a worst case")
	}
	if l := table.Limits("a/m"); l.Output != 7 || table.Limits("b/m").Output != 0 {
		t.Errorf("%+v", l)
	}
}
