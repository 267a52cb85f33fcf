package gemini

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// unsigned is the documented placeholder for the signature of a call that another model
// made, or that was received without its signature. Source:
// https://ai.google.dev/gemini-api/docs/thought-signatures
const unsigned = "skip_thought_signature_validator"

// older matches the names of models before generation 3.
var older = regexp.MustCompile(`gemini-(?:[12](?:\D|$)|pro(?:-vision)?$)`)

// third reports whether a model is treated as Gemini 3 or later: its name contains
// "gemini-" and is not that of an older model. Models from generation 3 on sign tool
// calls and have thinking levels instead of budgets.
func third(model string) bool { return strings.Contains(model, "gemini-") && !older.MatchString(model) }

// flash matches the names of flash models whose version has two numbers, as in
// gemini-2.5-flash, except names that continue with -li, such as those of flash-lite. It
// captures both numbers.
var flash = regexp.MustCompile(`gemini-(\d+)\.(\d+)-flash(?:$|-[^l]|-l[^i])`)

// thinking returns the configuration for the request's budget of tokens or, without a
// budget, for its effort. It returns nil if the request has neither a budget nor an
// effort in effortBudget. Source: https://ai.google.dev/gemini-api/docs/thinking
func thinking(r *ir.Request) ir.Obj {
	budget, known := effortBudget[r.Effort]
	if r.ThinkingBudget > 0 {
		budget, known = r.ThinkingBudget, true
	}
	if r.MaxTokens > 0 {
		budget = min(budget, r.MaxTokens) // thinking tokens count towards the limit of the answer
	}
	switch {
	case !known:
		return nil
	case third(r.Model):
		return ir.Obj{"thinkingLevel": level(r.Model, budget), "includeThoughts": budget > 0}
	case strings.Contains(r.Model, "2.5-pro"): // the model cannot disable thinking
		return ir.Obj{"thinkingBudget": max(budget, 128), "includeThoughts": budget > 0}
	}
	return ir.Obj{"thinkingBudget": budget, "includeThoughts": budget > 0}
}

// level returns the thinking level for a budget of tokens: at least the lowest level
// that the model accepts.
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
