package outcome

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Call identifies a call whose history is read. Executor is the service that its intent
// names. Events of services other than Executor and policy are not part of the call's
// history.
type Call struct{ Tenant, Session, ID, Executor string }

// CallOf returns the Call that an event belongs to.
func CallOf(e *contract.Event, executor string) Call {
	return Call{Tenant: e.Tenant, Session: e.Session, ID: e.CallID, Executor: executor}
}

// History is the state of a call on the ledger after its decision.
type History struct {
	Claim    *contract.Event // the executor's claim or policy's expiry; nil if neither is stored
	ClaimSeq uint64          // ledger sequence of Claim; 0 if Claim is nil
	Recorded bool            // the call has an outcome
	Next     uint64          // if Recorded is false: the sequence to pass to Ended
}

// ClaimedBy returns the source of the claim or expiry (service "/" instance), or "" if
// neither is stored.
func (h *History) ClaimedBy() string {
	if h.Claim == nil {
		return ""
	}
	return h.Claim.Source
}

// Service returns the service that recorded the claim or expiry, or "" if neither is
// stored.
func (h *History) Service() string {
	if h.Claim == nil {
		return ""
	}
	return h.Claim.Service()
}

// Over reports whether nothing is left to do for the call's executor: an outcome is
// recorded, or policy has expired the call and records its outcome. If policy is the
// executor itself, only an outcome counts.
func (h *History) Over(executor string) bool {
	return h.Recorded || h.Claim != nil && h.Service() != executor
}

// Look reads the history of a call. from is a sequence at or before that of its claim:
// the sequence of the event that allows the call, or of the claim itself. Look reads the
// claims and expiries of the session from there until it finds one of the call, and the
// outcomes after it until it finds that of the call. Without such an event, it reads to
// the end of the ledger. An error means that the ledger could not be read.
func (c Call) Look(ctx context.Context, l eventlog.Log, from uint64) (h History, err error) {
	claims := bus.Filter{Tenant: c.Tenant, Service: c.Executor, Event: contract.EventEffectStarted, Key: c.Session}.String()
	expiries := bus.Filter{Tenant: c.Tenant, Service: policy, Event: contract.EventStartExpired, Key: c.Session}.String()
	en, err := eventlog.FirstOf(ctx, l, from, eventlog.OfCall(c.ID, nil), claims, expiries)
	switch {
	case err == nil:
		if h.Claim, err = eventlog.Open(en, claims, expiries); err != nil {
			return h, err
		}
		h.ClaimSeq, from = en.Seq, en.Seq
	case !errors.Is(err, eventlog.ErrNotFound):
		return h, err
	}
	h.Recorded, h.Next, err = c.Ended(ctx, l, from)
	return h, err
}

// Ended reports whether an outcome of the call is stored at or after sequence from. If
// not, next is the sequence to pass as from the next time, so that repeated calls read
// each outcome of the session once. An error means that the ledger could not be read.
func (c Call) Ended(ctx context.Context, l eventlog.Log, from uint64) (ended bool, next uint64, err error) {
	next = from
	own := eventlog.OfCall(c.ID, func(e *contract.Event) bool { return mayRecord(e, c.Executor) })
	_, err = eventlog.First(ctx, l, bus.ChainFilter(c.Tenant, c.Session), from, func(en eventlog.Entry) bool {
		next = en.Seq + 1
		return own(en)
	})
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, next, nil
	}
	return err == nil, next, err
}

// Allowed returns the event by which policy allowed the call to its executor, with its
// sequence. It returns eventlog.ErrNotFound if there is none; it returns other errors of
// l unchanged. It searches backwards from before, a sequence after that event; 0 means
// the end of the ledger. Its cost grows with the number of calls of the session that
// were allowed between that event and before. The event is not verified: the caller must
// verify the signature of its decision.
func (c Call) Allowed(ctx context.Context, l eventlog.Log, before uint64) (*contract.Event, uint64, error) {
	filter := bus.AllowedInSession(c.Tenant, c.Executor, c.Session)
	en, err := eventlog.Before(ctx, l, filter, before, eventlog.OfCall(c.ID, nil))
	if err != nil {
		return nil, 0, err
	}
	e, err := eventlog.Open(en, filter)
	return e, en.Seq, err
}

// Redelivery is the time without a progress report after which the server delivers work
// again. It equals AckWait of bus.ExecutorWork.
const Redelivery = 10 * time.Second

// UnderWay reports whether another instance of the service claimed the call, at a time
// that differs from now by less than Redelivery. That instance may still be waiting for
// the acknowledgement of its claim, so this delivery of the work must not end the call
// yet.
func (h *History) UnderWay(service, instance string, now time.Time) bool {
	if h.Claim == nil {
		return false
	}
	at, _ := contract.ParseTime(h.Claim.Time)
	return h.ClaimedBy() != service+"/"+instance && h.Service() == service && now.Sub(at).Abs() < Redelivery
}
