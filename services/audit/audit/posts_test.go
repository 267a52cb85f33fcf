package audit

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
)

// TestLists stores dense and sparse lists in parts of random size, and compares the
// results of list, inAll and lastOdd for random bounds with those of a scan. The lists
// differ in the ranges for which they have chunks.
func TestLists(t *testing.T) {
	db, err := openDB(filepath.Join(t.TempDir(), "view.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	b, r := tx.Bucket(bSearch), rand.New(rand.NewPCG(3, 4))
	var all [][]uint64
	var prefixes [][]byte
	const end = 20 << chunkBits
	for i, step := range []int{2, 3, 50, 4000, 9000} {
		prefix := fmt.Appendf(nil, "list=%d\x00", i)
		var l []uint64
		for n := 1 + r.Uint64N(uint64(step)); n < end; n += 1 + r.Uint64N(uint64(step)) {
			l = append(l, n)
		}
		for rest := l; len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			if err := posts(b, prefix, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		all, prefixes = append(all, l), append(prefixes, prefix)
	}
	for range 2000 {
		from, to, at := r.Uint64N(end), r.Uint64N(end+5000), r.IntN(len(all))
		var got []uint64
		list(b, prefixes[at], from, func(n uint64) bool { got = append(got, n); return true })
		want := all[at][max(0, slices.IndexFunc(append(all[at][:len(all[at]):len(all[at])], end), func(n uint64) bool { return n >= from })):]
		if !slices.Equal(got, want) {
			t.Fatalf("list %d from %d: %d numbers, want %d", at, from, len(got), len(want))
		}
		odd := uint64(0)
		for _, n := range all[at] {
			if n <= to && n&1 == 1 {
				odd = n
			}
		}
		if got := lastOdd(b, prefixes[at], to); got != odd {
			t.Fatalf("last odd number of list %d up to %d: %d, want %d", at, to, got, odd)
		}
		others := []int{at, r.IntN(len(all)), r.IntN(len(all))}[:1+r.IntN(3)]
		var in [][]byte
		for _, i := range others {
			in = append(in, prefixes[i])
		}
		got, want = nil, nil
		limit := 1 + r.IntN(300)
		inAll(b, in, from, to, func(n uint64) bool { got = append(got, n); return len(got) < limit })
		for _, n := range slices.Backward(all[at]) {
			if n >= from && n <= to && len(want) < limit && !slices.ContainsFunc(others, func(i int) bool { _, ok := slices.BinarySearch(all[i], n); return !ok }) {
				want = append(want, n)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("lists %d from %d to %d: %d numbers, want %d", others, from, to, len(got), len(want))
		}
	}
}
