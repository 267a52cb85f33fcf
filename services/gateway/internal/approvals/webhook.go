package approvals

import (
	"context"
	"math"
	"net/url"
	"strings"
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
	Page    string // URL of the operator's page for approvers, in which {call} stands for the id of a call; empty for none
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
// an escalation more than once; the body has the same id each time. The response is no vote,
// whatever it contains: a person votes with a credential of its own.
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
	at := "/api/v1/approvals/" + e.CallID
	return s.Post(ctx, e.Tenant, e.ID, &notice{
		Type: "approval.requested", ID: e.ID, CallID: e.CallID, Session: e.Session, Tenant: e.Tenant,
		Actor: e.Actor, OnBehalfOf: x.Call.OnBehalfOf, Kind: x.Call.Kind, Tool: x.Call.Tool, Reason: x.Decision.ReasonCode,
		Rules: x.Rules, Since: e.Time, Expires: x.Expires, Digest: contract.Digest(&x.Decision), Votes: at + "/votes", Approval: at,
		Page: strings.ReplaceAll(s.Page, "{call}", url.PathEscape(e.CallID)),
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
	Votes      string                  `json:"votes"`          // path to vote at
	Approval   string                  `json:"approval"`       // path of the call with its arguments and votes
	Page       string                  `json:"page,omitempty"` // of the operator, for approvers
}
