package heap

import "testing"

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
		"a small heap holds little": {{10, 60, 0, false}, {10, 60, 0, false}, {10, 60, 0, false}, {10, 60, 0, false}, {10, 60, 0, false}},
	} {
		var i idle
		var total int64
		for n, s := range steps {
			total += s.allocated * mib
			if got := i.over(usage{s.live * mib, s.held * mib, total}); got != s.over {
				t.Errorf("%s: interval %d: %v", name, n, got)
			}
		}
	}
}

// TestPercent checks how much garbage is allowed beside live heaps of several sizes.
func TestPercent(t *testing.T) {
	for live, want := range map[int64]int{1 << 20: 300, 50 << 20: 300, 160 << 20: 100, 400 << 20: 40, 500 << 20: 32, 2 << 30: 20} {
		if got := percent(live, 160<<20, 20); got != want {
			t.Errorf("%d MiB: %d %%, want %d", live>>20, got, want)
		}
	}
}

// TestLimit checks the memory limit beside live heaps of several sizes, and that it leaves
// room for the garbage that percent allows.
func TestLimit(t *testing.T) {
	const mib = 1 << 20
	for _, k := range []struct {
		live, garbage int64
		large         int
		want          int64
	}{
		{50, 96, 20, 480}, {300, 96, 20, 480}, {480, 96, 20, 680}, {1000, 96, 20, 1330}, {300, 160, 40, 515}, {1000, 160, 40, 1530},
	} {
		got := limit(k.live*mib, k.large)
		if got != k.want*mib {
			t.Errorf("%d MiB, %d %%: %d MiB, want %d", k.live, k.large, got/mib, k.want)
		}
		if heap := k.live * mib * int64(100+percent(k.live*mib, k.garbage*mib, k.large)) / 100; got < heap+20*mib {
			t.Errorf("%d MiB, %d %%: the limit %d MiB leaves no room for a heap of %d", k.live, k.large, got/mib, heap/mib)
		}
	}
}
