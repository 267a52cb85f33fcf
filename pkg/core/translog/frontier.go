package translog

// Frontier is a tree to which leaves are added in order. It stores only the roots
// of the complete subtrees, O(log n) hashes, and so can compute the root but no
// proofs. The zero value is the empty tree. A Frontier must be used by one
// goroutine only.
type Frontier struct {
	Size  uint64
	roots []Hash // roots of the complete subtrees, largest first
}

// Add appends the next leaf. It computes fewer than one hash on average and O(log n) at
// most.
func (f *Frontier) Add(leaf Hash) {
	for n := f.Size; n&1 == 1; n >>= 1 {
		last := len(f.roots) - 1
		leaf = NodeHash(f.roots[last], leaf)
		f.roots = f.roots[:last]
	}
	f.roots = append(f.roots, leaf)
	f.Size++
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
