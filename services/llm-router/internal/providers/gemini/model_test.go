package gemini

import (
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

func TestThinking(t *testing.T) {
	for _, c := range []struct {
		model, effort string
		budget        int64
		want          string
	}{
		{"gemini-2.5-flash", "none", 0, "map[includeThoughts:false thinkingBudget:0]"},
		{"gemini-2.5-pro", "none", 0, "map[includeThoughts:false thinkingBudget:128]"},
		{"gemini-2.5-pro", "", 3000, "map[includeThoughts:true thinkingBudget:3000]"},
		{"gemini-3-pro-preview", "minimal", 0, "map[includeThoughts:true thinkingLevel:low]"},
		{"gemini-3-flash", "none", 0, "map[includeThoughts:false thinkingLevel:minimal]"},
		{"gemini-3.7-flash", "none", 0, "map[includeThoughts:false thinkingLevel:low]"},
		{"gemini-3.7-flash-lite", "none", 0, "map[includeThoughts:false thinkingLevel:minimal]"},
		{"gemini-3.5-flash", "medium", 0, "map[includeThoughts:true thinkingLevel:medium]"},
		{"gemini-4-pro", "xhigh", 0, "map[includeThoughts:true thinkingLevel:high]"},
		{"gemini-4-pro", "", 2000, "map[includeThoughts:true thinkingLevel:low]"},
		{"gemini-3-pro", "", 0, "map[]"},
	} {
		if got := fmt.Sprint(thinking(&ir.Request{Model: c.model, Effort: c.effort, ThinkingBudget: c.budget})); got != c.want {
			t.Errorf("%s %s %d: %s, want %s", c.model, c.effort, c.budget, got, c.want)
		}
	}
	for model, want := range map[string]bool{"gemini-1.5-pro": false, "gemini-2.0-flash": false, "gemini-pro": false, "gemini-3-pro": true, "gemini-10-pro": true, "gemini-flash-latest": true, "gemma-3": false} {
		if third(model) != want {
			t.Errorf("%s: %v", model, !want)
		}
	}
}
