package health

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestCached checks that a value is computed once within its lifetime, for any number of
// callers, and again after it.
func TestCached(t *testing.T) {
	var c Cached[int]
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 100 {
				c.Get(time.Second, func(context.Context) (int, time.Duration) { n.Add(1); return 1, time.Minute })
			}
		})
	}
	wg.Wait()
	if n.Load() != 1 {
		t.Error("computed", n.Load(), "times")
	}
	c.until = time.Time{}
	c.Get(time.Second, func(context.Context) (int, time.Duration) { n.Add(1); return 1, 0 })
	if n.Load() != 2 {
		t.Error("not computed again after its time")
	}
}
