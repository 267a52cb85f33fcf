// Package consumer processes the messages of a durable consumer on the ledger: a bounded
// number at once, with heartbeats while a message is processed, and with batched
// acknowledgements. It does not depend on what the events mean: the caller processes and
// acknowledges the deliveries.
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

// Run processes the messages of a service's work consumer w until ctx ends. It calls
// process for at most limit messages at once; process must call Ack, Nak or Term on each
// delivery. While process runs, the server receives a progress report three times per
// w.AckWait. An Ack is sent up to 10 ms late; if it is lost, the server delivers the
// message again.
//
// process receives a context that does not end with ctx, so that it can finish its work.
// Run returns nil when ctx has ended and every call of process has returned. Until ctx
// ends, it retries while the durable does not exist or the server does not respond.
func Run(ctx context.Context, c *bus.Conn, service string, w bus.Work, limit int, process func(context.Context, *Delivery)) error {
	durable := w.Consumer(service)
	p := &pool{process: process, filters: w.Filters, every: w.AckWait / 3, slots: make(chan struct{}, limit), idle: make(chan jetstream.Msg)}
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

// subscribe passes a durable's messages to take until ctx ends or the subscription
// breaks, and then returns nil. It returns an error if the subscription cannot be made.
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
			// After a missed heartbeat the client sends a new pull request by itself.
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

// pool holds the workers of one call of Run.
type pool struct {
	process func(context.Context, *Delivery)
	filters []string           // filters of the consumer, with which deliveries are checked
	every   time.Duration      // interval between heartbeats
	slots   chan struct{}      // one element for each message that is being processed
	idle    chan jetstream.Msg // passes a message to a worker that has finished its last one
	acks    acks
	wg      sync.WaitGroup
}

// take waits for a free slot and passes the message to an idle worker or a new one. If
// ctx ends first, it returns the message to the server with a negative acknowledgement.
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

// work processes m and then further messages, until none arrives for restFor or ctx
// ends. Reusing the goroutine saves the growth of a new stack for each message.
func (p *pool) work(ctx context.Context, m jetstream.Msg) {
	rest := time.NewTimer(restFor)
	defer rest.Stop()
	for {
		stop := beat(m, p.every)
		if d, err := NewDelivery(acked{m, &p.acks}, p.filters); err == nil {
			p.process(context.WithoutCancel(ctx), d)
		} else {
			slog.Error("message without the metadata of a delivery", "subject", m.Subject(), "err", err)
		}
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

// restFor is the time that a worker waits for another message before it ends.
const restFor = time.Second

// acks sends acknowledgements to the server in batches, since sending one alone wakes
// about six goroutines. If acknowledgements are lost and work is delivered again, the
// processing of that work must recognize that it has been done.
type acks struct {
	mu   sync.Mutex
	done []jetstream.Msg
}

// ackEvery is the delay after which a batch of acknowledgements is sent.
const ackEvery = 10 * time.Millisecond

// acked is a message whose Ack queues the acknowledgement in acks.
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

// flush sends all queued acknowledgements. An error is only logged, because the server
// then delivers the message again.
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

// beat reports to the server at the given interval that a message is being processed,
// until stop is called. No report is sent after stop has returned.
func beat(m jetstream.Msg, every time.Duration) (stop func()) {
	// mu ensures that once stop has returned, no heartbeat is sent and the timer does
	// not start again.
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
