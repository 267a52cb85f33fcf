package gemini

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// unsigned replaces the signature of a call that this API did not sign, because
// another model made it or its caller's API has no member for one. Source:
// https://ai.google.dev/gemini-api/docs/thought-signatures
const unsigned = "skip_thought_signature_validator"

var older = regexp.MustCompile(`gemini-(?:[12](?:\D|$)|pro(?:-vision)?$)`)

// third reports Gemini 3 and later: calls are signed, and thinking has levels.
func third(model string) bool { return strings.Contains(model, "gemini-") && !older.MatchString(model) }

var flash = regexp.MustCompile(`gemini-(\d+)\.(\d+)-flash(?:$|-[^l]|-l[^i])`)

// thinking is the configuration for an effort or a budget of tokens; nil: the
// request says neither. Source: https://ai.google.dev/gemini-api/docs/thinking
func thinking(r *ir.Request) ir.Obj {
	budget, known := effortBudget[r.Effort]
	if r.ThinkingBudget > 0 {
		budget, known = r.ThinkingBudget, true
	}
	if r.MaxTokens > 0 {
		budget = min(budget, r.MaxTokens) // it counts towards the bound of the answer
	}
	switch {
	case !known:
		return nil
	case third(r.Model):
		return ir.Obj{"thinkingLevel": level(r.Model, budget), "includeThoughts": budget > 0}
	case strings.Contains(r.Model, "2.5-pro"): // it always thinks
		return ir.Obj{"thinkingBudget": max(budget, 128), "includeThoughts": budget > 0}
	}
	return ir.Obj{"thinkingBudget": budget, "includeThoughts": budget > 0}
}

func level(model string, budget int64) string {
	least := "minimal"
	if v := flash.FindStringSubmatch(model); v != nil {
		major, _ := strconv.Atoi(v[1])
		minor, _ := strconv.Atoi(v[2])
		if major > 3 || minor >= 7 {
			least = "low"
		}
	} else if strings.Contains(model, "pro") {
		least = "low"
	}
	switch {
	case budget <= effortBudget["minimal"]:
		return least
	case budget <= 4<<10:
		return "low"
	case budget <= effortBudget["medium"]:
		return "medium"
	}
	return "high"
}
