package policy

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/starts"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
	past "github.com/binnacle-mesh/binnacle/services/policy/recorded"
)

// Views returns the declarations of policy's views.
func Views() []view.Declaration {
	return []view.Declaration{
		view.Of(services.Policy, services.ViewState, stateReader, func(o *view.Origin) (view.State, error) {
			s := past.NewState(o.Keys, o.Open)
			return view.Fold(s.Apply, s.Dump), nil
		}).At(state.Version),
		view.Of(services.Policy, services.ViewBudget, budgetReader, func(*view.Origin) (view.State, error) {
			var b past.Budget
			return view.FoldLoad(b.Apply, b.Dump, b.Load), nil
		}).At(budget.Version),
		view.Of(services.Policy, services.ViewStarts, startsReader, func(*view.Origin) (view.State, error) {
			return &started{}, nil
		}).At(starts.Version),
	}
}

// started adapts the view policy.starts to view.State, for replay.
type started struct{ past.Starts }

// Apply implements view.State.
func (s *started) Apply(en eventlog.Entry, _ *contract.Event) error { return s.Starts.Apply(en) }

// Dump implements view.State.
func (s *started) Dump() ([]byte, error) {
	_, dump := s.Starts.Dump()
	return dump, nil
}
