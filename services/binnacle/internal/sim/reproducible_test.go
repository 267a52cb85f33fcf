//go:build simulator

package sim

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestReproducible checks that a seed produces the same transcript in two processes.
func TestReproducible(t *testing.T) {
	b := batch{From: *seedFlag, Count: uint64(*countFlag), Digests: true}
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
	for seed := b.From; seed < b.From+b.Count; seed++ {
		if d := digests[0][seed]; d == "" || d != digests[1][seed] {
			t.Errorf("seed %d has two transcripts: %q and %q; TestTwice shows where they part", seed, d, digests[1][seed])
		}
	}
}

// TestTwice runs one seed twice and prints the first difference between the transcripts.
func TestTwice(t *testing.T) {
	b := newBase(t)
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
