// Package tree stores the log's Merkle tree in files, one per level. A file contains the
// hashes, of 32 bytes each, of the complete subtrees at its level; they do not change
// when the tree grows.
package tree

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Tree is an open tree. Reads are safe for concurrent use with one writer.
type Tree struct {
	dir    string
	levels []*os.File
}

// Open opens the tree in dir. It creates the folder and the files if they are missing.
func Open(dir string) (*Tree, error) {
	if err := private.Mkdir(dir); err != nil {
		return nil, err
	}
	t := &Tree{dir: dir}
	for level := range 48 {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("level-%02d", level)), os.O_RDWR|os.O_CREATE, private.FileMode)
		if err != nil {
			_ = t.Close()
			return nil, err
		}
		t.levels = append(t.levels, f)
	}
	return t, nil
}

// Close closes the files. It always returns nil.
func (t *Tree) Close() error {
	for _, f := range t.levels {
		f.Close()
	}
	return nil
}

// Extend appends leaves to the tree, which has n leaves, with one write per level. It
// can be repeated after a crash, because it writes the same bytes again.
func (t *Tree) Extend(n uint64, leaves []translog.Hash) error {
	var added [48]struct {
		from  uint64
		bytes []byte
	}
	node := func(level uint, index uint64) (h translog.Hash, err error) {
		a := &added[level]
		if a.bytes == nil || index < a.from {
			return t.Node(level, index)
		}
		copy(h[:], a.bytes[(index-a.from)*32:])
		return h, nil
	}
	for i, leaf := range leaves {
		if err := translog.Append(n+uint64(i), leaf, node, func(level uint, index uint64, h translog.Hash) error {
			a := &added[level]
			if a.bytes == nil {
				a.from = index
			}
			a.bytes = append(a.bytes, h[:]...) // translog.Append passes the nodes of a level in order
			return nil
		}); err != nil {
			return err
		}
	}
	for level, a := range added {
		if _, err := t.levels[level].WriteAt(a.bytes, int64(a.from)*32); err != nil {
			return err
		}
	}
	return nil
}

// Node implements translog.Nodes. It returns io.EOF if the tree has no such node.
func (t *Tree) Node(level uint, index uint64) (h translog.Hash, err error) {
	if level >= uint(len(t.levels)) || index > math.MaxInt64/32 {
		return h, io.EOF
	}
	_, err = t.levels[level].ReadAt(h[:], int64(index)*32)
	return h, err
}
