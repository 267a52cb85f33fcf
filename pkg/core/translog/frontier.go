package translog

import "math/bits"

// Frontier is a tree to which leaves, or complete subtrees of them, are added in order.
// It stores only the roots of the complete subtrees, O(log n) hashes, and so can compute
// the root but no proofs. The zero value is the empty tree. A Frontier must be used by
// one goroutine only.
type Frontier struct {
	Size  uint64
	roots []Hash // roots of the complete subtrees, largest first
}

// Add appends the next leaf. It computes fewer than one hash on average and O(log n) at
// most.
func (f *Frontier) Add(leaf Hash) { f.merge(0, leaf) }

// AddTree appends the next 2^level leaves, of which it receives only the hash of the
// complete subtree over them (RFC 6962 section 2.1). It returns ErrProof, and changes
// nothing, if no such subtree begins at the frontier's size, or if the size would exceed
// 2^63.
func (f *Frontier) AddTree(level uint, subtree Hash) error {
	if level > 62 || f.Size&(1<<level-1) != 0 || f.Size+1<<level > 1<<63 {
		return ErrProof
	}
	f.merge(level, subtree)
	return nil
}

// merge appends a complete subtree of 2^level leaves, of which f.Size is a multiple.
func (f *Frontier) merge(level uint, h Hash) {
	for n := f.Size >> level; n&1 == 1; n >>= 1 {
		last := len(f.roots) - 1
		h = NodeHash(f.roots[last], h)
		f.roots = f.roots[:last]
	}
	f.roots = append(f.roots, h)
	f.Size += 1 << level
}

// Cover calls each for the largest complete subtrees that together have exactly the
// leaves [lo, hi), from left to right, until each returns an error, which Cover returns.
// As for Nodes, a subtree has 2^level leaves, the first of which is index<<level. There
// are O(log hi) of them.
func Cover(lo, hi uint64, each func(level uint, index uint64) error) error {
	for lo < hi {
		level := uint(bits.Len64(hi-lo) - 1)
		if lo != 0 {
			level = min(level, uint(bits.TrailingZeros64(lo)))
		}
		if err := each(level, lo>>level); err != nil {
			return err
		}
		lo += 1 << level
	}
	return nil
}

// Root returns the root of the tree of all leaves added so far (RFC 6962 section
// 2.1). It does not change the frontier.
func (f *Frontier) Root() Hash {
	if f.Size == 0 {
		return EmptyRoot()
	}
	h := f.roots[len(f.roots)-1]
	for i := len(f.roots) - 2; i >= 0; i-- {
		h = NodeHash(f.roots[i], h)
	}
	return h
}
