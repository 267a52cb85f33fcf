// Package ledger is what the tools around a ledger share: reading a checkpoint
// whose signature somebody else checks, a tree over entries that pass by, and
// the hashes of a proof as the mesh writes them.
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

// Head is what a checkpoint says.
type Head struct {
	Origin string
	Size   uint64
	Root   translog.Hash
}

// ErrHead is returned for what is no checkpoint of a mesh.
var ErrHead = errors.New("not a checkpoint of a mesh")

// ReadHead reads a signed note without checking who signed it: nothing may be
// trusted that rests on it alone.
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

// Add takes the next entry's stored bytes.
func (t *Tree) Add(entry []byte) error {
	err := translog.Append(t.Size, translog.LeafHash(entry), t.node, func(level uint, _ uint64, h translog.Hash) error {
		t.nodes[level] = append(t.nodes[level], h)
		return nil
	})
	t.Size++
	return err
}

// Root is the root over what was added.
func (t *Tree) Root() (translog.Hash, error) { return translog.Root(t.Size, t.node) }

// Path reads the hashes of a proof.
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
