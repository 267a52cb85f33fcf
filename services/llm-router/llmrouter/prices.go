package llmrouter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/demo"
)

const pricesKey = "prices"

// publish records what each name can cost at most, where that has changed, so
// that policy can hold it against budgets. The demo costs nothing.
func (s *Service) publish(ctx context.Context, env *run.Env) error {
	p := events.PricesPublished{Version: s.Prices.Version, Models: []events.ModelPrice{{Model: demo.Provider + "/" + demo.Model}}}
	if p.Version == "" {
		p.Version = "none"
	}
	names := s.Names()
	for _, m := range s.Prices.Models {
		names = append(names, m.Model)
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		if c, ok := s.Ceiling(n, s.has); ok {
			p.Models = append(p.Models, events.ModelPrice{Input: c.Input, Model: n, Output: c.Output})
		}
	}
	slices.SortFunc(p.Models, func(a, b events.ModelPrice) int { return cmp.Compare(a.Model, b.Model) })
	data := contract.Bytes(&p)
	last, err := env.Emit.Log.Last(ctx, "evt."+env.Tenant+".llm-router.*."+events.PricesPublishedName+"."+pricesKey)
	if err == nil {
		if e, err := eventlog.Open(last); err == nil && bytes.Equal(e.Data, data) {
			return nil
		}
	} else if !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	_, err = env.Emit.Append(ctx, env.Emit.New(events.PricesPublishedName, pricesKey, data, nil))
	return err
}
