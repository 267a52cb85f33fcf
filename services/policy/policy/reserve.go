package policy

import (
	"context"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// maxBudgetTries is how often a reservation is tried before the call is denied: a
// budget ledger that cannot be written permits nothing.
const maxBudgetTries = 3

// reserve sets aside what an otherwise allowed call may use, and adds it to the
// facts. reserved returns once that is on the ledger, or errMoved where the ledger
// holds another reservation than the facts. The calls that govern the mesh are not
// counted: a full account must not keep people from changing its limit.
func (d *decider) reserve(ctx context.Context, p *proposal, eval *stack.Evaluation) (reserved func() error, err error) {
	limits, r := d.request(p, eval)
	if len(limits) == 0 || eval.Tool().Executor == "policy" {
		return certain, nil
	}
	if r.Amounts.USDMicros < 0 {
		r.Amounts.USDMicros = 0
		if accounts := priced(limits, r.Facts); accounts != nil && !r.Force {
			eval.Charge(&guard.BudgetFact{Accounts: accounts, Amounts: r.Amounts, Refused: contract.ReasonPriceUnknown})
			return certain, nil
		}
	}
	b, final, err := d.budget.Reserve(ctx, r, executorOf(eval.Tool(), r.Facts))
	if err == nil && p.retries > 0 { // something failed before: not a step without certainty
		b, err = final()
	}
	if err != nil {
		if p.retries < maxBudgetTries {
			return nil, err
		}
		eval.Charge(&guard.BudgetFact{Accounts: []string{}, Amounts: r.Amounts, Refused: contract.ReasonBudgetError})
		return certain, nil
	}
	if len(b.Accounts) > 0 { // else no limit is about this call
		eval.Charge(&b)
	}
	if p.retries > 0 {
		return certain, nil
	}
	return func() error { return confirmed(&b, final) }, nil
}

// request returns the limits in force, and what a call needs of them.
func (d *decider) request(p *proposal, eval *stack.Evaluation) (limits []guard.Limit, r limit.Request) {
	r = limit.Request{CallID: p.call.ID, Facts: eval.Facts(), Force: eval.Facts().Resolution == "granted"}
	d.state.Read(func(v *state.View) {
		if limits = v.Limits(); len(limits) > 0 {
			r.Amounts = stack.Estimate(eval.Tool(), p.model, v.Price, v.Sends())
		}
	})
	return limits, r
}

// confirmed waits until a reservation is on the ledger, and returns errMoved where
// it is another one than b.
func confirmed(b *guard.BudgetFact, final func() (guard.BudgetFact, error)) error {
	now, err := final()
	if err == nil && (now.Refused != "" || !slices.Equal(now.Accounts, b.Accounts)) {
		err = errMoved
	}
	return err
}

// priced returns the accounts of the first limit on money that a call falls under,
// or nil.
func priced(limits []guard.Limit, f *guard.Facts) []string {
	for i := range limits {
		if accounts := limits[i].Accounts(f); limits[i].Measure == "usd_micros" && len(accounts) > 0 {
			return accounts
		}
	}
	return nil
}

// executorOf returns the service that the intent of an allowed call names.
func executorOf(t *contract.Tool, f *guard.Facts) string {
	if f.ReportWithin > 0 {
		return contract.CallerExecutor
	}
	return t.Executor
}

// certain is a reservation that nothing has to be waited for.
func certain() error { return nil }
