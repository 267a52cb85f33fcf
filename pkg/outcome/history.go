package outcome

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Call names a call whose history is read. Executor is the service that its intent
// names: what other services record of the call, policy excepted, is no part of its
// history.
type Call struct{ Tenant, Session, ID, Executor string }

// CallOf names the call of an event.
func CallOf(e *contract.Event, executor string) Call {
	return Call{Tenant: e.Tenant, Session: e.Session, ID: e.CallID, Executor: executor}
}

// History is what the ledger has of a call beside its decision.
type History struct {
	Claim    *contract.Event // of the executor, or policy's expiry; nil: the call is unclaimed
	ClaimSeq uint64          // sequence of Claim
	Recorded bool            // the call has an outcome
	Next     uint64          // where nothing is recorded: the sequence to read on from with Ended
}

// ClaimedBy is the source of the claim, service "/" instance, or "".
func (h *History) ClaimedBy() string {
	if h.Claim == nil {
		return ""
	}
	return h.Claim.Source
}

// Service is the service of the claim, or "".
func (h *History) Service() string {
	if h.Claim == nil {
		return ""
	}
	return h.Claim.Service()
}

// Look reads the history of a call. from is a sequence at which, or after which, its
// claim is stored: that of the event that allows it, or its claim's own. Look reads
// what the session has recorded since then, and nothing before, so that it costs the
// same in a short session and in a long one.
//
// Look is for work that is delivered again; the first delivery has no history. The
// error is that of reading the ledger.
func (c Call) Look(ctx context.Context, l eventlog.Log, from uint64) (h History, err error) {
	for _, f := range []bus.Filter{
		{Tenant: c.Tenant, Service: c.Executor, Event: contract.EventEffectStarted, Key: c.Session},
		{Tenant: c.Tenant, Service: policy, Event: contract.EventStartExpired, Key: c.Session},
	} {
		en, err := eventlog.First(ctx, l, f.String(), from, eventlog.OfCall(c.ID, nil))
		if errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		if err != nil {
			return h, err
		}
		if h.Claim, err = eventlog.Open(en); err != nil {
			return h, err
		}
		h.ClaimSeq, from = en.Seq, en.Seq
		break
	}
	h.Recorded, h.Next, err = c.Ended(ctx, l, from)
	return h, err
}

// Ended reports whether an outcome of the call is stored at or after sequence from.
// Where there is none, next is the sequence from which a later call reads on, so that
// calling again reads each outcome of the session once.
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

// Allowed returns the event by which policy allowed the call to its executor, and its
// sequence, or eventlog.ErrNotFound. before is a sequence after it, such as that of
// an event that the call caused; 0 is the end of the ledger. It reads in proportion
// to the calls that were allowed between the two. The event proves nothing by itself:
// its decision is signed and is for the caller to verify.
func (c Call) Allowed(ctx context.Context, l eventlog.Log, before uint64) (*contract.Event, uint64, error) {
	en, err := eventlog.Before(ctx, l, bus.AllowedInSession(c.Tenant, c.Executor, c.Session), before, eventlog.OfCall(c.ID, nil))
	if err != nil {
		return nil, 0, err
	}
	e, err := eventlog.Open(en)
	return e, en.Seq, err
}

// Redelivery is the time after which the server redelivers work without a progress
// report; it is AckWait of bus.ExecutorWork.
const Redelivery = 10 * time.Second

// UnderWay reports whether another instance of the service claimed the call so
// recently that it may not know yet: its work would not have come again by itself.
func (h *History) UnderWay(service, instance string, now time.Time) bool {
	if h.Claim == nil {
		return false
	}
	at, _ := contract.ParseTime(h.Claim.Time)
	return h.ClaimedBy() != service+"/"+instance && h.Service() == service && now.Sub(at).Abs() < Redelivery
}
