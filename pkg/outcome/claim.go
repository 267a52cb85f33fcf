package outcome

import (
	"context"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// ClaimOf returns the claim of a call that e allows; it appends nothing. by is
// contract.Caller if the caller executes the call itself, else "".
func ClaimOf(m *emit.Emitter, e *contract.Event, a *contract.Allowed, by string) *contract.Event {
	s := contract.Started{CallID: a.Call.ID, DecisionID: a.Decision.ID, ExecutedBy: by, IntentID: a.Decision.Intent.ID}
	claim := m.New(contract.EventEffectStarted, e.Session, contract.Bytes(&s), e)
	claim.ID = claimID(a.Call.ID)
	return claim
}

// ExpiryOf returns the event start_expired, after which an allowed call that no executor
// has started can no longer start; it appends nothing. Claim appends it under the
// message id of the call's claim, so only one of the two is stored.
func ExpiryOf(m *emit.Emitter, e *contract.Event, a *contract.Allowed) *contract.Event {
	s := contract.Started{CallID: a.Decision.CallID, DecisionID: a.Decision.ID, IntentID: a.Decision.Intent.ID}
	claim := m.New(contract.EventStartExpired, e.Session, contract.Bytes(&s), e)
	claim.ID = claimID(a.Decision.CallID)
	return claim
}

// claimID returns the event id that the claim of a call and its expiry share.
func claimID(call string) string { return contract.IDStart + call }

// Claim appends the claim of a call, or policy's expiry of it. executor is the service
// that the call's intent names. If the error is nil, the event is stored in the ledger,
// and any other claim or expiry of the call is rejected within the ledger's duplicate
// window. An *eventlog.TakenError means that another claim or expiry is stored, at the
// sequence Seq. After any other error, the event may or may not be stored.
func Claim(ctx context.Context, l eventlog.Log, claim *contract.Event, executor string) error {
	b, err := claim.Encode()
	if err != nil {
		return err
	}
	_, err = eventlog.Contend(ctx, l, "claim:"+claim.CallID, func(e *contract.Event) bool {
		return e.Tenant == claim.Tenant && e.CallID == claim.CallID && (e.Name == contract.EventEffectStarted || e.Name == contract.EventStartExpired) && mayRecord(e, executor)
	}, func(id string) (uint64, error) { return l.Append(ctx, claim.Subject(), id, b) })
	return err
}

// EffectOf returns the effect of the call in a, with the members that follow from the
// call and from its claim, started. now is the time at which the effect ended, in the
// format of contract.Time, and instance the instance that records it. The caller sets
// the members that describe the result, such as status, usage and output.
func EffectOf(started *contract.Event, a *contract.Allowed, now, instance string) contract.Effect {
	return contract.Effect{CallID: a.Call.ID, EffectType: a.Call.Kind, Ended: now, InputDigest: a.Call.Args.Commitment, Instance: instance,
		Started: started.Time, Tool: a.Call.Tool}
}

// mayRecord reports whether the producer of a call's event may record it: only its
// executor may claim a call, only policy may expire it, and both may record its outcome.
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

// policy is the service that decides calls, expires them, and records the outcomes of
// calls that no executor started.
const policy = "policy"
