package evidence

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// bound returns the ledger of sample with checkpoints that commit to a map of tips.
func bound(t testing.TB, calls int) *world {
	w := sample(t, calls)
	w.bind = true
	return w
}

// tipLeaves returns the entries of the map of tips over the whole ledger, and the tips
// by session.
func (w *world) tipLeaves() (leaves []translog.TipLeaf, tips map[string]translog.Tip) {
	tips = map[string]translog.Tip{}
	for _, b := range w.ledger {
		e, err := contract.DecodeEvent(b)
		if err != nil {
			w.t.Fatal(err)
		}
		if e.Session == "" {
			continue
		}
		t, ok := tips[e.Session]
		if !ok {
			t, err = tipOf(receipt.Genesis("t", e.Session).Digest, 0, 0)
		}
		if e.Name == "effect_recorded" {
			var r contract.Recorded
			if err := contract.Decode(e.Data, &r); err != nil {
				w.t.Fatal(err)
			}
			t, err = tipOf(contract.Digest(&r.Receipt), t.Events, t.Receipts+1)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		t.Events++
		tips[e.Session] = t
	}
	for session, t := range tips {
		k := translog.TipKey("t", session)
		leaves = append(leaves, translog.TipLeaf{Key: k, Leaf: t.Leaf(k)})
	}
	return leaves, tips
}

// tipPath returns the path to key in the map of tips, computed from the definition and
// without translog.TipsRoot.
func tipPath(leaves []translog.TipLeaf, key translog.Hash, depth int) []translog.Hash {
	if len(leaves) < 2 {
		return nil
	}
	var half [2][]translog.TipLeaf
	for _, l := range leaves {
		b := translog.TipBit(l.Key, depth)
		half[b] = append(half[b], l)
	}
	b := translog.TipBit(key, depth)
	return append([]translog.Hash{subRoot(half[1-b], depth+1)}, tipPath(half[b], key, depth+1)...)
}

// subRoot returns the root of a subtree at depth, computed from the definition of the
// map and without translog.TipsRoot.
func subRoot(leaves []translog.TipLeaf, depth int) translog.Hash {
	switch len(leaves) {
	case 0:
		return translog.Hash{}
	case 1:
		return leaves[0].Leaf
	}
	var half [2][]translog.TipLeaf
	for _, l := range leaves {
		b := translog.TipBit(l.Key, depth)
		half[b] = append(half[b], l)
	}
	return translog.TipNode(subRoot(half[0], depth+1), subRoot(half[1], depth+1))
}

// prove adds the tip proof to src and the map's root to its checkpoint, which it
// signs again.
func (w *world) prove(src *Source) {
	leaves, tips := w.tipLeaves()
	src.Head.Extensions = append(src.Head.Extensions, translog.TipsExtension(translog.TipsRoot(slices.Clone(leaves))))
	src.Checkpoint = src.Head.Sign(w.keys["audit"])
	src.Tip = NewTipProof(tips[src.Session], tipPath(leaves, translog.TipKey("t", src.Session), 0))
}

// endings returns valid packs, packs that omit the end of a session, and packs with an
// invalid proof of the end.
func endings(t testing.TB) map[string]redacted {
	out := map[string]redacted{}
	pack := func(ok bool, name, session string, change func(*world, *Source)) {
		w := bound(t, 3)
		w.escalated(func(*escalation) {})
		for _, s := range []string{"s-1", "s-2", "s-3", "s-4"} {
			w.call(s, "c-"+s, true, false)
		}
		src := w.source(session)
		change(w, &src)
		b, err := bytesOf(src, w.keys["audit"])
		if err != nil {
			t.Fatal(name, err)
		}
		out[name] = redacted{ok: ok, pack: b}
	}
	last := func(s *Source) { s.Events = s.Events[:len(s.Events)-1] }
	pack(true, "as it was", "s-a", func(*world, *Source) {})
	pack(true, "of one call", "s-4", func(*world, *Source) {})
	pack(true, "with votes", "s-e", func(*world, *Source) {})
	pack(false, "without the last outcome", "s-a", func(_ *world, s *Source) { last(s) })
	pack(false, "without the last call", "s-b", func(_ *world, s *Source) { s.Events = s.Events[:len(s.Events)-4] })
	pack(false, "without the last outcome, its end claimed", "s-a", func(w *world, s *Source) {
		last(s)
		d, err := derive("t", "s-a", s.Events, 2)
		if err != nil {
			t.Fatal(err)
		}
		s.Tip.Events, s.Tip.Receipts, s.Tip.Tip = int64(len(d.events)), int64(len(d.receipts)), d.tip.Digest
	})
	pack(false, "with the end of another session", "s-1", func(w *world, s *Source) { s.Tip = w.source("s-2").Tip })
	pack(false, "without the proof", "s-a", func(_ *world, s *Source) { s.Tip = nil })
	pack(false, "a path cut", "s-a", func(_ *world, s *Source) { s.Tip.Path = s.Tip.Path[1:] })
	pack(false, "a path with an empty end", "s-a", func(_ *world, s *Source) { s.Tip.Path = append(s.Tip.Path, strings.Repeat("0", 64)) })
	pack(false, "another map", "s-a", func(w *world, s *Source) {
		s.Head.Extensions[3] = translog.TipsExtension(translog.LeafHash([]byte("x")))
		s.Checkpoint = s.Head.Sign(w.keys["audit"])
	})
	pack(false, "a map without the session", "s-a", func(w *world, s *Source) {
		leaves, _ := w.tipLeaves()
		leaves = slices.DeleteFunc(leaves, func(l translog.TipLeaf) bool { return l.Key == translog.TipKey("t", "s-a") })
		s.Head.Extensions[3] = translog.TipsExtension(translog.TipsRoot(slices.Clone(leaves)))
		s.Checkpoint = s.Head.Sign(w.keys["audit"])
		s.Tip.Path = HexPath(tipPath(leaves, translog.TipKey("t", "s-a"), 0))
	})
	pack(false, "a proof under a checkpoint without a map", "s-a", func(w *world, s *Source) {
		s.Head.Extensions = s.Head.Extensions[:3]
		s.Checkpoint = s.Head.Sign(w.keys["audit"])
	})
	pack(false, "a map of another version", "s-a", func(w *world, s *Source) {
		s.Head.Extensions[3] = strings.Replace(s.Head.Extensions[3], "tips 1 ", "tips 2 ", 1)
		s.Checkpoint = s.Head.Sign(w.keys["audit"])
	})
	pack(false, "two maps", "s-a", func(w *world, s *Source) {
		s.Head.Extensions = append(s.Head.Extensions, s.Head.Extensions[3])
		s.Checkpoint = s.Head.Sign(w.keys["audit"])
	})
	pack(false, "a map that the log gave up", "s-a", func(w *world, s *Source) {
		w.bind = false
		bare := w.source("s-a")
		w.grow(&bare, 9)
		c, err := translog.ParseNote(bare.Earlier, w.keys["audit"].Public())
		if err != nil {
			t.Fatal(err)
		}
		c.Extensions = append(c.Extensions, translog.TipsExtension(translog.Hash{1}))
		bare.Earlier = c.Sign(w.keys["audit"])
		*s = bare
	})
	return out
}

// TestTip shows that if the checkpoint commits to a map of tips, a pack without the end
// of the session does not verify, even if audit's own key signed it. The report of a
// valid pack has TipBound or, without a map, TipAttested.
func TestTip(t *testing.T) {
	root := key(t, "root").KID
	for name, c := range endings(t) {
		rep, err := Verify(c.pack, root)
		if (err == nil) != c.ok || c.ok && rep.Tip != TipBound {
			t.Errorf("%s: %+v %v", name, rep, err)
		}
	}
	w := sample(t, 1)
	rep, err := Verify(build(t, w.source("s-a"), w.keys["audit"]), root)
	if err != nil || rep.Tip != TipAttested || !strings.Contains(rep.String(), "attested by audit's manifest only") {
		t.Errorf("%+v %v", rep, err)
	}
}

// TestGoldenBound shows that a pack with a tip proof still has the recorded bytes, and
// verifies.
func TestGoldenBound(t *testing.T) {
	w := bound(t, 4)
	pack := build(t, w.source("s-a"), w.keys["audit"])
	const path = "testdata/v1-bound.tar"
	if *update {
		if err := os.WriteFile(path, pack, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(kept, pack) {
		t.Fatal("the format changed: today's pack of the same session has other bytes", err)
	}
	if _, err := Verify(kept, w.root.KID); err != nil {
		t.Fatal(err)
	}
}

// TestGraph shows that a graph of version 2 has one node for the checkpoint and names
// the votes as parents of the decision that follows them, and that a graph of version 1
// does neither.
func TestGraph(t *testing.T) {
	kinds := func(w *world) (kinds map[string]proofgraph.Node) {
		files, err := readTar(build(t, w.source("s-e"), w.keys["audit"]))
		if err != nil {
			t.Fatal(err)
		}
		all, err := lines(files[pathGraph])
		kinds = map[string]proofgraph.Node{}
		for _, b := range all {
			var n proofgraph.Node
			err = errors.Join(err, contract.Decode(b, &n))
			kinds[n.ID] = n
		}
		if err != nil {
			t.Fatal(err)
		}
		return kinds
	}
	for _, bind := range []bool{false, true} {
		w := sample(t, 1)
		w.bind = bind
		w.escalated(func(*escalation) {})
		nodes, closes := kinds(w), 0
		for _, n := range nodes {
			if n.Kind == proofgraph.Checkpoint {
				closes++
				if !slices.Equal(n.Parents, []string{"q-c-e", "r-c-e"}) && !slices.Equal(n.Parents, []string{"r-c-e"}) {
					t.Errorf("the checkpoint's parents are %v", n.Parents)
				}
			}
		}
		d := nodes["d-c-e"]
		merged := d.Kind == proofgraph.MergeDecision && slices.Equal(d.Parents, []string{"p-c-e", "v-0", "v-1"})
		if merged != bind || (closes == 1) != bind {
			t.Errorf("bound %v: %d checkpoints, decision %+v", bind, closes, d)
		}
	}
}

// TestLedgerTips shows that the verifier computes the map of tips of an exported ledger
// and compares it with the checkpoint, and that it checks the demands.
func TestLedgerTips(t *testing.T) {
	w := bound(t, 5)
	src := w.source("s-a")
	export := func(c *translog.Checkpoint) []byte {
		return append(joinLines(w.ledger), LedgerTrailer(string(c.Sign(w.keys["audit"])))...)
	}
	rep, err := VerifyLedger(export(&src.Head), w.root.KID)
	if err != nil || rep.Tips != TipBound {
		t.Fatal(rep, err)
	}
	other := src.Head
	other.Extensions = append(slices.Clone(src.Head.Extensions[:3]), translog.TipsExtension(translog.Hash{1}))
	if _, err := VerifyLedger(export(&other), w.root.KID); err == nil || !strings.Contains(err.Error(), "map of tips") {
		t.Error("another map of tips:", err)
	}
	none := src.Head
	none.Extensions = src.Head.Extensions[:3]
	if rep, err := VerifyLedger(export(&none), w.root.KID); err != nil || rep.Tips != TipAttested {
		t.Error(rep, err)
	}
	// VerifyLedgerFrom also checks the demands for an earlier checkpoint and for
	// witnesses.
	small := w.source("s-a")
	w.grow(&small, 7)
	head, err := translog.ParseNote(small.Earlier, w.keys["audit"].Public())
	if err != nil {
		t.Fatal(err)
	}
	head.Root[0] ^= 1
	for name, c := range map[string]struct {
		d    Demands
		word string
	}{
		"kept":                {Demands{Kept: small.Earlier}, ""},
		"its own":             {Demands{Kept: src.Checkpoint}, ""},
		"kept of another log": {Demands{Kept: head.Sign(w.keys["audit"])}, "did not grow"},
		"rubbish":             {Demands{Kept: []byte("x")}, "kept"},
		"no witness":          {Demands{Quorum: 1, Witnesses: []Witness{{"w1", key(t, "w1").Public()}}}, "0 of the 1"},
	} {
		_, err := VerifyLedgerFrom(opener(export(&src.Head)), w.root.KID, c.d)
		if (err == nil) != (c.word == "") || err != nil && !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
	note := src.Head.Sign(w.keys["audit"])
	signed := append(joinLines(w.ledger), LedgerTrailer(string(note), translog.Cosign(note, "w1", key(t, "w1"), 100))...)
	if _, err := VerifyLedgerFrom(opener(signed), w.root.KID, Demands{Quorum: 1, Witnesses: []Witness{{"w1", key(t, "w1").Public()}}}); err != nil {
		t.Error(err)
	}
}

// TestCheckTip shows that the counts and the last receipt of the events must each be those
// of the proof, under a checkpoint whose map of tips has this session only.
func TestCheckTip(t *testing.T) {
	last := receipt.Genesis("t", "s-a").Digest
	tip, err := tipOf(last, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	key := translog.TipKey("t", "s-a")
	root := tip.Leaf(key)
	m := &Manifest{Tenant: "t", Session: "s-a"}
	for name, c := range map[string]struct {
		change func(p *TipProof, d *derived, head *translog.Checkpoint)
		want   string
	}{
		"bound":                       {func(*TipProof, *derived, *translog.Checkpoint) {}, TipBound},
		"fewer events":                {func(_ *TipProof, d *derived, _ *translog.Checkpoint) { d.events = d.events[1:] }, "3 events and 2 receipts below the checkpoint; the pack holds 2 and 2"},
		"fewer receipts":              {func(_ *TipProof, d *derived, _ *translog.Checkpoint) { d.receipts = d.receipts[1:] }, "3 events and 2 receipts below the checkpoint; the pack holds 3 and 1"},
		"another end":                 {func(_ *TipProof, d *derived, _ *translog.Checkpoint) { d.tip = receipt.Genesis("t", "s-b") }, "or ends in another receipt"},
		"other events in the proof":   {func(p *TipProof, d *derived, _ *translog.Checkpoint) { p.Events, d.events = 2, d.events[1:] }, "does not contain this tip"},
		"other receipts in the proof": {func(p *TipProof, d *derived, _ *translog.Checkpoint) { p.Receipts, d.receipts = 1, d.receipts[1:] }, "does not contain this tip"},
		"negative events":             {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Events = -1 }, "not the tip of a session"},
		"negative receipts":           {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Receipts = -1 }, "not the tip of a session"},
		"no events":                   {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Events = 0 }, "does not contain this tip"},
		"no receipts":                 {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Receipts = 0 }, "does not contain this tip"},
		"a digest without its name":   {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Tip = strings.TrimPrefix(p.Tip, "sha256:") }, "not the tip of a session"},
		"a digest in capitals":        {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Tip = "sha256:" + strings.ToUpper(p.Tip[7:]) }, "not the tip of a session"},
		"a digest cut":                {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Tip = p.Tip[:len(p.Tip)-2] }, "not the tip of a session"},
		"a digest that is no hex":     {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Tip = p.Tip[:len(p.Tip)-1] + "x" }, "not the tip of a session"},
		"a hash of the path cut":      {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Path = []string{"00"} }, "path is not"},
		"a path too long":             {func(p *TipProof, _ *derived, _ *translog.Checkpoint) { p.Path = []string{strings.Repeat("0", 64)} }, "does not contain this tip"},
		"a checkpoint without a map":  {func(_ *TipProof, _ *derived, c *translog.Checkpoint) { c.Extensions = nil }, "commits to no map"},
		"a checkpoint of another map": {func(_ *TipProof, _ *derived, c *translog.Checkpoint) {
			c.Extensions = []string{translog.TipsExtension(translog.Hash{1})}
		}, "does not contain this tip"},
		"a checkpoint with two of them": {func(_ *TipProof, _ *derived, c *translog.Checkpoint) {
			c.Extensions = append(c.Extensions, c.Extensions...)
		}, "want at most one line"},
	} {
		p := NewTipProof(tip, nil)
		d := &derived{events: make([]*contract.Event, 3), receipts: make([][]byte, 2), tip: receipt.Genesis("t", "s-a")}
		head := &translog.Checkpoint{Extensions: []string{translog.TipsExtension(root)}}
		c.change(p, d, head)
		got, err := checkTip(m, head, d, contract.Bytes(p))
		if err != nil {
			got = err.Error()
		}
		if (err == nil) != (c.want == TipBound) || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got, err := checkTip(m, &translog.Checkpoint{}, &derived{}, nil); got != TipAttested || err != nil {
		t.Errorf("without a map and a proof: %q %v", got, err)
	}
	if _, err := checkTip(m, &translog.Checkpoint{Extensions: []string{translog.TipsExtension(root)}}, &derived{}, nil); err == nil {
		t.Error("a map without a proof is accepted")
	}
}
