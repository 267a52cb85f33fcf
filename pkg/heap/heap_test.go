package heap

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestIdle checks that memory is returned after quietFor intervals with few allocations,
// if much more than the live heap is held, and not while the program allocates.
func TestIdle(t *testing.T) {
	const mib = 1 << 20
	type step struct {
		live, held, allocated int64 // MiB; allocated in this interval
		over                  bool
	}
	for name, steps := range map[string][]step{
		"much is held":              {{400, 900, 0, false}, {400, 900, 1, false}, {400, 900, 1, false}, {400, 900, 1, true}, {400, 900, 1, false}},
		"little is held":            {{400, 510, 0, false}, {400, 510, 0, false}, {400, 510, 0, false}, {400, 510, 0, false}, {400, 520, 0, true}},
		"allocations in between":    {{400, 900, 0, false}, {400, 900, 0, false}, {400, 900, 5, false}, {400, 900, 0, false}, {400, 900, 0, false}, {400, 900, 0, false}, {400, 900, 0, true}},
		"the live heap has shrunk":  {{900, 950, 0, false}, {900, 950, 0, false}, {900, 950, 0, false}, {900, 950, 0, false}, {450, 950, 0, true}},
		"the most of few bytes":     {{400, 900, 4, false}, {400, 900, 4, false}, {400, 900, 4, false}, {400, 900, 4, true}},
		"the most that is little":   {{400, 514, 0, false}, {400, 514, 0, false}, {400, 514, 0, false}, {400, 514, 0, false}, {400, 515, 0, true}},
		"a small heap holds little": {{10, 60, 0, false}, {10, 60, 0, false}, {10, 60, 0, false}, {10, 60, 0, false}, {10, 60, 0, false}},
	} {
		var a adaptation
		var total int64
		for n, s := range steps {
			total += s.allocated * mib
			u := usage{s.live * mib, s.held * mib, total}
			if got := a.idle(u); got != s.over {
				t.Errorf("%s: interval %d: %v", name, n, got)
			}
			a.last = u
		}
	}
}

// TestGarbage checks how much garbage is allowed beside live heaps of several sizes, and how it
// follows the allocations of each interval.
func TestGarbage(t *testing.T) {
	const mib = 1 << 20
	constant := Garbage{160 * mib, 40}
	for name, k := range map[string]struct {
		quiet, busy           Garbage
		live, container       int64   // MiB; container is 0 if there is no limit
		allocated, want       []int64 // MiB, one for each interval
		wantPercent, wantHeld int64   // at the end
	}{
		"constant, small":        {constant, constant, 20, 0, []int64{0, 500}, []int64{160, 160}, 300, 480},
		"constant, large":        {constant, constant, 1000, 0, []int64{0, 5000}, []int64{400, 400}, 40, 1482},
		"follows allocations":    {Garbage{64 * mib, 5}, Garbage{96 * mib, 100}, 500, 0, []int64{0, 20, 100, 400, 0, 0, 0, 0}, []int64{64, 64, 150, 500, 250, 125, 64, 64}, 12, 621},
		"a small heap is cheap":  {Garbage{64 * mib, 5}, Garbage{96 * mib, 100}, 30, 0, []int64{400, 400}, []int64{96, 96}, 300, 480},
		"a limited container":    {Garbage{64 * mib, 5}, Garbage{96 * mib, 100}, 500, 1000, []int64{0, 500}, []int64{64, 343}, 68, 900},
		"a small container":      {Garbage{64 * mib, 5}, Garbage{96 * mib, 100}, 500, 600, []int64{0, 400}, []int64{64, 64}, 12, 621},
		"a part of a large heap": {Garbage{64 * mib, 5}, Garbage{96 * mib, 100}, 4000, 0, []int64{0, 3000}, []int64{200, 4000}, 100, 8232},
	} {
		a := adaptation{most: math.MaxInt64}
		if k.container > 0 {
			a.most = k.container * mib / 10 * 9
		}
		var total, got int64
		for i, n := range k.allocated {
			total += n * mib
			u := usage{live: k.live * mib, allocated: total}
			if got = a.garbage(u, k.quiet, k.busy); got != k.want[i]*mib {
				t.Errorf("%s: interval %d: %d MiB, want %d", name, i, got/mib, k.want[i])
			}
			a.last = u
		}
		if p := percent(k.live*mib, got); int64(p) != k.wantPercent {
			t.Errorf("%s: %d %%, want %d", name, p, k.wantPercent)
		}
		l := limit(k.live*mib, got)
		if l/mib != k.wantHeld {
			t.Errorf("%s: limit %d MiB, want %d", name, l/mib, k.wantHeld)
		}
		if heap := k.live * mib * (100 + k.wantPercent) / 100; l < heap+20*mib {
			t.Errorf("%s: the limit %d MiB leaves no room for a heap of %d", name, l/mib, heap/mib)
		}
	}
}

// TestContainerLimit checks the limit for a file that is missing, has no limit or has one.
func TestContainerLimit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.max")
	if got := containerLimit(file); got != math.MaxInt64 {
		t.Errorf("no file: %d", got)
	}
	for content, want := range map[string]int64{"max\n": math.MaxInt64, "1000000000\n": 900_000_000} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := containerLimit(file); got != want {
			t.Errorf("%q: %d, want %d", content, got, want)
		}
	}
}
