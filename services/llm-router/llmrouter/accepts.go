package llmrouter

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// acceptsKey is the event key under which the accepted labels are published.
const acceptsKey = "accepts"

// anyLabel represents every label. Providers that run in this process accept it.
const anyLabel = "*"

// accepted returns the data labels that providers and model names accept. A provider
// without labels has no entry. A model name accepts only the labels that are accepted by
// every provider to which it may be routed; if there are none, its entry contains the
// label "-", which no data has.
func (s *Service) accepted() *events.DataAccepted {
	by := map[string][]string{}
	for _, p := range registry.Locals() {
		by[p.Name] = []string{anyLabel}
	}
	for i := range s.Providers {
		by[s.Providers[i].Name] = s.Providers[i].Accepts
	}
	var d events.DataAccepted
	add := func(model string, accepts []string) {
		if accepts = slices.Clone(accepts); len(accepts) > 0 {
			slices.Sort(accepts)
			d.Models = append(d.Models, events.ModelAccepts{Accepts: slices.Compact(accepts), Model: model})
		}
	}
	for p, accepts := range by {
		add(p+"/", accepts)
	}
	names := s.Names()
	for _, r := range s.Fallbacks {
		names = append(names, r.Primary)
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		common := []string{anyLabel}
		for _, id := range s.Reach(n) {
			p, _, _ := strings.Cut(id, "/")
			common = both(common, by[p])
		}
		if len(common) == 0 {
			common = []string{"-"} // no data has this label; without an entry, the provider's own entry would apply
		}
		add(n, common)
	}
	slices.SortFunc(d.Models, func(a, b events.ModelAccepts) int { return cmp.Compare(a.Model, b.Model) })
	return &d
}

// both returns the labels that both lists accept; a list with anyLabel accepts every
// label.
func both(a, b []string) []string {
	switch {
	case slices.Contains(a, anyLabel):
		return b
	case slices.Contains(b, anyLabel):
		return a
	}
	var out []string
	for _, l := range a {
		if slices.Contains(b, l) {
			out = append(out, l)
		}
	}
	return out
}

// publishAccepted records the labels that providers and model names accept, if they have
// changed.
func (s *Service) publishAccepted(ctx context.Context, m *emit.Emitter) error {
	return announce(ctx, m, events.DataAcceptedName, acceptsKey, contract.Bytes(s.accepted()))
}
