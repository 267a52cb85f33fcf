package runs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// database holds the data that a caller of the package stores in its own database.
type database struct {
	numbers []uint64
	records [][]byte
}

// add adds the records from, from+1, …, to-1 in one change, and commits it to the
// database.
func (d *database) add(t testing.TB, s *Set, from, to int) {
	c := s.Begin()
	for i := from; i < to; i++ {
		k := KeyOf('e', fmt.Sprint(i))
		if seq, err := c.Find(k); err != nil || seq != 0 {
			t.Fatalf("record %d is found before it is added: %d, %v", i, seq, err)
		}
		c.Add(k, uint64(i+1))
		if seq, err := c.Find(k); err != nil || seq != uint64(i+1) {
			t.Fatalf("record %d is not found in its change: %d, %v", i, seq, err)
		}
	}
	numbers, records, err := c.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(func() error {
		if numbers != nil {
			d.numbers, d.records = numbers, nil
		} else {
			d.records = append(d.records, records)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// check checks that the map contains the records 0 to n-1, and no other.
func check(t testing.TB, s *Set, n int) {
	t.Helper()
	for i := range n + n/10 {
		want := uint64(i + 1)
		if i >= n {
			want = 0
		}
		if seq, err := s.Find(KeyOf('e', fmt.Sprint(i))); err != nil || seq != want {
			t.Fatalf("record %d of %d: %d, %v", i, n, seq, err)
		}
	}
	var last []byte
	found := 0
	if err := s.All(func(r Record) error {
		if bytes.Compare(last, r.Key[:]) >= 0 || r.Key != KeyOf('e', fmt.Sprint(r.Value-1)) {
			t.Fatalf("record %d: key %x after %x", r.Value, r.Key, last)
		}
		found, last = found+1, bytes.Clone(r.Key[:])
		return nil
	}); err != nil || found != n {
		t.Fatalf("%d records, want %d (%v)", found, n, err)
	}
}

// many is the number of records in memory at which they become a run in the tests. It fills
// several pages of a run, but is much smaller than young.
const many = 1024

// open opens a map in which the given number of records become a run.
func open(t testing.TB, dir string, d *database, small int) *Set {
	t.Helper()
	s, err := Open(dir, d.numbers, d.records...)
	if err != nil {
		t.Fatal(err)
	}
	if s.small != young {
		t.Errorf("%d records become a run, want %d", s.small, young)
	}
	s.small = small
	return s
}

// TestSet adds records in changes of different sizes, so that runs are written and
// merged, and checks the map in between, also after it was closed and opened again.
func TestSet(t *testing.T) {
	d, dir := &database{}, t.TempDir()
	s := open(t, dir, d, many)
	n := 0
	for i, size := range []int{1, 470, 470, 470, 1100, 1100, 1100, 10, 1100, 1100, 1100, 1100, 1030, 1030, 50} { // the changes write ten runs, of which the first eight are merged
		d.add(t, s, n, n+size)
		n += size
		if i%3 == 0 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, d, many)
		}
		if i%5 == 4 {
			check(t, s, n)
		}
	}
	defer s.Close()
	if seq, err := s.Find(KeyOf('r', "1")); err != nil || seq != 0 {
		t.Errorf("an id of another kind is found: %d, %v", seq, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != len(d.numbers) || len(files) != 3 {
		t.Errorf("%d files for runs %v (%v)", len(files), d.numbers, err)
	}
}

// TestNotCommitted shows that a change that is not committed is not in the map: neither
// if the transaction fails, nor if the process dies after the run was written.
func TestNotCommitted(t *testing.T) {
	d, dir := &database{}, t.TempDir()
	s := open(t, dir, d, many)
	d.add(t, s, 0, 100)
	d.add(t, s, 100, 100+many)
	d.add(t, s, 100+many, 200+many)
	failed := errors.New("the disk is full")
	for _, died := range []bool{false, true} {
		c := s.Begin()
		for i := range many {
			c.Add(KeyOf('x', fmt.Sprint(i)), 1)
		}
		numbers, _, err := c.Prepare()
		if err != nil || len(numbers) != 2 {
			t.Fatal(numbers, err)
		}
		if died {
			s = open(t, dir, d, many)
		} else if err := c.Commit(func() error { return failed }); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		check(t, s, 200+many)
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Errorf("died %t: %d files, want 1 (%v)", died, len(files), err)
		}
	}
}

// TestDamaged shows that Open returns an error for a run that is missing, cut off, or
// has a damaged index.
func TestDamaged(t *testing.T) {
	d, dir := &database{}, t.TempDir()
	s := open(t, dir, d, many)
	d.add(t, s, 0, many)
	path := filepath.Join(dir, "1")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Clone(whole)
	bad[len(bad)-tailSize-1]++
	for name, b := range map[string][]byte{"cut off": whole[:len(whole)-1], "empty": {}, "damaged": bad, "without records": whole[len(whole)-tailSize:]} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, d.numbers); err == nil {
			t.Errorf("a run that is %s is opened", name)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, d.numbers); err == nil {
		t.Error("a missing run is not noticed")
	}
}

// BenchmarkFind measures look-ups in a map of three million records.
func BenchmarkFind(b *testing.B) {
	s, err := Open(b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const n, step = 3_000_000, 6000
	d := &database{}
	for i := 0; i < n; i += step {
		d.add(b, s, i, i+step)
	}
	b.Logf("%d runs", len(s.runs))
	for name, kind := range map[string]byte{"present": 'e', "absent": 'x'} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if _, err := s.Find(KeyOf(kind, fmt.Sprint(i*7919%n))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
