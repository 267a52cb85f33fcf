// Package tips maintains the map of tips (translog.TipsRoot), a Merkle tree, in a store
// of its inner nodes. A change of k of n keys, which are hashes, reads and writes O(k ·
// log n) nodes on average.
package tips

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// Hash is the hash of a leaf or of an inner node, or a key, which is a hash too.
type Hash = translog.Hash

// Values of Child.kind.
const (
	empty byte = iota
	leaf
	inner
)

// Child is a subtree: empty, the leaf of one key, or an inner node. The zero value is
// the empty map.
type Child struct {
	kind byte
	hash Hash
	key  Hash // key of a leaf
}

// Root returns the hash of the subtree, which is zero if the subtree is empty.
func (c *Child) Root() Hash { return c.hash }

// Node is an inner node: element 0 is the subtree of the keys whose next bit is 0, and
// element 1 that of the keys whose next bit is 1.
type Node [2]Child

// Store stores inner nodes under their places, which Place encodes. Get returns nil for
// a missing node; the caller may change the node that Get returns.
type Store interface {
	Get(place []byte) (*Node, error)
	Put(place []byte, n *Node) error
	Delete(place []byte) error
}

// Change sets the leaf of a key; a zero Leaf removes the key.
type Change struct{ Key, Leaf Hash }

var errStore = errors.New("map of tips: an inner node is missing")

