package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

func dump(t testing.TB, v *View) []byte {
	var b bytes.Buffer
	if err := v.WriteDump(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func addAll(t testing.TB, v *View, entries []eventlog.Entry) {
	for _, en := range entries {
		if err := v.Add(en); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestKilled copies the files of an open view after a flush, and adds files of ids such
// as a process leaves if it is killed before it commits their transaction. A view that
// opens the copy continues at the position of the last commit, and ends with the same
// dump as a view that was built without interruption. If a run is missing, the view is
// empty.
func TestKilled(t *testing.T) {
	const calls = 13_000 // enough ids for a run
	var entries []eventlog.Entry
	for n := range calls {
		entries = append(entries, callEvents(t, fmt.Sprint("s-", n%7), uint64(len(entries)+1))...)
	}
	whole := open(t, t.TempDir())
	defer whole.Close()
	addAll(t, whole, entries)
	want := dump(t, whole)

	dir := t.TempDir()
	v := open(t, dir)
	defer v.Close()
	at := 0
	for _, flushed := range []int{20_000, 43_000, 50_000} {
		addAll(t, v, entries[at:flushed])
		at = flushed
		copied := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		for _, left := range []string{"7", "1.tmp"} { // written for a transaction that was not committed
			if err := os.WriteFile(filepath.Join(copied, "ids", left), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := open(t, copied)
		if pos, _ := c.Position(); pos != uint64(flushed) {
			t.Fatalf("the copy is at %d, want %d", pos, flushed)
		}
		addAll(t, c, entries[flushed:])
		if !bytes.Equal(dump(t, c), want) {
			t.Errorf("a view that was killed at %d has another dump", flushed)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(copied, "ids", "1")); err != nil {
			t.Fatal(err)
		}
		c = open(t, copied)
		if pos, _ := c.Position(); pos != 0 {
			t.Errorf("a view without its ids is at %d, want 0", pos)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLookups checks that the view returns the sequences of the events, receipts and
// outputs of the calls that it indexed. An event whose id is taken, and one that its
// service may not record, cause an alarm and change nothing else except the number of all
// events.
func TestLookups(t *testing.T) {
	v := open(t, t.TempDir())
	defer v.Close()
	var entries, outcomes []eventlog.Entry
	for n := range 200 {
		c := callEvents(t, fmt.Sprint("s-", n%2), uint64(len(entries)+1))
		entries, outcomes = append(entries, c...), append(outcomes, c[3])
	}
	addAll(t, v, entries)
	for i, en := range entries {
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		if seq, err := v.SeqOf("t", e.ID); err != nil || seq != en.Seq {
			t.Fatalf("event %s: %d, want %d (%v)", e.ID, seq, en.Seq, err)
		}
		if seq, err := v.maker("t", e.CallID); err != nil || seq != uint64(i/4*4+1) {
			t.Fatalf("call %s was made at %d (%v)", e.CallID, seq, err)
		}
	}
	for _, en := range outcomes {
		e, _ := eventlog.Open(en, eventlog.Every)
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			t.Fatal(err)
		}
		if seq, err := v.ReceiptSeq("t", contract.Digest(&r.Receipt)); err != nil || seq != en.Seq {
			t.Fatalf("receipt %s: %d, want %d (%v)", r.Receipt.ID, seq, en.Seq, err)
		}
		if seq, err := v.maker("t", r.Effect.OutputDigest); err != nil || seq != en.Seq {
			t.Fatalf("output of %s: %d, want %d (%v)", r.Receipt.ID, seq, en.Seq, err)
		}
	}
	if _, err := v.ReceiptSeq("t", "sha256:00"); err == nil {
		t.Error("an unknown receipt is found")
	}
	for session, want := range map[string][]uint64{"": {16, 20, 24}, "s-0": {28, 36, 44}, "s-1": {32, 40, 48}, "s-2": nil} {
		if got, err := v.ReceiptSeqs("t", session, 3, 3); err != nil || !slices.Equal(got, want) {
			t.Errorf("receipts of %q: %d, want %d (%v)", session, got, want, err)
		}
	}
	if got, err := v.EventSeqs("t", "s-1", 13); err != nil || !slices.Equal(got, []uint64{5, 6, 7, 8, 13}) {
		t.Errorf("events of s-1: %d (%v)", got, err)
	}

	wrong := func(change func(*contract.Event)) eventlog.Entry {
		e, err := eventlog.Open(entries[2], eventlog.Every) // the claim of the first call
		if err != nil {
			t.Fatal(err)
		}
		change(e)
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return eventlog.Entry{Subject: e.Subject(), Data: b}
	}
	before := dump(t, v)
	for i, en := range []eventlog.Entry{
		wrong(func(e *contract.Event) {}),
		wrong(func(e *contract.Event) { e.ID, e.Source = "e-1", "work/work-1" }),
		wrong(func(e *contract.Event) { e.ID, e.Session, e.Key = "e-2", "s-1", "s-1" }), // policy allowed the call in another session
		wrong(func(e *contract.Event) { e.ID, e.Session, e.Key = "e-3", "s-9", "s-9" }),
	} {
		en.Seq = uint64(len(entries) + 1 + i)
		addAll(t, v, []eventlog.Entry{en})
		if n := alarms(t, v); n != i+1 {
			t.Errorf("event %d: %d alarms, want %d", en.Seq, n, i+1)
		}
	}
	was, is := bytes.Split(before, []byte("\n")), bytes.Split(dump(t, v), []byte("\n"))
	is = slices.DeleteFunc(is, func(l []byte) bool { return bytes.Contains(l, []byte(`"bucket":"alarms"`)) })
	all := []byte(`"bucket":"search","count":`) // the only line that the alarms change is the one that counts all events
	for _, lines := range [][][]byte{was, is} {
		i := slices.IndexFunc(lines, func(l []byte) bool { return bytes.Contains(l, all) && bytes.Contains(l, []byte(`"key":"t."`)) })
		if i < 0 {
			t.Fatal("the dump has no line for all events")
		}
		lines[i] = nil
	}
	if len(was) != len(is) || !slices.EqualFunc(was[2:], is[2:], bytes.Equal) {
		t.Error("an alarm changed the index")
	}
}
