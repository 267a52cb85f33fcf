package evidence

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// archived writes the ledger as a folder of segments with n events each; the last may
// have fewer.
func (w *world) archived(n uint64) (dir string, ix *Archive) {
	w.t.Helper()
	dir = w.t.(*testing.T).TempDir()
	src := w.source("s-a")
	ix = &Archive{Format: ArchiveFormat, Segment: n, Checkpoint: string(src.Checkpoint), Segments: []Segment{}}
	for from := uint64(0); from < uint64(len(w.ledger)); from += n {
		lines := w.ledger[from:min(from+n, uint64(len(w.ledger)))]
		var tree translog.Frontier
		for _, l := range lines {
			tree.Add(translog.LeafHash(l))
		}
		root := tree.Root()
		b := packed(w.t, joinLines(lines))
		sum := sha256.Sum256(b)
		s := Segment{File: fmt.Sprintf("%d.gz", from+1), From: from + 1, To: from + uint64(len(lines)), Root: hex.EncodeToString(root[:]), SHA256: hex.EncodeToString(sum[:])}
		ix.Segments = append(ix.Segments, s)
		put(w.t, filepath.Join(dir, s.File), b)
	}
	w.index(dir, ix)
	return dir, ix
}

// index writes the index of an archive.
func (w *world) index(dir string, ix *Archive) {
	w.t.Helper()
	b, err := json.Marshal(ix)
	if err != nil {
		w.t.Fatal(err)
	}
	put(w.t, filepath.Join(dir, ArchiveFile), b)
}

