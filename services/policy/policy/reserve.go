package policy

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// maxBudgetTries is the number of earlier deliveries of a proposal after which the call
// is denied if its reservation fails. A call without its reservation must not be allowed.
const maxBudgetTries = 3

// reserve reserves the amounts that an otherwise allowed call may use, and adds the
// result to the facts. If the reservation fails, reserve returns the error or, after
// maxBudgetTries earlier deliveries of the proposal, refuses the call with BUDGET_ERROR. It
// refuses a request to a model without a known price with PRICE_UNKNOWN if a limit in money
// applies, unless approvers have permitted the call to exceed limits. Nothing is reserved
// for governing calls, since otherwise an exhausted account would prevent changes to its
// limit.
func (d *decider) reserve(ctx context.Context, p *proposal, eval *stack.Evaluation) error {
	limits, r := d.request(p, eval)
	if len(limits) == 0 || eval.Tool().Executor == services.Policy {
		return nil
	}
	if r.Amounts.USDMicros < 0 {
		r.Amounts.USDMicros = 0
		if accounts := priced(limits, r.Facts); accounts != nil && !r.Force {
			eval.Charge(&guard.BudgetFact{Accounts: accounts, Amounts: r.Amounts, Refused: contract.ReasonPriceUnknown})
			return nil
		}
	}
	b, err := d.budget.Reserve(ctx, r)
	if err != nil {
		if p.retries < maxBudgetTries {
			return err
		}
		eval.Charge(&guard.BudgetFact{Accounts: []string{}, Amounts: r.Amounts, Refused: contract.ReasonBudgetError})
		return nil
	}
	if len(b.Accounts) > 0 { // if there are no accounts, no limit applies to the call
		eval.Charge(&b)
	}
	return nil
}

// request returns the limits in force and the request for a call's reservation. Amounts
// of the request are those that the call may use, or zero if no limit is in force; USDMicros
// is negative if the price of the model is not known. Force is set if approvers granted the
// call.
func (d *decider) request(p *proposal, eval *stack.Evaluation) (limits []guard.Limit, r limit.Request) {
	r = limit.Request{Call: limit.Call{ID: p.call.ID}, Facts: eval.Facts(), Force: eval.Facts().Resolution == "granted"}
	p.state.Read(func(v *state.View) {
		if limits = v.Charged(); len(limits) > 0 {
			r.Amounts = stack.Estimate(eval.Tool(), p.model, v.Price, v.Sends())
		}
	})
	return limits, r
}

// priced returns the accounts of the first limit in millionths of a dollar that applies
// to a call, or nil if none does.
func priced(limits []guard.Limit, f *guard.Facts) []string {
	for i := range limits {
		if accounts := limits[i].Accounts(f); limits[i].Measure == "usd_micros" && len(accounts) > 0 {
			return accounts
		}
	}
	return nil
}
