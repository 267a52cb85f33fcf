package approvals

import (
	"context"
	"math"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/react"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/webhook"
)

// Webhook notifies a URL of calls that wait for approval. Its fields are set before its
// first use.
type Webhook struct {
	*webhook.Endpoint
	Emit *emit.Emitter
	// Durable waits until the escalation, and all else that this process has read, is
	// synced to disk.
	Durable func(context.Context) error
}

// Work is the consumer of escalations for Webhook.Notify. An escalation is redelivered
// until the webhook returns 2xx or the time to vote has passed.
var Work = bus.Work{Name: "notify", Filters: bus.Filters(services.Policy, contract.EventEscalated), Ends: bus.Decisions(), AckWait: 20 * time.Second, MaxAckPending: 64}

// Reactor returns the reactor that notifies the webhook. It does not limit the number of
// attempts: an escalation is redelivered until Notify returns nil or a permanent error.
func (s *Webhook) Reactor() react.Reactor {
	return react.Reactor{Name: "approval_webhook", Work: Work, Limit: 4, MaxTries: math.MaxUint64, Handle: s.Notify}
}

// Notify posts one escalation to the webhook. It returns nil if the webhook accepts the
// escalation or the time to vote has passed, an error that wraps react.ErrPermanent if the
// event is not an escalation, and otherwise the error of the attempt. A webhook may receive
// an escalation more than once; the body has the same id each time.
func (s *Webhook) Notify(ctx context.Context, e *contract.Event) error {
	var x contract.Escalated
	if err := contract.Decode(e.Data, &x); err != nil {
		return react.Permanent(err)
	}
	if x.Expires <= s.Emit.Time() {
		return nil // the time to vote has passed
	}
	if err := s.Durable(ctx); err != nil {
		return err
	}
	return s.Post(ctx, e.Tenant, e.ID, &notice{
		Type: "approval.requested", ID: e.ID, CallID: e.CallID, Session: e.Session, Tenant: e.Tenant,
		Actor: e.Actor, OnBehalfOf: x.Call.OnBehalfOf, Kind: x.Call.Kind, Tool: x.Call.Tool, Reason: x.Decision.ReasonCode,
		Rules: x.Rules, Since: e.Time, Expires: x.Expires, Digest: contract.Digest(&x.Decision), Votes: "/api/v1/approvals/" + e.CallID + "/votes",
	})
}

// notice is the body of a request to the webhook.
type notice struct {
	Type       string                  `json:"type"` // approval.requested
	ID         string                  `json:"id"`   // of the escalation; the same in each attempt
	CallID     string                  `json:"call_id"`
	Session    string                  `json:"session_id"`
	Tenant     string                  `json:"tenant"`
	Actor      string                  `json:"actor"`
	OnBehalfOf string                  `json:"on_behalf_of"`
	Kind       string                  `json:"kind"`
	Tool       string                  `json:"tool"`
	Reason     string                  `json:"reason_code"`
	Rules      []contract.ApprovalRule `json:"rules"`
	Since      string                  `json:"since"`
	Expires    string                  `json:"expires"`
	Digest     string                  `json:"decision_digest"`
	Votes      string                  `json:"votes"` // path to vote at
}
