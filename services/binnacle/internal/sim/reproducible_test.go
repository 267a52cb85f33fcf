//go:build simulator

package sim

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestReproducible checks that each seed produces the same transcript in two processes whose
// runtime is changed by patches. With the usual runtime, about one schedule in a hundred differs on
// a busy machine.
func TestReproducible(t *testing.T) {
	seeds := []uint64{}
	for i := range uint64(*countFlag) {
		seeds = append(seeds, *seedFlag+i)
	}
	if bad := differing(t, deterministic(t), batch{From: *seedFlag, Count: uint64(*countFlag), Digests: true}, seeds); len(bad) > 0 {
		t.Errorf("%d of %d seeds have two transcripts; TestTwice shows where they part: %d", len(bad), len(seeds), bad)
	}
}

// differing runs a batch in two processes of program at the same time, and returns the seeds
// whose transcripts differ or are missing.
func differing(t *testing.T, program string, b batch, seeds []uint64) []uint64 {
	var digests [2]map[uint64]string
	var wg sync.WaitGroup
	for i := range digests {
		digests[i] = map[uint64]string{}
		wg.Go(func() {
			if err := spawn(program, b, func(r *result) {
				if !r.Sum {
					digests[i][r.Seed] = r.Digest
				}
			}, "GOGC=off"); err != nil {
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
