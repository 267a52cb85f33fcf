package llmrouter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// pricesKey is the event key under which the price table is published.
const pricesKey = "prices"

// sends returns the maximum number of times that the router sends a request to each
// candidate: once per try and, if hedging is on, once more per try as the hedge of the
// preceding candidate.
func (s *Service) sends() int64 {
	n := int64(s.Retry.Attempts)
	if s.HedgeMS > 0 {
		n *= 2
	}
	return n
}

// publish records limits and prices, if they have changed, so that policy can compute
// the maximum usage and cost of a request and compare it with budgets. It includes the
// aliases, the virtual models, the models that have fallbacks, the models in the price
// table, and the models in this process, which cost nothing.
func (s *Service) publish(ctx context.Context, env *run.Env) error {
	p := events.PricesPublished{Sends: s.sends(), Version: s.Prices.Version}
	for _, l := range registry.Locals() {
		for _, m := range l.Local().Models {
			p.Models = append(p.Models, events.ModelPrice{Model: l.Name + "/" + m, MaxOutput: l.Local().Output})
		}
	}
	if p.Version == "" {
		p.Version = "none"
	}
	names := s.Names()
	for _, m := range s.Prices.Models {
		names = append(names, m.Model)
	}
	for _, r := range s.Fallbacks {
		names = append(names, r.Primary)
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		m := s.Most(n)
		p.Models = append(p.Models, events.ModelPrice{Attempts: m.Attempts, Context: m.Limits.Context, ImageTokens: m.Limits.Image, Input: m.Input, MaxOutput: m.Limits.Output,
			Model: n, Output: m.Output, Unpriced: !m.Priced})
	}
	slices.SortFunc(p.Models, func(a, b events.ModelPrice) int { return cmp.Compare(a.Model, b.Model) })
	data := contract.Bytes(&p)
	filter := bus.Filter{Tenant: env.Tenant, Service: llm.Executor, Event: events.PricesPublishedName, Key: pricesKey}.String()
	last, err := env.Emit.Log.Last(ctx, filter)
	if err == nil {
		if e, err := eventlog.Open(last, filter); err == nil && bytes.Equal(e.Data, data) {
			return nil
		}
	} else if !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	_, err = env.Emit.Append(ctx, env.Emit.New(events.PricesPublishedName, pricesKey, data, nil))
	return err
}
