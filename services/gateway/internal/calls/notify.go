package calls

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/react"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/webhook"
)

// JobWebhook notifies a URL of the ends of jobs. Its fields are set before its first use.
type JobWebhook struct {
	*webhook.Endpoint
	Emit    *emit.Emitter
	Queries *queries.Services
	// Durable waits until the outcome, and all else that this process has read, is synced
	// to disk.
	Durable func(context.Context) error
}

// JobWork is the consumer of jobs for JobWebhook.Notify. A job is redelivered until the
// webhook returns 2xx, until noticeWithin after its end or, if audit does not have its
// proposal, until proposalWithin after its event.
var JobWork = bus.Work{Name: "jobs", Filters: bus.Filters(services.Gateway, contract.EventCallDeferred), Ends: bus.Filters(services.Gateway, contract.EventJobNotified),
	AckWait: 10 * time.Second, MaxAckPending: 16384}

const (
	// Audit has the proposal of a job this long after the time of the job's event, unless a
	// faulty gateway has recorded the event.
	proposalWithin = time.Hour
	noticeWithin   = 24 * time.Hour // time after the end of a job within which its notice is sent
	notices        = 16             // notices that an instance sends at a time
	// A job in progress is redelivered after a tenth of its age, and a failed notice is sent
	// again after half of the time since the end of the job, between these bounds.
	soonest, latest = time.Second, 30 * time.Second
)

// Reactor returns the reactor that notifies the webhook. It does not limit the number of
// attempts: Notify does, by time.
func (s *JobWebhook) Reactor() react.Reactor {
	return react.Reactor{Name: "job_webhook", Work: JobWork, Limit: notices, MaxTries: math.MaxUint64, Handle: s.Notify}
}

// JobNotice is the body of a notice.
type JobNotice struct {
	Type       string `json:"type"` // job.ended
	ID         string `json:"id"`   // of the notice; the same in each attempt
	CallID     string `json:"call_id"`
	Session    string `json:"session_id"`
	Tenant     string `json:"tenant"`
	Actor      string `json:"actor"`
	Kind       string `json:"kind"`
	Tool       string `json:"tool"`
	Status     string `json:"status"` // of the effect
	ErrorCode  string `json:"error_code"`
	Verdict    string `json:"verdict"`
	ReasonCode string `json:"reason_code"`
	ReceiptID  string `json:"receipt_id"`
	Begin      string `json:"begin"` // time of the proposal
	End        string `json:"end"`   // time at which the outcome was recorded
	Poll       string `json:"poll"`  // path of the state of the call, with its output
}

// Notify sends the notice of a job if it has ended, and then records job_notified. While the
// job has not ended, it returns an error of react.Later. An error that wraps react.ErrPermanent
// means that no notice is sent: the events of the job cannot be decoded, audit does not have its
// proposal although the time of e is more than proposalWithin in the past or in the future, or
// attempts have failed for noticeWithin. If the job ended more than noticeWithin ago and this is
// the first delivery, because the webhook was configured later, Notify sends nothing and returns
// nil. A webhook may receive a notice more than once, with the same id.
func (s *JobWebhook) Notify(ctx context.Context, e *contract.Event) error {
	own := s.Queries.In(e.Tenant)
	first, err := own.Event(ctx, audit.ProposalQuery, e.CallID)
	if err != nil {
		return err
	}
	last, err := own.Last(ctx, e.CallID)
	if err != nil {
		return err
	}
	if first == nil || last == nil || last.Name != contract.EventEffectRecorded { // audit may not have read the proposal yet
		at, err := contract.ParseTime(e.Time)
		if err != nil {
			return react.Permanent(err)
		}
		age := s.Emit.Now().Sub(at)
		if first == nil && age.Abs() > proposalWithin { // the gateway that recorded e may have stated a time in the future
			return react.Permanent(errors.New("call " + e.CallID + " does not exist"))
		}
		return react.Later(bounded(age / 10))
	}
	var call contract.Call
	if err := contract.Decode(first.Data, &call); err != nil {
		return react.Permanent(err)
	}
	var state CallState
	if _, err := state.fold(last); err != nil {
		return react.Permanent(err)
	}
	end, err := contract.ParseTime(last.Time)
	if err != nil {
		return react.Permanent(err)
	}
	switch n := react.Deliveries(ctx); {
	case s.Emit.Now().Sub(end) < noticeWithin:
	case n <= 1:
		return nil
	default:
		return react.Permanent(errors.New("the webhook has not accepted the notice for " + noticeWithin.String()))
	}
	if err := s.Durable(ctx); err != nil {
		return err
	}
	if err := s.Post(ctx, e.Tenant, e.ID, JobNotice{Type: "job.ended", ID: e.ID, CallID: e.CallID, Session: first.Session, Tenant: e.Tenant, Actor: first.Actor, Kind: call.Kind, Tool: call.Tool, Status: state.Status,
		ErrorCode: state.ErrorCode, Verdict: state.Verdict, ReasonCode: state.ReasonCode, ReceiptID: state.ReceiptID, Begin: first.Time, End: last.Time, Poll: pollOf(e.CallID)}); err != nil {
		return react.Again(err, bounded(s.Emit.Now().Sub(end)/2))
	}
	return s.record(ctx, e, state.Status)
}

// bounded returns d, but not less than soonest or more than latest.
func bounded(d time.Duration) time.Duration { return min(max(d, soonest), latest) }

// record appends job_notified for a job, once.
func (s *JobWebhook) record(ctx context.Context, e *contract.Event, status string) error {
	n := s.Emit.New(contract.EventJobNotified, e.Key, contract.Bytes(&gateway.JobNotified{Deliveries: int64(max(react.Deliveries(ctx), 1)), Notice: e.ID, Status: status}), e)
	n.ID = contract.IDNotice + e.CallID
	if _, err := s.Emit.Append(ctx, n); err != nil && !errors.Is(err, eventlog.ErrIDConflict) { // an earlier delivery has recorded it
		return err
	}
	return nil
}
