package llmrouter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
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

// announce appends an event to the tenant of m, unless the last event with this name and
// key there has the same data.
func announce(ctx context.Context, m *emit.Emitter, name, key string, data []byte) error {
	filter := bus.Filter{Tenant: m.Tenant, Service: llm.Executor, Event: name, Key: key}.String()
	last, err := m.Log.Last(ctx, filter)
	if err == nil {
		if e, err := eventlog.Open(last, filter); err == nil && bytes.Equal(e.Data, data) {
			return nil
		}
	} else if !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	_, err = m.Append(ctx, m.New(name, key, data, nil))
	return err
}

// publish records limits and prices, if they have changed, so that policy can compute
// the maximum usage and cost of a request and compare it with budgets. It includes the
// aliases, the virtual models, the models that have fallbacks, the models in the price
// table, and the models in this process, which cost nothing.
func (s *Service) publish(ctx context.Context, m *emit.Emitter) error {
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
		x := s.Most(n)
		p.Models = append(p.Models, events.ModelPrice{Attempts: x.Attempts, Context: x.Limits.Context, ImageTokens: x.Limits.Image, Input: x.Input, MaxOutput: x.Limits.Output,
			Model: n, Output: x.Output, Unpriced: !x.Priced})
	}
	slices.SortFunc(p.Models, func(a, b events.ModelPrice) int { return cmp.Compare(a.Model, b.Model) })
	return announce(ctx, m, events.PricesPublishedName, pricesKey, contract.Bytes(&p))
}
