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

// The map of tips is a Merkle map from (tenant, session) to the end of the
// session. A checkpoint commits to its root, so that a session's evidence
// cannot end early. The map is a compact sparse Merkle tree over 256-bit keys:
// a subtree without keys hashes to 32 zero bytes, a subtree of one key is the
// leaf of that key, and a subtree of more is TipNode of its halves, split by
// the next bit of the key, the most significant first. Its shape and root
// follow from its content alone.

// tipsLine names the extension line of a checkpoint: "tips 1 <base64 root>".
const tipsLine = "tips"

// Tip is the end of one session: what the map holds for it.
type Tip struct {
	Digest   Hash   // of the last receipt's canonical bytes; the chain's genesis before the first
	Events   uint64 // of the session
	Receipts uint64
}

// TipKey is the key of a session: SHA-256(tenant ‖ 0x00 ‖ session).
func TipKey(tenant, session string) Hash {
	return sha256.Sum256([]byte(tenant + "\x00" + session))
}

// Leaf is SHA-256(0x02 ‖ key ‖ digest ‖ receipts ‖ events), the counts as 8
// bytes, big endian.
func (t *Tip) Leaf(key Hash) Hash {
	b := make([]byte, 0, 1+32+32+16)
	b = append(append(append(b, 2), key[:]...), t.Digest[:]...)
	b = binary.BigEndian.AppendUint64(b, t.Receipts)
	return sha256.Sum256(binary.BigEndian.AppendUint64(b, t.Events))
}

// TipNode is SHA-256(0x03 ‖ left ‖ right).
func TipNode(l, r Hash) Hash {
	var b [65]byte
	b[0] = 3
	copy(b[1:], l[:])
	copy(b[33:], r[:])
	return sha256.Sum256(b[:])
}

// TipBit is the bit of key at depth 0 to 255, of which 0 is the most significant.
func TipBit(key Hash, depth int) byte { return key[depth/8] >> (7 - depth%8) & 1 }

// TipLeaf is a key and the hash of its leaf.
type TipLeaf struct{ Key, Leaf Hash }

// TipsRoot returns the root of the map with these leaves, whose keys are distinct.
// It sorts the slice in place.
func TipsRoot(leaves []TipLeaf) Hash {
	slices.SortFunc(leaves, func(a, b TipLeaf) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return tipsRoot(leaves, 0)
}

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

// maxTipPath is the length of the longest path: keys have 256 bits.
const maxTipPath = 256

// climb hashes from what is at the end of path up to the root.
func climb(key, at Hash, path []Hash) (Hash, error) {
	if n := len(path); n > maxTipPath || n > 0 && path[n-1] == (Hash{}) && at != (Hash{}) {
		return Hash{}, ErrProof // one key alone is a leaf, wherever it is
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

// VerifyTip returns ErrProof unless the map with this root holds t for key. path
// lists the siblings from the root down.
func VerifyTip(key Hash, t *Tip, path []Hash, root Hash) error {
	if at, err := climb(key, t.Leaf(key), path); err != nil || at != root {
		return ErrProof
	}
	return nil
}

// VerifyNoTip returns ErrProof unless the map with this root holds nothing for key:
// path ends in an empty subtree, or, where other is not nil, in the leaf of that
// key, which holds held.
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

// TipsExtension returns the extension line of a checkpoint that commits to the map
// of tips with this root.
func TipsExtension(root Hash) string {
	return tipsLine + " 1 " + base64.StdEncoding.EncodeToString(root[:])
}

var errTips = errors.New("checkpoint: want at most one line of the form \"tips 1 <base64 root>\"")

// Tips returns the root of the map of tips. ok is false where the checkpoint
// does not commit to one: those of releases before 0.5 do not.
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
