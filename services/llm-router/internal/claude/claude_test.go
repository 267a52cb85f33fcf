package claude

import (
	"fmt"
	"testing"
)

func TestOf(t *testing.T) {
	budget, both := Model{Budget: true, Sampling: true}, Model{Adaptive: true, Budget: true}
	for name, want := range map[string]Model{
		"claude-3-7-sonnet-20250219":                     budget,
		"claude-sonnet-4-20250514":                       budget,
		"claude-opus-4-1-20250805":                       budget,
		"us.anthropic.claude-haiku-4-5-20251001-v1:0":    budget,
		"claude-opus-4-6":                                {Adaptive: true, Budget: true, Sampling: true},
		"global.anthropic.claude-sonnet-4-6-20260101-v1": {Adaptive: true, Budget: true, Sampling: true},
		"claude-opus-4-7":                                both,
		"claude-sonnet-5":                                both,
		"claude-opus-5-5":                                {Adaptive: true},
		"claude-fable-5":                                 {Adaptive: true},
		"claude-mythos-preview":                          {Adaptive: true},
	} {
		got, ok := Of(name)
		got.xhigh = false
		if !ok || got != want {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, want)
		}
	}
	if _, ok := Of("gpt-5"); ok {
		t.Error("gpt-5 is taken for a Claude")
	}
	new, _ := Of("claude-opus-4-7")
	old, _ := Of("claude-opus-4-6")
	if new.Effort("xhigh") != "xhigh" || old.Effort("xhigh") != "high" || old.Effort("minimal") != "low" || old.Effort("none") != "" {
		t.Error("efforts")
	}
	for _, c := range []struct {
		model  string
		effort string
		budget int64
		want   string
	}{
		{"claude-opus-4-1", "medium", 0, " 8192"}, {"claude-opus-4-1", "none", 0, " 0"}, {"claude-opus-4-1", "low", 5000, " 5000"},
		{"claude-opus-4-6", "", 5000, " 5000"}, {"claude-opus-4-6", "medium", 0, "medium 0"}, {"claude-opus-5-5", "", 1024, "low 0"},
		{"claude-opus-5-5", "", 5000, "medium 0"}, {"claude-opus-5-5", "", 1 << 20, "xhigh 0"}, {"claude-opus-5-5", "none", 0, " 0"},
	} {
		m, _ := Of(c.model)
		effort, budget := m.Thinking(c.effort, c.budget)
		if got := fmt.Sprint(effort, " ", budget); got != c.want {
			t.Errorf("%s %q %d: %q, want %q", c.model, c.effort, c.budget, got, c.want)
		}
	}
}

// TestWithin shows that Within returns a budget below the caller's limit, or 0 if the
// limit is too small for thinking.
func TestWithin(t *testing.T) {
	for _, c := range [][3]int64{{2048, 100, 0}, {2048, 1024, 0}, {2048, 1025, 1024}, {2048, 2048, 1024}, {2048, 2049, 2048}, {32768, 8000, 4000}, {1024, 100000, 1024}} {
		if got := Within(c[0], c[1]); got != c[2] {
			t.Errorf("%d within %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
}
