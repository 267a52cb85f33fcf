package calls

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// Progress is the last report of the program of a running call. It is not on the ledger: the
// instance that runs the program has it, and every gateway can query it.
type Progress struct {
	Percent int64  `json:"percent"`           // 0 to 100
	Message string `json:"message,omitempty"` // what the program does now
}

// String returns the progress in words, for example "40 %: reads page 4".
func (p Progress) String() string {
	text := strconv.FormatInt(p.Percent, 10) + " %"
	if p.Message != "" {
		text += ": " + p.Message
	}
	return text
}

// Notice describes a call that has no outcome.
type Notice struct {
	Queued   int64 // position at which the call began to wait for a sandbox; 0 if it does not wait
	Reported bool  // the program has reported Progress
	Progress Progress
}

// Text describes the notice in words.
func (n Notice) Text() string {
	switch {
	case n.Reported:
		return n.Progress.Message
	case n.Queued > 0:
		return fmt.Sprintf("waiting for a sandbox, at position %d", n.Queued)
	}
	return "no longer waiting for a sandbox"
}

// NoticeOf returns the notice of a claimed call, given its claim. The instance that claimed the
// call is queried. ok is false if it does not respond, or does not run programs.
func NoticeOf(ctx context.Context, q *queries.Services, claim *contract.Event) (n Notice, ok bool) {
	service, instance, _ := strings.Cut(claim.Source, "/")
	if service != services.SessionRunner {
		return n, false
	}
	r, err := rpc.Do(ctx, q.In(claim.Tenant).To(instance), sessionrunner.CallProgressQuery, sessionrunner.CallProgressRequest{CallID: claim.CallID})
	if err != nil {
		return n, false
	}
	x := r.Value
	return Notice{Queued: x.Queued, Reported: x.Reported, Progress: Progress{Percent: x.Percent, Message: x.Message}}, true
}

// noticeEvery is the time between two reads of the progress of a call.
const noticeEvery = time.Second

// Follow calls each, in another goroutine, with a notice when the position of the call r in the
// queue for a sandbox or its progress has changed, until stop is called or ctx is done. stop
// returns when each is not running and will not be called again. The caller proposes r with
// AwaitWith after Follow has returned. The progress is read once per noticeEvery, so a call that
// ends earlier causes no read, and a program that reports often causes no more notices. It is
// read from the instance that claimed the call. The claim is what AwaitWith finds of a call that
// was proposed before, or else is read from the ledger; audit is not queried for it.
func Follow(ctx context.Context, s *Runner, r propose.Request, each func(Notice)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{ledger: s.Ledger}
	leave := s.followed.add(r.Tenant, r.ID, f)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(noticeEvery)
		defer tick.Stop()
		for last := (Notice{}); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			claim := f.claimed(ctx)
			if claim == nil {
				continue
			}
			now, ok := NoticeOf(ctx, s.Queries, claim)
			if !ok || now == last || ctx.Err() != nil || last.Reported && !now.Reported {
				continue // a report that cannot be read now is not withdrawn
			}
			last = now
			each(now)
		}
	})
	return func() { cancel(); done.Wait(); leave() }
}

// followed has the followers of the calls that a Runner waits for. It is safe for concurrent
// use.
type followed struct {
	mu  sync.Mutex
	all map[[2]string][]*follower // by tenant and call
}

// add registers a follower of a call until leave is called.
func (x *followed) add(tenant, call string, f *follower) (leave func()) {
	key := [2]string{tenant, call}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = map[[2]string][]*follower{}
	}
	x.all[key] = append(x.all[key], f)
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.all[key] = slices.DeleteFunc(x.all[key], func(y *follower) bool { return y == f }); len(x.all[key]) == 0 {
			delete(x.all, key)
		}
	}
}

// begin passes a call that is proposed now, or was proposed before, to its followers. known is
// what is known of the latter, or zero.
func (x *followed) begin(p *propose.Pending, proposal *contract.Event, known await.Known) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.all[[2]string{proposal.Tenant, proposal.CallID}] {
		f.begin(p, proposal, known)
	}
}

// follower finds the claim of a call. It is safe for concurrent use.
type follower struct {
	ledger eventlog.Log

	mu       sync.Mutex
	pending  *propose.Pending // the call, if this request proposed it
	proposal *contract.Event  // nil until begin
	claim    *contract.Event  // nil until it is known
	next     uint64           // ledger sequence at which the search continues; 0: not known yet
}

// begin sets the call and what is known of it. The latest call of begin counts, because a
// proposal that the ledger rejects is followed by what was proposed first.
func (f *follower) begin(p *propose.Pending, proposal *contract.Event, known await.Known) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending, f.proposal, f.next = p, proposal, 0
	if known.Last != nil && known.Last.Name == contract.EventEffectStarted {
		f.claim = known.Last
	}
	if known.At > 0 {
		f.next = known.At + 1
	}
}

// claimed returns the claim of the call by the session-runner, or the claim that was known
// before, or nil if there is none or the ledger cannot be read. It reads the claims of the
// session by the session-runner from the proposal, or from where the known state of the call
// ends, up to that of the call, each of them once.
func (f *follower) claimed(ctx context.Context) *contract.Event {
	f.mu.Lock()
	pending, proposal, claim, next := f.pending, f.proposal, f.claim, f.next
	f.mu.Unlock() // begin must not wait for the ledger
	if proposal == nil || claim != nil {
		return claim
	}
	if next == 0 {
		next = firstOf(ctx, f.ledger, pending, proposal)
	}
	if next == 0 {
		return nil
	}
	filter := bus.Filter{Tenant: proposal.Tenant, Service: services.SessionRunner, Event: contract.EventEffectStarted, Key: proposal.Session}.String()
	own := eventlog.OfCall(proposal.CallID, nil)
	en, err := eventlog.First(ctx, f.ledger, filter, next, func(en eventlog.Entry) bool {
		next = en.Seq + 1
		return own(en)
	})
	if err == nil {
		claim, _ = eventlog.Open(en, filter)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.proposal == proposal {
		f.claim, f.next = claim, next
	}
	return f.claim
}

// firstOf returns the ledger sequence at which the search for the claim of a call begins: that of
// its proposal, or, if audit does not report the position of its index, one that is found by the
// time of the proposal. It returns 0 if the proposal is not stored yet, or if the ledger cannot be
// read.
func firstOf(ctx context.Context, ledger eventlog.Log, pending *propose.Pending, proposal *contract.Event) uint64 {
	if pending != nil {
		return pending.Seq()
	}
	at, err := contract.ParseTime(proposal.Time)
	if err != nil {
		return 0
	}
	seq, err := eventlog.Since(ctx, ledger, at)
	if err != nil {
		return 0
	}
	return seq
}