// Update applies changes, whose keys must be distinct, to the map with the given root,
// and returns the new root. It sorts the slice changes. After an error, s may contain
// some of the changes.
func Update(s Store, root Child, changes []Change) (Child, error) {
	slices.SortFunc(changes, func(a, b Change) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return update(s, root, changes, 0)
}

// update applies changes, sorted by key, to the subtree c at depth, and returns the new
// subtree.
func update(s Store, c Child, ch []Change, depth int) (Child, error) {
	if len(ch) == 0 {
		return c, nil
	}
	if c.kind != inner {
		return build(s, merge(c, ch), depth)
	}
	place := Place(ch[0].Key, depth)
	n, err := s.Get(place)
	if err != nil {
		return c, err
	}
	if n == nil {
		return c, errStore
	}
	i := split(ch, depth)
	if n[0], err = update(s, n[0], ch[:i], depth+1); err != nil {
		return c, err
	}
	if n[1], err = update(s, n[1], ch[i:], depth+1); err != nil {
		return c, err
	}
	for side := range n { // a subtree with a single key is a leaf, not an inner node
		if n[side].kind == empty && n[1-side].kind != inner {
			return n[1-side], s.Delete(place)
		}
	}
	return put(s, place, n)
}

// merge applies the changes ch to the subtree c, which is empty or a leaf, and returns
// the resulting leaves. ch and the result are sorted by key.
func merge(c Child, ch []Change) []Change {
	out := make([]Change, 0, len(ch)+1)
	for _, x := range ch {
		if c.kind == leaf && bytes.Compare(c.key[:], x.Key[:]) < 0 {
			out, c.kind = append(out, Change{c.key, c.hash}), empty
		}
		if c.kind == leaf && c.key == x.Key {
			c.kind = empty
		}
		if x.Leaf != (Hash{}) {
			out = append(out, x)
		}
	}
	if c.kind == leaf {
		out = append(out, Change{c.key, c.hash})
	}
	return out
}

// build builds the subtree at depth from leaves, sorted by key, and stores its inner
// nodes.
func build(s Store, leaves []Change, depth int) (Child, error) {
	switch len(leaves) {
	case 0:
		return Child{}, nil
	case 1:
		return Child{kind: leaf, hash: leaves[0].Leaf, key: leaves[0].Key}, nil
	}
	i := split(leaves, depth)
	var n Node
	var err error
	if n[0], err = build(s, leaves[:i], depth+1); err != nil {
		return n[0], err
	}
	if n[1], err = build(s, leaves[i:], depth+1); err != nil {
		return n[1], err
	}
	return put(s, Place(leaves[0].Key, depth), &n)
}

func put(s Store, place []byte, n *Node) (Child, error) {
	return Child{kind: inner, hash: translog.TipNode(n[0].hash, n[1].hash)}, s.Put(place, n)
}

// split returns the index of the first change whose key has the bit 1 at depth, or
// len(ch) if there is none. The keys must be sorted and agree in the bits before depth.
func split(ch []Change, depth int) int {
	i, _ := slices.BinarySearchFunc(ch, byte(1), func(c Change, bit byte) int { return int(translog.TipBit(c.Key, depth)) - int(bit) })
	return i
}

// Prove returns the sibling hashes on the path from the root down to key. at is the key
// of the leaf at the end of the path, or nil if the path ends in an empty subtree.
func Prove(s Store, root Child, key Hash) (path []Hash, at *Hash, err error) {
	c := root
	for depth := 0; c.kind == inner; depth++ {
		n, err := s.Get(Place(key, depth))
		if err != nil {
			return nil, nil, err
		}
		if n == nil {
			return nil, nil, errStore
		}
		b := translog.TipBit(key, depth)
		path, c = append(path, n[1-b].hash), n[b]
	}
	if c.kind == leaf {
		return path, &c.key, nil
	}
	return path, nil, nil
}

// Place returns the store's key for the inner node at depth on the path to key: the bits
// of key before depth, padded with zeros, followed by depth. Deep nodes on one path have
// places near each other, so that a change of a key writes few pages of a database.
func Place(key Hash, depth int) []byte {
	n := depth / 8
	b := make([]byte, max(8, n+1), max(8, n+1)+2)
	copy(b, key[:n])
	if r := depth % 8; r > 0 {
		b[n] = key[n] & (0xff << (8 - r))
	}
	return binary.BigEndian.AppendUint16(b, uint16(depth))
}

// Append appends the encoding of c to b. ReadChild decodes it.
func (c *Child) Append(b []byte) []byte {
	switch b = append(b, c.kind); c.kind {
	case leaf:
		b = append(append(b, c.hash[:]...), c.key[:]...)
	case inner:
		b = append(b, c.hash[:]...)
	}
	return b
}

var errChild = errors.New("map of tips: an inner node is malformed")

// ReadChild decodes a child at the start of b and returns the rest of b.
func ReadChild(b []byte) (c Child, rest []byte, err error) {
	if len(b) == 0 {
		return c, nil, errChild
	}
	c.kind, b = b[0], b[1:]
	size := map[byte]int{empty: 0, leaf: 64, inner: 32}[c.kind]
	if c.kind > inner || len(b) < size {
		return c, nil, errChild
	}
	if size > 0 {
		copy(c.hash[:], b)
	}
	if size == 64 {
		copy(c.key[:], b[32:])
	}
	return c, b[size:], nil
}

// ReadNode decodes a node that AppendNode encoded.
func ReadNode(b []byte) (*Node, error) {
	var n Node
	var err error
	if n[0], b, err = ReadChild(b); err != nil {
		return nil, err
	}
	if n[1], b, err = ReadChild(b); err != nil || len(b) > 0 {
		return nil, errChild
	}
	return &n, nil
}

// AppendNode appends the encoding of a node to b.
func AppendNode(b []byte, n *Node) []byte { return n[1].Append(n[0].Append(b)) }

// Overlay is a Store that keeps changes in memory and does not change the store Under.
type Overlay struct {
	Under Store
	nodes map[string]*Node // by place; nil if deleted
}

// Get implements Store.
func (o *Overlay) Get(place []byte) (*Node, error) {
	if n, ok := o.nodes[string(place)]; ok {
		if n == nil {
			return nil, nil
		}
		c := *n
		return &c, nil
	}
	return o.Under.Get(place)
}

// Put implements Store.
func (o *Overlay) Put(place []byte, n *Node) error {
	if o.nodes == nil {
		o.nodes = map[string]*Node{}
	}
	c := *n
	o.nodes[string(place)] = &c
	return nil
}

// Delete implements Store.
func (o *Overlay) Delete(place []byte) error {
	if o.nodes == nil {
		o.nodes = map[string]*Node{}
	}
	o.nodes[string(place)] = nil
	return nil
}
