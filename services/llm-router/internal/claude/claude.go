// Package claude describes what Claude models accept, by generation, at any
// provider. Sources: https://platform.claude.com/docs/en/build-with-claude/thinking
// and effort.
package claude

import (
	"regexp"
	"strconv"
	"strings"
)

// Model is what one model takes of the members that differ between generations.
// Its zero value is a model that neither thinks nor samples.
type Model struct {
	Adaptive bool // thinks as much as an effort says
	Budget   bool // thinks within a budget of tokens
	Sampling bool // takes temperature, top_p and top_k
	xhigh    bool
}

// generation is in a name like claude-opus-4-6-v1: its family, 4 and 6; a date
// is no part of it.
var generation = regexp.MustCompile(`claude-([a-z]+)-(\d{1,2})(?:[-.](\d{1,2}))?(?:\D|$)`)

// Of is what a model takes, by its name with any provider's prefix and suffix. ok
// is false where the name is no Claude's. A name without a known generation has
// what the newest takes.
func Of(name string) (Model, bool) {
	_, rest, ok := strings.Cut(name, "claude-")
	if !ok {
		return Model{}, false
	}
	if rest != "" && rest[0] >= '0' && rest[0] <= '3' || strings.HasPrefix(rest, "instant") {
		return Model{Budget: true, Sampling: true}, true // claude-3-7-sonnet and before
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

// Effort is a reasoning effort as these models name it: the nearest one that they
// have; empty where the request has none or says "none".
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

var budgets = []struct {
	effort string
	tokens int64
}{{"minimal", 1024}, {"low", 2048}, {"medium", 8192}, {"high", 16384}, {"xhigh", 32768}}

// Thinking is how a model is told what a request asks for, by an effort or by a
// budget of tokens that goes before it: an effort where the model thinks by one,
// else a budget; neither: it is not told.
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

// effortOf is the least effort that a budget of tokens is enough for.
func effortOf(budget int64) string {
	for _, b := range budgets {
		if budget <= b.tokens {
			return b.effort
		}
	}
	return "xhigh"
}

// least is the smallest budget for thinking that these models take.
const least = 1024

// Within is a budget for thinking that leaves room for an answer within a limit
// of tokens, for it counts towards that: the budget itself where it does, half
// of the limit where it does not, 0 where there is no room to think.
func Within(budget, limit int64) int64 {
	switch {
	case budget < limit:
		return budget
	case limit > least:
		return max(limit/2, least)
	}
	return 0
}
