// Package consumer processes the messages of a durable consumer on the ledger: a bounded
// number at once, with heartbeats while a message is processed, and with batched
// acknowledgements. It does not depend on the meaning of the events: the caller
// processes and acknowledges the deliveries.
package consumer

import (
	"context"
	"errors"
	"log/slog"
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
// While several tenants have a backlog, up to maxWindow further messages wait in this
// process, so that the tenants are served in turn; see pool.
//
// process receives a context that does not end with ctx, so that it can finish its work.
// Run returns nil when ctx has ended and every call of process has returned. Until ctx
// ends, it retries while the consumer does not exist or the server does not respond.
func Run(ctx context.Context, c *bus.Conn, service string, w bus.Work, limit int, process func(context.Context, *Delivery)) error {
	durable := w.Consumer(service)
	p := newPool(w, limit, process)
	defer p.acks.flush()
	defer p.wg.Wait()
	defer p.handBack()
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

// subscribe passes a durable's messages to take until ctx ends, the connection was lost and made
// again, or the subscription breaks, and then returns nil. It returns an error if the
// subscription cannot be made.
//
// After a reconnection, the caller has to subscribe again, so that the inbox has another name: the
// server removes the way of responses into the account of the service when the inbox of a pull
// request is gone, but regards the request as waiting if an inbox with the same name exists when
// there is a message for it. The message would be lost, and again after ten seconds
// to the next such request, until all of them have expired.
func subscribe(ctx context.Context, c *bus.Conn, durable string, limit int, take func(jetstream.Msg)) error {
	_, reconnected := c.Epoch()
	setup, cancel := context.WithTimeout(ctx, 2*time.Second)
	cons, err := c.JS.Consumer(setup, bus.Events, durable)
	cancel()
	if err != nil {
		return err
	}
	broken := make(chan struct{}, 1)
	cc, err := cons.Consume(take, jetstream.PullMaxMessages(limit), jetstream.PullExpiry(bus.PullExpiry), jetstream.PullHeartbeat(5*time.Second),
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
	case <-reconnected:
	}
	cc.Drain()
	select {
	case <-cc.Closed():
	case <-time.After(2 * time.Second):
	}
	return nil
}
