// Package approvals serves the API of calls that wait for approval, and notifies a
// webhook of them.
package approvals

import (
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API lists the calls that wait for approval, and proposes votes on them. Its fields are
// set before its first use.
type API struct {
	Gate    *auth.Gate
	Calls   *calls.API
	Queries *queries.Services
}

// List handles GET /api/v1/approvals. It responds with the calls that wait for approval.
func (s *API) List(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Vote)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), policy.ApprovalsQuery, policy.ApprovalsRequest{})
}

// Get handles GET /api/v1/approvals/{call}. It responds with one call that waits for
// approval.
func (s *API) Get(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Vote)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), policy.ApprovalQuery, policy.ApprovalRequest{CallID: c.Param("call")})
}

// VoteRequest is the body of POST /api/v1/approvals/{call}/votes.
type VoteRequest struct {
	Vote   string `json:"vote"` // grant or deny
	Reason string `json:"reason"`
	KID    string `json:"kid,omitempty"` // id of the key with which the approver signed the ballot; empty, like Sig, for a vote without such a signature
	// Passkey is the assertion of a passkey of the caller, whose challenge is the digest of the
	// ballot; absent for a vote that no passkey signed.
	Passkey *contract.Assertion `json:"passkey,omitempty"`
	Sig     string              `json:"sig,omitempty"`
}

// KindVote is the kind of the call that votes.
const KindVote = "policy.vote"

// Args returns the arguments of the call that votes on a call.
func (q *VoteRequest) Args(call string) []byte {
	w := canon.Object(nil)
	w.Str("call_id", call)
	if q.KID != "" {
		w.Str("kid", q.KID)
	}
	if q.Passkey != nil {
		w.Raw("passkey", contract.Bytes(q.Passkey))
	}
	w.Str("reason", q.Reason)
	if q.Sig != "" {
		w.Str("sig", q.Sig)
	}
	w.Str("vote", q.Vote)
	return w.End()
}

// Vote handles POST /api/v1/approvals/{call}/votes. It proposes a call policy.vote and
// responds with its result.
func (s *API) Vote(c echo.Context) error {
	var req VoteRequest
	who, _, err := s.Gate.Into(c, &req)
	if err != nil {
		return err
	}
	return s.Calls.Respond(c, who, KindVote, KindVote, req.Args(c.Param("call")))
}
