package runs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
)

// keyAt returns a key whose first and last 8 bytes are the numbers given.
func keyAt(first, last uint64) (k Key) {
	binary.BigEndian.PutUint64(k[:], first)
	binary.BigEndian.PutUint64(k[8:], last)
	return k
}

// written writes a run of records.
func written(t *testing.T, records ...Record) *run {
	t.Helper()
	list := sorted(records)
	r, err := writeRun(filepath.Join(t.TempDir(), "7"), 7, len(records), []source{&list})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.f.Close() })
	return r
}

// TestRunFiles writes runs with fewer, as many and more records than a page holds, among
// them records whose keys have the same first 8 bytes on several pages. Every record is
// found and read in order, others are not found, and the file that is opened again has the
// same index.
func TestRunFiles(t *testing.T) {
	for _, n := range []int{1, 2, perPage - 1, perPage, perPage + 1, 2*perPage - 1, 2 * perPage, 5*perPage + 3} {
		for _, same := range []int{1, n/2 + 1, 3 * perPage} { // number of records with the same first 8 bytes
			var records []Record
			for i := range n {
				records = append(records, Record{keyAt(uint64(10+i/same), uint64(10*i+5)), uint64(i + 1)})
			}
			r := written(t, records...)
			again, err := openRun(r.f.Name(), 7)
			if err != nil {
				t.Fatalf("%d records: %v", n, err)
			}
			defer again.f.Close()
			if again.n != n || !slices.Equal(again.first, r.first) || !slices.Equal(again.filter, r.filter) || len(r.first) != (n+perPage-1)/perPage || len(r.filter) != (n*bitsPerKey+63)/64 {
				t.Fatalf("%d records: the index differs after opening: %d, %d pages, %d words", n, again.n, len(again.first), len(again.filter))
			}
			i, err := os.Stat(r.f.Name())
			if want := int64(len(r.first)*pageSize + 8*(len(r.first)+len(r.filter)) + tailSize); err != nil || i.Size() != want {
				t.Fatalf("%d records: %d bytes, want %d (%v)", n, i.Size(), want, err)
			}
			for _, rec := range records {
				if v, err := again.find(rec.Key); err != nil || v != rec.Value {
					t.Fatalf("%d records, %d alike: %d, want %d (%v)", n, same, v, rec.Value, err)
				}
			}
			for range again.filter { // a filter without zeros, so that each look-up reads pages
				for i := range again.filter {
					again.filter[i] = ^uint64(0)
				}
			}
			for _, k := range []Key{{}, keyAt(9, 0), keyAt(10, 0), keyAt(10, 6), keyAt(10, 10*uint64(n)), keyAt(uint64(10+n), 0), keyAt(^uint64(0), ^uint64(0)), keyAt(10+uint64((n-1)/same), 10*uint64(n))} {
				if v, err := again.find(k); err != nil || v != 0 {
					t.Fatalf("%d records, %d alike: key %x is found: %d (%v)", n, same, k, v, err)
				}
			}
			var read []Record
			if err := merge([]source{again.reader()}, func(rec Record) error { read = append(read, rec); return nil }); err != nil || !slices.Equal(read, records) {
				t.Fatalf("%d records: %d are read (%v)", n, len(read), err)
			}
		}
	}
}

// TestFilter checks that each key has as many positions in the filter as find probes,
// that the bits of all records are set, that every word is used, and that the filter
// rejects most keys that are not in the run without reading a page.
func TestFilter(t *testing.T) {
	const n = 1000
	var records []Record
	for i := range n {
		records = append(records, Record{KeyOf('e', fmt.Sprint(i)), uint64(i + 1)})
	}
	slices.SortFunc(records, func(a, b Record) int { return a.Key.compare(&b.Key) })
	r := written(t, records...)
	words := map[int]bool{}
	for _, rec := range records {
		bits := 0
		rec.Key.positions(len(r.filter), func(word int, bit uint64) bool {
			bits++
			words[word] = true
			if r.filter[word]&bit == 0 {
				t.Fatal("a bit of a record is not set")
			}
			return true
		})
		if bits != probes {
			t.Fatalf("%d bits of a key, want %d", bits, probes)
		}
	}
	if len(words) != len(r.filter) {
		t.Errorf("%d of %d words are used", len(words), len(r.filter))
	}
	r.f.Close() // so that a look-up which reads a page fails
	read := 0
	for i := range n {
		if _, err := r.find(KeyOf('x', fmt.Sprint(i))); err != nil {
			read++
		}
	}
	if read > n/20 { // 1 % is expected
		t.Errorf("for %d of %d absent keys a page is read", read, n)
	}
}

