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
	slots := make(chan struct{}, limit)
	var wg sync.WaitGroup
	defer wg.Wait()
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
				wg.Go(func() {
					defer func() { <-slots }()
					stop := beat(m, ackWait/3)
					defer stop()
					process(context.WithoutCancel(ctx), m)
				})
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
