package follow_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestJump shows that a follower whose position is far before the end of the ledger applies the
// entries that its filters select, once and in order, from the first entry and from a later one.
// The consumer delivers nothing if few entries match, and delivers all of them if many match.
func TestJump(t *testing.T) { bothWays(t, testJump) }

func testJump(t *testing.T, every time.Duration) {
	sparse := bus.Reader{Name: "sparse", Stream: bus.Events, Filters: []string{"evt.*.a.*.rare.>", "evt.*.a.*.seldom.>", "evt.*.a.*.never.>"}}
	dense := bus.Reader{Name: "dense", Stream: bus.Events, Filters: []string{"evt.*.a.*.rare.>", "evt.*.a.*.many.>"}}
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{sparse, dense}}
	b := meshtest.Start(t, []bus.Declaration{d})
	c := b.Connect(t, "a")
	const n = 25_000
	rare, seldom := []int{2, 3, 9_000, 24_990}, []int{1, 8_999, 9_001}
	var wantSparse, wantDense []uint64
	for i := 1; i <= n; i++ {
		event := "other"
		switch {
		case slices.Contains(rare, i):
			event = "rare"
		case slices.Contains(seldom, i):
			event = "seldom"
		case i%20 == 0:
			event = "many"
		}
		if event == "rare" || event == "seldom" {
			wantSparse = append(wantSparse, uint64(i))
		}
		if event == "rare" || event == "many" {
			wantDense = append(wantDense, uint64(i))
		}
		if _, err := c.JS.PublishAsync("evt.t.a.-."+event+".k", []byte("x"), jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	<-c.JS.PublishAsyncComplete()
	for _, x := range []struct {
		name      string
		reader    bus.Reader
		from      uint64
		want      []uint64
		delivered uint64
	}{
		{"few entries", sparse, 1, wantSparse, 0},
		{"few entries, from a later one", sparse, 3, wantSparse[2:], 0},
		{"many entries", dense, 1, wantDense, uint64(len(wantDense))},
	} {
		t.Run(x.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var got []uint64
			f := follow.New(c, d.Instance(1), x.reader, func(en eventlog.Entry) error {
				if event := bus.ParseFilter(en.Subject).Event; !slices.Contains(x.reader.Filters, "evt.*.a.*."+event+".>") {
					return fmt.Errorf("%s is applied", en.Subject)
				}
				got = append(got, en.Seq)
				return nil
			})
			f.Every = every
			done := make(chan error, 1)
			go func() { done <- f.Run(ctx, x.from) }()
			select {
			case <-f.Ready():
			case err := <-done:
				t.Fatal(err)
			}
			cons, err := c.JS.Consumer(ctx, bus.Events, x.reader.Consumer(d.Instance(1)))
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-done; err != nil || !slices.Equal(got, x.want) {
				t.Errorf("applied %v, want %v: %v", got, x.want, err)
			}
			if have := cons.CachedInfo().Delivered.Consumer; have != x.delivered {
				t.Errorf("the consumer delivered %d entries, want %d", have, x.delivered)
			}
		})
	}
}
