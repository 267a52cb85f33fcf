package consumer

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
)

// pool holds the workers of one call of Run, and its window: messages that were delivered
// and wait for a place. There are limit places; each message that is being processed
// takes one. The server delivers the messages of all tenants in one order, so without a
// window a tenant's first message waits until all earlier messages of another tenant have
// been processed. The messages in the window are served by tenant in turn; the longer a
// tenant's messages took, the later its next turn.
//
// The window is used only if several tenants have been seen lately; see backlog.
// Otherwise it would only delay the redelivery of its messages if this process dies, and
// keep them from other instances.
type pool struct {
	process func(context.Context, *Delivery)
	filters []string      // filters of the consumer, with which deliveries are checked
	every   time.Duration // interval between heartbeats
	limit   int           // number of places: messages that may be processed at once
	window  int           // maximum number of messages in the window
	idle    chan message  // passes a message to a worker that has finished its last one
	freed   chan struct{} // has an element if a blocked call of take may have a place or room in the window
	acks    acks
	wg      sync.WaitGroup

	mu      sync.Mutex
	busy    int                  // places that are taken
	held    map[string]int       // places that are taken, by tenant; nil if the pool is not small
	blocked int                  // calls of take that wait
	waiting fair.Queue[message]  // the window
	beating bool                 // a timer sends heartbeats for the messages in the window
	last    string               // tenant of the last message
	seen    map[string]time.Time // when the last message of a tenant arrived; empty until a second tenant is seen, and again once only one remains after pruning
	pruned  time.Time            // when outdated elements were removed from seen
}

// message is a message with the tenant in its subject.
type message struct {
	jetstream.Msg
	tenant string
	waited bool // it was in the window
}

const (
	// maxWindow is the maximum number of messages in a window.
	maxWindow = 2048
	// recent is the time for which a tenant counts as present after its last message.
	recent = 10 * time.Minute
	// small is the number of places up to which a pool reserves a quarter of them; see
	// pool.may.
	small = 64
)

// newPool returns a pool with limit places for the messages of w. The window holds at most
// maxWindow messages, and at most half of w.MaxAckPending.
func newPool(w bus.Work, limit int, process func(context.Context, *Delivery)) *pool {
	p := &pool{process: process, filters: w.Filters, every: w.AckWait / 3, limit: limit, window: min(maxWindow, w.MaxAckPending/2),
		idle: make(chan message), freed: make(chan struct{}, 1), seen: map[string]time.Time{}}
	if limit <= small {
		p.held = map[string]int{}
	}
	return p
}

// tenantOf returns the tenant in the subject of an event.
func tenantOf(subject string) string {
	_, rest, _ := strings.Cut(subject, ".")
	tenant, _, _ := strings.Cut(rest, ".")
	return tenant
}

// take passes the message to a worker or puts it into the window. If neither is possible,
// it waits. If ctx ends first, it returns the message to the server with a negative
// acknowledgement.
func (p *pool) take(ctx context.Context, m jetstream.Msg) {
	w := message{Msg: m, tenant: tenantOf(m.Subject())}
	p.mu.Lock()
	p.see(w.tenant)
	for !p.admit(ctx, w) {
		p.blocked++
		p.mu.Unlock()
		var ended bool
		select {
		case <-p.freed:
		case <-ctx.Done():
			ended = true
		}
		p.mu.Lock()
		if p.blocked--; ended {
			p.mu.Unlock()
			_ = m.Nak()
			return
		}
	}
	p.signal()
	p.mu.Unlock()
}

// see records that a message of the tenant has arrived. Times are recorded from the second
// tenant on. p.mu must be held.
func (p *pool) see(tenant string) {
	if len(p.seen) == 0 && (tenant == p.last || p.last == "") {
		p.last = tenant
		return
	}
	now := time.Now()
	switch {
	case len(p.seen) == 0:
		p.seen[p.last], p.pruned = now, now
	case now.Sub(p.pruned) > recent:
		p.pruned = now
		maps.DeleteFunc(p.seen, func(_ string, at time.Time) bool { return now.Sub(at) > recent })
		delete(p.seen, tenant)
		if len(p.seen) == 0 { // only messages of one tenant arrive now
			p.last = tenant
			return
		}
	}
	p.seen[tenant], p.last = now, tenant
}

// present reports whether any tenant except other was seen lately and satisfies the
// condition is. p.mu must be held.
func (p *pool) present(other string, is func(tenant string) bool) bool {
	if len(p.seen) == 0 {
		return false
	}
	now := time.Now()
	for t, at := range p.seen {
		if t != other && now.Sub(at) <= recent && is(t) {
			return true
		}
	}
	return false
}