// TestTruncatedRuns checks that openRun returns ErrDamaged for a file that is cut off at one of
// several places or has a byte too many, for each changed byte of the index and of the tail, and
// for numbers in the tail that do not fit the file.
func TestTruncatedRuns(t *testing.T) {
	var records []Record
	for i := range perPage + 1 {
		records = append(records, Record{keyAt(uint64(i), 1), 1})
	}
	whole, err := os.ReadFile(written(t, records...).f.Name())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "7")
	try := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := openRun(path, 7); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
			if err == nil {
				r.f.Close()
			}
		}
	}
	for _, n := range []int{0, 1, tailSize - 1, tailSize, tailSize + 1, pageSize, 2 * pageSize, len(whole) - 8, len(whole) - 1} {
		try(fmt.Sprintf("cut to %d bytes", n), whole[:n])
	}
	try("longer", append(bytes.Clone(whole), 0))
	for i := 2 * pageSize; i < len(whole); i++ {
		b := bytes.Clone(whole)
		b[i] ^= 1
		try(fmt.Sprintf("byte %d changed", i), b)
	}
	for _, n := range []uint64{0, 1, perPage, perPage + 2, uint64(len(whole)), uint64(len(whole)) + 1, 1 << 62, 1<<64 - 1} {
		b := bytes.Clone(whole)
		binary.BigEndian.PutUint64(b[len(b)-tailSize:], n)
		try(fmt.Sprintf("%d records", n), b)
		b = bytes.Clone(whole)
		binary.BigEndian.PutUint64(b[len(b)-tailSize+8:], n)
		try(fmt.Sprintf("%d words", n), b)
	}
	// A file without records, with a valid index of no words.
	try("no records", binary.BigEndian.AppendUint32(make([]byte, 16), crc32.Checksum(nil, castagnoli)))
}

// TestWriteRunErrors checks that a run with fewer or more records than promised is not
// kept, and neither is one whose source fails. A run cannot be written to a missing
// folder.
func TestWriteRunErrors(t *testing.T) {
	rec := func(i int) Record { return Record{keyAt(uint64(i), 0), 1} }
	for _, n := range []int{1, 3} {
		path := filepath.Join(t.TempDir(), "7")
		list := sorted{rec(1), rec(2)}
		if _, err := writeRun(path, 7, n, []source{&list}); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d records of 2: %v", n, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%d records of 2: the file remains: %v", n, err)
		}
	}
	path := filepath.Join(t.TempDir(), "7")
	list, stop := sorted{rec(1), rec(2)}, new(atomic.Bool)
	stop.Store(true)
	if _, err := writeRun(path, 7, 2, []source{stoppable{&list, stop}}); !errors.Is(err, errStopped) || len(list) != 2 {
		t.Errorf("a stopped source: %v, %d records left", err, len(list))
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a stopped source: the file remains: %v", err)
	}
	if _, err := writeRun(filepath.Join(path, "in", "none"), 7, 2, []source{&list}); err == nil {
		t.Error("a run is written to a folder that does not exist")
	}
}

// TestMerge merges sources of which some are empty, and checks the order and the errors.
func TestMerge(t *testing.T) {
	of := func(numbers ...uint64) source {
		list := sorted{}
		for _, n := range numbers {
			list = append(list, Record{keyAt(7, n), n})
		}
		return &list
	}
	sources := func() []source { return []source{of(), of(2, 9), of(1, 3, 4, 10), of(), of(5), of()} }
	var got []uint64
	if err := merge(sources(), func(r Record) error { got = append(got, r.Value); return nil }); err != nil || !slices.Equal(got, []uint64{1, 2, 3, 4, 5, 9, 10}) {
		t.Errorf("%v (%v)", got, err)
	}
	failed := errors.New("full")
	n := 0
	if err := merge(sources(), func(Record) error {
		if n++; n == 3 {
			return failed
		}
		return nil
	}); !errors.Is(err, failed) || n != 3 {
		t.Errorf("%d records: %v", n, err)
	}
	if err := merge(nil, func(Record) error { return failed }); err != nil {
		t.Error(err)
	}
	a, b := keyAt(1, 5), keyAt(1, 6)
	if a.compare(&b) >= 0 || b.compare(&a) <= 0 || a.compare(&a) != 0 {
		t.Error("keys with the same first bytes are not compared by the others")
	}
}

