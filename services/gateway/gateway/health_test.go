package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// TestCached: any number of requests cost one computation in its time.
func TestCached(t *testing.T) {
	var c cached[int]
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 100 {
				c.get(time.Second, func(context.Context) (int, time.Duration) { n.Add(1); return 1, time.Minute })
			}
		})
	}
	wg.Wait()
	if n.Load() != 1 {
		t.Error("computed", n.Load(), "times")
	}
	c.until = time.Time{}
	c.get(time.Second, func(context.Context) (int, time.Duration) { n.Add(1); return 1, 0 })
	if n.Load() != 2 {
		t.Error("not computed again after its time")
	}
}

// TestLabels: models and error codes without end share one label.
func TestMetricLabels(t *testing.T) {
	var stats []llm.ModelStats
	for i := range 1000 {
		stats = append(stats, llm.ModelStats{Provider: "p", Model: fmt.Sprint("m", i), Attempts: int64(i)})
	}
	top := busiest(stats)
	if len(top) != maxModels || !top[[2]string{"p", "m999"}] || top[[2]string{"p", "m1"}] {
		t.Error(len(top), "models have labels of their own")
	}
	for kind, want := range map[string]string{"tool.x": "tool", "llm.chat": "llm", "evil.x": otherLabel, "": otherLabel, "tool": "tool"} {
		if got := family(kind); got != want {
			t.Errorf("%q: %s", kind, got)
		}
	}
}
