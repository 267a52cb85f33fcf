package tree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
)

// TestExtend checks that the tree in the files has the same root as one computed in
// memory, for batches of different sizes, repeated calls of Extend and a reopened tree,
// and that Node returns io.EOF for nodes that the tree does not have.
func TestExtend(t *testing.T) {
	dir := t.TempDir()
	tree, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var want ledger.Tree
	n := uint64(0)
	for _, size := range []int{1, 1, 2, 3, 5, 8, 13, 21, 1, 64} {
		var leaves []translog.Hash
		for i := range size {
			entry := fmt.Appendf(nil, "entry %d", n+uint64(i))
			leaves = append(leaves, translog.LeafHash(entry))
			if err := want.Add(entry); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the repetition simulates a retry after a crash
			if err := tree.Extend(n, leaves); err != nil {
				t.Fatal(err)
			}
		}
		n += uint64(size)
		if err := tree.Close(); err != nil {
			t.Fatal(err)
		}
		if tree, err = Open(dir); err != nil {
			t.Fatal(err)
		}
		got, err := translog.Root(n, tree.Node)
		root, err2 := want.Root()
		if err != nil || err2 != nil || got != root {
			t.Fatalf("%d leaves: root %x, want %x (%v, %v)", n, got, root, err, err2)
		}
	}
	defer tree.Close()
	for _, at := range [][2]uint64{{0, n}, {0, 1 << 60}, {7, 0}, {48, 0}, {100, 0}} {
		if _, err := tree.Node(uint(at[0]), at[1]); !errors.Is(err, io.EOF) {
			t.Errorf("node %d of level %d: %v", at[1], at[0], err)
		}
	}
}

// TestOpenFails checks that Open leaves no file open if one of them cannot be opened.
func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "level-07"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Fatal("a folder was opened as a file")
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir) {
			t.Errorf("%s is open", to)
		}
	}
}
