package llmrouter

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// amounts holds the quantities that a budget limits: tokens, their price in millionths
// of a US dollar, and bytes sent to providers.
type amounts struct{ tokens, micros, egress int64 }

// worst returns the maximum that the attempt can be billed for: nothing if the provider
// runs in this process. It does not include bytes, nor the price of a model that is not
// in the price table.
func (a *attempt) worst() amounts {
	if a.up.Local() != nil {
		return amounts{}
	}
	in, out := a.c.args.Most(a.c.s.Limits(a.cand.ID()))
	micros, _ := a.c.s.Worst(a.cand.ID(), in, out)
	return amounts{tokens: in + out, micros: micros}
}

// afford reserves the maximum that the attempt can be billed for. If the call's attempts
// could then exceed the amounts that policy reserved for the call, it reserves nothing
// and returns a failure with fault.OverBudget. settle must be called when the attempt
// has ended.
func (a *attempt) afford() *provider.Failure {
	c, w := a.c, a.worst()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.room; r != nil && (c.billed.tokens+w.tokens > r.tokens && r.tokens > 0 || c.billed.micros+w.micros > r.micros && r.micros > 0) {
		return &provider.Failure{Code: fault.OverBudget, Message: "another attempt, at " + a.cand.ID() + ", could use more than was reserved for the call"}
	}
	a.held = w
	c.billed.tokens += w.tokens
	c.billed.micros += w.micros
	return nil
}

// affordEgress reserves n bytes for sending a request. If the call's attempts would then
// exceed the bytes that policy reserved for the call, it reserves nothing and returns
// false. The transport calls it again before it resends a request.
func (a *attempt) affordEgress(n int64) bool {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.room; r != nil && r.egress > 0 && c.billed.egress+n > r.egress {
		return false
	}
	a.held.egress += n
	c.billed.egress += n
	return true
}

// settle replaces the attempt's reservation with the amounts used, when the attempt has
// ended: zero if the provider bills nothing, or else the reported usage. Without
// reported usage, the reserved tokens and price remain. Bytes always count as measured.
// c.mu must be held.
func (a *attempt) settle(f *provider.Failure) {
	left := a.held
	switch {
	case f != nil && f.Free():
		left = amounts{}
	case a.usage.Known:
		left = amounts{tokens: a.usage.In + a.usage.Out, micros: a.ev.USDMicros}
	}
	sent := a.egress.End()
	a.c.billed.tokens += left.tokens - a.held.tokens
	a.c.billed.micros += left.micros - a.held.micros
	a.c.billed.egress += sent - a.held.egress
	a.c.usage.EgressBytes += sent
}

// release subtracts the tokens and the price that are reserved for an attempt that was
// not sent. It returns the zero amounts, which the caller must assign to a.held.
func (a *attempt) release() amounts {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	a.c.billed.tokens -= a.held.tokens
	a.c.billed.micros -= a.held.micros
	return amounts{}
}
