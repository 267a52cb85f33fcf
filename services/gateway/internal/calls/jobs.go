package calls

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// A job is an asynchronous call whose request was answered before the call had an outcome.
// An event call_deferred, which is appended before the response is sent, makes a call a
// job. Audit's index has these events by actor, so a list of jobs is read without a scan of
// the ledger, from any gateway.

// deferWithin is the maximum time for which a response waits until its call is recorded as
// a job.
const deferWithin = 2 * time.Second

// deferred records that a call becomes a job, if the wait for its outcome ended without one and
// the call continues. If the record cannot be appended, the response is sent without it: the
// call continues in any case, and its state can be read by its id. If the proposal is not stored
// within deferWithin, res becomes await.Silent, because a call that is not recorded must not be
// accepted.
func deferred(ctx context.Context, s *Runner, p *propose.Pending, res *await.Result) {
	status := ""
	switch {
	case res.Escalated != nil:
		status = pendingApproval
	case res.State == await.Overdue:
		status = proposed
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deferWithin)
	defer cancel()
	select {
	case <-p.Stored():
		appendDeferral(ctx, s, p.Event, status)
	case <-ctx.Done():
		res.State = await.Silent
	}
}

// deferredAgain is like deferred, for a call that was proposed earlier, but records nothing if
// audit's index has the call as a job. If the index does not have the record yet, the ledger
// rejects the second one by its id. err is the error of the wait for its outcome.
func deferredAgain(ctx context.Context, s *Runner, proposal *contract.Event, err error) {
	status, late := "", (*apierr.Error)(nil)
	switch {
	case errors.As(err, new(*apierr.Escalation)):
		status = pendingApproval
	case errors.As(err, &late) && late.Code == contract.CodeOutcomePending:
		status = proposed
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deferWithin)
	defer cancel()
	known, err := s.has(ctx, audit.DeferralQuery, proposal)
	if err != nil {
		s.Log.Warn("a call was not recorded as a job", "call", proposal.CallID, "err", err)
		return
	}
	if !known {
		appendDeferral(ctx, s, proposal, status)
	}
}

// appendDeferral appends the event that makes the proposed call a job. It logs a failure.
func appendDeferral(ctx context.Context, s *Runner, proposal *contract.Event, status string) {
	e := s.Proposer.Emit.New(contract.EventCallDeferred, proposal.Key, contract.Bytes(&gateway.CallDeferred{Status: status}), proposal)
	e.ID = contract.IDDeferral + proposal.CallID
	if _, err := s.Proposer.Emit.Append(ctx, e); err != nil && !errors.Is(err, eventlog.ErrIDConflict) { // another gateway has recorded it
		s.Log.Warn("a call was not recorded as a job", "call", proposal.CallID, "err", err)
	}
}

// Job describes an asynchronous call whose request was answered before its outcome.
type Job struct {
	CallID     string `json:"call_id"`
	Session    string `json:"session_id"`
	Kind       string `json:"kind"`
	Tool       string `json:"tool"`
	Status     string `json:"status"` // proposed, pending_approval, allowed, running, or the status of the effect
	Verdict    string `json:"verdict,omitempty"`
	ReasonCode string `json:"reason_code,omitempty"`
	ReceiptID  string `json:"receipt_id,omitempty"`
	ErrorCode  string `json:"error_code,omitempty"`
	Begin      string `json:"begin"`         // time of the proposal
	End        string `json:"end,omitempty"` // time at which the outcome was recorded
	Poll       string `json:"poll"`          // path of the state of the call, with its output
	Seq        uint64 `json:"seq"`           // place in the list
}

// Bounds of a page of jobs.
const (
	jobsPage = 20
	maxJobs  = 100
	jobsRead = 8 // jobs of a page that are read at once
)

// List handles GET /api/v1/calls. It responds with the jobs of the caller, newest first. The
// parameter limit is the maximum number of jobs, jobsPage by default. With the parameter before,
// only jobs with a smaller seq are listed. Jobs of other actors are not listed. A job that audit's
// index does not contain yet is missing.
func (s *API) List(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	q, err := jobsQuery(c, who.Actor)
	if err != nil {
		return err
	}
	found, err := queries.Collect(c, s.Runner.Queries.In(who.Tenant), audit.SearchQuery, q)
	if err != nil {
		return err
	}
	jobs := make([]Job, len(found))
	g, ctx := errgroup.WithContext(c.Request().Context())
	g.SetLimit(jobsRead)
	for i, f := range found {
		g.Go(func() (err error) {
			jobs[i], err = s.jobOf(ctx, who, f)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, slices.DeleteFunc(jobs, func(j Job) bool { return j.CallID == "" }))
}

// jobsQuery returns the query for the events call_deferred of an actor, with the bounds in
// the parameters of a request.
func jobsQuery(c echo.Context, actor string) (q audit.SearchRequest, err error) {
	q = audit.SearchRequest{Limit: jobsPage, Terms: map[string]string{"actor": actor, "event": contract.EventCallDeferred, "service": contract.CallerExecutor}}
	if v := c.QueryParam("limit"); v != "" {
		if q.Limit, err = strconv.ParseInt(v, 10, 64); err != nil || q.Limit < 1 || q.Limit > maxJobs {
			return q, apierr.BadRequest("limit", "want 1 to "+strconv.Itoa(maxJobs))
		}
	}
	if v := c.QueryParam("before"); v != "" {
		if q.Before, err = strconv.ParseUint(v, 10, 53); err != nil || q.Before == 0 {
			return q, apierr.BadRequest("before", "want the seq of a job")
		}
	}
	return q, nil
}

// jobOf returns the job that an event call_deferred is about. It returns an empty Job if the call
// is not the caller's, or if audit has no proposal of the call.
func (s *API) jobOf(ctx context.Context, who *auth.Caller, f audit.Found) (Job, error) {
	e, err := eventlog.OpenBytes(json.RawMessage(f.Event), eventlog.Every)
	if err != nil {
		return Job{}, err
	}
	own := s.Runner.Queries.In(who.Tenant)
	first, err := own.Event(ctx, audit.ProposalQuery, e.CallID)
	if err != nil {
		return Job{}, err
	}
	last, err := own.Last(ctx, e.CallID)
	if err != nil {
		return Job{}, err
	}
	if first == nil || last == nil || !who.Is(first) {
		return Job{}, nil
	}
	var call contract.Call
	if err := contract.Decode(first.Data, &call); err != nil {
		return Job{}, err
	}
	state := CallState{Status: proposed}
	if _, err := state.fold(last); err != nil {
		return Job{}, err
	}
	j := Job{CallID: e.CallID, Session: first.Session, Kind: call.Kind, Tool: call.Tool, Status: state.Status, Verdict: state.Verdict, ReasonCode: state.ReasonCode,
		ReceiptID: state.ReceiptID, ErrorCode: state.ErrorCode, Begin: first.Time, Poll: pollOf(e.CallID), Seq: f.Seq}
	if state.ReceiptID != "" {
		j.End = last.Time
	}
	return j, nil
}
