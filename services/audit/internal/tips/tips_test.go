package tips

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// memory is an in-memory Store that encodes its nodes, as a database does.
type memory map[string][]byte

func (m memory) Get(place []byte) (*Node, error) {
	b, ok := m[string(place)]
	if !ok {
		return nil, nil
	}
	return ReadNode(b)
}

func (m memory) Put(place []byte, n *Node) error {
	m[string(place)] = AppendNode(nil, n)
	return nil
}

func (m memory) Delete(place []byte) error { delete(m, string(place)); return nil }

func rootOf(held map[Hash]translog.Tip) Hash {
	var all []translog.TipLeaf
	for k, t := range held {
		all = append(all, translog.TipLeaf{Key: k, Leaf: t.Leaf(k)})
	}
	return translog.TipsRoot(all)
}

// TestUpdate checks, after random changes in random batches, that the root is that of
// translog.TipsRoot for the same content, that Prove returns a valid proof of the
// presence or absence of every key, and that the store contains the same nodes as one
// that is built at once. The same changes in an Overlay give the same root and do not
// change the store under it. With -short, it makes a tenth of the changes.
func TestUpdate(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 3))
		s, root := memory{}, Child{}
		held := map[Hash]translog.Tip{}
		key := func(i int) Hash {
			k := translog.TipKey("t", fmt.Sprint(i))
			if i%3 == 0 { // keys with long common prefixes
				copy(k[:31], bytes.Repeat([]byte{0x5a}, 31))
			}
			return k
		}
		for range 20 {
			changed := map[Hash]Hash{}
			for range r.IntN(40) {
				k := key(r.IntN(60))
				if r.IntN(4) == 0 {
					delete(held, k)
					changed[k] = Hash{}
					continue
				}
				tip := translog.Tip{Events: r.Uint64(), Receipts: 1}
				held[k], changed[k] = tip, tip.Leaf(k)
			}
			var ch []Change
			for k, l := range changed {
				ch = append(ch, Change{k, l})
			}
			var err error
			under := maps.Clone(s)
			over := &Overlay{Under: s}
			again, err := Update(over, root, slices.Clone(ch))
			if err != nil || !maps.EqualFunc(s, under, bytes.Equal) {
				t.Fatal("an overlay changes what is under it", err)
			}
			if root, err = Update(s, root, ch); err != nil {
				t.Fatal(err)
			}
			if want := rootOf(held); root.Root() != want || again != root {
				t.Fatalf("seed %d: root %x, overlay %x, want %x", seed, root.Root(), again.Root(), want)
			}
			for i := range 60 {
				k := key(i)
				for _, from := range []Store{s, over} {
					path, at, err := Prove(from, root, k)
					if err != nil {
						t.Fatal(err)
					}
					tip, there := held[k]
					if there {
						err = translog.VerifyTip(k, &tip, path, root.Root())
					} else {
						var other *translog.Tip
						if at != nil {
							x := held[*at]
							other = &x
						}
						err = translog.VerifyNoTip(k, at, other, path, root.Root())
					}
					if err != nil {
						t.Fatalf("seed %d key %d present %v: %v", seed, i, there, err)
					}
				}
			}
			fresh := memory{}
			var all []Change
			for k, tip := range held {
				all = append(all, Change{k, tip.Leaf(k)})
			}
			if _, err := Update(fresh, Child{}, all); err != nil || !maps.EqualFunc(s, fresh, bytes.Equal) {
				t.Fatalf("seed %d: %d nodes, a map built anew has %d (%v)", seed, len(s), len(fresh), err)
			}
		}
	}
}

// counted is a store that counts reads, writes and deletions.
type counted struct {
	memory
	n int
}

func (c *counted) Get(p []byte) (*Node, error) { c.n++; return c.memory.Get(p) }
func (c *counted) Put(p []byte, n *Node) error { c.n++; return c.memory.Put(p, n) }
func (c *counted) Delete(p []byte) error       { c.n++; return c.memory.Delete(p) }
func changes(from, n int, v uint64) (c []Change) {
	for i := range n {
		k := translog.TipKey("t", fmt.Sprint("s-", from+i))
		c = append(c, Change{k, (&translog.Tip{Events: v}).Leaf(k)})
	}
	return c
}

// TestUpdateCost checks that a change of 1, 10 or 1000 of 100,000 keys reads, writes and
// deletes at most 48 nodes for each of them.
func TestUpdateCost(t *testing.T) {
	s := &counted{memory: memory{}}
	const n = 100_000
	root, err := Update(s, Child{}, changes(0, n, 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []int{1, 10, 1000} {
		s.n = 0
		if root, err = Update(s, root, changes(0, k, uint64(k+1))); err != nil {
			t.Fatal(err)
		}
		if limit := 2 * k * 24; s.n > limit {
			t.Errorf("%d changes of %d touch %d nodes, want at most %d", k, n, s.n, limit)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	s := memory{}
	root, err := Update(s, Child{}, changes(0, 100_000, 1))
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if root, err = Update(s, root, changes(i*100%99_000, 100, uint64(i+2))); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
}
