// Package ledger has what tools around a ledger share: parsing a checkpoint whose
// signature is checked elsewhere, a tree over a sequence of entries, and the encoding of
// proofs in the mesh's responses.
package ledger

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// Head is the content of a checkpoint: origin, size and root.
type Head struct {
	Origin string
	Size   uint64
	Root   translog.Hash
}

// ErrHead is returned for text that is not a mesh's checkpoint.
var ErrHead = errors.New("not a checkpoint of a mesh")

// ReadHead parses a signed note without verifying its signature. Callers must not trust
// the result before they have verified it.
func ReadHead(note []byte) (h Head, err error) {
	lines := strings.SplitN(string(note), "\n", 4)
	if len(lines) < 4 || !strings.HasPrefix(lines[0], "binnacle/") {
		return h, ErrHead
	}
	h.Origin = lines[0]
	if h.Size, err = strconv.ParseUint(lines[1], 10, 64); err != nil {
		return h, ErrHead
	}
	root, err := base64.StdEncoding.Strict().DecodeString(lines[2])
	if err != nil || len(root) != len(h.Root) {
		return h, ErrHead
	}
	h.Root = translog.Hash(root)
	return h, nil
}

// Tree is a Merkle tree over entries in order, in memory.
type Tree struct {
	Size  uint64
	nodes [64][]translog.Hash
}

func (t *Tree) node(level uint, i uint64) (translog.Hash, error) {
	if level >= uint(len(t.nodes)) || i >= uint64(len(t.nodes[level])) {
		return translog.Hash{}, io.EOF
	}
	return t.nodes[level][i], nil
}

// Add appends the next entry's stored bytes as a leaf.
func (t *Tree) Add(entry []byte) error {
	err := translog.Append(t.Size, translog.LeafHash(entry), t.node, func(level uint, _ uint64, h translog.Hash) error {
		t.nodes[level] = append(t.nodes[level], h)
		return nil
	})
	t.Size++
	return err
}

// Root returns the root over the added entries.
func (t *Tree) Root() (translog.Hash, error) { return translog.Root(t.Size, t.node) }

// Path decodes the hashes of a proof.
func Path(path []string) ([]translog.Hash, error) {
	out := make([]translog.Hash, len(path))
	for i, s := range path {
		b, err := hex.DecodeString(s)
		if err != nil || len(b) != len(out[i]) {
			return nil, errors.New("the proof is not made of SHA-256 hashes")
		}
		out[i] = translog.Hash(b)
	}
	return out, nil
}
