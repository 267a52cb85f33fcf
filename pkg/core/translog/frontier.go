package translog

// Frontier is a tree to which leaves are added in order, of which only the
// roots of its complete subtrees are stored, O(log n). The zero value is the
// empty tree.
type Frontier struct {
	Size  uint64
	roots []Hash // of the complete subtrees, the largest first
}

// Add appends the next leaf; it takes O(log n) hashes at most, two on average.
func (f *Frontier) Add(leaf Hash) {
	for n := f.Size; n&1 == 1; n >>= 1 {
		last := len(f.roots) - 1
		leaf = NodeHash(f.roots[last], leaf)
		f.roots = f.roots[:last]
	}
	f.roots = append(f.roots, leaf)
	f.Size++
}

// Root returns the root of the tree of the leaves added so far.
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
