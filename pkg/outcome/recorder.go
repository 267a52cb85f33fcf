// Package outcome holds the two ends of a call on the ledger: the claim, which one
// instance appends before the effect, and the outcome, which is appended once, with
// a receipt on the chain of the call's session; and it reads what the ledger has of
// a call. It executes nothing: a service that awaits or ends calls imports it
// without the executor.
package outcome

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// ErrSuperseded is returned when the call already has another outcome.
var ErrSuperseded = errors.New("the call already has an outcome")

// Recorder ends calls: it signs a receipt onto the chain of the call's session and
// appends it with the effect. The exported fields are set before its first use; its
// methods are safe for concurrent use, and serialized per session.
type Recorder struct {
	Emit    *emit.Emitter
	Key     func() *sign.Key
	Service string

	mu    sync.Mutex
	chain map[string]*chain
}

// chain is what one writer knows of a session's last receipt. Where that is out of
// date, the append fails with a conflict and is tried again.
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

// Record appends the outcome of a call after the session's last receipt. cause is the
// event that the outcome follows from: its tenant, session, actor and origin are the
// outcome's. d is the decision; embed puts it into the event, for calls that have no
// event that allows them. out is the output's content, or nil.
//
// On return of nil the outcome is on the ledger. ErrSuperseded: another one was
// first. Any other error means that it is not known whether the outcome is stored;
// the same call of Record may be repeated.
func (r *Recorder) Record(ctx context.Context, cause *contract.Event, d *contract.Decision, embed bool, eff contract.Effect, out *contract.Content) error {
	return r.RecordUnder(ctx, receipt.ID(d.CallID), cause, d, embed, eff, out)
}

// RecordUnder is Record under a message id that the caller chooses: of all events that
// are appended under one message id, one is stored. Policy uses it so that of two
// deliveries of a proposal, decided differently, one decision counts.
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
		if tip, err = r.tipBefore(ctx, filter, en.Seq, receipt.Genesis(cause.Tenant, cause.Session)); err != nil {
			return fmt.Errorf("chain of session %s: %w", cause.Session, err)
		}
	}
	c.known, c.seq, c.tip = true, en.Seq, tip
	return nil
}

// tipBefore is the end that the newest valid outcome before a sequence makes, or
// genesis where there is none.
func (r *Recorder) tipBefore(ctx context.Context, filter string, before uint64, genesis receipt.Tip) (receipt.Tip, error) {
	tip := genesis
	_, err := eventlog.Before(ctx, r.Emit.Log, filter, before, func(en eventlog.Entry) bool {
		t, err := r.tip(en)
		if err == nil {
			tip = t
		}
		return err == nil
	})
	if errors.Is(err, eventlog.ErrNotFound) {
		err = nil
	}
	return tip, err
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

// endsCall reports whether an event is the outcome of the call that d decides, or
// policy's decision on it, which may hold the same message id.
func endsCall(e *contract.Event, d *contract.Decision) bool {
	executor := policy
	if d.Intent != nil {
		executor = d.Intent.Executor
	}
	return e.CallID == d.CallID && (e.Service() == policy || e.Name == contract.EventEffectRecorded && mayRecord(e, executor))
}
