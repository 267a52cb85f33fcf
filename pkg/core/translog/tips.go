package translog

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// The map of tips is a Merkle map from (tenant, session) to the tip of the session's
// receipt chain. A checkpoint commits to the root of the map, so that the evidence of a
// session cannot omit its last receipts. The map is a compact sparse Merkle tree over
// 256-bit keys. The hash of a subtree without keys is 32 zero bytes; that of a subtree
// with one key is the leaf hash of that key; that of a larger subtree is TipNode of its
// two halves, split by the next bit of the key, most significant bit first. Shape and
// root therefore depend only on the content, not on the order of insertion.

// tipsLine is the name of a checkpoint's extension line "tips 1 <base64 root>"; 1
// is the version of the map.
const tipsLine = "tips"

// Tip is the value that the map of tips holds for one session: the end of its receipt
// chain, and the numbers of its events and receipts.
type Tip struct {
	Digest   Hash   // digest of the last receipt's canonical bytes; before the first, of the chain's genesis
	Events   uint64 // number of events of the session
	Receipts uint64
}

// TipKey returns the key of a session in the map of tips: SHA-256(tenant ‖ 0x00 ‖
// session).
func TipKey(tenant, session string) Hash {
	return sha256.Sum256([]byte(tenant + "\x00" + session))
}

// Leaf returns the leaf hash SHA-256(0x02 ‖ key ‖ digest ‖ receipts ‖ events).
// The counts are 8 bytes each, big endian. The key is part of the leaf because
// the position in a compact tree does not determine it.
func (t *Tip) Leaf(key Hash) Hash {
	b := make([]byte, 0, 1+32+32+16)
	b = append(append(append(b, 2), key[:]...), t.Digest[:]...)
	b = binary.BigEndian.AppendUint64(b, t.Receipts)
	return sha256.Sum256(binary.BigEndian.AppendUint64(b, t.Events))
}

// TipNode returns the hash of an inner node, SHA-256(0x03 ‖ left ‖ right). The
// prefix differs from those of the log and of leaves, so that no hash can serve
// as another kind of node.
func TipNode(l, r Hash) Hash {
	var b [65]byte
	b[0] = 3
	copy(b[1:], l[:])
	copy(b[33:], r[:])
	return sha256.Sum256(b[:])
}

// TipBit returns the bit of key at a depth from 0 to 255; depth 0 is the most
// significant bit.
func TipBit(key Hash, depth int) byte { return key[depth/8] >> (7 - depth%8) & 1 }

// TipLeaf is a key in the map of tips and the hash of the leaf at that key, as
// returned by Tip.Leaf.
type TipLeaf struct{ Key, Leaf Hash }

// TipsRoot returns the root of the map with these leaves, whose keys must be
// distinct. It sorts the slice in place.
func TipsRoot(leaves []TipLeaf) Hash {
	slices.SortFunc(leaves, func(a, b TipLeaf) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return tipsRoot(leaves, 0)
}

// tipsRoot returns the root of the subtree at depth over sorted leaves that share
// the first depth bits of their keys.
func tipsRoot(leaves []TipLeaf, depth int) Hash {
	switch len(leaves) {
	case 0:
		return Hash{}
	case 1:
		return leaves[0].Leaf
	}
	i, _ := slices.BinarySearchFunc(leaves, byte(1), func(l TipLeaf, bit byte) int { return int(TipBit(l.Key, depth)) - int(bit) })
	return TipNode(tipsRoot(leaves[:i], depth+1), tipsRoot(leaves[i:], depth+1))
}

// maxTipPath is the greatest length of a path: one sibling for each of the 256
// bits of a key.
const maxTipPath = 256

// climb computes a root from the hash at, which is at the end of path, and the sibling
// hashes in path; the bits of key determine on which side each sibling is. It returns
// ErrProof for a path that is too long, or whose last sibling is an empty subtree
// although at is not.
func climb(key, at Hash, path []Hash) (Hash, error) {
	if n := len(path); n > maxTipPath || n > 0 && path[n-1] == (Hash{}) && at != (Hash{}) {
		return Hash{}, ErrProof // a subtree with a single key is a leaf, so its sibling cannot be empty
	}
	for d := len(path) - 1; d >= 0; d-- {
		if TipBit(key, d) == 0 {
			at = TipNode(at, path[d])
		} else {
			at = TipNode(path[d], at)
		}
	}
	return at, nil
}

// VerifyTip returns ErrProof unless path proves that the map with this root holds
// t for key. path lists the sibling hashes from the root downwards.
func VerifyTip(key Hash, t *Tip, path []Hash, root Hash) error {
	if at, err := climb(key, t.Leaf(key), path); err != nil || at != root {
		return ErrProof
	}
	return nil
}

// VerifyNoTip returns ErrProof unless path proves that the map with this root holds no value for
// key. The path ends in an empty subtree or, if other is not nil, in the leaf of the key *other,
// whose value is *held; held must then not be nil.
func VerifyNoTip(key Hash, other *Hash, held *Tip, path []Hash, root Hash) error {
	var at Hash
	if other != nil {
		if *other == key {
			return ErrProof
		}
		for d := range min(len(path), maxTipPath) {
			if TipBit(*other, d) != TipBit(key, d) {
				return ErrProof
			}
		}
		at = held.Leaf(*other)
	}
	if got, err := climb(key, at, path); err != nil || got != root {
		return ErrProof
	}
	return nil
}

// TipsExtension returns the extension line with which a checkpoint commits to the
// map of tips with this root.
func TipsExtension(root Hash) string {
	return tipsLine + " 1 " + base64.StdEncoding.EncodeToString(root[:])
}

var errTips = errors.New("checkpoint: want at most one line of the form \"tips 1 <base64 root>\"")

// Tips returns the root of the map of tips that the checkpoint commits to. ok is false
// if it commits to none, like checkpoints of releases before 0.5. Tips returns an error
// for a malformed or repeated extension line.
func (c *Checkpoint) Tips() (root Hash, ok bool, err error) {
	for _, e := range c.Extensions {
		name, v, _ := strings.Cut(e, " ")
		if name != tipsLine {
			continue
		}
		text, one := strings.CutPrefix(v, "1 ")
		b, err := sign.Base64(text)
		if ok || !one || err != nil || len(b) != len(root) {
			return root, false, fmt.Errorf("%w, not %q", errTips, e)
		}
		root, ok = Hash(b), true
	}
	return root, ok, nil
}
