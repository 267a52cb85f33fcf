package stack

import (
	"math/bits"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// Estimate returns the greatest amounts that a call can use, according to its tool
// document and, for a request to a model, its args q. Tokens, USDMicros and
// ComputeMillis are at most canon.MaxInt. q is nil for other calls, and is not used if
// the tool document reserves tokens. USDMicros is -1 if q is used and price returns no
// price of the model or one that is Unpriced. sends is how often a request may be sent
// to each model that may answer it; a number below 1 counts as 1.
func Estimate(t *contract.Tool, q *llm.Args, price func(model string) (llmrouter.ModelPrice, bool), sends int64) contract.Amounts {
	a := contract.Amounts{}
	if t.Reserve != nil {
		a = *t.Reserve
	}
	a.Calls, a.Risk = 1, guard.RiskPoints(t.Class)
	if t.Sandbox != nil && a.ComputeMillis == 0 {
		a.ComputeMillis = times(t.Sandbox.WallMS, t.Sandbox.CPUMillis) / 1000
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
		a.Tokens = times(in+out, attempts)
		if ok && !m.Unpriced { // every attempt is rounded up separately
			a.USDMicros = min(cost(in, m.Input, out, m.Output)+attempts-1, canon.MaxInt)
		}
	}
	return a
}

// times returns the product of two amounts, at most canon.MaxInt. Without this limit, a
// request could make the product overflow, so that less would be reserved than the call
// may use. An amount below 0 counts as 0.
func times(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(max(a, 0)), uint64(max(b, 0)))
	if hi != 0 {
		return canon.MaxInt
	}
	return int64(min(lo, canon.MaxInt))
}

// cost returns the price of in and out tokens, in millionths of a US dollar, rounded up
// and at most canon.MaxInt. The prices are those of a million tokens. An amount or price
// below 0 counts as 0.
func cost(in, inPrice, out, outPrice int64) int64 {
	const tokens = 1_000_000
	h1, l1 := bits.Mul64(uint64(max(in, 0)), uint64(max(inPrice, 0)))
	h2, l2 := bits.Mul64(uint64(max(out, 0)), uint64(max(outPrice, 0)))
	lo, carry := bits.Add64(l1, l2, 0)
	hi := h1 + h2 + carry // each is below 2^62, so the sum does not overflow
	lo, carry = bits.Add64(lo, tokens-1, 0)
	if hi += carry; hi >= tokens {
		return canon.MaxInt
	}
	q, _ := bits.Div64(hi, lo, tokens)
	return int64(min(q, canon.MaxInt))
}
