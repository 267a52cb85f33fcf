package pipelines

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// Schedules handles GET /api/v1/pipelines/schedules. It responds with the newest schedules
// of the caller, or of all principals of the tenant if the caller has the scope token.Audit.
// Those that go on are listed before those that have ended.
func (s *API) Schedules(c echo.Context) error {
	who, limit, err := s.listing(c)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), work.PipelineSchedulesQuery, work.PipelineSchedulesRequest{Actor: who.Reads(), Limit: limit})
}

// Schedule handles GET /api/v1/pipelines/schedules/:id. A schedule that has not begun is
// described by the state of its call. A call that returned the id of another schedule is
// described by that one. If the caller may not read the schedule, or there is none, the
// error is 404.
func (s *API) Schedule(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	get := func(id string) (work.PipelineSchedule, error) {
		return queries.Do(ctx, s.Queries.In(who.Tenant), work.PipelineScheduleQuery, work.PipelineScheduleRequest{Schedule: id, Actor: who.Reads()})
	}
	id := c.Param("id")
	found, err := get(id)
	if !missing(err) {
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, found)
	}
	e, err := s.proposal(ctx, who, id, pipeline.SchedulePack)
	if err != nil {
		return err
	}
	state, last, err := s.Calls.StateOf(ctx, who, id)
	if err != nil {
		return err
	}
	var out struct {
		Schedule string `json:"schedule"`
	}
	if state.Status == contract.Succeeded && json.Unmarshal(state.Output, &out) == nil && out.Schedule != id {
		if found, err := get(out.Schedule); !missing(err) {
			if err != nil {
				return err
			}
			return c.JSON(http.StatusOK, found)
		}
	}
	found = work.PipelineSchedule{Actor: e.Actor, ErrorCode: state.ErrorCode, Schedule: id, Session: e.Session, Status: state.Status}
	if state.ReceiptID != "" {
		found.Ended = last.Time
	}
	return c.JSON(http.StatusOK, found)
}