// packed returns b compressed with gzip.
func packed(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// put writes a file.
func put(t testing.TB, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestArchive shows that an archive verifies like the exported ledger, for segments of 1
// to 64 events; the last segment may have fewer. If BINNACLE_NODE is the path of node, the
// second verifier verifies the archives, too.
func TestArchive(t *testing.T) {
	w := bound(t, 3)
	src := w.source("s-a")
	want, err := VerifyLedger(append(joinLines(w.ledger), LedgerTrailer(string(src.Checkpoint))...), w.root.KID)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{1, 2, 4, 8, 16, 32, 64} {
		dir, ix := w.archived(n)
		rep, err := VerifyFile(dir, w.root.KID, Demands{})
		if err != nil || *rep.(*LedgerReport) != *want {
			t.Errorf("segments of %d: %+v, %v", n, rep, err)
		}
		if node := os.Getenv("BINNACLE_NODE"); node != "" {
			out, err := exec.Command(node, "../../../e2e/verifier/verify.mjs", "--root", w.root.KID, dir).CombinedOutput()
			if want := fmt.Sprintf(`"tree_size":%d`, len(w.ledger)); err != nil || !bytes.Contains(out, []byte(want)) {
				t.Errorf("segments of %d: the second verifier: %v %s", n, err, out)
			}
		}
		if got, err := OpenArchive(dir); err != nil || len(got.Segments) != len(ix.Segments) || got.Commits() != nil {
			t.Errorf("segments of %d: %v, %v", n, got, err)
		}
	}
}

// TestArchiveIndex shows that Commits rejects an index that is malformed, omits events
// or does not match the checkpoint. It accepts roots in upper case, and an index without
// segments for a log without events.
func TestArchiveIndex(t *testing.T) {
	w := bound(t, 3)
	size := uint64(len(w.ledger))
	for name, c := range map[string]struct {
		change func(ix *Archive)
		want   string
	}{
		"as written":       {func(*Archive) {}, ""},
		"no checkpoint":    {func(ix *Archive) { ix.Checkpoint = "" }, "archive.json: not a checkpoint"},
		"a checkpoint cut": {func(ix *Archive) { ix.Checkpoint = "log\n1\n" }, "archive.json: not a checkpoint"},
		"no size": {func(ix *Archive) {
			ix.Checkpoint = strings.Replace(ix.Checkpoint, fmt.Sprintf("\n%d\n", size), "\nx\n", 1)
		}, "archive.json: not a checkpoint"},
		"an enormous size": {func(ix *Archive) {
			ix.Checkpoint = strings.Replace(ix.Checkpoint, fmt.Sprintf("\n%d\n", size), "\n9223372036854775808\n", 1)
		}, "archive.json: not a checkpoint"},
		"a short root":                 {func(ix *Archive) { ix.Checkpoint = "log\n0\nAAAA\n" }, "archive.json: not a checkpoint"},
		"segments of nothing":          {func(ix *Archive) { ix.Segment = 0 }, "archive.json: segments of 0 events"},
		"segments of 12":               {func(ix *Archive) { ix.Segment = 12 }, "archive.json: segments of 12 events"},
		"a root in upper case is read": {func(ix *Archive) { ix.Segments[0].Root = strings.ToUpper(ix.Segments[0].Root) }, ""},
		"a root cut":                   {func(ix *Archive) { ix.Segments[1].Root = ix.Segments[1].Root[2:] }, "archive.json: segment 2 is malformed"},
		"a root that is none":          {func(ix *Archive) { ix.Segments[0].Root = "x" }, "archive.json: segment 1 is malformed"},
		"a file elsewhere":             {func(ix *Archive) { ix.Segments[0].File = "../x.gz" }, "archive.json: segment 1 is malformed"},
		"the first left out":           {func(ix *Archive) { ix.Segments = ix.Segments[1:] }, "archive.json: the events from 1 on are in no segment"},
		"one left out":                 {func(ix *Archive) { ix.Segments = append(ix.Segments[:1], ix.Segments[2:]...) }, "archive.json: the events from 9 on are in no segment"},
		"the last left out":            {func(ix *Archive) { ix.Segments = ix.Segments[:len(ix.Segments)-1] }, "archive.json: the events from 25 to "},
		"all left out":                 {func(ix *Archive) { ix.Segments = nil }, "archive.json: the events from 1 to "},
		"one twice":                    {func(ix *Archive) { ix.Segments = append(ix.Segments, ix.Segments[len(ix.Segments)-1]) }, "archive.json: the events from "},
		"a segment too short":          {func(ix *Archive) { ix.Segments[0].To-- }, "archive.json: the events from 1 on are in no segment"},
		"a segment too long":           {func(ix *Archive) { ix.Segments[0].To++ }, "archive.json: the events from 1 on are in no segment"},
		"an empty segment":             {func(ix *Archive) { ix.Segments[1].From, ix.Segments[1].To = 9, 8 }, "archive.json: the events from 9 on are in no segment"},
		"roots exchanged":              {func(ix *Archive) { ix.Segments[0].Root, ix.Segments[1].Root = ix.Segments[1].Root, ix.Segments[0].Root }, "archive.json: its segments do not have the checkpoint's root"},
	} {
		_, ix := w.archived(8)
		c.change(ix)
		if err := ix.Commits(); (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	none := &Archive{Segment: 8, Checkpoint: string((&translog.Checkpoint{Origin: "log", Root: translog.EmptyRoot()}).Text()) + "\n"}
	if err := none.Commits(); err != nil {
		t.Error("no events, no segments:", err)
	}
}

// TestArchiveFiles changes the files of an archive and its index, and shows that the
// error names each segment that is wrong, or the fault in the index. It also shows that
// another root and a demand that is not met are errors.
func TestArchiveFiles(t *testing.T) {
	w := bound(t, 3)
	for name, c := range map[string]struct {
		change func(dir string, ix *Archive)
		want   []string // expected parts of the error
	}{
		"missing": {func(dir string, ix *Archive) { os.Remove(filepath.Join(dir, "9.gz")) }, []string{"events 9 to 16: 9.gz is missing", "3 of 4 segments verify"}},
		"two missing": {func(dir string, ix *Archive) {
			os.Remove(filepath.Join(dir, "9.gz"))
			os.Remove(filepath.Join(dir, "1.gz"))
		}, []string{"events 1 to 8: 1.gz is missing", "events 9 to 16: 9.gz is missing", "2 of 4"}},
		"not compressed":    {func(dir string, _ *Archive) { put(t, filepath.Join(dir, "1.gz"), []byte("plain")) }, []string{"events 1 to 8: 1.gz:"}},
		"bytes behind":      {func(dir string, _ *Archive) { appendTo(t, filepath.Join(dir, "1.gz"), packed(t, nil)) }, []string{"1.gz is not the file that the index names"}},
		"other events":      {func(dir string, ix *Archive) { swap(t, w, dir, ix, w.ledger[8:16]) }, []string{"1.gz does not hold the events that the log does"}},
		"an event too few":  {func(dir string, ix *Archive) { swap(t, w, dir, ix, w.ledger[:7]) }, []string{"1.gz does not hold the events that the log does"}},
		"an event too many": {func(dir string, ix *Archive) { swap(t, w, dir, ix, w.ledger[:9]) }, []string{"1.gz: more events than the index names"}},
		"no final newline": {func(dir string, ix *Archive) {
			rewrite(t, w, dir, ix, bytes.TrimSuffix(joinLines(w.ledger[:8]), []byte("\n")))
		}, []string{"1.gz: last line has no newline"}},
		"no index":       {func(dir string, _ *Archive) { os.Remove(filepath.Join(dir, ArchiveFile)) }, []string{ArchiveFile}},
		"index, no JSON": {func(dir string, _ *Archive) { put(t, filepath.Join(dir, ArchiveFile), []byte("x")) }, []string{"archive.json: "}},
		"index, a member more": {func(dir string, _ *Archive) {
			put(t, filepath.Join(dir, ArchiveFile), []byte(`{"format":"binnacle-archive/v1","zone":"z"}`))
		}, []string{`unknown field "zone"`}},
		"index, another format": {func(dir string, ix *Archive) { ix.Format = "v2"; w.index(dir, ix) }, []string{`format "v2" is not binnacle-archive/v1`}},
		"index, a gap":          {func(dir string, ix *Archive) { ix.Segments = ix.Segments[1:]; w.index(dir, ix) }, []string{"the events from 1 on are in no segment"}},
		"a checkpoint unsigned": {func(dir string, ix *Archive) {
			ix.Checkpoint = strings.Replace(ix.Checkpoint, "lamport", "Lamport", 1)
			w.index(dir, ix)
		}, []string{"signature does not verify"}},
	} {
		dir, ix := w.archived(8)
		c.change(dir, ix)
		_, err := VerifyFile(dir, w.root.KID, Demands{})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	dir, _ := w.archived(8)
	if _, err := VerifyFile(dir, "k-0", Demands{}); err == nil {
		t.Error("another root")
	}
	if _, err := VerifyFile(dir, w.root.KID, Demands{Quorum: 1, Witnesses: []Witness{{"w", make([]byte, 32)}}}); err == nil {
		t.Error("a demand that is not met")
	}
}

// appendTo appends bytes to a file.
func appendTo(t *testing.T, name string, more []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	put(t, name, append(b, more...))
}

// swap replaces the events in the first segment's file and updates the digest in
// the index.
func swap(t *testing.T, w *world, dir string, ix *Archive, events [][]byte) {
	rewrite(t, w, dir, ix, joinLines(events))
}

// rewrite replaces the first segment's file with these lines and updates the
// digest in the index.
func rewrite(t *testing.T, w *world, dir string, ix *Archive, lines []byte) {
	t.Helper()
	b := packed(t, lines)
	sum := sha256.Sum256(b)
	ix.Segments[0].SHA256 = hex.EncodeToString(sum[:])
	put(t, filepath.Join(dir, "1.gz"), b)
	w.index(dir, ix)
}

// TestVerifyFile shows that packs and exported ledgers are distinguished by their
// content, and that no report is returned with an error.
func TestVerifyFile(t *testing.T) {
	w := bound(t, 2)
	src := w.source("s-a")
	dir := t.TempDir()
	pack, ledger := filepath.Join(dir, "pack"), filepath.Join(dir, "ledger")
	put(t, pack, build(t, src, w.keys["audit"]))
	put(t, ledger, append(joinLines(w.ledger), LedgerTrailer(string(src.Checkpoint))...))
	put(t, filepath.Join(dir, "empty"), nil)
	if rep, err := VerifyFile(pack, w.root.KID, Demands{}); err != nil || rep.(*Report).Session != "s-a" {
		t.Error(rep, err)
	}
	if rep, err := VerifyFile(ledger, w.root.KID, Demands{}); err != nil || rep.(*LedgerReport).Sessions != 2 {
		t.Error(rep, err)
	}
	for _, name := range []string{"empty", "missing"} {
		if rep, err := VerifyFile(filepath.Join(dir, name), w.root.KID, Demands{}); err == nil || rep != nil {
			t.Errorf("%s: %v, %v", name, rep, err)
		}
	}
	if _, err := VerifyFile(filepath.Join(dir, "missing"), w.root.KID, Demands{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if rep, err := VerifyFile(pack, "k-0", Demands{}); err == nil || rep != nil {
		t.Error("another root:", rep, err)
	}
	if rep, err := VerifyFile(pack, w.root.KID, Demands{Quorum: 1, Witnesses: []Witness{{"w", make([]byte, 32)}}}); err == nil || rep != nil {
		t.Error("a demand that is not met:", rep, err)
	}
}

// TestReadKept shows that a checkpoint is read from a file of its own and from a pack,
// and that missing files and files of other content are rejected.
func TestReadKept(t *testing.T) {
	w := bound(t, 2)
	src := w.source("s-a")
	dir := t.TempDir()
	name := func(n string, b []byte) string { p := filepath.Join(dir, n); put(t, p, b); return p }
	pack := build(t, src, w.keys["audit"])
	for _, p := range []string{name("note", src.Checkpoint), name("pack", pack)} {
		if got, err := ReadKept(p); err != nil || !bytes.Equal(got, src.Checkpoint) {
			t.Errorf("%s: %s, %v", p, got, err)
		}
	}
	for _, p := range []string{name("empty", nil), name("text", []byte("a\nb\nc\nd\n")), name("cut", pack[:len(pack)-1]), filepath.Join(dir, "missing"), name("short", pack[:262])} {
		if got, err := ReadKept(p); err == nil {
			t.Errorf("%s: %q", p, got)
		}
	}
}

// TestKept shows that a ledger or a pack must extend the checkpoint that its reader
// kept, which must be a checkpoint of the same log, signed by audit.
func TestKept(t *testing.T) {
	w := bound(t, 2)
	early := w.source("s-a")
	w.call("s-a", "c-late", true, false)
	late := w.source("s-a")
	export := append(joinLines(w.ledger), LedgerTrailer(string(late.Checkpoint))...)
	signed := func(change func(c *translog.Checkpoint)) []byte {
		c := early.Head
		change(&c)
		return c.Sign(w.keys["audit"])
	}
	for name, c := range map[string]struct {
		kept []byte
		want string
	}{
		"none":                {nil, ""},
		"the earlier":         {early.Checkpoint, ""},
		"itself":              {late.Checkpoint, ""},
		"another history":     {signed(func(c *translog.Checkpoint) { c.Root[0] ^= 1 }), "did not grow from the checkpoint kept"},
		"a longer log":        {signed(func(c *translog.Checkpoint) { c.Size += 100 }), "did not grow from the checkpoint kept"},
		"another log":         {signed(func(c *translog.Checkpoint) { c.Origin = "binnacle/other" }), "the checkpoint kept is of binnacle/other, the ledger is binnacle/test"},
		"signed by another":   {early.Head.Sign(key(t, "attacker")), "the checkpoint kept: "},
		"without map of tips": {signed(func(c *translog.Checkpoint) { c.Extensions = []string{"lamport 1"} }), ""},
		"not a note":          {[]byte("x"), "the checkpoint kept: "},
	} {
		_, err := VerifyLedgerFrom(opener(export), w.root.KID, Demands{Kept: c.kept})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// If the earlier checkpoint commits to a map of tips, the later one must,
	// too.
	w.bind = false
	bare := w.source("s-a")
	export = append(joinLines(w.ledger), LedgerTrailer(string(bare.Checkpoint))...)
	if _, err := VerifyLedgerFrom(opener(export), w.root.KID, Demands{Kept: early.Checkpoint}); err == nil || !strings.Contains(err.Error(), "the later does not") {
		t.Error(err)
	}
	// A pack proves with its consistency proof that it extends the earlier checkpoint.
	w.bind = true
	w.grow(&late, early.Head.Size)
	pack := build(t, late, w.keys["audit"])
	if err := (&Demands{Kept: late.Earlier}).CheckPack(pack); err != nil {
		t.Error(err)
	}
	if err := (&Demands{Kept: late.Checkpoint}).CheckPack(pack); err != nil {
		t.Error(err)
	}
	if err := (&Demands{Kept: signed(func(c *translog.Checkpoint) { c.Size-- })}).CheckPack(pack); err == nil || !strings.Contains(err.Error(), "does not prove that its log grew") {
		t.Error(err)
	}
	if err := (&Demands{Kept: late.Earlier}).CheckPack(pack[:len(pack)-1]); err == nil {
		t.Error("a pack that is cut")
	}
}

// TestReadWitnesses checks that ReadWitnesses reads valid documents that list the
// trusted witnesses, and returns the expected error for others.
func TestReadWitnesses(t *testing.T) {
	k := func(name string) string { b, _ := json.Marshal(key(t, name).Public()); return string(b) }
	w := func(name, key string) string { return `{"name":"` + name + `","public_key":` + key + `}` }
	for name, c := range map[string]struct{ doc, want string }{
		"two of two":        {`{"quorum":2,"witnesses":[` + w("a", k("a")) + `,` + w("b", k("b")) + `]}`, ""},
		"one of one":        {`{"quorum":1,"witnesses":[` + w("a", k("a")) + `]}`, ""},
		"none of one":       {`{"quorum":0,"witnesses":[` + w("a", k("a")) + `]}`, "quorum:"},
		"two of one":        {`{"quorum":2,"witnesses":[` + w("a", k("a")) + `]}`, "quorum:"},
		"no name":           {`{"quorum":1,"witnesses":[` + w("", k("a")) + `]}`, "want a name"},
		"a short key":       {`{"quorum":1,"witnesses":[` + w("a", `"AAAA"`) + `]}`, "32 bytes"},
		"a name twice":      {`{"quorum":1,"witnesses":[` + w("a", k("a")) + `,` + w("a", k("b")) + `]}`, "a and a have the same"},
		"a key twice":       {`{"quorum":1,"witnesses":[` + w("a", k("a")) + `,` + w("b", k("a")) + `]}`, "a and b have the same"},
		"an unknown member": {`{"quorum":1,"witness":[]}`, "want {quorum, witnesses"},
		"no JSON":           {`x`, "want {quorum, witnesses"},
		"too deep":          {strings.Repeat("[", 200), "nesting deeper"},
	} {
		var d Demands
		err := d.ReadWitnesses([]byte(c.doc))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if (err == nil) != (d.Quorum > 0) || err == nil && len(d.Witnesses) != d.Quorum {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
