package policy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Before a governing call ends, policy waits until every running instance of policy and of the
// gateway has applied the event of the call. Without this wait, an instance with the former
// state could handle the caller's next call: it could allow the call in spite of a freeze, or
// deny it because the instance does not have a new key yet.

// appliedWait is the maximum time that a governing call waits for instances to apply its event.
const appliedWait = 2 * time.Second

// caughtUp waits, for at most appliedWait, until the state of this instance has applied ev, if it
// receives events such as ev, and the other running instances every event that is stored now. An instance that does not respond
// in that time is logged. For a nil event caughtUp returns at once.
func (i *instance) caughtUp(ctx context.Context, ev *contract.Event) {
	if ev == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, appliedWait)
	defer cancel()
	for bus.MatchAny(stateReader.Filters, ev.Subject()) && ctx.Err() == nil && i.seen.Load() < ev.Lamport {
		sleep(ctx, 2*time.Millisecond)
	}
	if err := i.others(ctx); err != nil {
		i.log.Warn("an instance may still act without a governing event", "event", ev.ID, "err", err)
	}
}

// spread waits until every running instance of policy but self, and every one of the gateway,
// has applied the events that are stored. It returns when all have responded or failed; the
// error is that of one instance, with its name.
func (m *mesh) spread(ctx context.Context, self string) error {
	var g errgroup.Group
	for _, service := range []string{services.Policy, services.Gateway} {
		g.Go(func() error {
			live, err := m.live(ctx, service)
			if err != nil {
				return fmt.Errorf("running instances of %s: %w", service, err)
			}
			var each errgroup.Group
			for _, name := range slices.DeleteFunc(live, func(name string) bool { return name == self }) {
				each.Go(func() error {
					if err := m.applied(ctx, service, name); err != nil {
						return fmt.Errorf("%s: %w", name, err)
					}
					return nil
				})
			}
			return each.Wait()
		})
	}
	return g.Wait()
}
