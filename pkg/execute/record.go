package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// ErrSuperseded says that the call already has another outcome.
var ErrSuperseded = errors.New("the call already has an outcome")

// Recorder ends calls: it signs receipts onto their session's chain.
type Recorder struct {
	Emit    *emit.Emitter
	Key     func() *sign.Key
	Service string

	mu    sync.Mutex
	chain map[string]*chain
}

// chain is what one writer knows of a session's tip. Stale knowledge only
// loses the race for the append.
type chain struct {
	// held is the chain's lock. It is held while an append waits for its
	// answer, so it is a channel: testing/synctest counts a goroutine that waits
	// for a channel as blocked, one that waits for a mutex not.
	held  chan struct{}
	known bool
	seq   uint64
	tip   receipt.Tip
}

// maxChains bounds the tip cache; the cache is dropped whole when full.
const maxChains = 8192

func (r *Recorder) of(tenant, session string) *chain {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.chain) >= maxChains {
		r.chain = nil
	}
	if r.chain == nil {
		r.chain = map[string]*chain{}
	}
	key := tenant + "." + session
	c := r.chain[key]
	if c == nil {
		c = &chain{held: make(chan struct{}, 1)}
		r.chain[key] = c
	}
	return c
}

// Record appends the outcome of a call behind the session's last receipt. d
// is the decision; embed puts it into the event, for calls that have no
// allowed event. On return the outcome is on the ledger, or ErrSuperseded
// says that another one was first.
func (r *Recorder) Record(ctx context.Context, cause *contract.Event, d *contract.Decision, embed bool, eff contract.Effect, out *contract.Content) error {
	return r.RecordUnder(ctx, receipt.ID(d.CallID), cause, d, embed, eff, out)
}

// RecordUnder is Record under a message id of the caller's: of the events that
// are appended under one message id, one is stored.
func (r *Recorder) RecordUnder(ctx context.Context, id string, cause *contract.Event, d *contract.Decision, embed bool, eff contract.Effect, out *contract.Content) error {
	c := r.of(cause.Tenant, cause.Session)
	c.held <- struct{}{}
	defer func() { <-c.held }()
	filter := bus.ChainFilter(cause.Tenant, cause.Session)
	for {
		if !c.known {
			if err := r.load(ctx, c, cause, filter); err != nil {
				return err
			}
		}
		e := r.Emit.New(contract.EventEffectRecorded, cause.Session, nil, cause)
		e.ID = receipt.ID(d.CallID)
		rec := contract.Recorded{Effect: eff, Output: out}
		if embed {
			rec.Decision = d
		}
		rec.Receipt = receipt.Issue(r.Key(), r.Service, c.tip, d, &eff, e.Lamport, e.Time)
		e.Data = contract.Bytes(&rec)
		b, err := e.Encode()
		if err != nil {
			return err
		}
		seq, err := eventlog.Contend(ctx, r.Emit.Log, id, func(x *contract.Event) bool { return endsCall(x, d) }, func(id string) (uint64, error) {
			return r.Emit.Log.AppendExpect(ctx, e.Subject(), id, b, filter, c.seq)
		})
		switch {
		case err == nil:
			c.seq, c.tip = seq, receipt.TipOf(&rec.Receipt)
			return nil
		case errors.Is(err, eventlog.ErrConflict):
			c.known = false
		case errors.Is(err, eventlog.ErrIDConflict):
			c.known = false
			return ErrSuperseded
		default:
			c.known = false
			return err
		}
	}
}

func (r *Recorder) load(ctx context.Context, c *chain, cause *contract.Event, filter string) error {
	en, err := r.Emit.Log.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		c.known, c.seq, c.tip = true, 0, receipt.Genesis(cause.Tenant, cause.Session)
		return nil
	}
	if err != nil {
		return err
	}
	tip, err := r.tip(en)
	if err != nil {
		// Some service wrote what is no outcome. It cannot be removed, so the chain
		// continues after it, from the last receipt before it.
		slog.Error("an entry of a receipt chain is refused", "session", cause.Session, "seq", en.Seq, "err", err)
		tip = receipt.Genesis(cause.Tenant, cause.Session)
		for old, err := range r.Emit.Log.Scan(ctx, filter, 1) {
			if err != nil {
				return fmt.Errorf("chain of session %s: %w", cause.Session, err)
			}
			if t, err := r.tip(old); err == nil && old.Seq < en.Seq {
				tip = t
			}
		}
	}
	c.known, c.seq, c.tip = true, en.Seq, tip
	return nil
}

