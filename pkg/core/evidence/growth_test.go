package evidence

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// grow adds to src the proof that the log extends its first n entries.
func (w *world) grow(src *Source, n uint64) {
	nodes := map[[2]uint64]translog.Hash{}
	get := func(level uint, i uint64) (translog.Hash, error) { return nodes[[2]uint64{uint64(level), i}], nil }
	for i, b := range w.ledger {
		if err := translog.Append(uint64(i), translog.LeafHash(b), get, func(level uint, j uint64, h translog.Hash) error { nodes[[2]uint64{uint64(level), j}] = h; return nil }); err != nil {
			w.t.Fatal(err)
		}
	}
	root, err := translog.Root(n, get)
	if err != nil {
		w.t.Fatal(err)
	}
	c := translog.Checkpoint{Origin: src.Head.Origin, Size: n, Root: root, Extensions: []string{fmt.Sprint("lamport ", n)}}
	src.Earlier = c.Sign(w.keys["audit"])
	if src.Growth, err = translog.Consistency(n, src.Head.Size, get); err != nil {
		w.t.Fatal(err)
	}
}

// growths returns packs with valid and invalid proofs that the log extends an earlier
// checkpoint.
func growths(t testing.TB) map[string]redacted {
	out := map[string]redacted{}
	pack := func(n uint64, change func(*world, *Source)) []byte {
		w := sample(t, 3)
		src := w.source("s-a")
		w.grow(&src, n)
		if change != nil {
			change(w, &src)
		}
		return build(t, src, w.keys["audit"])
	}
	for _, n := range []uint64{1, 7, 8, 20} {
		out[fmt.Sprint("from ", n)] = redacted{ok: true, pack: pack(n, nil), rep: Report{GrownFrom: int64(n)}}
	}
	bad := func(name string, change func(*world, *Source)) {
		out[name] = redacted{pack: pack(7, change)}
	}
	bad("another proof", func(w *world, s *Source) { s.Growth[0][0] ^= 1 })
	bad("no proof", func(w *world, s *Source) { s.Growth = nil })
	earlier := func(size uint64, root translog.Hash, origin, signer string) func(*world, *Source) {
		return func(w *world, s *Source) {
			c := translog.Checkpoint{Origin: origin, Size: size, Root: root, Extensions: []string{"lamport 3"}}
			s.Earlier = c.Sign(key(t, signer))
		}
	}
	bad("from another history", earlier(7, translog.LeafHash([]byte("x")), "binnacle/test", "audit"))
	bad("from another log", func(w *world, s *Source) {
		head, err := translog.ParseNote(s.Earlier, w.keys["audit"].Public())
		if err != nil {
			t.Fatal(err)
		}
		earlier(7, head.Root, "binnacle/other", "audit")(w, s)
	})
	bad("from a note of an attacker", func(w *world, s *Source) {
		head, err := translog.ParseNote(s.Earlier, w.keys["audit"].Public())
		if err != nil {
			t.Fatal(err)
		}
		earlier(7, head.Root, "binnacle/test", "attacker")(w, s)
	})
	bad("from a longer log", func(w *world, s *Source) { earlier(s.Head.Size+1, s.Head.Root, "binnacle/test", "audit")(w, s) })
	bad("from nothing", earlier(0, translog.EmptyRoot(), "binnacle/test", "audit"))
	return out
}

// TestGrowth shows that a pack can prove that its log extends an earlier checkpoint,
// that invalid proofs fail, and that CheckPack accepts as the kept checkpoint only the
// earlier one or the pack's own.
func TestGrowth(t *testing.T) {
	w := sample(t, 3)
	for name, c := range growths(t) {
		rep, err := Verify(c.pack, w.root.KID)
		if (err == nil) != c.ok || c.ok && rep.GrownFrom != c.rep.GrownFrom {
			t.Errorf("%s: %v", name, err)
		}
	}
	src := w.source("s-a")
	plain := build(t, src, w.keys["audit"])
	w.grow(&src, 7)
	pack, kept := build(t, src, w.keys["audit"]), src.Earlier
	if err := (&Demands{Kept: kept}).CheckPack(pack); err != nil {
		t.Error(err)
	}
	if err := (&Demands{Kept: src.Checkpoint}).CheckPack(pack); err != nil {
		t.Error("its own checkpoint:", err)
	}
	for name, k := range map[string][]byte{"another": bytes.Replace(kept, []byte("\n7\n"), []byte("\n6\n"), 1), "none": nil, "rubbish": []byte("x")} {
		if (&Demands{Kept: append([]byte{}, k...)}).CheckPack(pack) == nil {
			t.Errorf("%s passes for the one kept", name)
		}
	}
	if (&Demands{Kept: kept}).CheckPack(plain) == nil {
		t.Error("a pack without proof passes")
	}
}