// TestTiers checks the tiers of several numbers of records, and the index of the oldest run
// that is merged with a new one.
func TestTiers(t *testing.T) {
	s := &Set{small: 16}
	for n, want := range map[int]int{0: 0, 1: 0, 16: 0, 127: 0, 128: 1, 1023: 1, 1024: 2, 8191: 2, 8192: 3} {
		if got := s.tierOf(n); got != want {
			t.Errorf("%d records: tier %d, want %d", n, got, want)
		}
	}
	for _, c := range []struct {
		runs []int
		n    int
		want int
	}{
		{nil, 16, 0}, {[]int{16, 16, 16, 16, 16, 16}, 16, 6}, {[]int{16, 16, 16, 16, 16, 16, 16}, 16, 0}, {[]int{128, 16, 16, 16, 16, 16, 16, 16}, 16, 1},
		{[]int{16, 16, 16, 16, 16, 16, 128, 16}, 16, 8}, {[]int{16, 16, 16, 16, 16, 16, 16}, 128, 7}, {[]int{16, 16, 16, 16, 16, 16, 16, 16}, 16, 0},
	} {
		s.runs = nil
		for _, n := range c.runs {
			s.runs = append(s.runs, &run{n: n})
		}
		if got := s.oldest(c.n); got != c.want {
			t.Errorf("%d more than %v: from %d, want %d", c.n, c.runs, got, c.want)
		}
	}
}

// TestMergeLargeChoice checks which runs are merged in the background: the newest eight consecutive
// runs of one tier above the lowest.
func TestMergeLargeChoice(t *testing.T) {
	for _, c := range []struct {
		runs []int // tiers
		want int   // index of the first; -1: none
	}{
		{nil, -1}, {[]int{1, 1, 1, 1, 1, 1, 1}, -1}, {[]int{1, 1, 1, 1, 1, 1, 1, 1}, 0}, {[]int{2, 1, 1, 1, 1, 1, 1, 1, 1}, 1}, {[]int{1, 1, 1, 1, 1, 1, 1, 1, 0}, 0},
		{[]int{0, 0, 0, 0, 0, 0, 0, 0}, -1}, {[]int{1, 1, 1, 1, 2, 1, 1, 1, 1}, -1}, {[]int{2, 2, 2, 2, 2, 2, 2, 2, 1, 0}, 0}, {[]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2},
	} {
		s := &Set{dir: t.TempDir(), small: 16}
		for i, tier := range c.runs {
			n := []int{16, 128, 1024}[tier]
			list := make(sorted, 0, n)
			for j := range n {
				list = append(list, Record{keyAt(uint64(i), uint64(j)), 1})
			}
			r, err := writeRun(s.path(uint64(i+1)), uint64(i+1), n, []source{&list})
			if err != nil {
				t.Fatal(err)
			}
			s.runs = append(s.runs, r)
		}
		m := s.mergeLarge(100)
		if (m == nil) != (c.want < 0) || m.number() != map[bool]uint64{true: 0, false: 100}[m == nil] {
			t.Errorf("%v: %v", c.runs, m)
		}
		if m != nil {
			<-m.done
			n := 0
			for _, r := range s.runs[c.want : c.want+fanIn] {
				n += r.n
			}
			if m.at != c.want || len(m.runs) != fanIn || m.err != nil || m.result.n != n || !m.finished() {
				t.Errorf("%v: from %d, %d runs, %v", c.runs, m.at, len(m.runs), m.err)
			}
			if err := m.cancel(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(s.path(100)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the result of a merge that was stopped remains: %v", err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOpenDeletes checks that Open deletes all files that are no run of the map, and that a
// map with a damaged page fails only for the keys that may be on that page.
func TestOpenDeletes(t *testing.T) {
	d, dir := &database{}, t.TempDir()
	s := open(t, dir, d, many)
	d.add(t, s, 0, many)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"2", "x", "01x", "-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "folder", "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "1")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[pageSize] ^= 1 // the first byte of the second page
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, d, many)
	defer s.Close()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%d files (%v)", len(files), err)
	}
	damaged := 0
	for i := range many {
		v, err := s.Find(KeyOf('e', fmt.Sprint(i)))
		if errors.Is(err, ErrDamaged) {
			damaged++
		} else if err != nil || v != uint64(i+1) {
			t.Fatal(v, err)
		}
	}
	// The first 8 bytes of the next page's first key may be those of a key on this page.
	if damaged != perPage+1 {
		t.Errorf("%d records cannot be read, want the %d of a page and the next one", damaged, perPage)
	}
}
