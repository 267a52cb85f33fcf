package execute

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// Consume pulls a durable's messages and hands at most limit of them at once
// to process, which must ack each. Heartbeats are sent meanwhile. It returns
// when ctx ended and all of them are done.
func Consume(ctx context.Context, c *bus.Conn, consumer string, limit int, ackWait time.Duration, process func(context.Context, jetstream.Msg)) error {
	slots, idle := make(chan struct{}, limit), make(chan jetstream.Msg)
	var told acks
	defer told.flush()
	var wg sync.WaitGroup
	defer wg.Wait()
	// Whoever is done waits a while for more: a goroutine that has done a call
	// has the stack that a call needs.
	worker := func(m jetstream.Msg) {
		rest := time.NewTimer(restFor)
		defer rest.Stop()
		for {
			stop := beat(m, ackWait/3)
			process(context.WithoutCancel(ctx), acked{m, &told})
			stop()
			<-slots
			rest.Reset(restFor)
			select {
			case m = <-idle:
			case <-rest.C:
				return
			case <-ctx.Done():
				return
			}
		}
	}
	for ctx.Err() == nil {
		broken := make(chan struct{}, 1)
		setup, cancel := context.WithTimeout(ctx, 2*time.Second)
		cons, err := c.JS.Consumer(setup, bus.Events, consumer)
		cancel()
		if err == nil {
			var cc jetstream.ConsumeContext
			cc, err = cons.Consume(func(m jetstream.Msg) {
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					_ = m.Nak()
					return
				}
				select {
				case idle <- m:
				default:
					wg.Go(func() { worker(m) })
				}
			}, jetstream.PullMaxMessages(limit), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(5*time.Second),
				jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
					slog.Debug("consume", "consumer", consumer, "err", err)
					if !errors.Is(err, jetstream.ErrNoHeartbeat) {
						select {
						case broken <- struct{}{}:
						default:
						}
					}
				}))
			if err == nil {
				select {
				case <-ctx.Done():
				case <-broken:
				}
				cc.Drain()
				select {
				case <-cc.Closed():
				case <-time.After(2 * time.Second):
				}
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// acks are told to the server a few at a time: each by itself wakes half a dozen
// goroutines. Work that comes again because its ack was lost is recognised as
// done in any case.
type acks struct {
	mu   sync.Mutex
	done []jetstream.Msg
}

const ackEvery = 10 * time.Millisecond

type acked struct {
	jetstream.Msg
	acks *acks
}

// Ack says that the message is done, soon.
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

// restFor is how long a worker waits for more.
const restFor = time.Second

// beat tells the server every so often that a message is still in work.
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
