package react

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// counts is a Counter.
type counts struct {
	mu sync.Mutex
	by map[string]int
}

func (c *counts) Reaction(_, status string, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.by[status]++
}

// stage runs one reactor over messages, each with the given number of deliveries, until all
// are settled. It returns the counts by status and the events that the reactor recorded.
func stage(t *testing.T, r Reactor, tries uint64, messages ...*logtest.Message) (map[string]int, []*contract.Event) {
	t.Helper()
	log, c := &memlog.Log{}, &counts{}
	env := Env{Service: "gateway", Emit: &emit.Emitter{Tenant: "t", Source: "gateway/gw1", Now: time.Now, Log: log}, Log: slog.New(slog.DiscardHandler), Metrics: c}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	router, err := NewRouter(env, func(Reactor) message.Subscriber {
		return &Subscriber{Log: env.Log, Feed: func(ctx context.Context, take func(context.Context, *consumer.Delivery)) error {
			var wg sync.WaitGroup
			for i, m := range messages {
				m.Seq, m.Tries = uint64(i+1), tries
				d, err := consumer.NewDelivery(m, r.Work.Filters)
				if err != nil {
					return err
				}
				wg.Go(func() { take(ctx, d) })
			}
			wg.Wait()
			stop()
			<-ctx.Done()
			return nil
		}}
	}, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Run(ctx); err != nil {
		t.Fatal(err)
	}
	var out []*contract.Event
	for en, err := range log.Scan(t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, bus.EveryEvent)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return c.by, out
}

// escalated returns a message with an event of policy.
func escalated(t *testing.T) *logtest.Message {
	t.Helper()
	x := contract.Escalated{Call: contract.Call{ID: "c-1", Kind: "tool.x", Scopes: []string{}}, Expires: contract.Time(time.Now().Add(time.Hour))}
	x.Decision.Facts, x.Decision.ReasonCode = []byte("{}"), contract.ReasonApprovalRequired
	e := (&emit.Emitter{Tenant: "t", Source: "policy/p1", Now: time.Now}).New(contract.EventEscalated, "s-1", contract.Bytes(&x), nil)
	e.Session, e.CallID = "s-1", "c-1"
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return &logtest.Message{To: e.Subject(), Body: raw}
}

var work = bus.Work{Name: "test", Filters: bus.Filters("policy", contract.EventEscalated), AckWait: time.Second, MaxAckPending: 64}

// TestReactor checks how a message ends whose handler succeeds, fails once or always, panics,
// returns an error of Permanent, Later or Again, or fails in its last delivery, and how one
// ends that is not an event.
func TestReactor(t *testing.T) {
	for name, c := range map[string]struct {
		handle  func(n int32) error
		tries   uint64
		foreign bool
		settled string
		status  string
		calls   int32
		poison  bool
		delay   time.Duration // 0: not checked
	}{
		"handled":         {handle: func(int32) error { return nil }, settled: "ack", status: "ok", calls: 1},
		"the second try":  {handle: func(n int32) error { return map[bool]error{true: errors.New("busy")}[n == 1] }, settled: "ack", status: "ok", calls: 2},
		"failed":          {handle: func(int32) error { return errors.New("busy") }, settled: "nak", status: "retry", calls: 3},
		"panicked":        {handle: func(int32) error { panic("oops") }, settled: "nak", status: "retry", calls: 1},
		"permanent":       {handle: func(int32) error { return Permanent(errors.New("malformed")) }, settled: "ack", status: "poison", calls: 1, poison: true},
		"too many tries":  {handle: func(int32) error { return errors.New("busy") }, tries: 5, settled: "ack", status: "poison", calls: 3, poison: true},
		"later":           {handle: func(int32) error { return Later(3 * time.Second) }, tries: 99, settled: "nak", calls: 1, delay: 3 * time.Second},
		"again":           {handle: func(int32) error { return Again(errors.New("busy"), 7*time.Second) }, settled: "nak", status: "retry", calls: 3, delay: 7 * time.Second},
		"again, too many": {handle: func(int32) error { return Again(errors.New("busy"), time.Second) }, tries: 5, settled: "ack", status: "poison", calls: 3, poison: true},
		"later, wrapped":  {handle: func(int32) error { return fmt.Errorf("job: %w", Later(time.Second)) }, settled: "nak", calls: 1, delay: time.Second},
		"foreign":         {handle: func(int32) error { return nil }, foreign: true, settled: "term"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				m := escalated(t)
				if c.foreign {
					m = &logtest.Message{To: m.To, Body: []byte("\x00 not an event")}
				}
				by, recorded := stage(t, Reactor{Name: "hook", Work: work, Limit: 4, MaxTries: 5, Handle: func(ctx context.Context, e *contract.Event) error {
					if e.CallID != "c-1" {
						t.Errorf("%+v", e)
					}
					if n := Deliveries(ctx); n != max(c.tries, 1) {
						t.Errorf("%d deliveries", n)
					}
					return c.handle(calls.Add(1))
				}}, max(c.tries, 1), m)
				if c.delay != 0 && (m.Delay != c.delay || c.status == "" && len(by) != 0) {
					t.Errorf("delivered again after %s, counted as %v", m.Delay, by)
				}
				if m.Settled != c.settled || calls.Load() != c.calls || c.status != "" && by[c.status] != 1 {
					t.Errorf("%s after %d calls: %v", m.Settled, calls.Load(), by)
				}
				if c.poison != (len(recorded) == 1) {
					t.Fatalf("%d events", len(recorded))
				}
				if c.poison && (recorded[0].Name != contract.EventReactionFailed || recorded[0].Tenant != "t" || recorded[0].CallID != "c-1" || !strings.Contains(string(recorded[0].Data), `"reactor":"hook"`)) {
					t.Errorf("%s %s", recorded[0].Name, recorded[0].Data)
				}
			})
		})
	}
}