// tip is the end of the chain that an outcome makes, or why it is none.
func (r *Recorder) tip(en eventlog.Entry) (receipt.Tip, error) {
	e, err := eventlog.Open(en)
	if err != nil {
		return receipt.Tip{}, err
	}
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return receipt.Tip{}, err
	}
	if x := &rec.Receipt; x.Executor != e.Service() || x.CallID != e.CallID || x.Session != e.Session || x.Tenant != e.Tenant {
		return receipt.Tip{}, errors.New("its receipt is of another service, call or session")
	}
	r.Emit.See(e.Lamport)
	return receipt.TipOf(&rec.Receipt), nil
}

// History is what the ledger already says about a call.
type History struct {
	ClaimedBy string // instance; empty if unclaimed
	ClaimedAt time.Time
	Actor     string // of the claim
	Lamport   uint64 // of the claim; what it causes comes after it
	Recorded  bool
}

// Look reads a call's history from sequence from on: its claim by executor, the
// service that its intent names, or its expiry by policy, and the outcome that
// either recorded. What other services record of the call is no part of it. Look is
// for redelivered work only: the first delivery has none.
func Look(ctx context.Context, l eventlog.Log, tenant, session, call, executor string, from uint64) (History, error) {
	var h History
	for _, name := range []string{contract.EventEffectStarted, contract.EventStartExpired, contract.EventEffectRecorded} {
		for en, err := range l.Scan(ctx, bus.Filter{Tenant: tenant, Event: name, Key: session}.String(), from) {
			if err != nil {
				return h, err
			}
			e, err := eventlog.Open(en)
			if err != nil || e.CallID != call || !mayRecord(e, executor) {
				continue
			}
			if name == contract.EventEffectRecorded {
				h.Recorded = true
			} else if h.ClaimedBy == "" {
				h.ClaimedBy, h.Actor, h.Lamport = e.Source, e.Actor, e.Lamport
				h.ClaimedAt, _ = contract.ParseTime(e.Time)
			}
			break
		}
	}
	return h, nil
}

// Claim appends the claim of a call that executor may execute, or policy's expiry of
// it. ErrIDConflict: the call was claimed or expired before.
func Claim(ctx context.Context, l eventlog.Log, claim *contract.Event, executor string) error {
	b, err := claim.Encode()
	if err != nil {
		return err
	}
	_, err = eventlog.Contend(ctx, l, "claim:"+claim.CallID, func(e *contract.Event) bool {
		return e.CallID == claim.CallID && (e.Name == contract.EventEffectStarted || e.Name == contract.EventStartExpired) && mayRecord(e, executor)
	}, func(id string) (uint64, error) { return l.Append(ctx, claim.Subject(), id, b) })
	return err
}

// endsCall reports whether an event is the outcome of the call that d decides, or
// policy's decision on it, which may hold the same message id.
func endsCall(e *contract.Event, d *contract.Decision) bool {
	executor := "policy"
	if d.Intent != nil {
		executor = d.Intent.Executor
	}
	return e.CallID == d.CallID && (e.Service() == "policy" || e.Name == contract.EventEffectRecorded && mayRecord(e, executor))
}

// mayRecord reports whether an event of a call comes from a service that may record
// it: its executor claims it, policy expires it, and both may end it.
func mayRecord(e *contract.Event, executor string) bool {
	service := e.Service()
	switch e.Name {
	case contract.EventEffectStarted:
		return service == executor
	case contract.EventStartExpired:
		return service == "policy"
	}
	return service == executor || service == "policy"
}

// redelivery is the time after which the server redelivers work without a progress
// report; it is AckWait of bus.ExecutorWork.
const redelivery = 10 * time.Second

// underWay reports whether another instance of the service claimed the call so
// recently that it may not know yet: its work would not have come again by itself.
func (h History) underWay(service, instance string, now time.Time) bool {
	return h.ClaimedBy != service+"/"+instance && h.Service() == service && now.Sub(h.ClaimedAt).Abs() < redelivery
}

// Service is the service of the claim.
func (h History) Service() string { s, _, _ := strings.Cut(h.ClaimedBy, "/"); return s }
