package eventlog_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestSparse checks that a scan from the first entry yields every match once and in
// order, where few entries match or many, where subjects have one, two or more entries,
// and where the last match is far from the first entry or near to it. A scan whose
// context is cancelled returns an error.
func TestSparse(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1}})
	c := b.Connect(t, "a")
	log := eventlog.JetStream{Conn: c}
	const n = 21_000
	special := map[int]string{ // event and key by sequence
		5: "tool.k1", 6: "tool.k2", 7: "early.k1", 8: "three.k1", 9: "tool.k1",
		10_000: "three.k1", 20_500: "tool.k2", 20_501: "gone.k2", 20_600: "three.k1", 20_700: "tool.k3",
	}
	want := map[string][]uint64{}
	for i := 1; i <= n; i++ {
		name, ok := special[i]
		if !ok {
			name = fmt.Sprintf("other.k%d", i%50)
		}
		event, _, _ := strings.Cut(name, ".")
		want[event] = append(want[event], uint64(i))
		if _, err := c.JS.PublishAsync("evt.t.a.-."+name, []byte("x"), jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	<-c.JS.PublishAsyncComplete()
	for event, want := range want {
		for _, filter := range []bus.Filter{{Service: "a", Event: event}, {Event: event}} {
			var got []uint64
			for en, err := range log.Scan(t.Context(), filter.String(), 1) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, en.Seq)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d entries %v, want %d", filter, len(got), got[:min(len(got), 10)], len(want))
			}
		}
	}
	for range log.Scan(t.Context(), bus.Filter{Service: "a", Event: "none"}.String(), 1) {
		t.Error("an entry that does not match")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failed := false
	for _, err := range log.Scan(ctx, bus.Filter{Service: "a", Event: "tool"}.String(), 1) {
		failed = err != nil
	}
	if !failed {
		t.Error("a scan that is cancelled does not fail")
	}
}
