package policy

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/starts"
)

// expirer ends allowed calls that no executor has started within their window.
type expirer struct {
	*instance
	starts starts.View
}

// sweepGrace is the time between the end of a call's window and its expiry. It is meant
// to exceed the clock differences between services.
const sweepGrace = 2 * time.Second

// run expires overdue calls once a second until ctx is done. The view of unstarted calls
// must have caught up with the ledger before, since otherwise run would look up every
// call that the view still lists although it has started.
func (s *expirer) run(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		get := func(seq uint64) (eventlog.Entry, error) { return s.emit.Log.Get(ctx, seq) }
		for _, e := range s.starts.Expired(s.emit.Now().Add(-sweepGrace), get) {
			if err := s.expire(ctx, e); err != nil {
				s.log.Warn("expiry not recorded, will be tried again", "call", e.Event.CallID, "err", err)
			}
		}
	}
}

// expire claims an allowed call that has not started, so that no executor can start it,
// and then records the outcome "expired". If policy has claimed the call already, expire
// only records the outcome. If an executor has claimed the call, if the call has an
// outcome, or if another instance claims it first, expire does nothing.
func (s *expirer) expire(ctx context.Context, c starts.Call) error {
	e := c.Event
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	d := &a.Decision
	claim := outcome.ExpiryOf(s.emit, e, &a)
	h, err := outcome.CallOf(e, d.Intent.Executor).Look(ctx, s.emit.Log, c.Seq)
	if err != nil || h.Recorded {
		return err
	}
	if h.Claim == nil {
		err = outcome.Claim(ctx, s.emit.Log, claim, d.Intent.Executor)
		if errors.Is(err, eventlog.ErrIDConflict) {
			return nil // an executor, or another instance of policy, claimed it first
		}
		if err != nil {
			return err
		}
	} else {
		s.emit.See(h.Claim.Lamport)
		if h.Service() != services.Policy {
			return nil
		}
	}
	now := s.emit.Time()
	eff := contract.Effect{CallID: d.CallID, EffectType: d.Kind, Ended: now, ErrorCode: contract.CodeIntentExpired,
		ErrorMessage: "no executor started the call within its window", InputDigest: d.ArgsDigest, Instance: s.name,
		Status: contract.Expired, Tool: d.Tool}
	err = s.recorder.Record(ctx, claim, d, false, eff, nil)
	if errors.Is(err, outcome.ErrSuperseded) {
		return nil
	}
	return err
}
