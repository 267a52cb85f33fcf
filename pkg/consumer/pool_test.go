package consumer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
)

// pending is a message that is delivered while the given number of other messages is
// pending on the server.
type pending struct {
	logtest.Message
	more  uint64
	beats *beats
}

// beats counts heartbeats by subject.
type beats struct {
	mu sync.Mutex
	by map[string]int
}

func (m *pending) Metadata() (*jetstream.MsgMetadata, error) {
	md, err := m.Message.Metadata()
	if err == nil {
		md.NumPending = m.more
	}
	return md, err
}

func (m *pending) InProgress() error {
	m.beats.mu.Lock()
	defer m.beats.mu.Unlock()
	m.beats.by[m.To]++
	return nil
}

// worked is a pool with the order in which it began to process messages.
type worked struct {
	*pool
	beats beats
	mu    sync.Mutex
	begun []string // tenants
	at    map[string]time.Time
}

// newWorked returns a pool of limit places that processes a message of a tenant for the
// given time.
func newWorked(limit int, takes map[string]time.Duration) *worked {
	w := &worked{at: map[string]time.Time{}, beats: beats{by: map[string]int{}}}
	w.pool = newPool(bus.Work{AckWait: 3 * time.Second, MaxAckPending: 4096}, limit, func(_ context.Context, d *Delivery) {
		tenant := tenantOf(d.Subject)
		w.mu.Lock()
		w.begun = append(w.begun, tenant)
		w.at[tenant] = time.Now()
		w.mu.Unlock()
		time.Sleep(takes[tenant])
		d.Ack()
	})
	return w
}

// count returns the number of messages of the tenant that were begun.
func (w *worked) count(tenant string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.begun {
		if t == tenant {
			n++
		}
	}
	return n
}

// message returns a message of a tenant that is delivered while more other messages are
// pending on the server.
func (w *worked) message(tenant string, more int) *pending {
	return &pending{Message: logtest.Message{To: "evt." + tenant + ".policy.gw1.allowed_x.s-1", Seq: 1, Tries: 1}, more: uint64(more), beats: &w.beats}
}

// deliver passes n messages of a tenant to the pool, one after the other, each with the
// number of messages that remain.
func (w *worked) deliver(ctx context.Context, tenant string, n int) {
	for i := range n {
		w.take(ctx, w.message(tenant, n-i-1))
	}
}

// forget sets all counts to zero.
func (w *worked) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = nil
}

func (w *worked) end(cancel context.CancelFunc) {
	cancel()
	w.handBack()
	w.wg.Wait()
}

// TestWindow shows that a tenant's messages do not wait for the backlog of another tenant
// that the server delivered before them, and that each message is processed once.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorked(100, map[string]time.Duration{"noisy": 10 * time.Millisecond, "quiet": 10 * time.Millisecond})
		w.deliver(ctx, "quiet", 1)
		time.Sleep(time.Second)
		go func() {
			w.deliver(ctx, "noisy", 1000)
			w.deliver(ctx, "quiet", 5)
		}()
		began := time.Now()
		synctest.Wait()
		time.Sleep(time.Second)
		w.mu.Lock()
		last := w.at["quiet"]
		w.mu.Unlock()
		if d := last.Sub(began); d > 20*time.Millisecond {
			t.Errorf("a quiet tenant's messages waited %v", d)
		}
		if n, q := w.count("noisy"), w.count("quiet"); n != 1000 || q != 6 {
			t.Errorf("%d and %d messages processed", n, q)
		}
		w.end(cancel)
	})
}

