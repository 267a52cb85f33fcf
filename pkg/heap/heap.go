// Package heap adapts the garbage collector to programs whose live heap is between a few
// MiB and a few GiB, depending on the length of the ledger.
package heap

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
)

// Garbage is an amount of garbage: Bytes or, if that is more, Percent of the live heap.
type Garbage struct {
	Bytes   int64
	Percent int
}

// of returns the amount for a live heap of live bytes.
func (g Garbage) of(live int64) int64 { return max(g.Bytes, live*int64(g.Percent)/100) }

// Adapt sets the GC percentage and the memory limit every two seconds, until ctx is done. The
// amount of garbage that causes a collection is the number of bytes that the program allocates in
// three seconds, but at least quiet and at most busy, and at most three times the live heap. A
// program that reads large files through weak pointers, as the NATS server reads the blocks of its
// store, reads them again after each collection, so that frequent collections cause most of its
// allocations.
//
// In a container with a memory limit, the amount is also limited to the memory that this limit
// leaves, but is at least quiet.
//
// The memory limit leaves room for that garbage. If the program allocates little and
// holds much more memory than its live heap, Adapt collects garbage and returns the free
// memory to the operating system.
func Adapt(ctx context.Context, quiet, busy Garbage) {
	a := adaptation{most: containerLimit("/sys/fs/cgroup/memory.max")}
	for {
		u := read()
		garbage := a.garbage(u, quiet, busy)
		debug.SetGCPercent(percent(u.live, garbage))
		debug.SetMemoryLimit(limit(u.live, garbage))
		if a.idle(u) {
			debug.FreeOSMemory()
		}
		a.last = u
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

// interval is the time between two adaptations.
const interval = 2 * time.Second

// usage holds the values that Adapt reads from the runtime: sizes in bytes, and the total number
// of bytes that the program has allocated.
type usage struct{ live, held, allocated int64 }

// read returns the current usage. live is the size of the live heap at the last
// collection, at least 1 MiB, and held the memory that the runtime holds.
func read() usage {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	v := func(i int) int64 { return int64(s[i].Value.Uint64()) }
	return usage{max(v(0), 1<<20), v(1) - v(2), v(3)}
}

// percent returns the GC percentage at which about garbage bytes of garbage beside a live
// heap of live bytes cause a collection. It is at most 300.
func percent(live, garbage int64) int { return int(min(100*garbage/live, 300)) }

// limit returns the memory limit for a live heap of live bytes and garbage bytes of
// garbage: their sum and that of overhead, but at least 480 MiB. The runtime returns free
// memory above the limit to the operating system, also while the program allocates much.
func limit(live, garbage int64) int64 { return max(480<<20, live+garbage+overhead(live)) }

// overhead returns the memory that a program needs besides its live heap and its garbage:
// five percent of the live heap, and 32 MiB.
func overhead(live int64) int64 { return live/20 + 32<<20 }

// containerLimit returns nine tenths of the memory limit in a file of the second version
// of control groups, or the greatest number if the file contains no limit or is missing.
func containerLimit(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return math.MaxInt64 // "max"
	}
	return n / 10 * 9
}

// adaptation is the state of Adapt.
type adaptation struct {
	most    int64 // memory that the program may use
	last    usage // at the previous interval
	allowed int64 // garbage that was allowed at the previous interval
	quiet   int   // number of consecutive intervals with few allocations
}

// garbage returns the amount of garbage that may accumulate before a collection: the number of
// bytes that the program allocates in one and a half intervals, within the bounds quiet and busy.
// If the memory that a.most leaves is less, the amount is limited to that, but is at least quiet.
// It falls by at most a half at a time, because a program may pause. It must be called once in each
// interval.
func (a *adaptation) garbage(u usage, quiet, busy Garbage) int64 {
	least := quiet.of(u.live)
	most := min(busy.of(u.live), a.most-u.live-overhead(u.live))
	a.allowed = max(least, min(most, max((u.allocated-a.last.allocated)*3/2, a.allowed/2)))
	return a.allowed
}

// Limits of idle.
const (
	fewBytes = 4 << 20  // maximum allocations in an interval of a program that allocates little
	muchFree = 64 << 20 // memory beyond the live heap that such a program may hold
	quietFor = 4        // number of intervals with few allocations before memory is returned
)

// idle reports whether memory is to be returned now: if the program has allocated little in each of
// the last quietFor intervals, and holds more than muchFree beyond nine eighths of its live heap.
// After a result of true, the count of intervals starts again at 0. It must be called once in each
// interval.
func (a *adaptation) idle(u usage) bool {
	if u.allocated-a.last.allocated > fewBytes {
		a.quiet = 0
		return false
	}
	a.quiet++
	if a.quiet < quietFor || u.held <= u.live+u.live/8+muchFree {
		return false
	}
	a.quiet = 0
	return true
}
