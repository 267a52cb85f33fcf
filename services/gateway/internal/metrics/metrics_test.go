package metrics

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/binnacle-mesh/binnacle/pkg/metrics"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/rpc/rpctest"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// TestMetricLabels checks that of the models that are read first only those with the most
// attempts have labels of their own, that the number of error codes with labels of their own
// is limited, and that kinds of unknown families share one label value.
func TestMetricLabels(t *testing.T) {
	var u usage
	stats := []llmrouter.ModelStats{{Provider: "p", Model: "m", Attempts: 1000, Errors: map[string]int64{}}}
	for i := range 1000 {
		stats = append(stats, llmrouter.ModelStats{Provider: "p", Model: fmt.Sprint("m", i), Attempts: int64(i)})
		stats[0].Errors[fmt.Sprint("code", i)] = 1
	}
	u.update(stats, nil)
	if len(u.pairs) != maxModels || !u.pairs[pair{"p", "m999"}] || u.pairs[pair{"p", "m1"}] {
		t.Error(len(u.pairs), "models have labels of their own")
	}
	if n := u.attempts[[3]string{"p", "m", metrics.Other}]; len(u.codes) != maxCodes || n != 1000-maxCodes {
		t.Errorf("%d codes have labels of their own, and %d attempts have the label of the others", len(u.codes), n)
	}
	for kind, want := range map[string]string{"tool.x": "tool", "llm.chat": "llm", "evil.x": metrics.Other, "": metrics.Other, "tool": "tool"} {
		if got := metrics.Family(kind); got != want {
			t.Errorf("%q: %s", kind, got)
		}
	}
}

// router is an llm-router whose figures grow at random.
type router struct {
	stats []llmrouter.ModelStats
	spend []llmrouter.Spend
}

// grow adds figures of at most n pairs, new ones and old ones, to the router.
func (r *router) grow(rnd *rand.Rand, n int) {
	for range n {
		i := rnd.IntN(len(r.stats) + 20)
		if i >= len(r.stats) {
			i = len(r.stats)
			p, m := fmt.Sprint("p", i%7), fmt.Sprint("m", i)
			r.stats = append(r.stats, llmrouter.ModelStats{Provider: p, Model: m, Errors: map[string]int64{}})
			r.spend = append(r.spend, llmrouter.Spend{By: map[string]string{"provider": p, "model": p + "/" + m}})
		}
		s, x := &r.stats[i], &r.spend[i]
		by := int64(rnd.IntN(1 << rnd.IntN(12))) // some pairs grow much faster than others
		s.Succeeded, s.Cancelled, s.Attempts = s.Succeeded+by, s.Cancelled+1, s.Attempts+by+2
		s.Errors[fmt.Sprint("code", rnd.IntN(2*maxCodes))]++
		x.InputTokens, x.OutputTokens, x.CachedTokens, x.ReasoningTokens = x.InputTokens+by, x.OutputTokens+1, x.CachedTokens+by/2, x.ReasoningTokens+by/3
		x.USDMicros += by
	}
}

// copied returns the figures of the router as they are now.
func (r *router) copied() *router {
	out := &router{slices.Clone(r.stats), slices.Clone(r.spend)}
	for i := range out.stats {
		out.stats[i].Errors = maps.Clone(out.stats[i].Errors)
	}
	return out
}

// client returns a client of the router.
func (r *router) client() *rpc.Client {
	return &rpc.Client{Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "llm-router-1"}, nil },
		Send: func(_ context.Context, _, _, verb string, _ any) (rpc.Frames, error) {
			if verb == llmrouter.StatsQuery.Verb {
				return rpctest.Response(r.stats, nil), nil
			}
			return rpctest.Response(r.spend, nil), nil
		}}
}

// counters returns the values of the counters of models, by metric and labels.
func (m *Metrics) counters(t *testing.T) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.attempts, m.tokens, m.spent)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			name := f.GetName()
			for _, l := range x.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = x.GetCounter().GetValue()
		}
	}
	return out
}

// TestCountersOnlyRise adds random figures of more pairs and error codes than have labels of
// their own, and checks that no counter ever decreases or disappears, also when an instance of
// the llm-router responds whose figures are older, and that the sums over the labels are those
// of the router.
func TestCountersOnlyRise(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m, r := New(), &router{}
		before := map[string]float64{}
		for step := range 40 {
			old := r.copied()
			if step%10 != 9 {
				r.grow(rnd, 1+rnd.IntN(20))
			}
			from := r
			if step%7 == 6 {
				from = old
			}
			m.models(t.Context(), from.client())
			now := m.counters(t)
			for name, n := range before {
				if now[name] < n {
					t.Fatalf("seed %d, step %d: %s decreased from %g to %g", seed, step, name, n, now[name])
				}
			}
			before = now
		}
		m.models(t.Context(), r.client())
		sums, want := map[string]float64{}, map[string]float64{}
		for name, n := range m.counters(t) {
			name, _, _ = strings.Cut(name, " ")
			sums[name] += n
		}
		for i, x := range r.stats {
			want["binnacle_llm_attempts_total"] += float64(x.Attempts)
			s := r.spend[i]
			want["binnacle_llm_tokens_total"] += float64(s.InputTokens + s.OutputTokens + s.CachedTokens + s.ReasoningTokens)
			want["binnacle_llm_cost_usd_total"] += float64(s.USDMicros) / 1e6
		}
		if len(r.stats) <= maxModels {
			t.Fatalf("seed %d: only %d pairs", seed, len(r.stats))
		}
		for name, n := range want {
			if d := sums[name] - n; d > 1e-6 || d < -1e-6 {
				t.Errorf("seed %d: the counters %s are %g in sum, want %g", seed, name, sums[name], n)
			}
		}
	}
}
