package llmrouter

import (
	"context"
	"maps"
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

// modelList holds the models that providers listed last. The lists depend on the key,
// and some names identify the key's owner, so each tenant has lists of its own.
type modelList struct {
	mu sync.Mutex
	by map[string]tenantModels // by tenant
}

// tenantModels holds the models that each provider listed last for one tenant, by the
// provider's name.
type tenantModels struct {
	lists map[string][]string
	at    time.Time // time of the last fetch; zero if there was none
}

// of returns the lists of a tenant. The caller must not change them.
func (l *modelList) of(tenant string) tenantModels {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[tenant]
}

// set replaces the lists of the given providers for a tenant, and keeps those of other
// providers. now is the time at which the lists were fetched.
func (l *modelList) set(tenant string, lists map[string][]string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[string]tenantModels{}
	}
	all := map[string][]string{}
	maps.Copy(all, l.by[tenant].lists)
	maps.Copy(all, lists)
	l.by[tenant] = tenantModels{all, now}
}

// listLife is the time after which a list of models is outdated.
const listLife = 5 * time.Minute

func (m tenantModels) stale() bool { return time.Since(m.at) > listLife }

// discover fetches the lists of models of all providers that are reached over HTTP, for
// at most ten seconds. Its output is the number of models that list then returns. If a
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
	var mu sync.Mutex // guards lists
	lists := map[string][]string{}
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
			mu.Lock()
			defer mu.Unlock()
			lists[up.Name] = models
		})
	}
	wg.Wait()
	s.models.set(w.Event.Tenant, lists, time.Now())
	c := canon.Object(nil)
	c.Int("models", int64(len(s.list(w.Event.Tenant))))
	return execute.Result{EffectType: kindModels, Output: c.End(), Usage: &contract.Usage{EgressBytes: sent.Load(), Measured: []string{contract.MeasureEgress}}}
}

// list returns every model that is known for a tenant: models in this process, aliases,
// virtual models, the configured models of each provider, and the models that the
// provider listed last.
func (s *Service) list(tenant string) []events.Model {
	out := []events.Model{}
	for _, p := range registry.Locals() {
		for _, m := range p.Local().Models {
			out = append(out, events.Model{ID: p.Name + "/" + m, OwnedBy: p.Local().Owner})
		}
	}
	for _, n := range s.Names() {
		out = append(out, events.Model{ID: n, OwnedBy: "binnacle"})
	}
	listed := s.models.of(tenant).lists
	for _, c := range s.Providers {
		seen := map[string]bool{}
		for _, list := range [][]string{c.Models, listed[c.Name]} {
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
