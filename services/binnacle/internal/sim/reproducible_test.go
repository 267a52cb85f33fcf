//go:build simulator

package sim

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// attempts is the maximum number of pairs of runs of a seed; in at least one pair, both
// runs must have the same transcript. The Go runtime preempts a goroutine after 10 ms of
// real time; on a busy machine that changes, in about one schedule of a thousand, which
// of two goroutines of an instance runs first. A schedule that depends on the order of a
// map, on the id of the process or on real time very probably fails every attempt. A
// random choice between two channels that are ready makes only half of the pairs differ.
// Therefore, in the first pair, at most one of every share seeds may differ, and one if
// there are fewer seeds than share.
const (
	attempts = 10
	share    = 20
)

// TestReproducible checks that each seed produces the same transcript in two processes, in
// at least one of a few attempts, and that few seeds need more than one attempt.
func TestReproducible(t *testing.T) {
	seeds := []uint64{}
	for i := range uint64(*countFlag) {
		seeds = append(seeds, *seedFlag+i)
	}
	all := batch{From: *seedFlag, Count: uint64(*countFlag), Digests: true}
	n := len(seeds)
	seeds = differing(t, all, seeds)
	if len(seeds) > max(1, n/share) {
		t.Errorf("%d of %d seeds have two transcripts: %d", len(seeds), n, seeds)
	}
	for range attempts - 1 {
		var again []uint64
		for _, seed := range seeds {
			t.Logf("seed %d has two transcripts; trying again", seed)
			again = append(again, differing(t, batch{From: seed, Count: 1, Digests: true}, []uint64{seed})...)
		}
		seeds = again
	}
	if len(seeds) > 0 {
		t.Errorf("seeds %d have two transcripts in each of %d attempts; TestTwice shows where they part", seeds, attempts)
	}
}

// differing runs a batch in two processes at the same time, and returns the seeds whose
// transcripts differ or are missing.
func differing(t *testing.T, b batch, seeds []uint64) []uint64 {
	var digests [2]map[uint64]string
	var wg sync.WaitGroup
	for i := range digests {
		digests[i] = map[uint64]string{}
		wg.Go(func() {
			if err := spawn("", b, func(r *result) {
				if !r.Sum {
					digests[i][r.Seed] = r.Digest
				}
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(slices.Clone(seeds), func(s uint64) bool {
		d := digests[0][s]
		return d != "" && d == digests[1][s]
	})
}

// TestTwice runs one seed twice and compares the transcripts, without their lines about
// events, up to the end of the shorter one. If they differ, it fails and prints the
// lines around the first difference.
func TestTwice(t *testing.T) {
	b := &bases{t: t}
	first, again := schedule(t, b, *seedFlag, true), schedule(t, b, *seedFlag, true)
	for _, r := range []*result{&first, &again} {
		r.Lines = slices.DeleteFunc(r.Lines, func(s string) bool { return strings.HasPrefix(s, "    EVENT") })
	}
	for i := range min(len(first.Lines), len(again.Lines)) {
		if first.Lines[i] != again.Lines[i] {
			t.Fatalf("line %d\n%s\n---\n%s", i, strings.Join(first.Lines[max(0, i-12):min(i+4, len(first.Lines))], "\n"), strings.Join(again.Lines[max(0, i-3):min(i+4, len(again.Lines))], "\n"))
		}
	}
}
