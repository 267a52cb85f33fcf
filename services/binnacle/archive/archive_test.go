package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
)

// events returns n events, one on each line.
func events(n uint64) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf(`{"n":%d}`, i+1))
	}
	return lines
}

// note returns an unsigned checkpoint over the first n events.
func note(t *testing.T, all []string, n uint64) string {
	t.Helper()
	var tree ledger.Tree
	for _, l := range all[:n] {
		if err := tree.Add([]byte(l)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := tree.Root()
	if err != nil {
		t.Fatal(err)
	}
	c := translog.Checkpoint{Origin: "binnacle/test", Size: n, Root: root}
	return string(c.Text()) + "\n"
}

// reader returns a Ledger over the events, and a list to which each read from the Ledger
// adds the first sequence that it requests.
func reader(all []string) (Ledger, *[]uint64) {
	var from []uint64
	return func(a, b uint64) (io.ReadCloser, error) {
		from = append(from, a)
		return io.NopCloser(strings.NewReader(strings.Join(all[a-1:b], "\n") + "\n")), nil
	}, &from
}

// files returns the contents of the files in a folder by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

// TestAdd extends an archive step by step. It checks that each step reads only the events
// that no full segment has, that the short last segment is replaced, and that the files
// are those of an archive that is written at once.
func TestAdd(t *testing.T) {
	all := events(11)
	dir := filepath.Join(t.TempDir(), "new")
	for _, step := range []struct {
		size uint64
		from []uint64 // first sequences that are read
		last string
	}{
		{0, nil, ""},
		{3, []uint64{1}, "events-000000000001-000000000003.jsonl.gz"},
		{3, []uint64{1}, "events-000000000001-000000000003.jsonl.gz"},
		{4, []uint64{1}, "events-000000000001-000000000004.jsonl.gz"},
		{9, []uint64{5, 9}, "events-000000000009-000000000009.jsonl.gz"},
		{11, []uint64{9}, "events-000000000009-000000000011.jsonl.gz"},
	} {
		read, from := reader(all)
		ix, err := Add(dir, 4, note(t, all, step.size), []string{"— witness x"}, read)
		if err != nil {
			t.Fatalf("%d events: %v", step.size, err)
		}
		if !slices.Equal(*from, step.from) {
			t.Errorf("%d events: read from %v, want %v", step.size, *from, step.from)
		}
		got := files(t, dir)
		if want := int(step.size+3)/4 + 1; len(got) != want || len(ix.Segments) != want-1 {
			t.Errorf("%d events: %d segments, files %v", step.size, len(ix.Segments), slices.Sorted(maps.Keys(got)))
		}
		if _, ok := got[step.last]; step.last != "" && !ok {
			t.Errorf("%d events: no file %s", step.size, step.last)
		}
		stored, err := evidence.OpenArchive(dir)
		if err != nil || stored.Checkpoint != note(t, all, step.size) || !slices.Equal(stored.Cosignatures, []string{"— witness x"}) || stored.Commits() != nil {
			t.Errorf("%d events: %+v %v", step.size, stored, err)
		}
	}
	once := filepath.Join(t.TempDir(), "once")
	read, _ := reader(all)
	if _, err := Add(once, 4, note(t, all, 11), []string{"— witness x"}, read); err != nil || !maps.Equal(files(t, dir), files(t, once)) {
		t.Errorf("an archive written at once differs from one in steps: %v", err)
	}
	info, err := os.Stat(filepath.Join(once, evidence.ArchiveFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the index has the mode %v: %v", info.Mode(), err)
	}
}

// TestAddRefused checks that the index of an archive is not changed by an invalid
// checkpoint or one over fewer events, by another or an invalid size of segments, or
// by a ledger that returns other events, fewer or more events, an incomplete line, or
// an error.
func TestAddRefused(t *testing.T) {
	all, other := events(10), append(events(5), "x", "x", "x", "x", "x")
	dir := t.TempDir()
	read, _ := reader(all)
	if _, err := Add(dir, 4, note(t, all, 6), nil, read); err != nil {
		t.Fatal(err)
	}
	index := files(t, dir)[evidence.ArchiveFile]
	given := func(text string) Ledger {
		return func(uint64, uint64) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
	}
	broken := errors.New("the ledger does not respond")
	for name, c := range map[string]struct {
		segment uint64
		note    string
		read    Ledger
		message string
	}{
		"fewer events":       {4, note(t, all, 5), read, "the archive holds 6 events, the checkpoint covers 5"},
		"another size":       {8, note(t, all, 8), read, "the archive has segments of 4"},
		"no power of two":    {6, note(t, all, 8), read, "power of two"},
		"zero":               {0, note(t, all, 8), read, "power of two"},
		"no checkpoint":      {4, "x", read, ledger.ErrHead.Error()},
		"another ledger":     {4, note(t, other, 8), read, "root"},
		"too few":            {4, note(t, all, 6), given(all[4] + "\n"), "1 of the events 5 to 6"},
		"too many":           {4, note(t, all, 6), given(strings.Join(all[4:7], "\n") + "\n"), "3 of the events 5 to 6"},
		"an incomplete line": {4, note(t, all, 6), given(all[4] + "\n" + all[5]), io.EOF.Error()},
		"a ledger that fails": {4, note(t, all, 6), func(uint64, uint64) (io.ReadCloser, error) { return nil, broken },
			broken.Error()},
	} {
		_, err := Add(dir, c.segment, c.note, nil, c.read)
		if err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want %q", name, err, c.message)
		}
		if got := files(t, dir)[evidence.ArchiveFile]; got != index {
			t.Errorf("%s: the index was changed", name)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, evidence.ArchiveFile)); err != nil || !bytes.HasSuffix(b, []byte("\n")) {
		t.Errorf("the index does not end in a line: %v", err)
	}
}
