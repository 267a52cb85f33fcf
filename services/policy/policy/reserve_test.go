package policy

import (
	"errors"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// TestConfirmed shows that a final result equal to the expected one is accepted, also a
// refusal, and that a decision is made again if the result differs.
func TestConfirmed(t *testing.T) {
	granted := guard.BudgetFact{Accounts: []string{"a"}}
	refused := guard.BudgetFact{Accounts: []string{"a"}, Refused: contract.ReasonBudgetExceeded}
	other := guard.BudgetFact{Accounts: []string{"a", "b"}}
	for _, c := range []struct {
		expected, final guard.BudgetFact
		moved           bool
	}{{granted, granted, false}, {refused, refused, false}, {granted, refused, true}, {refused, granted, true}, {granted, other, true}} {
		err := confirmed(&c.expected, func() (guard.BudgetFact, error) { return c.final, nil })
		if errors.Is(err, errMoved) != c.moved || !c.moved && err != nil {
			t.Errorf("expected %+v, final %+v: %v", c.expected, c.final, err)
		}
	}
	lost := errors.New("lost")
	if err := confirmed(&granted, func() (guard.BudgetFact, error) { return guard.BudgetFact{}, lost }); !errors.Is(err, lost) {
		t.Errorf("%v, want the error of the ledger", err)
	}
}
