package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// openSmall opens a map whose runs have few records, so that few records are in runs of
// several tiers.
func openSmall(t testing.TB, dir string, d *database) *Set {
	t.Helper()
	return open(t, dir, d, 16)
}

// TestMergeLarge shows that large runs are merged in the background, into runs of several
// tiers, and that the map has all records meanwhile, afterwards, and after it was opened
// again during and between merges.
func TestMergeLarge(t *testing.T) {
	d, dir := &database{}, t.TempDir()
	s := openSmall(t, dir, d)
	const changes, size = 600, 16
	for i := range changes {
		d.add(t, s, i*size, (i+1)*size)
		if s.merging != nil && i%3 > 0 {
			<-s.merging.done
		}
		if i%97 != 0 {
			continue
		}
		check(t, s, (i+1)*size)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openSmall(t, dir, d)
		check(t, s, (i+1)*size)
	}
	defer s.Close()
	check(t, s, changes*size)
	if n := len(s.runs); n > 3*fanIn {
		t.Errorf("%d runs, want at most %d", n, 3*fanIn)
	}
	if tier := s.tierOf(s.runs[0].n); tier < 2 {
		t.Errorf("the oldest run is of tier %d, want 2", tier)
	}
	if s.merging != nil {
		<-s.merging.done
	}
	files, err := os.ReadDir(dir)
	if want := len(s.runs); err != nil || len(files) > want+1 { // the result of a merge may be there, too
		t.Errorf("%d files, want %d (%v)", len(files), want, err)
	}
}

// TestMergeNotCommitted shows that the result of a merge in the background is not in the
// map if the transaction that should have replaced the merged runs fails.
func TestMergeNotCommitted(t *testing.T) {
	d, dir := &database{}, t.TempDir()
	s := openSmall(t, dir, d)
	defer s.Close()
	n := 0
	for ; s.merging == nil; n += 16 {
		d.add(t, s, n, n+16)
	}
	<-s.merging.done
	c := s.Begin()
	for i := range 16 {
		c.Add(KeyOf('x', fmt.Sprint(i)), 1)
	}
	numbers, _, err := c.Prepare()
	if err != nil || len(numbers) != len(s.runs)-fanIn+2 {
		t.Fatalf("runs %v replace %d (%v)", numbers, len(s.runs), err)
	}
	failed := errors.New("the disk is full")
	if err := c.Commit(func() error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	check(t, s, n)
	d.add(t, s, n, n+16)
	check(t, s, n+16)
	if s.merging == nil {
		t.Error("the merge is not repeated")
	}
}

// TestDamagedRecords shows that a damaged record is detected when it is looked up, by a
// dump, and by a merge in the background, that no change is committed afterwards, and
// that the map cannot be opened again.
func TestDamagedRecords(t *testing.T) {
	build := func(t *testing.T, n int) (*Set, *database, string) {
		d, dir := &database{}, t.TempDir()
		s := openSmall(t, dir, d)
		for i := 0; i < n; i += 16 {
			d.add(t, s, i, i+16)
		}
		path := filepath.Join(dir, strconv.FormatUint(d.numbers[0], 10))
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[recordSize-1] ^= 1 // the value of the first record
		if err := errors.Join(os.WriteFile(path, b, 0o600), s.Close()); err != nil {
			t.Fatal(err)
		}
		return openSmall(t, dir, d), d, dir
	}
	const n = 16 * 40
	for name, use := range map[string]func(*Set, *database) error{
		"find": func(s *Set, _ *database) (err error) {
			for i := range n {
				_, e := s.Find(KeyOf('e', fmt.Sprint(i)))
				err = errors.Join(err, e)
			}
			return err
		},
		"dump": func(s *Set, _ *database) error { return s.All(func(Record) error { return nil }) },
		"merge": func(s *Set, _ *database) error {
			m := s.mergeLarge(1000)
			for i := n; m == nil; i += 16 {
				c := s.Begin()
				for j := range 16 {
					c.Add(KeyOf('e', fmt.Sprint(i+j)), 1)
				}
				if _, _, err := c.Prepare(); err != nil {
					return err
				}
				if err := c.Commit(func() error { return nil }); err != nil {
					return err
				}
				m = s.merging
			}
			<-m.done
			return m.err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, d, dir := build(t, n)
			if err := s.Damaged(); err != nil {
				t.Fatal("before a use:", err)
			}
			if err := use(s, d); !errors.Is(err, ErrDamaged) {
				t.Errorf("the damage is not noticed: %v", err)
			}
			if _, _, err := s.Begin().Prepare(); !errors.Is(err, ErrDamaged) {
				t.Errorf("a change may be committed: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, d.numbers, d.records...); err == nil {
				t.Error("the map is opened again")
			}
		})
	}
}
