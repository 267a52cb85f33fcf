package calls

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Explanation describes how policy decided a call. The events of the call, votes included, are
// those of its session between From and To that have its id.
type Explanation struct {
	CallID    string      `json:"call_id"`
	Session   string      `json:"session_id"`
	From      uint64      `json:"from"` // ledger sequence of the proposal
	To        uint64      `json:"to"`   // ledger sequence of the newest event of the call
	Decisions []Explained `json:"decisions"`
}

// Explained is one recorded decision on a call, with the result of each part of it.
type Explained struct {
	EventID  string             `json:"event_id"`
	Decision *contract.Decision `json:"decision"`
	Steps    []policy.Step      `json:"steps"` // the last one holds the verdict
}

// Explain handles GET /api/v1/calls/{id}/explanation. It responds with the decisions on a call,
// taken again with the documents that they name. The response is 404 for an unknown call, and
// if a decision cannot be taken again, for example because a policy document that it names was
// erased. Its cost does not depend on the number of other calls on the ledger.
func (s *API) Explain(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	services := s.Runner.Queries.In(who.Tenant)
	found, err := queries.Do(ctx, services, audit.CallEventsQuery, audit.CallRef{CallID: c.Param("id")})
	if err != nil {
		return err
	}
	out := Explanation{CallID: c.Param("id"), Decisions: []Explained{}}
	var proposal json.RawMessage
	for i := range found {
		e, err := eventlog.OpenBytes(found[i].Event, eventlog.Every)
		if err != nil {
			return err
		}
		if e.Name == contract.EventCallProposed {
			proposal, out.From, out.Session = found[i].Event, found[i].Seq, e.Session
		}
		out.To = found[i].Seq
		d, err := contract.DecisionIn(e)
		if err != nil || d == nil || proposal == nil {
			continue // audit's view records an alarm about an event that cannot be decoded
		}
		steps, err := queries.Do(ctx, services, policy.ExplainQuery, policy.ExplainRequest{Proposal: proposal, Decision: found[i].Event})
		if err != nil {
			return err
		}
		out.Decisions = append(out.Decisions, Explained{EventID: e.ID, Decision: d, Steps: steps})
	}
	return c.JSON(http.StatusOK, out)
}
