// Package consumer takes work from a durable of the ledger: a bounded number of
// messages at once, each with heartbeats while it is processed, acknowledged a few
// at a time. It knows nothing of calls: its caller decides what is done with a
// message and when that is done. Other ways to consume, such as batches, belong here.
package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// Run pulls a durable's messages on EVENTS and calls process with at most limit of
// them at once; process must acknowledge, hand back or terminate each. While it runs,
// the server is notified three times per ackWait that the message is in work. An
// acknowledgement is sent up to 10 ms later: where it is lost, the message is
// delivered again.
//
// process receives a context that does not end with ctx, so that work in hand can be
// finished. Run returns nil when ctx has ended and every call of process has
// returned. It retries for ever while the durable does not exist or the server does
// not answer.
func Run(ctx context.Context, c *bus.Conn, durable string, limit int, ackWait time.Duration, process func(context.Context, jetstream.Msg)) error {
	p := &pool{process: process, every: ackWait / 3, slots: make(chan struct{}, limit), idle: make(chan jetstream.Msg)}
	defer p.acks.flush()
	defer p.wg.Wait()
	for ctx.Err() == nil {
		err := subscribe(ctx, c, durable, limit, func(m jetstream.Msg) { p.take(ctx, m) })
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// subscribe delivers a durable's messages to take until ctx ends or the subscription
// breaks. It returns an error where no subscription could be made.
func subscribe(ctx context.Context, c *bus.Conn, durable string, limit int, take func(jetstream.Msg)) error {
	setup, cancel := context.WithTimeout(ctx, 2*time.Second)
	cons, err := c.JS.Consumer(setup, bus.Events, durable)
	cancel()
	if err != nil {
		return err
	}
	broken := make(chan struct{}, 1)
	cc, err := cons.Consume(take, jetstream.PullMaxMessages(limit), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(5*time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			slog.Debug("consume", "consumer", durable, "err", err)
			if errors.Is(err, jetstream.ErrNoHeartbeat) {
				return
			}
			select {
			case broken <- struct{}{}:
			default:
			}
		}))
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-broken:
	}
	cc.Drain()
	select {
	case <-cc.Closed():
	case <-time.After(2 * time.Second):
	}
	return nil
}

// pool is the workers of one Run.
type pool struct {
	process func(context.Context, jetstream.Msg)
	every   time.Duration      // between heartbeats
	slots   chan struct{}      // one element per message in work
	idle    chan jetstream.Msg // to a worker that has finished its message
	acks    acks
	wg      sync.WaitGroup
}

// take waits for a free slot and gives the message to a worker. A message that
// arrives while ctx ends is handed back.
func (p *pool) take(ctx context.Context, m jetstream.Msg) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		_ = m.Nak()
		return
	}
	select {
	case p.idle <- m:
	default:
		p.wg.Go(func() { p.work(ctx, m) })
	}
}

// work processes m, and then what else arrives within restFor: a goroutine that has
// processed one message has grown the stack that the next one needs.
func (p *pool) work(ctx context.Context, m jetstream.Msg) {
	rest := time.NewTimer(restFor)
	defer rest.Stop()
	for {
		stop := beat(m, p.every)
		p.process(context.WithoutCancel(ctx), acked{m, &p.acks})
		stop()
		<-p.slots
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

// restFor is how long a worker waits for another message before it ends.
const restFor = time.Second

// acks sends acknowledgements to the server a few at a time, since each by itself
// wakes half a dozen goroutines. Work that is delivered again because its
// acknowledgement was lost is recognized as done in any case.
type acks struct {
	mu   sync.Mutex
	done []jetstream.Msg
}

// ackEvery is how long an acknowledgement waits for others.
const ackEvery = 10 * time.Millisecond

// acked is a message whose acknowledgement is queued.
type acked struct {
	jetstream.Msg
	acks *acks
}

// Ack queues the acknowledgement; it is sent within ackEvery. It never fails.
func (m acked) Ack() error {
	a := m.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done = append(a.done, m.Msg); len(a.done) == 1 {
		time.AfterFunc(ackEvery, a.flush)
	}
	return nil
}

func (a *acks) flush() {
	a.mu.Lock()
	done := a.done
	a.done = nil
	a.mu.Unlock()
	for _, m := range done {
		if err := m.Ack(); err != nil {
			slog.Debug("ack lost", "subject", m.Subject(), "err", err)
		}
	}
}

// beat notifies the server at the given interval that a message is in work, until
// stop is called.
func beat(m jetstream.Msg, every time.Duration) (stop func()) {
	var mu sync.Mutex
	var t *time.Timer
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(every, func() {
		mu.Lock()
		defer mu.Unlock()
		if t != nil {
			_ = m.InProgress()
			t.Reset(every)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		t.Stop()
		t = nil
	}
}
