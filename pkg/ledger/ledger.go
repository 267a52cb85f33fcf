// Package ledger provides functions that the tools around a ledger share. It parses a
// checkpoint whose signature is verified elsewhere, computes a Merkle tree over entries,
// and decodes the proofs in responses of the mesh.
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

// Head is the content of a checkpoint: the name of the log, the number of entries, and
// the root of the Merkle tree.
type Head struct {
	Origin string
	Size   uint64
	Root   translog.Hash
}

// ErrHead is returned by ReadHead for text that is not a checkpoint of a mesh.
var ErrHead = errors.New("not a checkpoint of a mesh")

// ReadHead parses a checkpoint without verifying its signature. The caller must verify
// the signature before it relies on the result. The only error is ErrHead.
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

// Tree is a Merkle tree in memory, over entries in order. The zero value is an empty
// tree.
type Tree struct {
	Size  uint64
	nodes [64][]translog.Hash
}

// node implements translog.Nodes.
func (t *Tree) node(level uint, i uint64) (translog.Hash, error) {
	if level >= uint(len(t.nodes)) || i >= uint64(len(t.nodes[level])) {
		return translog.Hash{}, io.EOF
	}
	return t.nodes[level][i], nil
}

// Add appends a leaf for the next entry, given as its stored bytes.
func (t *Tree) Add(entry []byte) error {
	err := translog.Append(t.Size, translog.LeafHash(entry), t.node, func(level uint, _ uint64, h translog.Hash) error {
		t.nodes[level] = append(t.nodes[level], h)
		return nil
	})
	t.Size++
	return err
}

// Root returns the root of the tree over the added entries.
func (t *Tree) Root() (translog.Hash, error) { return translog.Root(t.Size, t.node) }

// Path decodes the hashes of a proof, each given as 64 hexadecimal digits.
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
