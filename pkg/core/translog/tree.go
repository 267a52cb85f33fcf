// Package translog implements the transparency log: the RFC 6962 Merkle tree over
// the ledger's stored bytes with its proofs, the map of session tips, and C2SP
// checkpoint notes with their cosignatures.
//
// The package computes hashes and verifies proofs; it stores nothing. The caller
// provides the storage as Nodes, which must return the hashes that Append passed to
// sink. Leaves, inner nodes, tip leaves and tip nodes are hashed with the prefixes 0 to
// 3, so that none can be presented as another. Tests compare the tree with the vectors
// of RFC 6962's reference implementation, and verify every proof in trees of up to 65
// leaves.
package translog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
)

// Hash is a SHA-256 hash of a node of the log or of the map of tips.
type Hash = [32]byte

// LeafHash returns the hash of a log entry: SHA-256(0x00 ‖ entry) (RFC 6962
// section 2.1).
func LeafHash(entry []byte) Hash {
	h := sha256.New()
	h.Write([]byte{0})
	h.Write(entry)
	var out Hash
	h.Sum(out[:0])
	return out
}

// NodeHash returns the hash of an inner node: SHA-256(0x01 ‖ left ‖ right) (RFC
// 6962 section 2.1).
func NodeHash(l, r Hash) Hash {
	var b [65]byte
	b[0] = 1
	copy(b[1:], l[:])
	copy(b[33:], r[:])
	return sha256.Sum256(b[:])
}

// EmptyRoot returns the root of a tree without leaves, the SHA-256 of the empty
// string (RFC 6962 section 2.1).
func EmptyRoot() Hash { return sha256.Sum256(nil) }

// Nodes returns the hash of the complete subtree of 2^level leaves whose first leaf is
// index<<level, or an error of the storage. Functions of this package return such an
// error unchanged.
type Nodes func(level uint, index uint64) (Hash, error)

// Append adds leaf n, counted from 0, to a tree of n leaves. It calls sink for
// every subtree that the leaf completes, from the lowest to the highest; the leaf
// itself has level 0. get must return the subtrees that earlier calls passed to
// sink. Append returns the first error of get or sink.
func Append(n uint64, leaf Hash, get Nodes, sink func(level uint, index uint64, h Hash) error) error {
	h := leaf
	for level := uint(0); ; level++ {
		index := n >> level
		if err := sink(level, index, h); err != nil {
			return err
		}
		if index&1 == 0 {
			return nil
		}
		left, err := get(level, index-1)
		if err != nil {
			return err
		}
		h = NodeHash(left, h)
	}
}

// Root returns the root of the first size leaves. It calls get O(log size) times,
// for the complete subtrees that make up the tree.
func Root(size uint64, get Nodes) (Hash, error) {
	if size == 0 {
		return EmptyRoot(), nil
	}
	return subtree(0, size, get)
}

// subtree returns the hash of the tree over the leaves [lo, hi). lo must be a multiple
// of the largest power of two that does not exceed hi-lo.
func subtree(lo, hi uint64, get Nodes) (Hash, error) {
	n := hi - lo
	if n&(n-1) == 0 {
		level := uint(bits.TrailingZeros64(n))
		return get(level, lo>>level)
	}
	k := split(n)
	l, err := subtree(lo, lo+k, get)
	if err != nil {
		return Hash{}, err
	}
	r, err := subtree(lo+k, hi, get)
	if err != nil {
		return Hash{}, err
	}
	return NodeHash(l, r), nil
}

// split returns the largest power of two below n, for n ≥ 2.
func split(n uint64) uint64 { return 1 << (bits.Len64(n-1) - 1) }

// Inclusion returns the audit path of leaf index, counted from 0, in the tree of
// size leaves, from the leaf upwards (RFC 6962 section 2.1.1). It returns an
// error if the tree has no such leaf, or the error of get.
func Inclusion(index, size uint64, get Nodes) ([]Hash, error) {
	if index >= size {
		return nil, fmt.Errorf("leaf %d is not in a tree of %d", index, size)
	}
	return path(index, 0, size, get)
}

// path implements Inclusion for leaf m in the leaves [lo, hi).
func path(m, lo, hi uint64, get Nodes) ([]Hash, error) {
	if hi-lo == 1 {
		return nil, nil
	}
	k := split(hi - lo)
	if m < lo+k {
		p, err := path(m, lo, lo+k, get)
		if err != nil {
			return nil, err
		}
		h, err := subtree(lo+k, hi, get)
		return append(p, h), err
	}
	p, err := path(m, lo+k, hi, get)
	if err != nil {
		return nil, err
	}
	h, err := subtree(lo, lo+k, get)
	return append(p, h), err
}

