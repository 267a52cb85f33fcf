package metrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// pair is a provider and a model of it.
type pair struct{ provider, model string }

// usage holds the figures of models by the values of their labels, and which pairs and error
// codes have a label of their own. Both are kept for the life of the process: a pair that got
// a label of its own later would take its figures out of those of the other pairs, and a
// counter must not decrease.
type usage struct {
	pairs    map[pair]bool
	codes    map[string]bool
	attempts map[[3]string]int64 // by provider, model and outcome
	tokens   map[[3]string]int64 // by provider, model and type
	spent    map[pair]int64      // millionths of a US dollar
}

// models updates the metrics of models with the results of queries to the llm-router. If
// a query fails, they remain unchanged.
func (m *Metrics) models(ctx context.Context, client *rpc.Client) {
	stats, err1 := rpc.Do(ctx, client, llmrouter.StatsQuery, llmrouter.StatsRequest{})
	spend, err2 := rpc.Do(ctx, client, llmrouter.SpendQuery, llmrouter.SpendRequest{By: []string{"provider", "model"}})
	if err1 != nil || err2 != nil {
		return
	}
	m.used.update(stats.Value, spend.Value)
	m.attempts.Reset()
	m.tokens.Reset()
	m.spent.Reset()
	show(m.attempts, m.used.attempts)
	show(m.tokens, m.used.tokens)
	for p, n := range m.used.spent {
		m.spent.WithLabelValues(p.provider, p.model).Add(float64(n) / 1e6)
	}
}

// show adds figures to a metric that was reset.
func show(to *prometheus.CounterVec, figures map[[3]string]int64) {
	for labels, n := range figures {
		to.WithLabelValues(labels[:]...).Add(float64(n))
	}
}

// update replaces the figures. None decreases: the instance of the llm-router that responds
// may be behind the one that responded last.
func (u *usage) update(stats []llmrouter.ModelStats, spend []llmrouter.Spend) {
	if u.pairs == nil {
		u.pairs, u.codes = map[pair]bool{}, map[string]bool{}
		u.attempts, u.tokens, u.spent = map[[3]string]int64{}, map[[3]string]int64{}, map[pair]int64{}
	}
	attempts, tokens, spent := map[[3]string]int64{}, map[[3]string]int64{}, map[pair]int64{}
	for _, x := range busiestFirst(stats) {
		p := u.labelOf(pair{x.Provider, x.Model})
		attempts[[3]string{p.provider, p.model, contract.Succeeded}] += x.Succeeded
		attempts[[3]string{p.provider, p.model, contract.Cancelled}] += x.Cancelled
		for _, code := range slices.Sorted(maps.Keys(x.Errors)) {
			attempts[[3]string{p.provider, p.model, u.codeOf(code)}] += x.Errors[code]
		}
	}
	for _, x := range spend {
		p := u.labelOf(pair{x.By["provider"], strings.TrimPrefix(x.By["model"], x.By["provider"]+"/")})
		for kind, n := range map[string]int64{"input": x.InputTokens, "output": x.OutputTokens, "cached": x.CachedTokens, "reasoning": x.ReasoningTokens} {
			tokens[[3]string{p.provider, p.model, kind}] += n
		}
		spent[p] += x.USDMicros
	}
	raise(u.attempts, attempts)
	raise(u.tokens, tokens)
	raise(u.spent, spent)
}

// raise sets each figure to the greater of itself and the one in now.
func raise[K comparable](figures, now map[K]int64) {
	for k, n := range now {
		figures[k] = max(figures[k], n)
	}
}

// labelOf returns the labels of a pair: its own if it has them, or gets them because fewer
// than maxModels pairs do, and otherwise those that the other pairs share.
func (u *usage) labelOf(p pair) pair {
	if own(u.pairs, p, maxModels) {
		return p
	}
	return pair{metrics.Other, metrics.Other}
}

// codeOf is like labelOf, for an error code and maxCodes.
func (u *usage) codeOf(code string) string {
	if own(u.codes, code, maxCodes) {
		return code
	}
	return metrics.Other
}

// own reports whether set contains v, after it has added v if set has fewer than most values.
func own[K comparable](set map[K]bool, v K, most int) bool {
	if !set[v] && len(set) < most {
		set[v] = true
	}
	return set[v]
}

// busiestFirst returns the figures with those of the pairs with the most attempts first, so
// that these have labels of their own when the figures are read for the first time.
func busiestFirst(stats []llmrouter.ModelStats) []llmrouter.ModelStats {
	return slices.SortedFunc(slices.Values(stats), func(a, b llmrouter.ModelStats) int {
		return cmp.Or(cmp.Compare(b.Attempts, a.Attempts), strings.Compare(a.Provider, b.Provider), strings.Compare(a.Model, b.Model))
	})
}
