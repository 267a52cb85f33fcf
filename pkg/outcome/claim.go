package outcome

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// ClaimOf makes the claim of a call that e allows; by is contract.Caller where the
// caller executes the call itself, else empty.
func ClaimOf(m *emit.Emitter, e *contract.Event, a *contract.Allowed, by string) *contract.Event {
	s := contract.Started{CallID: a.Call.ID, DecisionID: a.Decision.ID, ExecutedBy: by, IntentID: a.Decision.Intent.ID}
	claim := m.New(contract.EventEffectStarted, e.Session, contract.Bytes(&s), e)
	claim.ID = claimID(a.Call.ID)
	return claim
}

// ExpiryOf makes the event by which policy ends a call that e allows and that no
// executor has started. It competes with the claim for one message id.
func ExpiryOf(m *emit.Emitter, e *contract.Event, a *contract.Allowed) *contract.Event {
	s := contract.Started{CallID: a.Decision.CallID, DecisionID: a.Decision.ID, IntentID: a.Decision.Intent.ID}
	claim := m.New(contract.EventStartExpired, e.Session, contract.Bytes(&s), e)
	claim.ID = claimID(a.Decision.CallID)
	return claim
}

// claimID is the id of the event that claims a call.
func claimID(call string) string { return contract.IDStart + call }

// Claim appends the claim of a call that executor may execute, or policy's expiry of
// it. On return of nil it is on the ledger and the call is the claimant's. An
// eventlog.ErrIDConflict says that another claim or expiry was first; it is an
// *eventlog.TakenError, whose Seq is where that one is stored. Any other error means
// that the outcome of the append is unknown.
func Claim(ctx context.Context, l eventlog.Log, claim *contract.Event, executor string) error {
	b, err := claim.Encode()
	if err != nil {
		return err
	}
	_, err = eventlog.Contend(ctx, l, "claim:"+claim.CallID, func(e *contract.Event) bool {
		return e.CallID == claim.CallID && (e.Name == contract.EventEffectStarted || e.Name == contract.EventStartExpired) && mayRecord(e, executor)
	}, func(id string) (uint64, error) { return l.Append(ctx, claim.Subject(), id, b) })
	return err
}

// EffectOf begins the effect of a permitted call that started claims: what the
// claim and the decision say of it. Status, usage and output are the caller's to set.
func EffectOf(started *contract.Event, a *contract.Allowed, now, instance string) contract.Effect {
	return contract.Effect{CallID: a.Call.ID, EffectType: a.Call.Kind, Ended: now, InputDigest: a.Call.Args.Commitment, Instance: instance,
		Started: started.Time, Tool: a.Call.Tool}
}

// mayRecord reports whether an event of a call comes from a service that may record
// it: its executor claims it, policy expires it, and both may end it.
func mayRecord(e *contract.Event, executor string) bool {
	service := e.Service()
	switch e.Name {
	case contract.EventEffectStarted:
		return service == executor
	case contract.EventStartExpired:
		return service == policy
	}
	return service == executor || service == policy
}

// policy is the service that decides, expires and ends calls beside their executor.
const policy = "policy"
