package policy

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/starts"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// entries returns the entries of which snapshots of the view policy.state consist. off
// is true if no snapshots are taken.
func (p *parts) entries(off bool) *snapshot.Entries {
	return &snapshot.Entries{Apply: p.apply, Reduce: state.Reduce, Off: off, Check: func(entries []eventlog.Entry) error {
		scratch := state.States{Open: p.states.Open, Keys: p.states.Keys, Configured: p.states.Configured}
		for _, en := range entries {
			e, err := eventlog.Open(en, stateReader.Filters...)
			if err != nil {
				return err
			}
			if e.Name == contract.EventFreezeAcknowledged {
				continue
			}
			if err := scratch.Apply(e); err != nil {
				return err
			}
		}
		return nil
	}}
}

// startsSource returns the source of the snapshots of policy.starts. f is the follower of
// that view.
func (p *parts) startsSource(f *follow.Follower) snapshot.Source {
	view := &p.expirer.starts
	return snapshot.Source{View: services.ViewStarts, Code: starts.Version, Load: view.Load, Save: func(ctx context.Context) ([]byte, uint64, error) {
		at, err := f.Reach(ctx)
		if err != nil {
			return nil, 0, err
		}
		b, last, err := view.Save()
		return b, max(at, last), err
	}}
}

// budgetSource returns the source of the snapshots of the budget ledger.
func (p *parts) budgetSource(env *run.Env) snapshot.Source {
	return snapshot.Source{View: services.ViewBudget, Code: budget.Version, Load: p.budget.Load, Save: func(ctx context.Context) ([]byte, uint64, error) {
		tail, err := env.Conn.LastSeq(ctx, bus.Events)
		if err != nil {
			return nil, 0, err
		}
		b, at, err := p.budget.Save(ctx)
		if at == 0 { // no event that was stored by now changes the ledgers
			at = tail
		}
		return b, at, err
	}}
}