// Consistency returns the proof that the tree of old leaves is a prefix of the
// tree of size leaves (RFC 6962 section 2.1.2). The proof is empty if old is 0 or
// size. Consistency returns an error if old exceeds size, or the error of get.
func Consistency(old, size uint64, get Nodes) ([]Hash, error) {
	if old > size {
		return nil, fmt.Errorf("tree of %d cannot be a prefix of %d", old, size)
	}
	if old == 0 || old == size {
		return nil, nil
	}
	return subproof(old, 0, size, true, get)
}

// subproof implements SUBPROOF of RFC 6962 section 2.1.2 for the leaves [lo, hi).
func subproof(m, lo, hi uint64, whole bool, get Nodes) ([]Hash, error) {
	if m == hi-lo {
		if whole {
			return nil, nil
		}
		h, err := subtree(lo, hi, get)
		return []Hash{h}, err
	}
	k := split(hi - lo)
	if m <= k {
		p, err := subproof(m, lo, lo+k, whole, get)
		if err != nil {
			return nil, err
		}
		h, err := subtree(lo+k, hi, get)
		return append(p, h), err
	}
	p, err := subproof(m-k, lo+k, hi, false, get)
	if err != nil {
		return nil, err
	}
	h, err := subtree(lo, lo+k, get)
	return append(p, h), err
}

// ErrProof is returned for every proof that does not prove its statement. It does not
// identify the hash that differs, since no caller can act on that.
var ErrProof = errors.New("proof does not hold")

// VerifyInclusion returns ErrProof unless proof proves that leaf is at position
// index, counted from 0, in the tree of size leaves with this root (RFC 9162
// section 2.1.3.2).
func VerifyInclusion(index, size uint64, leaf Hash, proof []Hash, root Hash) error {
	if index >= size {
		return ErrProof
	}
	w, r := walk{index, size - 1}, leaf
	for _, p := range proof {
		left, ok := w.up()
		if !ok {
			return ErrProof
		}
		if left {
			r = NodeHash(p, r)
		} else {
			r = NodeHash(r, p)
		}
	}
	if w.last != 0 || r != root {
		return ErrProof
	}
	return nil
}

// walk is a position on the path from a node to the root: the node's index in its
// level, and the index of the last node of that level (fn and sn in RFC 9162).
type walk struct{ node, last uint64 }

// up moves to the parent of the current node, which may be several levels higher if the
// node is the last of its level and has no sibling there. left reports whether the next
// proof hash, that of the sibling, is the left child. ok is false if the walk is at the
// root already.
func (w *walk) up() (left, ok bool) {
	if w.last == 0 {
		return false, false
	}
	if left = w.node&1 == 1 || w.node == w.last; left {
		for w.node&1 == 0 && w.node != 0 {
			w.node, w.last = w.node>>1, w.last>>1
		}
	}
	w.node, w.last = w.node>>1, w.last>>1
	return left, true
}

// VerifyConsistency returns ErrProof unless proof proves that the tree of old
// leaves with oldRoot is a prefix of the tree of size leaves with root (RFC 9162
// section 2.1.4.2).
func VerifyConsistency(old, size uint64, oldRoot, root Hash, proof []Hash) error {
	switch {
	case old > size:
		return ErrProof
	case old == size:
		return provenIf(len(proof) == 0 && oldRoot == root)
	case old == 0:
		return provenIf(len(proof) == 0 && oldRoot == EmptyRoot())
	}
	if old&(old-1) == 0 {
		proof = append([]Hash{oldRoot}, proof...)
	}
	if len(proof) == 0 {
		return ErrProof
	}
	first, second, ok := grow(walk{old - 1, size - 1}, proof)
	return provenIf(ok && first == oldRoot && second == root)
}

// grow computes the root of the smaller tree, whose last leaf is w.node, and of
// the larger tree, whose last leaf is w.last. ok is false if the proof has too
// many or too few hashes.
func grow(w walk, proof []Hash) (first, second Hash, ok bool) {
	for w.node&1 == 1 {
		w.node, w.last = w.node>>1, w.last>>1
	}
	first, second = proof[0], proof[0]
	for _, c := range proof[1:] {
		left, ok := w.up()
		if !ok {
			return first, second, false
		}
		if left {
			first, second = NodeHash(c, first), NodeHash(c, second)
		} else {
			second = NodeHash(second, c)
		}
	}
	return first, second, w.last == 0
}

// provenIf returns nil if ok, and ErrProof otherwise.
func provenIf(ok bool) error {
	if !ok {
		return ErrProof
	}
	return nil
}
