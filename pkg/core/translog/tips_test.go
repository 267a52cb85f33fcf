package translog

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTipsVectors compares the roots of maps of no, one and two keys with hashes that
// the test computes from their leaves, and a key with its recorded value.
func TestTipsVectors(t *testing.T) {
	if TipsRoot(nil) != (Hash{}) {
		t.Error("the empty map's root is not 32 zero bytes")
	}
	tip := Tip{Digest: LeafHash([]byte("x")), Events: 4, Receipts: 1}
	key := TipKey("t", "s-a")
	if got := hex.EncodeToString(key[:]); got != "28d1acf334eb8805c1edc6aa91fe69bc6051624c9616ca2fd91be0b332c949e1" {
		t.Error(got)
	}
	if TipsRoot([]TipLeaf{{key, tip.Leaf(key)}}) != tip.Leaf(key) {
		t.Error("the root of a map of one key is not its leaf")
	}
	other := TipKey("t", "s-b")
	l, r := TipLeaf{key, tip.Leaf(key)}, TipLeaf{other, tip.Leaf(other)}
	depth := 0
	for TipBit(key, depth) == TipBit(other, depth) {
		depth++
	}
	want := TipNode(l.Leaf, r.Leaf)
	if TipBit(key, depth) == 1 {
		want = TipNode(r.Leaf, l.Leaf)
	}
	for d := depth - 1; d >= 0; d-- {
		if TipBit(key, d) == 0 {
			want = TipNode(want, Hash{})
		} else {
			want = TipNode(Hash{}, want)
		}
	}
	if got := TipsRoot([]TipLeaf{l, r}); got != want {
		t.Errorf("two keys: %x, want %x", got, want)
	}
}

// tipPath returns the path of key in the map of leaves, and the leaf at the end of the path,
// which may have another key, or nil if the path ends in an empty subtree. All leaves are in
// one subtree at the given depth.
func tipPath(leaves []TipLeaf, key Hash, depth int) (path []Hash, at *TipLeaf) {
	if len(leaves) == 0 {
		return nil, nil
	}
	if len(leaves) == 1 {
		return nil, &leaves[0]
	}
	var half [2][]TipLeaf
	for _, l := range leaves {
		half[TipBit(l.Key, depth)] = append(half[TipBit(l.Key, depth)], l)
	}
	b := TipBit(key, depth)
	path, at = tipPath(half[b], key, depth+1)
	return append([]Hash{tipsRoot(half[1-b], depth+1)}, path...), at
}

// TestTips shows, for maps of 0 to 59 keys, that the presence of each key, with its
// value and no other, and the absence of 40 other keys can be proved, and that the root
// does not depend on the order of the leaves.
func TestTips(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 60 {
		var leaves []TipLeaf
		tips := map[Hash]*Tip{}
		for i := range n {
			k := TipKey("t", fmt.Sprint("s-", i))
			tip := &Tip{Digest: LeafHash([]byte{byte(i)}), Events: uint64(i), Receipts: 2}
			tips[k] = tip
			leaves = append(leaves, TipLeaf{k, tip.Leaf(k)})
		}
		root := TipsRoot(slices.Clone(leaves))
		r.Shuffle(n, func(i, j int) { leaves[i], leaves[j] = leaves[j], leaves[i] })
		if TipsRoot(leaves) != root {
			t.Fatal("the root follows the order of insertion")
		}
		for k, tip := range tips {
			path, _ := tipPath(leaves, k, 0)
			if err := VerifyTip(k, tip, path, root); err != nil {
				t.Fatal(n, err)
			}
			for name, other := range map[string]*Tip{"events": {tip.Digest, tip.Events + 1, tip.Receipts}, "receipts": {tip.Digest, tip.Events, tip.Receipts - 1}, "digest": {Hash{1}, tip.Events, tip.Receipts}} {
				if VerifyTip(k, other, path, root) == nil {
					t.Fatalf("other %s verify", name)
				}
			}
			if VerifyTip(TipKey("u", "s-0"), tip, path, root) == nil || VerifyTip(k, tip, append(slices.Clone(path), Hash{}), root) == nil || VerifyNoTip(k, nil, nil, path, root) == nil || VerifyNoTip(k, &k, tip, path, root) == nil {
				t.Fatal("a wrong claim verifies")
			}
		}
		for i := range 40 {
			k := TipKey("t", fmt.Sprint("absent-", i))
			path, at := tipPath(leaves, k, 0)
			var other *Hash
			var held *Tip
			if at != nil {
				other, held = &at.Key, tips[at.Key]
			}
			if err := VerifyNoTip(k, other, held, path, root); err != nil {
				t.Fatal(n, err)
			}
			if n > 0 && VerifyTip(k, tips[leaves[0].Key], path, root) == nil {
				t.Fatal("an absent key is in the map")
			}
			if at != nil && VerifyNoTip(at.Key, &k, held, path, root) == nil {
				t.Fatal("a present key is shown absent under another's name")
			}
		}
	}
}

// TestTipsLine checks the extension line of a checkpoint in its valid and invalid
// forms.
func TestTipsLine(t *testing.T) {
	root := LeafHash([]byte("r"))
	line := TipsExtension(root)
	for name, c := range map[string]struct {
		lines []string
		ok    bool
		err   bool
	}{
		"none":        {nil, false, false},
		"another":     {[]string{"tipsy 1 x"}, false, false},
		"one":         {[]string{"lamport 1", line}, true, false},
		"two":         {[]string{line, line}, false, true},
		"version 2":   {[]string{"tips 2 " + line[7:]}, false, true},
		"no padding":  {[]string{line[:len(line)-1]}, false, true},
		"line break":  {[]string{line[:20] + "\r" + line[20:]}, false, true},
		"no root":     {[]string{"tips"}, false, true},
		"short":       {[]string{"tips 1 AAAA"}, false, true},
		"other space": {[]string{"tips  1 " + line[7:]}, false, true},
	} {
		got, ok, err := (&Checkpoint{Extensions: c.lines}).Tips()
		if ok != c.ok || (err != nil) != c.err || ok && got != root {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
}
