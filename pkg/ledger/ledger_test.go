package ledger

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// TestReadHead checks that ReadHead parses the three lines of a checkpoint and returns
// ErrHead for malformed ones.
func TestReadHead(t *testing.T) {
	root := translog.LeafHash([]byte("x"))
	b64 := base64.StdEncoding.EncodeToString(root[:])
	note := func(origin, size, root string) []byte {
		return []byte(origin + "\n" + size + "\n" + root + "\n\n— signer c2ln\n")
	}
	h, err := ReadHead(note("binnacle/k-1/default", "18446744073709551615", b64))
	if err != nil || h.Origin != "binnacle/k-1/default" || h.Size != 1<<64-1 || h.Root != root {
		t.Fatalf("%+v %v", h, err)
	}
	for _, bad := range [][]byte{nil, []byte("binnacle/x"), []byte("binnacle/x\n1\n" + b64), note("other/x", "1", b64), note("binnacle/x", "-1", b64),
		note("binnacle/x", "18446744073709551616", b64), note("binnacle/x", "1", b64[:40]), note("binnacle/x", "1", "?"+b64[1:]), note("binnacle/x", "", b64)} {
		if _, err := ReadHead(bad); !errors.Is(err, ErrHead) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestTree checks that the root over 1 to 70 entries is that of RFC 6962, section 2.1.
func TestTree(t *testing.T) {
	var root func(entries [][]byte) translog.Hash
	root = func(entries [][]byte) translog.Hash {
		if len(entries) == 1 {
			return translog.LeafHash(entries[0])
		}
		k := 1
		for 2*k < len(entries) {
			k *= 2
		}
		return translog.NodeHash(root(entries[:k]), root(entries[k:]))
	}
	var tree Tree
	var entries [][]byte
	for i := range 70 {
		entries = append(entries, fmt.Appendf(nil, "entry %d", i))
		if err := tree.Add(entries[i]); err != nil {
			t.Fatal(err)
		}
		got, err := tree.Root()
		if err != nil || got != root(entries) || tree.Size != uint64(i+1) {
			t.Fatalf("%d entries: %x %v", i+1, got, err)
		}
	}
}

// TestPath checks that Path accepts only hashes of 64 hexadecimal digits.
func TestPath(t *testing.T) {
	h := translog.LeafHash([]byte("x"))
	s := hex.EncodeToString(h[:])
	if got, err := Path([]string{s, s}); err != nil || len(got) != 2 || got[1] != h {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", s[:62], s + "00", "z" + s[1:]} {
		if _, err := Path([]string{s, bad}); err == nil {
			t.Errorf("%q is taken for a hash", bad)
		}
	}
}

// TestNode checks that a tree has no nodes beyond its entries and its levels.
func TestNode(t *testing.T) {
	var tree Tree
	for i := range 3 {
		if err := tree.Add([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		level uint
		i     uint64
		ok    bool
	}{{0, 2, true}, {0, 3, false}, {1, 0, true}, {1, 1, false}, {2, 0, false}, {63, 0, false}, {64, 0, false}} {
		if _, err := tree.node(c.level, c.i); (err == nil) != c.ok || err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("level %d, node %d: %v", c.level, c.i, err)
		}
	}
}
