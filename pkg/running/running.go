// Package running checks a request that another service makes for a call. The request itself
// proves nothing, because any service can send one. Only the ledger shows whether the call was
// allowed, for which executor, tenant and session, whether it has started and not ended, and
// at which instance it runs. The vault-broker and the egress-broker check their requests with
// it.
package running

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// Tenants reports which tenants exist; run.Cell implements it.
type Tenants interface {
	Await(ctx context.Context, tenant string) bool
	Check(tenant string) (exists, suspended bool)
}

// Checker checks requests. Its methods may be called concurrently. The fields are set
// before the first call.
type Checker struct {
	Log     eventlog.Log
	Keys    guard.KeyAt
	Tenants Tenants
	Now     func() time.Time

	histories lru.Cache[outcome.History] // of calls that were running at the last request for them
}

// MaxHistories is the maximum number of histories that a Checker caches, of about 1 kB
// each.
const MaxHistories = 4096

// New returns a Checker. epoch is that of run.Env: histories are read again when the ledger
// may have lost its end. It may be nil.
func New(log eventlog.Log, keys guard.KeyAt, tenants Tenants, now func() time.Time, epoch func() uint64) *Checker {
	return &Checker{Log: log, Keys: keys, Tenants: tenants, Now: now, histories: lru.Cache[outcome.History]{Max: MaxHistories, Epoch: epoch}}
}

// Allowed returns the data of the event with the ledger sequence at. By that event policy must
// have allowed the executor to run the call of the request e, and at must be before seq, the
// sequence of the request. Otherwise, or if the data are malformed, Allowed returns nil. It
// does not verify the decision. It reads one entry, whatever the length of the session. An
// error means that the ledger could not be read.
func (c *Checker) Allowed(ctx context.Context, e *contract.Event, executor string, at, seq uint64) (*contract.Allowed, error) {
	if at < 1 || at >= seq {
		return nil, nil
	}
	en, err := c.Log.Get(ctx, at)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := eventlog.Open(en, bus.AllowedInSession(e.Tenant, executor, e.Session))
	if err != nil || p.CallID != e.CallID {
		return nil, nil
	}
	return decode(p), nil
}

// Find is Allowed for a request that does not name the sequence of the event that allows
// the call. It also returns that sequence, or 0 if there is no such event. Its cost grows
// with the number of calls of the session that were allowed between that event and the
// request.
func (c *Checker) Find(ctx context.Context, e *contract.Event, executor string, seq uint64) (*contract.Allowed, uint64, error) {
	p, at, err := outcome.CallOf(e, executor).Allowed(ctx, c.Log, seq)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return decode(p), at, nil
}

func decode(e *contract.Event) *contract.Allowed {
	var a contract.Allowed
	if contract.Decode(e.Data, &a) != nil || a.Decision.Intent == nil {
		return nil
	}
	return &a
}

// Unended returns the data of the event with the ledger sequence at if by it policy has allowed
// one of the executors to run a call of the tenant that has no outcome, whether it has started or
// not, and if the decision is valid for the call. Otherwise it returns nil. An expired intent makes
// no difference, because it limits the start of the call. An error means that the ledger could not
// be read.
func (c *Checker) Unended(ctx context.Context, tenant string, at uint64, executors ...string) (*contract.Allowed, error) {
	if at < 1 {
		return nil, nil
	}
	en, err := c.Log.Get(ctx, at)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	first, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		return nil, nil
	}
	for _, executor := range executors {
		e, err := eventlog.Open(en, bus.AllowedInSession(tenant, executor, first.Session))
		if err != nil {
			continue
		}
		a := decode(e)
		if a == nil {
			return nil, nil
		}
		if err := guard.CheckIntent(a, e.Tenant, e.Session, executor, c.Now(), c.Keys); err != nil && !errors.Is(err, guard.ErrExpired) {
			return nil, nil
		}
		h, err := c.History(ctx, outcome.CallOf(e, executor), at)
		if err != nil || h.Recorded {
			return nil, err
		}
		return a, nil
	}
	return nil, nil
}

// The reasons for which Check refuses a request, besides those about its tenant.
const (
	NoDecision = "no decision allows this call"
	NotCovered = "the decision does not cover this request"
	NotRunning = "the call is not running at the requester"
)

// Check returns the reason for which the request e must be refused, or "" if a, the result of
// Allowed or Find at the sequence at, covers it: policy signed the decision, it is for this
// tenant, session and executor, the tenant exists and is not suspended, and the call runs at
// the given instance, where "" means any. An expired intent is no reason for a refusal,
// because it limits the start of the call. An error means that the ledger could not be read.
func (c *Checker) Check(ctx context.Context, e *contract.Event, a *contract.Allowed, at uint64, executor, instance string) (refusal string, err error) {
	if a == nil {
		return NoDecision, nil
	}
	h, err := c.History(ctx, outcome.CallOf(e, executor), at)
	if err != nil {
		return "", err
	}
	if err := guard.CheckIntent(a, e.Tenant, e.Session, executor, c.Now(), c.Keys); err != nil && !errors.Is(err, guard.ErrExpired) {
		return NotCovered, nil
	}
	if refusal := c.absent(ctx, e.Tenant); refusal != "" {
		return refusal, nil
	}
	if h.Claim == nil || h.Service() != executor || h.Recorded || instance != "" && h.ClaimedBy() != instance {
		return NotRunning, nil
	}
	return "", nil
}

// absent returns the reason for which no request of a tenant is granted, or "" if the
// tenant exists and is not suspended according to the ledger, whatever was decided. It
// waits as run.Cell.Await does.
func (c *Checker) absent(ctx context.Context, tenant string) (refusal string) {
	if !c.Tenants.Await(ctx, tenant) {
		return "tenant " + tenant + " does not exist"
	}
	if _, suspended := c.Tenants.Check(tenant); suspended {
		return "tenant " + tenant + " is suspended"
	}
	return ""
}

// History returns the history of a call that was allowed at a sequence. For repeated
// requests of one call, each outcome of its session since its claim is read once.
func (c *Checker) History(ctx context.Context, call outcome.Call, allowed uint64) (h outcome.History, err error) {
	key := call.Tenant + "." + call.Session + "." + call.ID + "." + call.Executor
	h, known := c.histories.Get(key)
	if known {
		h.Recorded, h.Next, err = call.Ended(ctx, c.Log, h.Next)
	} else {
		h, err = call.Look(ctx, c.Log, allowed)
	}
	if err == nil && h.Claim != nil && !h.Recorded {
		c.histories.Put(key, h)
	}
	return h, err
}
