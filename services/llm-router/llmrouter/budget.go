package llmrouter

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// amounts are tokens, and their price in millionths of a US dollar.
type amounts struct{ tokens, micros int64 }

// overBudget is the code of an attempt that is not made: what it may be billed
// for, with what others of its call were, is more than policy reserved.
const overBudget = "budget_exceeded"

// worst is the most that the attempt can be billed for.
func (a *attempt) worst() amounts {
	if a.up == nil {
		return amounts{}
	}
	in, out := a.c.args.Most(a.c.s.Limits(a.cand.ID()))
	micros, _ := a.c.s.Worst(a.cand.ID(), in, out)
	return amounts{in + out, micros}
}

// afford sets aside what the attempt may be billed for, where that is still within
// what policy reserved for the call. settle must follow.
func (a *attempt) afford() *provider.Failure {
	c, w := a.c, a.worst()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.room; r != nil && (c.billed.tokens+w.tokens > r.tokens && r.tokens > 0 || c.billed.micros+w.micros > r.micros && r.micros > 0) {
		return &provider.Failure{Code: overBudget, Message: "another attempt, at " + a.cand.ID() + ", could use more than was reserved for the call"}
	}
	a.held = w
	c.billed.tokens += w.tokens
	c.billed.micros += w.micros
	return nil
}

// settle corrects what was set aside, now that the attempt is over: to nothing
// where the provider refused it, to what the provider said was used, and else not
// at all. The lock is held.
func (a *attempt) settle(f *provider.Failure) {
	left := a.held
	switch {
	case f != nil && f.Free:
		left = amounts{}
	case a.usage.Known:
		left = amounts{a.usage.In + a.usage.Out, a.ev.USDMicros}
	}
	a.c.billed.tokens += left.tokens - a.held.tokens
	a.c.billed.micros += left.micros - a.held.micros
}

// release gives back what was set aside for an attempt that was not made.
func (a *attempt) release() amounts {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	a.c.billed.tokens -= a.held.tokens
	a.c.billed.micros -= a.held.micros
	return amounts{}
}