// TestConcurrent checks that Limit events are handled at once if that many
// were delivered.
func TestConcurrent(t *testing.T) {
	const n = 16
	var all []*logtest.Message
	for range n {
		all = append(all, escalated(t))
	}
	var in atomic.Int32
	meet := make(chan struct{})
	by, _ := stage(t, Reactor{Name: "hook", Work: work, Limit: n, Handle: func(ctx context.Context, _ *contract.Event) error {
		if in.Add(1) == n {
			close(meet)
		}
		select {
		case <-meet:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}, 1, all...)
	if by["ok"] != n || slices.ContainsFunc(all, func(m *logtest.Message) bool { return m.Settled != "ack" }) {
		t.Errorf("%v", by)
	}
}

// TestHangs checks that a handler that hangs is ended, and its event delivered again.
func TestHangs(t *testing.T) {
	m := escalated(t)
	by, _ := stage(t, Reactor{Name: "hook", Work: work, Limit: 1, Timeout: 50 * time.Millisecond, Handle: func(ctx context.Context, _ *contract.Event) error {
		<-ctx.Done()
		return ctx.Err()
	}}, 1, m)
	if m.Settled != "nak" || by["retry"] != 1 || m.Delay != time.Second {
		t.Errorf("%s %v %s", m.Settled, by, m.Delay)
	}
}

// TestStopWaits shows that a router that is stopped runs until a handler that began before
// has returned and its message is acknowledged.
func TestStopWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 25 * time.Second
		m := escalated(t)
		m.Seq, m.Tries = 1, 1
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		env := Env{Service: "gateway", Emit: &emit.Emitter{Tenant: "t", Source: "gateway/gw1", Now: time.Now, Log: &memlog.Log{}}, Log: slog.New(slog.DiscardHandler)}
		router, err := NewRouter(env, func(r Reactor) message.Subscriber {
			return &Subscriber{Log: env.Log, Feed: func(ctx context.Context, take func(context.Context, *consumer.Delivery)) error {
				d, err := consumer.NewDelivery(m, r.Work.Filters)
				if err == nil {
					take(ctx, d)
				}
				return err
			}}
		}, Reactor{Name: "hook", Work: work, Limit: 1, Handle: func(context.Context, *contract.Event) error {
			stop()
			time.Sleep(took)
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := router.Run(ctx); err != nil || m.Settled != "ack" || time.Since(began) < took {
			t.Errorf("after %v: %q, %v", time.Since(began), m.Settled, err)
		}
	})
}

// TestBackoff checks the times between deliveries.
func TestBackoff(t *testing.T) {
	for n, want := range map[uint64]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 99: time.Minute} {
		if got := Backoff(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// TestDefaults checks that an event goes to the poison queue after 20 deliveries, and that
// its handler has 30 s in each, unless the reactor states other values.
func TestDefaults(t *testing.T) {
	for _, x := range []struct {
		reactor Reactor
		tries   uint64
		took    time.Duration
		status  string
	}{
		{Reactor{}, 19, 30 * time.Second, "retry"},
		{Reactor{}, 20, 30 * time.Second, "poison"},
		{Reactor{}, 21, 30 * time.Second, "poison"},
		{Reactor{MaxTries: 2, Timeout: time.Second}, 1, time.Second, "retry"},
		{Reactor{MaxTries: 2, Timeout: time.Second}, 2, time.Second, "poison"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, r := time.Now(), x.reactor
			r.Name, r.Work, r.Limit = "hook", work, 1
			r.Handle = func(ctx context.Context, _ *contract.Event) error {
				<-ctx.Done()
				return ctx.Err()
			}
			by, recorded := stage(t, r, x.tries, escalated(t))
			if by[x.status] != 1 || len(by) != 1 || (len(recorded) == 1) != (x.status == "poison") || time.Since(began) != x.took {
				t.Errorf("%+v: %v after %v, %d events", x, by, time.Since(began), len(recorded))
			}
		})
	}
}

// TestReason checks that the reason of an event in the poison queue has at most maxReason bytes.
func TestReason(t *testing.T) {
	for length, want := range map[int]int{maxReason - 1: maxReason - 1, maxReason: maxReason, maxReason + 9: maxReason} {
		m := message.NewMessage("1", nil)
		m.Metadata.Set(middleware.ReasonForPoisonedKey, strings.Repeat("x", length))
		m.Metadata.Set(middleware.PoisonedHandlerKey, "hook")
		if got := string(failure(m, &contract.Event{ID: "e-1"})); got != `{"event":"e-1","reactor":"hook","reason":"`+strings.Repeat("x", want)+`"}` {
			t.Errorf("%d bytes: %s", length, got)
		}
	}
}

// TestNoEvent checks that a message without an event is handled by no reactor, and is not
// recorded.
func TestNoEvent(t *testing.T) {
	log := &memlog.Log{}
	m := message.NewMessage("1", nil)
	r := Reactor{Handle: func(context.Context, *contract.Event) error { return nil }}
	if err := r.handle(m); !errors.Is(err, ErrPermanent) {
		t.Error(err)
	}
	p := &Publisher{Emit: &emit.Emitter{Tenant: "t", Source: "gateway/gw1", Now: time.Now, Log: log}}
	if err := p.Publish(contract.EventReactionFailed, m); err == nil || log.Size() != 0 {
		t.Errorf("%v, %d events", err, log.Size())
	}
}

// stuck is a ledger that does not respond.
type stuck struct{ memlog.Log }

func (*stuck) Append(ctx context.Context, _, _ string, _ []byte) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// TestPoisonNotStored checks that Publish returns an error after a bounded time if the ledger
// does not respond, so that the event is delivered again.
func TestPoisonNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := (&emit.Emitter{Tenant: "t", Source: "policy/p1", Now: time.Now}).New(contract.EventEscalated, "s-1", []byte(`{}`), nil)
		m, began := message.NewMessage("1", nil), time.Now()
		m.SetContext(context.WithValue(t.Context(), eventKey, e))
		err := (&Publisher{Emit: &emit.Emitter{Tenant: "t", Source: "gateway/gw1", Now: time.Now, Log: &stuck{}}}).Publish(contract.EventReactionFailed, m)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took < time.Second || took > time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// TestPauses checks the pauses between the three attempts of one delivery.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		stage(t, Reactor{Name: "hook", Work: work, Limit: 1, Handle: func(context.Context, *contract.Event) error {
			at = append(at, time.Since(began))
			return errors.New("busy")
		}}, 1, escalated(t))
		if want := []time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond}; !slices.Equal(at, want) {
			t.Errorf("attempts at %v, want %v", at, want)
		}
	})
}
