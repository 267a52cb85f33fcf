package follow_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestSlowApply checks that an entry whose Apply takes longer than the timeout of a pull
// request is applied once, and not by two goroutines.
func TestSlowApply(t *testing.T) { bothWays(t, testSlowApply) }

func testSlowApply(t *testing.T, every time.Duration) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	c := b.Connect(t, "a")
	log := eventlog.JetStream{Conn: c}
	for _, id := range []string{"1", "2", "3"} {
		if _, err := log.Append(t.Context(), "evt.t.a.-.x.k", id, []byte(id)); err != nil {
			t.Fatal(err)
		}
	}
	var applied, running atomic.Int64
	f := follow.New(c, d.Instance(1), reader, func(en eventlog.Entry) error {
		if running.Add(1) > 1 {
			t.Error("two calls of Apply at once")
		}
		defer running.Add(-1)
		if n := applied.Add(1); en.Seq != uint64(n) {
			t.Errorf("entry %d is applied as number %d", en.Seq, n)
		}
		if en.Seq == 1 {
			time.Sleep(7 * time.Second)
		}
		return nil
	})
	f.Every = every
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 1) }()
	for applied.Load() < 3 && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // a second delivery of an entry would arrive within this time
	cancel()
	if err := <-done; err != nil || applied.Load() != 3 {
		t.Errorf("%d entries applied, want 3: %v", applied.Load(), err)
	}
}