// TestOneTenant shows that the window is not used while there is one tenant, whatever its
// backlog: a message for which there is no place waits in take. The window is not used
// either if another tenant was last seen long ago, or if the server has fewer further
// messages than the pool has places.
func TestOneTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorked(8, map[string]time.Duration{"noisy": time.Minute})
		blocks := func(more int) {
			t.Helper()
			for range 8 {
				w.take(ctx, w.message("noisy", more))
			}
			done := make(chan struct{})
			go func() { w.take(ctx, w.message("noisy", more)); close(done) }()
			synctest.Wait()
			select {
			case <-done:
				t.Error("a ninth message is taken while eight places are taken")
			default:
			}
			w.mu.Lock()
			if n := len(w.begun); n%9 != 8 || w.waiting.Len() != 0 {
				t.Errorf("%d begun, %d wait in the window", n, w.waiting.Len())
			}
			w.mu.Unlock()
			<-done
			time.Sleep(3 * time.Minute)
		}
		blocks(5000)
		w.deliver(ctx, "other", 1)
		time.Sleep(recent + time.Second)
		w.forget()
		blocks(5000)
		w.end(cancel)
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorked(100, map[string]time.Duration{"noisy": time.Minute})
		w.deliver(ctx, "other", 1)
		w.deliver(ctx, "noisy", 100)
		go w.take(ctx, w.message("noisy", 3))
		synctest.Wait()
		if n := w.waiting.Len(); n != 0 {
			t.Errorf("%d messages wait in the window although the server has only 3 more", n)
		}
		w.end(cancel)
	})
}

// TestQuarter shows that a tenant with many long calls leaves a quarter of a small pool to
// a tenant that was seen lately, that the other tenant's message starts at once, and that
// one tenant may use all places when no other has been seen for a long time.
func TestQuarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorked(16, map[string]time.Duration{"noisy": time.Minute, "quiet": 5 * time.Second})
		w.deliver(ctx, "quiet", 1)
		time.Sleep(6 * time.Second)
		w.deliver(ctx, "noisy", 40)
		synctest.Wait()
		if n := w.count("noisy"); n != 12 {
			t.Errorf("%d of 16 places are the noisy tenant's, want 12", n)
		}
		w.deliver(ctx, "quiet", 1)
		synctest.Wait()
		if n := w.count("quiet"); n != 2 {
			t.Error("the quiet tenant waits")
		}
		time.Sleep(2 * time.Minute)
		w.deliver(ctx, "noisy", 40)
		time.Sleep(2 * recent)
		w.forget()
		w.deliver(ctx, "noisy", 16)
		synctest.Wait()
		if n := w.count("noisy"); n != 16 {
			t.Errorf("%d of 16 places are used by the only tenant", n)
		}
		w.end(cancel)
	})
}

// TestDuration shows that a tenant whose calls take ten times as long as another's gets at
// most a quarter as many calls processed while both have backlogs.
func TestDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorked(100, map[string]time.Duration{"slow": 500 * time.Millisecond, "fast": 50 * time.Millisecond})
		w.deliver(ctx, "fast", 1)
		go func() {
			for range 4000 { // alternately, each while more messages are pending on the server
				w.take(ctx, w.message("slow", 5000))
				w.take(ctx, w.message("fast", 5000))
			}
		}()
		time.Sleep(1200 * time.Millisecond) // until the durations are known
		slow, fast := w.count("slow"), w.count("fast")
		time.Sleep(time.Second)
		if slow, fast = w.count("slow")-slow, w.count("fast")-fast; fast < 4*slow || slow == 0 {
			t.Errorf("%d slow calls and %d fast ones", slow, fast)
		}
		w.end(cancel)
	})
}

// TestHandBack shows that messages in the window are reported as in progress while they
// wait, and that they are returned to the server, unprocessed, when the pool ends.
func TestHandBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorked(100, map[string]time.Duration{"noisy": time.Minute})
		w.deliver(ctx, "quiet", 1)
		w.deliver(ctx, "noisy", 100)
		m := w.message("noisy", 5000)
		m.To += "-waits"
		w.take(ctx, m)
		time.Sleep(10 * time.Second)
		w.beats.mu.Lock()
		if n := w.beats.by[m.To]; n < 9 || n > 10 { // one heartbeat per second
			t.Errorf("%d heartbeats of a message that waits for 10 s", n)
		}
		w.beats.mu.Unlock()
		w.end(cancel)
		if m.Settled != "nak" || w.count("noisy") != 100 || w.busy != 0 {
			t.Errorf("settled by %q, %d processed, %d places taken", m.Settled, w.count("noisy"), w.busy)
		}
	})
}
