package consumer

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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

// Ack queues the acknowledgement; it is sent within ackEvery. The result is nil.
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
