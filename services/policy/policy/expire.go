package policy

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/starts"
)

// expirer ends allowed calls that no executor starts within their window.
type expirer struct {
	*instance
	starts starts.View
}

// sweepGrace is the time after the end of its window at which an unstarted call
// is expired. It exceeds the clock differences between services.
const sweepGrace = 2 * time.Second

// run expires overdue calls once a second until ctx ends. The view must have
// caught up with the ledger, since calls that started would otherwise look
// unstarted.
func (s *expirer) run(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, e := range s.starts.Expired(s.emit.Now().Add(-sweepGrace)) {
			if err := s.expire(ctx, e); err != nil {
				s.log.Warn("expiry not recorded, will be tried again", "call", e.CallID, "err", err)
			}
		}
	}
}

// expire claims an allowed call that never started, so that no executor can start
// it, and then records the outcome "expired". If an executor or another instance
// claimed the call first, it changes nothing.
func (s *expirer) expire(ctx context.Context, e *contract.Event) error {
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	d := &a.Decision
	claim := s.emit.New(contract.EventStartExpired, e.Session, contract.Bytes(&contract.Started{CallID: d.CallID, DecisionID: d.ID, IntentID: d.Intent.ID}), e)
	claim.ID = contract.IDStart + d.CallID
	h, err := execute.Look(ctx, s.emit.Log, e.Tenant, e.Session, e.CallID, d.Intent.Executor, 1)
	if err != nil || h.Recorded {
		return err
	}
	s.emit.See(h.Lamport)
	if h.ClaimedBy == "" {
		if err = execute.Claim(ctx, s.emit.Log, claim, d.Intent.Executor); errors.Is(err, eventlog.ErrIDConflict) {
			return nil // an executor, or another instance of policy, claimed it first
		} else if err != nil {
			return err
		}
	} else if h.Service() != "policy" {
		return nil
	}
	now := s.emit.Time()
	eff := contract.Effect{CallID: d.CallID, EffectType: d.Kind, Ended: now, ErrorCode: "intent_expired",
		ErrorMessage: "no executor started the call within its window", InputDigest: d.ArgsDigest, Instance: s.name,
		Status: contract.Expired, Tool: d.Tool}
	err = s.recorder.Record(ctx, claim, d, false, eff, nil)
	if errors.Is(err, execute.ErrSuperseded) {
		return nil
	}
	return err
}
