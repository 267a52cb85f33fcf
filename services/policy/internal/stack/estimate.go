package stack

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// Estimate returns the greatest amounts that a call can use, according to its tool
// document and, for a request to a model, its args q. q is nil for other calls, and is
// not used if the tool document reserves tokens. USDMicros is -1 if q is used and price
// returns no price of the model or one that is Unpriced. sends is how often a request
// may be sent to each model that may answer it.
func Estimate(t *contract.Tool, q *llm.Args, price func(model string) (llmrouter.ModelPrice, bool), sends int64) contract.Amounts {
	a := contract.Amounts{}
	if t.Reserve != nil {
		a = *t.Reserve
	}
	a.Calls, a.Risk = 1, guard.RiskPoints(t.Class)
	if t.Sandbox != nil && a.ComputeMillis == 0 {
		a.ComputeMillis = t.Sandbox.WallMS * t.Sandbox.CPUMillis / 1000
	}
	if t.Kind == llm.Models && a.EgressBytes == 0 {
		a.EgressBytes = llm.ModelsEgress
	}
	if q != nil && a.Tokens == 0 {
		a.USDMicros = -1
		m, ok := price(q.Model)
		in, out := q.Most(llm.Limits{Context: m.Context, Image: m.ImageTokens, Output: m.MaxOutput})
		attempts := max(m.Attempts, 1)
		if a.EgressBytes == 0 {
			a.EgressBytes = q.Egress(attempts * max(sends, 1))
		}
		a.Tokens = (in + out) * attempts
		if ok && !m.Unpriced { // every attempt is rounded up separately
			a.USDMicros = (in*m.Input+out*m.Output+999_999)/1_000_000 + attempts - 1
		}
	}
	return a
}
