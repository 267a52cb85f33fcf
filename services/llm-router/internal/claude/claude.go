// Package claude describes which members the generations of Claude models accept, at any
// provider. Sources: the pages thinking and effort of
// https://platform.claude.com/docs/en/build-with-claude/.
package claude

import (
	"regexp"
	"strconv"
	"strings"
)

// Model describes which members a Claude model accepts in a request. Only members whose
// support differs between generations of Claude are listed. The zero value is a model
// that accepts none of them.
type Model struct {
	Adaptive bool // accepts an effort, which determines how much the model thinks
	Budget   bool // accepts a budget of tokens for thinking
	Sampling bool // accepts temperature, top_p and top_k
	xhigh    bool // accepts the effort xhigh
}

// generation matches the family and the version in a name: opus, 4 and 6 in
// claude-opus-4-6-v1. A date is not matched as a part of the version.
var generation = regexp.MustCompile(`claude-([a-z]+)-(\d{1,2})(?:[-.](\d{1,2}))?(?:\D|$)`)

// Of returns the members that the model with this name accepts. The name may have the
// prefix and suffix of any provider. The second result is false if the name is not that
// of a Claude model. A model whose name contains no known generation is treated as one
// of the newest generation.
func Of(name string) (Model, bool) {
	_, rest, ok := strings.Cut(name, "claude-")
	if !ok {
		return Model{}, false
	}
	if rest != "" && rest[0] >= '0' && rest[0] <= '3' || strings.HasPrefix(rest, "instant") {
		return Model{Budget: true, Sampling: true}, true // Claude 3.7 and earlier
	}
	g := generation.FindStringSubmatch(name)
	if g == nil {
		return Model{Adaptive: true, xhigh: true}, true
	}
	major, _ := strconv.Atoi(g[2])
	minor, _ := strconv.Atoi(g[3])
	v := major*100 + minor
	return Model{Adaptive: v >= 406, Budget: v < 505 && g[1] != "fable" && g[1] != "mythos", Sampling: v <= 406, xhigh: v >= 407}, true
}

// Effort returns the nearest reasoning effort that the model accepts, or "" if effort is
// not one of minimal, low, medium, high and xhigh.
func (m Model) Effort(effort string) string {
	switch effort {
	case "minimal":
		return "low"
	case "low", "medium", "high":
		return effort
	case "xhigh":
		if m.xhigh {
			return effort
		}
		return "high"
	}
	return ""
}

// budgets lists the thinking budget, in tokens, that corresponds to each effort.
var budgets = []struct {
	effort string
	tokens int64
}{{"minimal", 1024}, {"low", 2048}, {"medium", 8192}, {"high", 16384}, {"xhigh", 32768}}

// Thinking returns the effort or the budget, in tokens, to send to a model; at most one
// of them is set. A budget in the request takes precedence over an effort. An effort is
// converted to a budget, and a budget to an effort, if the model accepts only the other.
// For a model that accepts neither, the result is that for a model that accepts a
// budget.
func (m Model) Thinking(effort string, budget int64) (string, int64) {
	switch {
	case budget > 0 && (m.Budget || !m.Adaptive):
		return "", budget
	case budget > 0:
		return m.Effort(effortOf(budget)), 0
	case m.Adaptive:
		return m.Effort(effort), 0
	}
	for _, b := range budgets {
		if b.effort == effort {
			return "", b.tokens
		}
	}
	return "", 0
}

// effortOf returns the lowest effort whose budget is at least as large as the given one,
// or xhigh if there is none.
func effortOf(budget int64) string {
	for _, b := range budgets {
		if budget <= b.tokens {
			return b.effort
		}
	}
	return "xhigh"
}

// least is the smallest thinking budget that the models accept, in tokens.
const least = 1024

// Within returns a thinking budget for an answer that is limited to limit tokens,
// thinking included: the given budget if it is below the limit, otherwise half of the
// limit but at least 1024, or 0 if the limit is too small for thinking.
func Within(budget, limit int64) int64 {
	switch {
	case budget < limit:
		return budget
	case limit > least:
		return max(limit/2, least)
	}
	return 0
}
