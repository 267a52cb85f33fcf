// Package tree keeps the log's Merkle tree in append-only files, one per
// level, of 32 byte hashes of complete subtrees.
package tree

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// Tree is not safe for concurrent writes; reads may go on beside one writer.
type Tree struct {
	dir    string
	levels []*os.File
}

// Open uses dir, creating it.
func Open(dir string) (*Tree, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	t := &Tree{dir: dir}
	for level := range 48 {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("level-%02d", level)), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		t.levels = append(t.levels, f)
	}
	return t, nil
}

// Close closes the files.
func (t *Tree) Close() error {
	for _, f := range t.levels {
		f.Close()
	}
	return nil
}

// Append sets leaf n, counted from 0, of a tree of n leaves. Setting it again
// after a crash rewrites the same bytes.
func (t *Tree) Append(n uint64, leaf translog.Hash) error {
	return translog.Append(n, leaf, t.Node, func(level uint, index uint64, h translog.Hash) error {
		_, err := t.levels[level].WriteAt(h[:], int64(index)*32)
		return err
	})
}

// Node implements translog.Nodes.
func (t *Tree) Node(level uint, index uint64) (h translog.Hash, err error) {
	_, err = t.levels[level].ReadAt(h[:], int64(index)*32)
	return h, err
}
