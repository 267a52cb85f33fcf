package llmrouter

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// modelList holds the models that each provider lists, by the provider's name.
type modelList struct {
	mu    sync.Mutex
	lists map[string][]string
	at    time.Time
}

// listLife is the time after which a list of models is outdated.
const listLife = 5 * time.Minute

func (l *modelList) stale() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.at) > listLife
}

// discover fetches the lists of models of all providers that are reached over HTTP, for
// at most ten seconds. Its output is the number of all models that are then known. If a
// provider fails, its earlier list is kept and the call still succeeds. It runs as a
// call, because it uses the providers' keys.
func (s *Service) discover(ctx context.Context, w *execute.Work) execute.Result {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var room, sent atomic.Int64
	if room.Store(math.MaxInt64); w.Intent.Budget != nil && w.Intent.Budget.Amounts.EgressBytes > 0 {
		room.Store(w.Intent.Budget.Amounts.EgressBytes)
	}
	var wg sync.WaitGroup
	for _, up := range s.providers {
		if up.Local() != nil {
			continue
		}
		wg.Go(func() {
			var key string
			var err error
			if len(up.Secrets) > 0 {
				key, err = s.keys.get(ctx, w, up.Secrets[0])
			}
			var models []string
			if err == nil {
				out := provider.Egress{Afford: func(n int64) bool { return room.Add(-n) >= 0 }}
				models, err = up.List(ctx, key, &out)
				sent.Add(out.End())
			}
			if err != nil {
				s.env.Log.Warn("provider does not list its models", "provider", up.Name, "err", err)
				return
			}
			s.models.mu.Lock()
			defer s.models.mu.Unlock()
			if s.models.lists == nil {
				s.models.lists = map[string][]string{}
			}
			s.models.lists[up.Name] = models
		})
	}
	wg.Wait()
	s.models.mu.Lock()
	s.models.at = time.Now()
	s.models.mu.Unlock()
	c := canon.Object(nil)
	c.Int("models", int64(len(s.list())))
	return execute.Result{EffectType: kindModels, Output: c.End(), Usage: &contract.Usage{EgressBytes: sent.Load(), Measured: []string{contract.MeasureEgress}}}
}

// list returns every model that is known: models in this process, aliases, virtual
// models, the configured models of each provider, and those that the provider listed
// last.
func (s *Service) list() []events.Model {
	out := []events.Model{}
	for _, p := range registry.Locals() {
		for _, m := range p.Local().Models {
			out = append(out, events.Model{ID: p.Name + "/" + m, OwnedBy: p.Local().Owner})
		}
	}
	for _, n := range s.Names() {
		out = append(out, events.Model{ID: n, OwnedBy: "binnacle"})
	}
	s.models.mu.Lock()
	defer s.models.mu.Unlock()
	for _, c := range s.Providers {
		seen := map[string]bool{}
		for _, list := range [][]string{c.Models, s.models.lists[c.Name]} {
			for _, m := range list {
				if !seen[m] {
					seen[m] = true
					out = append(out, events.Model{ID: c.Name + "/" + m, OwnedBy: c.Name})
				}
			}
		}
	}
	for i := range out {
		out[i].Object = "model"
	}
	return out
}
