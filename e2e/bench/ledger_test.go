//go:build bench

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// ledgerOnly measures the ledger operations of a call alone. The result is a lower bound
// for the calls that edge measures.
func ledgerOnly(t *testing.T) {
	for _, request := range []int{0, 80 << 10} {
		ledgerPart(t, request)
	}
}

// ledgerPart measures the ledger operations of a budgeted call to a model: its six
// appends, of their real sizes, and the three deliveries that the call waits for,
// between three services. Nothing is parsed, decided, signed, indexed or sent to a
// provider. If the request is too large for an event, it is also stored and read back,
// at the same points as in a call.
func ledgerPart(t *testing.T, request int) {
	proposes := bus.Declaration{Service: "proposes", Slots: 1, Readers: []bus.Reader{{Name: "outcomes", Stream: bus.Events, Filters: []string{"evt.*.*.{instance}.effect_recorded.>"}}}}
	work := func(service, filter string) bus.Declaration {
		return bus.Declaration{Service: service, Slots: 1, Work: []bus.Work{{Name: "work", Filters: []string{filter}, AckWait: 10 * time.Second, MaxAckPending: 4096}}}
	}
	decides, does := work("decides", "evt.*.*.*.call_proposed.>"), work("does", "evt.*.decides.*.allowed_does.>")
	b := meshtest.Start(t, []bus.Declaration{proposes, decides, does})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	var ids atomic.Int64
	id := func() string { return strconv.FormatInt(ids.Add(1), 10) }
	fail := func(err error) {
		if err != nil && ctx.Err() == nil {
			t.Error(err)
			cancel()
		}
	}
	serve := func(service string, f func(*bus.Conn, eventlog.JetStream)) {
		c := b.Connect(t, service)
		f(c, eventlog.JetStream{Conn: c})
	}
	var mu sync.Mutex // guards book and chain, which hold the last sequences of two filters
	var book, chain uint64
	expect := func(log eventlog.JetStream, subject string, n int, filter string, last *uint64) {
		mu.Lock()
		defer mu.Unlock()
		me := id()
		var err error
		*last, err = log.AppendExpect(ctx, subject, me, append(body(n), me...), filter, *last)
		fail(err)
	}
	serve("decides", func(c *bus.Conn, log eventlog.JetStream) {
		go consumer.Run(ctx, c, "decides", decides.Work[0], 32, func(ctx context.Context, d *consumer.Delivery) {
			expect(log, "evt.t.decides.-.budget_changed.budget", 750, bus.AggregateFilter("t", "decides", "budget"), &book)
			_, err := log.Append(ctx, "evt.t.decides."+proposes.Instance(1)+".allowed_does.s-1", id(), body(3684))
			fail(err)
			d.Ack()
		})
	})
	var stored atomic.Pointer[string] // subject of the stored request of the current call; nil if it is inside the event
	serve("does", func(c *bus.Conn, log eventlog.JetStream) {
		go consumer.Run(ctx, c, "does", does.Work[0], 32, func(ctx context.Context, d *consumer.Delivery) {
			to := "evt.t.does." + proposes.Instance(1)
			read := make(chan struct{})
			go func() {
				defer close(read)
				for at := stored.Load(); at != nil; time.Sleep(2 * time.Millisecond) {
					if m, err := c.Get(ctx, bus.Blobs, map[string]any{"last_by_subj": *at}); err == nil && len(m.Data) == request {
						return
					} else if !errors.Is(err, bus.ErrNotFound) {
						fail(err)
						return
					}
				}
			}()
			_, err := log.Append(ctx, to+".effect_started.s-1", id(), body(669))
			fail(err)
			<-read
			fact := log.Start(to+".attempt_finished.s-1", id(), body(795))
			expect(log, to+".effect_recorded.s-1", 2801, bus.ChainFilter("t", "s-1"), &chain)
			_, err = fact(ctx)
			fail(err)
			d.Ack()
		})
	})
	outcome := make(chan struct{}, 1)
	serve("proposes", func(c *bus.Conn, log eventlog.JetStream) {
		f := follow.New(c, proposes.Instance(1), proposes.Readers[0], func(eventlog.Entry) error { outcome <- struct{}{}; return nil })
		go f.Run(ctx, 1)
		<-f.Ready()
		var took []time.Duration
		var before, after syscall.Rusage
		for end := time.Now().Add(time.Hour); time.Now().Before(end); {
			if len(took) == warm {
				fail(syscall.Getrusage(syscall.RUSAGE_SELF, &before))
				end = time.Now().Add(span)
			}
			began := time.Now()
			put := make(chan struct{})
			go func() {
				defer close(put)
				if request > 0 {
					at := "blob.t.payloads." + id() + ".0"
					stored.Store(&at)
					_, err := c.JS.Publish(ctx, at, body(request))
					fail(err)
				}
			}()
			go func() {
				_, err := log.Append(ctx, "evt.t.proposes."+proposes.Instance(1)+".call_proposed.s-1", id(), body(1331))
				fail(err)
			}()
			select {
			case <-outcome:
			case <-ctx.Done():
				return
			}
			<-put
			took = append(took, time.Since(began))
		}
		fail(syscall.Getrusage(syscall.RUSAGE_SELF, &after))
		took = took[warm:]
		cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
		slices.Sort(took)
		add(row{Name: fmt.Sprintf("floor: the ledger's part of a call to a model, request of %d B", max(request, 1331)), Durability: "process", Clients: 1, P50us: us(took, .5), P99us: us(took, .99),
			Value: fmt.Sprintf("%d us CPU per call", (cpu / time.Duration(len(took))).Microseconds())})
	})
}
