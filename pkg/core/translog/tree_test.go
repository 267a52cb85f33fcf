package translog

import (
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// The leaves and roots are the test vectors of the RFC 6962 reference
// implementation (merkletree of certificate-transparency).
var (
	rfcLeaves = []string{"", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"}
	rfcRoots  = []string{
		"6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
		"fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
		"aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
		"d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
		"4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
		"76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
		"ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
		"5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
	}
)

// mem stores the hashes of the complete subtrees of a tree, by level and index.
type mem map[[2]uint64]Hash

func (m mem) get(level uint, i uint64) (Hash, error) { return m[[2]uint64{uint64(level), i}], nil }

func (m mem) add(t *testing.T, n uint64, leaf Hash) {
	if err := Append(n, leaf, m.get, func(level uint, i uint64, h Hash) error { m[[2]uint64{uint64(level), i}] = h; return nil }); err != nil {
		t.Fatal(err)
	}
}

// TestRFC6962Roots compares the roots of the trees of 0 to 8 leaves with the
// published ones.
func TestRFC6962Roots(t *testing.T) {
	m := mem{}
	if r := EmptyRoot(); hex.EncodeToString(r[:]) != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Fatal("empty root")
	}
	for i, l := range rfcLeaves {
		b, _ := hex.DecodeString(l)
		m.add(t, uint64(i), LeafHash(b))
		r, err := Root(uint64(i+1), m.get)
		if err != nil || hex.EncodeToString(r[:]) != rfcRoots[i] {
			t.Fatalf("root of %d: %x %v", i+1, r, err)
		}
	}
}

// TestRFC6962Proofs compares three audit paths and a consistency proof with the
// published ones.
func TestRFC6962Proofs(t *testing.T) {
	m := mem{}
	for i, l := range rfcLeaves {
		b, _ := hex.DecodeString(l)
		m.add(t, uint64(i), LeafHash(b))
	}
	for _, c := range []struct {
		index, size uint64
		want        []string
	}{
		{0, 8, []string{"96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7", "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e", "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"}},
		{5, 8, []string{"bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b", "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0", "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"}},
		{2, 3, []string{"fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"}},
	} {
		p, err := Inclusion(c.index, c.size, m.get)
		if err != nil || len(p) != len(c.want) {
			t.Fatalf("%d of %d: %d nodes, %v", c.index, c.size, len(p), err)
		}
		for i := range p {
			if hex.EncodeToString(p[i][:]) != c.want[i] {
				t.Fatalf("%d of %d: node %d is %x", c.index, c.size, i, p[i])
			}
		}
	}
	p, err := Consistency(6, 8, m.get)
	want := []string{"0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a", "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0", "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"}
	if err != nil || len(p) != len(want) {
		t.Fatal(len(p), err)
	}
	for i := range p {
		if hex.EncodeToString(p[i][:]) != want[i] {
			t.Fatalf("consistency node %d is %x", i, p[i])
		}
	}
}

// TestProofs shows that every proof of every tree of up to 65 leaves verifies. An
// inclusion proof does not verify with another leaf or index or with a longer path, and
// a consistency proof not with another old root or a changed hash.
func TestProofs(t *testing.T) {
	m := mem{}
	roots := []Hash{EmptyRoot()}
	var leaves []Hash
	for n := uint64(0); n < 65; n++ {
		leaves = append(leaves, LeafHash([]byte{byte(n)}))
		m.add(t, n, leaves[n])
		r, _ := Root(n+1, m.get)
		roots = append(roots, r)
	}
	for size := uint64(1); size <= 65; size++ {
		for i := uint64(0); i < size; i++ {
			p, err := Inclusion(i, size, m.get)
			if err != nil || VerifyInclusion(i, size, leaves[i], p, roots[size]) != nil {
				t.Fatalf("inclusion %d of %d: %v", i, size, err)
			}
			if VerifyInclusion(i, size, leaves[(i+1)%65], p, roots[size]) == nil {
				t.Fatalf("inclusion %d of %d accepts another leaf", i, size)
			}
			if size > 1 && VerifyInclusion((i+1)%size, size, leaves[i], p, roots[size]) == nil {
				t.Fatalf("inclusion %d of %d accepts another index", i, size)
			}
			if VerifyInclusion(i, size, leaves[i], append(p, Hash{}), roots[size]) == nil {
				t.Fatalf("inclusion %d of %d accepts a longer path", i, size)
			}
		}
		for old := uint64(0); old <= size; old++ {
			p, err := Consistency(old, size, m.get)
			if err != nil || VerifyConsistency(old, size, roots[old], roots[size], p) != nil {
				t.Fatalf("consistency %d to %d: %v", old, size, err)
			}
			if old > 0 && old < size {
				if VerifyConsistency(old, size, roots[old-1], roots[size], p) == nil {
					t.Fatalf("consistency %d to %d accepts another old root", old, size)
				}
				p[0][0] ^= 1
				if VerifyConsistency(old, size, roots[old], roots[size], p) == nil {
					t.Fatalf("consistency %d to %d accepts a changed proof", old, size)
				}
			}
		}
	}
	// Repeating the last leaf changes the root, unlike in the Merkle tree of
	// CVE-2012-2459.
	a, b, c := leaves[0], leaves[1], leaves[2]
	if NodeHash(NodeHash(a, b), c) == NodeHash(NodeHash(a, b), NodeHash(c, c)) {
		t.Fatal("duplicated leaf keeps the root")
	}
}

// TestNote shows that ParseNote returns a signed checkpoint, and that it
// rejects one with a bit of any byte flipped and one that another key signed.
func TestNote(t *testing.T) {
	seed := make([]byte, 32)
	key, _ := sign.NewKey(seed)
	seed[0] = 1
	other, _ := sign.NewKey(seed)
	c := Checkpoint{Origin: "binnacle/test", Size: 7, Root: LeafHash(nil), Extensions: []string{"epoch 1", "lamport 9"}}
	note := c.Sign(key)
	got, err := ParseNote(note, key.Public())
	if err != nil || got.Size != 7 || got.Root != c.Root || got.Extension("lamport") != "9" || string(got.Text()) != string(c.Text()) {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := ParseNote(note, other.Public()); err == nil {
		t.Fatal("another key's note accepted")
	}
	for i := range note {
		bad := append([]byte(nil), note...)
		bad[i] ^= 1
		if _, err := ParseNote(bad, key.Public()); err == nil {
			t.Fatalf("byte %d flipped and accepted", i)
		}
	}
}

// TestDuplicateLeaves shows that repeating the last leaf changes the root (unlike
// in CVE-2012-2459), that an inner node is not accepted as a leaf, and that a
// leaf is not accepted at another position.
func TestDuplicateLeaves(t *testing.T) {
	leaf := func(s string) Hash { return LeafHash([]byte(s)) }
	roots := map[Hash]int{}
	for n := 1; n <= 40; n++ {
		for _, repeat := range []int{0, 1, 2, 3} {
			m := mem{}
			i := uint64(0)
			for j := range n {
				m.add(t, i, leaf(fmt.Sprint("e", j)))
				i++
			}
			for range repeat {
				m.add(t, i, leaf(fmt.Sprint("e", n-1)))
				i++
			}
			root, err := Root(i, m.get)
			if err != nil {
				t.Fatal(err)
			}
			if repeat == 0 {
				roots[root] = n
				continue
			}
			if was, ok := roots[root]; ok {
				t.Fatalf("%d leaves and %d repeats have the root of %d leaves", n, repeat, was)
			}
			// The proof of a leaf does not verify at the position of another leaf or
			// beyond the end.
			first, err := Inclusion(uint64(n-1), i, m.get)
			if err != nil {
				t.Fatal(err)
			}
			if VerifyInclusion(uint64(n-1), i, leaf(fmt.Sprint("e", n-1)), first, root) != nil {
				t.Fatal("a true proof does not verify")
			}
			for index := range i + 4 {
				if (index < uint64(n-1) || index >= i) && VerifyInclusion(index, i, leaf(fmt.Sprint("e", n-1)), first, root) == nil {
					t.Errorf("%d leaves, %d repeats: the proof of %d verifies at %d", n, repeat, n-1, index)
				}
			}
		}
	}
	a, b, c, d := leaf("a"), leaf("b"), leaf("c"), leaf("d")
	l, r := NodeHash(a, b), NodeHash(c, d)
	root := NodeHash(l, r)
	if LeafHash(append(a[:], b[:]...)) == l {
		t.Error("an entry made of two hashes has the hash of a node")
	}
	if VerifyInclusion(0, 4, l, []Hash{r}, root) == nil {
		t.Error("an inner node passes for a leaf")
	}
}

// TestFrontier shows that a Frontier has the same root as the stored tree at every size
// below 300.
func TestFrontier(t *testing.T) {
	m, f := mem{}, Frontier{}
	for n := uint64(0); n < 300; n++ {
		want, err := Root(n, m.get)
		if err != nil || f.Root() != want || f.Size != n {
			t.Fatal(n, err)
		}
		leaf := LeafHash([]byte{byte(n), byte(n >> 8)})
		m.add(t, n, leaf)
		f.Add(leaf)
	}
}

// TestFrontierOfTrees replaces every run of leaves of trees of up to 33 leaves by the
// subtrees of Cover, and shows that the frontier then has the root of the whole tree.
func TestFrontierOfTrees(t *testing.T) {
	m := mem{}
	for n := range uint64(33) {
		m.add(t, n, LeafHash([]byte{byte(n)}))
	}
	for size := uint64(1); size <= 33; size++ {
		want, err := Root(size, m.get)
		if err != nil {
			t.Fatal(err)
		}
		for lo := range size {
			for hi := lo; hi <= size; hi++ {
				var f Frontier
				for n := range lo {
					f.Add(LeafHash([]byte{byte(n)}))
				}
				last, trees := ^uint(0), 0
				if err := Cover(lo, hi, func(level uint, index uint64) error {
					if index<<level != f.Size || level == last && index&1 == 1 {
						t.Errorf("[%d, %d): subtree %d of level %d at %d", lo, hi, index, level, f.Size)
					}
					last, trees = level, trees+1
					h, err := m.get(level, index)
					return errors.Join(err, f.AddTree(level, h))
				}); err != nil || trees > 10 {
					t.Fatalf("[%d, %d): %d subtrees, %v", lo, hi, trees, err)
				}
				for n := hi; n < size; n++ {
					f.Add(LeafHash([]byte{byte(n)}))
				}
				if f.Size != size || f.Root() != want {
					t.Fatalf("%d leaves with [%d, %d) hidden: size %d, another root", size, lo, hi, f.Size)
				}
			}
		}
	}
}

// TestAddTreeRefuses shows that AddTree refuses a subtree at a size at which no subtree of its
// level begins, and a leaf at the size 2^63, and that Cover returns the error of its function.
func TestAddTreeRefuses(t *testing.T) {
	f := Frontier{}
	f.Add(Hash{1})
	for _, level := range []uint{1, 2, 62, 63, 64, 1000} {
		if err := f.AddTree(level, Hash{2}); !errors.Is(err, ErrProof) || f.Size != 1 {
			t.Errorf("level %d at 1: %v, size %d", level, err, f.Size)
		}
	}
	f = Frontier{}
	for _, size := range []uint64{1 << 62, 1 << 63} {
		if err := f.AddTree(62, Hash{}); err != nil || f.Size != size {
			t.Errorf("%v, size %d", err, f.Size)
		}
	}
	if err := f.AddTree(0, Hash{}); !errors.Is(err, ErrProof) || f.Size != 1<<63 {
		t.Errorf("beyond 2^63: %v, size %d", err, f.Size)
	}
	stop := errors.New("stop")
	if err := Cover(1, 8, func(level uint, _ uint64) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}
