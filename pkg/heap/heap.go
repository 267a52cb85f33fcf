// Package heap adapts the garbage collector to programs whose live heap is between a few
// MiB and a few GiB, depending on the length of the ledger.
package heap

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Adapt sets the GC percentage and the memory limit every two seconds, until ctx is done.
// The percentage is the one at which about garbage bytes of garbage cause a collection,
// but at least large and at most 300. The memory limit is what limit returns. If the
// program allocates little and holds much more memory than its live heap, Adapt collects
// garbage and returns the free memory to the operating system.
func Adapt(ctx context.Context, garbage int64, large int) {
	var idle idle
	for {
		u := read()
		debug.SetGCPercent(percent(u.live, garbage, large))
		debug.SetMemoryLimit(limit(u.live, large))
		if idle.over(u) {
			debug.FreeOSMemory()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Second):
		}
	}
}

// usage is what Adapt reads of the runtime: sizes in bytes, and the total of the bytes
// that were ever allocated.
type usage struct{ live, held, allocated int64 }

// read returns the current usage. live is the size of the live heap at the last
// collection, at least 1 MiB, and held the memory that the runtime holds.
func read() usage {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	v := func(i int) int64 { return int64(s[i].Value.Uint64()) }
	return usage{max(v(0), 1<<20), v(1) - v(2), v(3)}
}

// percent returns the GC percentage for a live heap of live bytes: the one at which
// about garbage bytes of garbage cause a collection, but at least large and at most
// 300.
func percent(live, garbage int64, large int) int { return min(max(int(100*garbage/live), large), 300) }

// limit returns the memory limit for a live heap of live bytes: the live heap, large plus
// five percent of it, and 80 MiB, but at least 480 MiB. The runtime returns free memory
// above the limit to the operating system, also while the program allocates much.
func limit(live int64, large int) int64 {
	return max(480<<20, live+live*int64(large+5)/100+80<<20)
}

// idle decides when free memory is returned.
type idle struct {
	last  usage
	quiet int // number of consecutive intervals with few allocations
}

// Limits of idle.
const (
	fewBytes = 4 << 20  // maximum allocations in an interval of a program that allocates little
	muchFree = 64 << 20 // memory beyond the live heap that such a program may hold
	quietFor = 4        // number of intervals with few allocations before memory is returned
)

// over reports whether memory is to be returned now: if the program has allocated little
// in each of the last quietFor intervals, and holds more than muchFree beyond nine eighths
// of its live heap. After a result of true, the intervals are counted anew. It must be
// called once in each interval.
func (i *idle) over(u usage) bool {
	few := u.allocated-i.last.allocated <= fewBytes
	i.last = u
	if !few {
		i.quiet = 0
		return false
	}
	i.quiet++
	if i.quiet < quietFor || u.held <= u.live+u.live/8+muchFree {
		return false
	}
	i.quiet = 0
	return true
}
