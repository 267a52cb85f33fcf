package evidence

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

var update = flag.Bool("update", false, "write testdata; only before a format is released")

// TestGolden shows that a recorded pack of format version 1 verifies, and that
// the same session still produces the same bytes.
func TestGolden(t *testing.T) {
	w := sample(t, 4)
	pack := build(t, w.source("s-a"), w.keys["audit"])
	const path = "testdata/v1.tar"
	if *update {
		if err := os.WriteFile(path, pack, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(kept, w.root.KID); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, pack) {
		t.Fatal("the format changed: today's pack of the same session has other bytes")
	}
}

// FuzzDecode shows that every event that can be decoded has the same bytes when it is encoded
// again. If its data can be decoded as one of several documents, the data is canonical, and has
// the same bytes when the document is encoded.
func FuzzDecode(f *testing.F) {
	w := newWorld(f)
	for e := range w.ledgerOfSystem() {
		w.store(e)
	}
	w.call("s-a", "c-1", true, false)
	w.call("s-a", "c-2", false, false)
	for _, b := range w.ledger {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := contract.DecodeEvent(b)
		if err != nil {
			return
		}
		again, err := e.Encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("decoded and encoded to other bytes (%v)", err)
		}
		for _, d := range []canon.Document{&contract.Call{}, &contract.Allowed{}, &contract.Recorded{}, &contract.Started{}, &contract.Tool{}, &contract.TrustKey{}, &contract.Activated{}} {
			if contract.Decode(e.Data, d) == nil {
				if !bytes.Equal(contract.Bytes(d), e.Data) || !canon.IsCanonical(e.Data) {
					t.Fatalf("%T decoded what is not its canonical form: %s", d, e.Data)
				}
			}
		}
	})
}
