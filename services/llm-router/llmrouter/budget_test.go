package llmrouter

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// TestAfford shows that the sum over all attempts of a call is limited to the amounts
// that policy reserved, in tokens, money and bytes, and that the reservation of an
// attempt that was not sent is released when the attempt ends. An image counts as the
// maximum tokens that the model may need for it.
func TestAfford(t *testing.T) {
	s := &Service{}
	s.Table = route.Table{Prices: route.Prices{Version: "1", Models: []route.Price{{Model: "p/m", Input: 1_000_000, Output: 1_000_000, Image: 40}}}}
	for name, room := range map[string]amounts{"tokens": {tokens: 300}, "money": {micros: 300}, "bytes": {egress: 300}} {
		c := &call{s: s, room: &room, args: llm.Args{In: 20, Hold: 60, Images: 1}} // each attempt reserves 100 tokens
		next := func() *attempt {
			return &attempt{c: c, up: &upstream{Provider: &provider.Provider{}}, cand: route.Candidate{Provider: "p", Model: "m"}}
		}
		var made []*attempt
		for a := next(); a.afford() == nil && a.affordEgress(100); a = next() {
			if made = append(made, a); len(made) > 3 {
				break
			}
		}
		if len(made) != 3 {
			t.Fatalf("%s: %d attempts of 100 within 300", name, len(made))
		}
		made[0].settle(&provider.Failure{Code: fault.Unreachable}) // the request was not sent, so its reservation is released
		if a := next(); a.afford() != nil || !a.affordEgress(100) {
			t.Errorf("%s: what was given back cannot be used", name)
		}
	}
}
