package claude

import "testing"

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
	if EffortOf(1024) != "minimal" || EffortOf(5000) != "medium" || EffortOf(1<<20) != "xhigh" || Budget("medium") != 8192 || Budget("none") != 0 {
		t.Error("budgets")
	}
}
