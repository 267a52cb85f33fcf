// Package outcome records the start and the end of a call on the ledger and reads them
// back. The start is the claim, which one instance appends before the effect. The end is
// the outcome, which is appended once, with a receipt on the chain of the call's
// session. The package executes nothing, so services that wait for calls or end them
// need not import the executor.
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
	"github.com/binnacle-mesh/binnacle/pkg/lru"
)

// ErrSuperseded means that the call already has another outcome, or that another event
// of policy about the call has the same message id; see RecordUnder.
var ErrSuperseded = errors.New("the call already has an outcome")

// Recorder records the outcomes of calls: it signs a receipt on the chain of the call's
// session and appends it with the effect. The exported fields are set before its first
// use. Its methods are safe for concurrent use.
type Recorder struct {
	Emit    *emit.Emitter
	Key     func() *sign.Key
	Service string
	// Epoch returns the number of reconnections to the server. After each of them, a
	// chain's end is read from the ledger again before it is used: a server that was
	// restarted may have lost the end of the ledger, and another receipt may since have
	// been stored at the same sequence. If Epoch is nil, the cached end is used after a
	// reconnection, too.
	Epoch func() uint64

	mu     sync.Mutex
	chains *lru.Cache[*chain] // by tenant "." session
}

// chain caches the last receipt of a session. If the cache is stale, the append fails
// with a conflict, the cache is loaded again, and the append is retried.
type chain struct {
	// held is the chain's lock: it is full while locked. It is a channel and not a mutex
	// because it is held while an append waits for its acknowledgement: testing/synctest
	// counts a goroutine that waits for a channel as blocked, and one that waits for a
	// mutex as running.
	held  chan struct{}
	known bool
	epoch uint64 // result of Recorder.now when the chain was loaded
	seq   uint64
	tip   receipt.Tip
}

// maxChains is the maximum number of sessions in the cache, each of which takes about
// 0.5 kB.
const maxChains = 8192

// of returns the cached chain of a session; if there is none, it adds an empty one to
// the cache. A copy that was evicted may still be in use by another goroutine. Two
// copies for one session are safe, since an append that expects a stale sequence is
// rejected.
func (r *Recorder) of(tenant, session string) *chain {
	r.mu.Lock()
	if r.chains == nil {
		r.chains = &lru.Cache[*chain]{Max: maxChains}
	}
	r.mu.Unlock()
	return r.chains.GetOrPut(tenant+"."+session, func() *chain { return &chain{held: make(chan struct{}, 1)} })
}

// now returns the number of reconnections, or 0 if r.Epoch is nil.
func (r *Recorder) now() uint64 {
	if r.Epoch == nil {
		return 0
	}
	return r.Epoch()
}

// Record appends the outcome of a call, with a receipt that follows the session's last
// one. cause is the event that caused the outcome; the outcome has its tenant, session,
// actor and origin. d is the decision on the call; embed adds d to the outcome, for
// calls without an event that allows them. out is the content of the output, or nil. If
// the error is nil, the outcome is stored in the ledger. Record returns ErrSuperseded if
// an outcome of the call was stored within the ledger's duplicate window, for example by
// an earlier attempt to record it. After any other error it is unknown whether the
// outcome is stored; calling Record again within the window with the same arguments is
// safe.
func (r *Recorder) Record(ctx context.Context, cause *contract.Event, d *contract.Decision, embed bool, eff contract.Effect, out *contract.Content) error {
	return r.RecordUnder(ctx, receipt.ID(d.CallID), cause, d, embed, eff, out)
}

// RecordUnder is Record with a message id that the caller chooses. Of all events that
// are appended with the same message id within the ledger's duplicate window, only the
// first is stored; RecordUnder also returns ErrSuperseded if that is another event of
// policy about the call. Policy uses this so that, if two deliveries of a proposal are
// decided differently, only one decision takes effect.
func (r *Recorder) RecordUnder(ctx context.Context, id string, cause *contract.Event, d *contract.Decision, embed bool, eff contract.Effect, out *contract.Content) error {
	c := r.of(cause.Tenant, cause.Session)
	c.held <- struct{}{}
	defer func() { <-c.held }()
	filter := bus.ChainFilter(cause.Tenant, cause.Session)
	for {
		if now := r.now(); !c.known || c.epoch != now {
			c.known, c.epoch = false, now
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
		// The append requires that the last entry of the chain is at c.seq. A
		// concurrent writer therefore causes a conflict and not a fork of the chain.
		seq, err := eventlog.Contend(ctx, r.Emit.Log, id, func(x *contract.Event) bool { return x.Tenant == e.Tenant && endsCall(x, d) }, func(id string) (uint64, error) {
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

// load reads the last entry of the session's chain from the ledger into c. The caller
// holds the lock of c.
func (r *Recorder) load(ctx context.Context, c *chain, cause *contract.Event, filter string) error {
	en, err := r.Emit.Log.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		c.known, c.seq, c.tip = true, 0, receipt.Genesis(cause.Tenant, cause.Session)
		return nil
	}
	if err != nil {
		return err
	}
	tip, err := r.tip(en, filter)
	if err != nil {
		// Some service appended an entry that is not a valid outcome. Entries cannot be
		// removed, so the next outcome is stored after that entry, and its receipt
		// follows that of the last valid outcome.
		slog.Error("an entry of a receipt chain is refused", "session", cause.Session, "seq", en.Seq, "err", err)
		if tip, err = r.tipBefore(ctx, filter, en.Seq, receipt.Genesis(cause.Tenant, cause.Session)); err != nil {
			return fmt.Errorf("chain of session %s: %w", cause.Session, err)
		}
	}
	c.known, c.seq, c.tip = true, en.Seq, tip
	return nil
}

// tipBefore returns the chain's tip after the last valid outcome before a sequence, or
// genesis if there is none.
func (r *Recorder) tipBefore(ctx context.Context, filter string, before uint64, genesis receipt.Tip) (receipt.Tip, error) {
	tip := genesis
	_, err := eventlog.Before(ctx, r.Emit.Log, filter, before, func(en eventlog.Entry) bool {
		t, err := r.tip(en, filter)
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

// tip returns the chain's tip after an outcome, or an error if the entry is not a valid
// outcome that matches filter. It does not verify the receipt's signature. It advances
// the Lamport clock to that of the outcome.
func (r *Recorder) tip(en eventlog.Entry, filter string) (receipt.Tip, error) {
	e, err := eventlog.Open(en, filter)
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

// endsCall reports whether an event is an outcome of the call that d decides, or an
// event of policy about that call, which may have the same message id. Events of other
// services under that id are forged and must not block the outcome.
func endsCall(e *contract.Event, d *contract.Decision) bool {
	executor := policy
	if d.Intent != nil {
		executor = d.Intent.Executor
	}
	return e.CallID == d.CallID && (e.Service() == policy || e.Name == contract.EventEffectRecorded && mayRecord(e, executor))
}