// admit starts to process the message or puts it into the window, and reports whether it
// could do either. p.mu must be held.
func (p *pool) admit(ctx context.Context, m message) bool {
	if p.busy < p.limit && p.may(m.tenant) && p.waiting.Waiting(m.tenant, "") == 0 {
		p.hold(m.tenant)
		p.start(ctx, m)
		return true
	}
	if ctx.Err() != nil || p.waiting.Len() >= p.window || !p.backlog(m) {
		return false
	}
	m.waited = true
	p.waiting.Push(m.tenant, "", m)
	if !p.beating {
		p.beating = true
		time.AfterFunc(p.every, p.beatWaiting)
	}
	return true
}

// backlog reports whether a message that has no place should wait in the window. Several
// tenants must have been seen lately. In addition, messages must wait in the window
// already, or places must be free for other tenants, or the server must have more messages
// than the pool has places. p.mu must be held.
func (p *pool) backlog(m message) bool {
	if !p.present(p.last, func(string) bool { return true }) {
		return false
	}
	if p.waiting.Len() > 0 || p.busy < p.limit {
		return true
	}
	md, err := m.Metadata()
	return err == nil && md.NumPending > uint64(p.limit)
}

// may reports whether a tenant may take one more place. In a small pool, whose messages
// may take long, a tenant that has places must leave the last quarter of the pool's
// places to the tenants that were seen lately and have none. p.mu must be held.
func (p *pool) may(tenant string) bool {
	if p.held == nil || len(p.seen) == 0 || p.busy < p.limit-p.limit/4 || p.held[tenant] == 0 {
		return true
	}
	return !p.present(tenant, func(t string) bool { return p.held[t] == 0 })
}

// start passes the message, for which a place was taken, to an idle worker or a new one.
func (p *pool) start(ctx context.Context, m message) {
	select {
	case p.idle <- m:
	default:
		p.wg.Go(func() { p.work(ctx, m) })
	}
}

// done releases the place of m. took is the time for which m was processed; it counts only if m
// was in the window. Unless ctx has ended, done gives free places to the messages in the window
// that may have one. It returns the first of them, for the caller to process; ok is false if
// there is none.
func (p *pool) done(ctx context.Context, m message, took time.Duration) (first message, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if p.held != nil {
		if p.held[m.tenant]--; p.held[m.tenant] == 0 {
			delete(p.held, m.tenant)
		}
	}
	if m.waited {
		p.waiting.Charge(m.tenant, took.Microseconds())
	}
	for p.busy < p.limit && p.waiting.Len() > 0 && ctx.Err() == nil {
		next, more := p.waiting.Pop(p.may)
		if !more {
			break
		}
		if p.hold(next.tenant); ok {
			p.start(ctx, next)
		} else {
			first, ok = next, true
		}
	}
	p.signal()
	return first, ok
}

// hold takes a place for a message of the tenant. p.mu must be held.
func (p *pool) hold(tenant string) {
	p.busy++
	if p.held != nil {
		p.held[tenant]++
	}
}

// signal wakes a blocked call of take if it may find a place or room in the window. p.mu
// must be held.
func (p *pool) signal() {
	if p.blocked > 0 && (p.busy < p.limit || p.waiting.Len() < p.window) {
		select {
		case p.freed <- struct{}{}:
		default:
		}
	}
}

// work processes m and then further messages, until none arrives for restFor or ctx
// ends. Reusing the goroutine saves the growth of a new stack for each message.
func (p *pool) work(ctx context.Context, m message) {
	rest := time.NewTimer(restFor)
	defer rest.Stop()
	for {
		var began time.Time
		if m.waited {
			began = time.Now()
		}
		stop := beat(m.Msg, p.every)
		if d, err := NewDelivery(acked{m.Msg, &p.acks}, p.filters); err == nil {
			p.process(context.WithoutCancel(ctx), d)
		} else {
			slog.Error("message without the metadata of a delivery", "subject", m.Subject(), "err", err)
		}
		stop()
		var took time.Duration
		if m.waited {
			took = time.Since(began)
		}
		if next, ok := p.done(ctx, m, took); ok {
			m = next
			continue
		}
		rest.Reset(restFor)
		select {
		case m = <-p.idle:
		case <-rest.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// restFor is the time that a worker waits for another message before it ends.
const restFor = time.Second

// beatWaiting reports to the server that the messages in the window are in progress, and
// repeats this until the window is empty.
func (p *pool) beatWaiting() {
	p.mu.Lock()
	waiting := p.waiting.Items()
	p.beating = len(waiting) > 0
	p.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	for _, m := range waiting {
		_ = m.InProgress()
	}
	time.AfterFunc(p.every, p.beatWaiting)
}

// handBack returns the messages in the window to the server.
func (p *pool) handBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for m, ok := p.waiting.Pop(nil); ok; m, ok = p.waiting.Pop(nil) {
		_ = m.Nak()
	}
}
