package translog

import (
	"errors"
	"testing"
)

// TestNoSuchProof shows that Inclusion and Consistency return an error if no proof
// exists for the arguments, and that an empty proof does not verify for them. A
// consistency proof from size 0, or between equal sizes, verifies only if it is empty
// and has the right old root; one between other sizes does not verify with a hash too
// few or too many.
func TestNoSuchProof(t *testing.T) {
	m := mem{}
	var roots []Hash
	for n := range uint64(9) {
		r, err := Root(n, m.get)
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, r)
		m.add(t, n, LeafHash([]byte{byte(n)}))
	}
	for _, c := range [][2]uint64{{0, 0}, {3, 3}, {4, 3}} {
		if _, err := Inclusion(c[0], c[1], m.get); err == nil {
			t.Errorf("a proof of leaf %d in %d leaves", c[0], c[1])
		}
		if err := VerifyInclusion(c[0], c[1], LeafHash([]byte{byte(c[0])}), nil, roots[c[1]]); !errors.Is(err, ErrProof) {
			t.Errorf("leaf %d in %d leaves: %v", c[0], c[1], err)
		}
	}
	if _, err := Consistency(4, 3, m.get); err == nil {
		t.Error("a proof that a larger tree is a prefix")
	}
	for _, c := range []struct {
		old, size uint64
		oldRoot   Hash
		proof     []Hash
		ok        bool
	}{
		{3, 3, roots[3], nil, true}, {3, 3, roots[4], nil, false}, {3, 3, roots[3], []Hash{{}}, false}, {0, 3, roots[0], nil, true}, {0, 3, roots[1], nil, false}, {0, 3, roots[0], []Hash{{}}, false},
		{4, 3, roots[4], nil, false}, {3, 5, roots[3], nil, false}, {2, 3, roots[2], nil, false}, {0, 0, roots[0], nil, true},
	} {
		if err := VerifyConsistency(c.old, c.size, c.oldRoot, roots[c.size], c.proof); (err == nil) != c.ok || !c.ok && !errors.Is(err, ErrProof) {
			t.Errorf("%d to %d, %d hashes: %v", c.old, c.size, len(c.proof), err)
		}
	}
	for size := uint64(2); size < 9; size++ {
		for old := uint64(1); old < size; old++ {
			p, err := Consistency(old, size, m.get)
			if err != nil {
				t.Fatal(err)
			}
			for name, bad := range map[string][]Hash{"shorter": p[:len(p)-1], "longer": append(p[:len(p):len(p)], Hash{})} {
				if VerifyConsistency(old, size, roots[old], roots[size], bad) == nil {
					t.Errorf("%d to %d: a %s proof is accepted", old, size, name)
				}
			}
		}
	}
}

// TestMissingNodes shows that an error of the storage is returned, no matter which node
// it occurs for.
func TestMissingNodes(t *testing.T) {
	m := mem{}
	for n := range uint64(13) {
		m.add(t, n, LeafHash([]byte{byte(n)}))
	}
	lost := errors.New("lost")
	for _, f := range []func(get Nodes) error{
		func(get Nodes) error { _, err := Root(13, get); return err },
		func(get Nodes) error { _, err := Inclusion(5, 13, get); return err },
		func(get Nodes) error { _, err := Inclusion(12, 13, get); return err },
		func(get Nodes) error { _, err := Consistency(6, 13, get); return err },
		func(get Nodes) error { _, err := Consistency(9, 13, get); return err },
		func(get Nodes) error { return Append(7, Hash{}, get, func(uint, uint64, Hash) error { return nil }) },
	} {
		reads := 0
		if err := f(func(level uint, i uint64) (Hash, error) { reads++; return m.get(level, i) }); err != nil || reads == 0 {
			t.Fatal(reads, err)
		}
		for at := range reads {
			n := 0
			if err := f(func(level uint, i uint64) (Hash, error) {
				if n++; n == at+1 {
					return Hash{}, lost
				}
				return m.get(level, i)
			}); !errors.Is(err, lost) {
				t.Errorf("read %d of %d is lost: %v", at+1, reads, err)
			}
		}
	}
	if err := Append(0, Hash{}, m.get, func(uint, uint64, Hash) error { return lost }); !errors.Is(err, lost) {
		t.Error(err)
	}
}

// TestTipPath checks that a path in the map of tips has at most 256 hashes and cannot
// end in an empty subtree next to a single key, and that an empty path proves the
// absence of a key from the empty map.
func TestTipPath(t *testing.T) {
	key, tip := TipKey("t", "s"), &Tip{Digest: Hash{1}, Events: 2, Receipts: 1}
	long := make([]Hash, maxTipPath)
	long[maxTipPath-1] = Hash{7}
	at := tip.Leaf(key)
	for d := maxTipPath - 1; d >= 0; d-- {
		if TipBit(key, d) == 0 {
			at = TipNode(at, long[d])
		} else {
			at = TipNode(long[d], at)
		}
	}
	if err := VerifyTip(key, tip, long, at); err != nil {
		t.Error("the longest path:", err)
	}
	if err := VerifyTip(key, tip, append([]Hash{{}}, long...), at); !errors.Is(err, ErrProof) {
		t.Error("a longer path:", err)
	}
	if err := VerifyTip(key, tip, nil, tip.Leaf(key)); err != nil {
		t.Error("the only key:", err)
	}
	lone := TipNode(tip.Leaf(key), Hash{})
	if TipBit(key, 0) == 1 {
		lone = TipNode(Hash{}, tip.Leaf(key))
	}
	if err := VerifyTip(key, tip, []Hash{{}}, lone); !errors.Is(err, ErrProof) {
		t.Error("one key alone, not at the root:", err)
	}
	if VerifyNoTip(key, nil, nil, nil, Hash{}) != nil || VerifyNoTip(key, nil, nil, nil, Hash{1}) == nil {
		t.Error("the empty map")
	}
}
