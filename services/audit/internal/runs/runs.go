// Package runs stores a map from hashed ids to numbers in sorted, immutable files,
// called runs. New records are in memory first; when there are many, they become a run.
// Eight runs of about the same size are merged, so a map of n records has O(log n) runs,
// and a look-up may read the Bloom filter of each. Runs of 524,288 records or more are
// merged in the background, because a merge within a change blocks its writer.
//
// The package does not decide which runs are part of the map: the caller stores their
// numbers, and the records that are in no run yet, in its own database, in the
// transaction to which the change belongs (see Change). Open deletes all other files.
package runs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Key is a hashed id. Two ids with one key are not distinguished; finding such a pair
// takes about 2^64 hashes.
type Key [16]byte

// KeyOf returns the key of an id of the given kind: the first 16 bytes of the SHA-256 of
// kind and id, which may be given in parts. Ids of different kinds have different keys.
func KeyOf(kind byte, id ...string) (k Key) {
	var buf [256]byte
	b := append(buf[:0], kind)
	for _, part := range id {
		b = append(b, part...)
	}
	h := sha256.Sum256(b)
	copy(k[:], h[:])
	return k
}

// Record is an entry of the map: a key and its value, which is not 0.
type Record struct {
	Key   Key
	Value uint64
}

const (
	recordSize = 16 + 8
	young      = 1 << 16 // number of records in memory at which they become a run
	fanIn      = 8       // number of runs of one tier at which they are merged
	slowTier   = 1       // runs of this tier and above are merged in the background
)

// ErrDamaged is returned if a file of the map does not have the content that was written
// to it; see Set.Damaged.
var ErrDamaged = errors.New("a file of the index of ids is damaged")

// append appends the encoding of the record to b.
func (r *Record) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, r.Key[:]...), r.Value)
}

// record decodes the record at the start of b.
func record(b []byte) (r Record) {
	copy(r.Key[:], b)
	r.Value = binary.BigEndian.Uint64(b[16:])
	return r
}

// Set is the map. It is safe for concurrent use, but only one Change may be open at a
// time.
type Set struct {
	dir     string
	small   int // number of records in memory at which they become a run
	damaged atomic.Bool
	merging *merging // merge of large runs in the background; nil: none. Only the writer uses it

	mu    sync.RWMutex
	runs  []*run         // oldest first
	young map[Key]uint64 // records that are in no run yet
}

// Open opens the map in dir, which it creates if it is missing. numbers are the numbers
// of the runs, and records the encoded records that are in no run, as committed changes
// returned them. Open deletes all other files in dir. It returns an error if a run is
// missing, is cut off or has a damaged index, or if another part of it was found damaged
// before; the map must then be rebuilt. Open does not check the records in the runs.
func Open(dir string, numbers []uint64, records ...[]byte) (*Set, error) {
	if err := private.Mkdir(dir); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		n, err := strconv.ParseUint(f.Name(), 10, 64)
		if err != nil || !slices.Contains(numbers, n) {
			if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
				return nil, err
			}
		}
	}
	s := &Set{dir: dir, small: young, young: map[Key]uint64{}}
	for _, n := range numbers {
		r, err := openRun(s.path(n), n)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("run %d: %w", n, err), s.Close())
		}
		s.runs = append(s.runs, r)
	}
	for _, b := range records {
		for ; len(b) >= recordSize; b = b[recordSize:] {
			r := record(b)
			s.young[r.Key] = r.Value
		}
	}
	return s, nil
}

func (s *Set) path(number uint64) string { return filepath.Join(s.dir, strconv.FormatUint(number, 10)) }

// Close ends a merge in the background and closes the files of the runs. No change may be
// open.
func (s *Set) Close() (err error) {
	if m := s.merging; m != nil {
		s.merging = nil
		err = m.cancel()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runs {
		err = errors.Join(err, r.f.Close())
	}
	s.runs = nil
	return err
}

// Damaged returns ErrDamaged if a part of a run was found damaged since Open. The file of
// that run is deleted, so the next Open fails.
func (s *Set) Damaged() error {
	if s.damaged.Load() {
		return ErrDamaged
	}
	return nil
}

// note deletes a damaged run's file, so that the next Open fails. The open file of the
// run can still be read.
func (s *Set) note(r *run) {
	s.damaged.Store(true)
	_ = os.Remove(s.path(r.number))
}

// Find returns the value of a key, or 0 if the map does not contain it. The error wraps
// ErrDamaged if the part of a run in which the key may be is damaged.
func (s *Set) Find(k Key) (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.find(k)
}

func (s *Set) find(k Key) (uint64, error) {
	if value, ok := s.young[k]; ok {
		return value, nil
	}
	for _, r := range slices.Backward(s.runs) { // ids are mostly looked up soon after they were added
		value, err := r.find(k)
		if errors.Is(err, ErrDamaged) {
			s.note(r)
		}
		if value > 0 || err != nil {
			return value, err
		}
	}
	return 0, nil
}

// All calls yield for each record, in ascending order of keys, until yield returns an
// error, which All returns. It also returns an error if a run cannot be read or is
// damaged.
func (s *Set) All(yield func(Record) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return merge(s.sources(s.runs, s.young), yield)
}

// sources returns one source for records and one for each run.
func (s *Set) sources(runs []*run, records map[Key]uint64) []source {
	list := make(sorted, 0, len(records))
	for k, value := range records {
		list = append(list, Record{k, value})
	}
	slices.SortFunc(list, func(a, b Record) int { return a.Key.compare(&b.Key) })
	out := []source{&list}
	for _, r := range runs {
		out = append(out, noted{r.reader(), s, r})
	}
	return out
}

// noted implements source for a run of a set. If it finds damage, it calls Set.note.
type noted struct {
	*reader
	s *Set
	r *run
}

func (n noted) next() (Record, error) {
	rec, err := n.reader.next()
	if errors.Is(err, ErrDamaged) {
		n.s.note(n.r)
	}
	return rec, err
}

// Change collects records, which Commit adds to the map together.
type Change struct {
	s       *Set
	added   map[Key]uint64
	records []byte   // the records in added, encoded
	merged  *run     // run with the added records, which replaces all records in memory and the newest runs; nil: none
	from    int      // index of the oldest run that merged replaces; len(s.runs): it replaces none
	large   *merging // finished merge, whose run replaces runs before from; nil: none
}

// Begin begins a change. The change must be committed or discarded before the next one
// begins.
func (s *Set) Begin() *Change { return &Change{s: s, added: map[Key]uint64{}} }

// Find returns the value of a key in the map or the change, or 0 if neither contains it.
// Its error is that of Set.Find.
func (c *Change) Find(k Key) (uint64, error) {
	if value, ok := c.added[k]; ok {
		return value, nil
	}
	return c.s.find(k) // only a commit changes the set, and it does not run concurrently
}

// Add adds a record. Neither the map nor the change may contain the key, and value must
// not be 0.
func (c *Change) Add(k Key, value uint64) {
	c.added[k] = value
	c.records = (&Record{k, value}).append(c.records)
}

// Prepare returns the data that the caller must store in its transaction. If numbers is
// nil, the caller must add records to the stored records that are in no run. Otherwise
// it must store numbers as the numbers of all runs and delete those records, because a
// new run contains them. The error wraps ErrDamaged if Damaged does not return nil.
func (c *Change) Prepare() (numbers []uint64, records []byte, err error) {
	s := c.s
	if err := s.Damaged(); err != nil {
		return nil, nil, err
	}
	if len(s.young)+len(c.added) < s.small {
		return nil, c.records, nil
	}
	all := make(map[Key]uint64, len(s.young)+len(c.added))
	for _, m := range []map[Key]uint64{s.young, c.added} {
		for k, value := range m {
			all[k] = value
		}
	}
	if s.merging.finished() {
		c.large, s.merging = s.merging, nil
		if c.large.err != nil {
			return nil, nil, c.large.err
		}
	}
	c.from = s.oldest(len(all))
	n := len(all)
	for _, r := range s.runs[c.from:] {
		n += r.n
	}
	number := c.number()
	if c.merged, err = writeRun(s.path(number), number, n, s.sources(s.runs[c.from:], all)); err != nil {
		return nil, nil, err
	}
	for _, r := range c.after() {
		numbers = append(numbers, r.number)
	}
	return numbers, nil, nil
}

// number returns a number that no run has, not even one that is being written.
func (c *Change) number() uint64 {
	number := c.s.merging.number()
	for _, r := range c.s.runs {
		number = max(number, r.number)
	}
	return max(number, c.large.number()) + 1
}

// after returns the runs of the map after the change, which must have a merged run.
func (c *Change) after() []*run {
	out := slices.Clone(c.s.runs[:c.from])
	if m := c.large; m != nil {
		out = slices.Replace(out, m.at, m.at+len(m.runs), m.result)
	}
	return append(out, c.merged)
}

// oldest returns the index of the oldest run to merge with n new records, or len(runs) if
// no run is to be merged. The newest runs of a tier below slowTier are merged if there
// would be fanIn of them, together with those of the tiers below.
func (s *Set) oldest(n int) int {
	from := len(s.runs)
	for tier := s.tierOf(n); tier < slowTier; tier++ {
		first := from
		for first > 0 && s.tierOf(s.runs[first-1].n) <= tier {
			first--
		}
		if from-first < fanIn-1 {
			break
		}
		from = first
	}
	return from
}

// tierOf returns the tier of a run with n records: 0 for fewer than small · fanIn, and
// one more for each further factor of fanIn.
func (s *Set) tierOf(n int) (tier int) {
	for n /= s.small; n >= fanIn; n /= fanIn {
		tier++
	}
	return tier
}

// Commit calls commit, which must commit the caller's transaction, and then adds the
// change to the map. Readers of the map are blocked meanwhile. If commit returns an
// error, Commit discards the change and returns the error.
func (c *Change) Commit(commit func() error) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := commit(); err != nil {
		return errors.Join(err, c.Discard())
	}
	if c.merged == nil {
		for k, value := range c.added {
			s.young[k] = value
		}
		return nil
	}
	replaced := s.runs[c.from:]
	if c.large != nil {
		replaced = append(slices.Clone(replaced), c.large.runs...)
	}
	after := c.after()
	for _, r := range replaced {
		r.f.Close()
		_ = os.Remove(s.path(r.number)) // if the file remains, Open deletes it
	}
	s.runs, s.young = after, map[Key]uint64{}
	if s.merging == nil {
		s.merging = s.mergeLarge(c.merged.number + 1)
	}
	return nil
}

// Discard deletes the runs, if any, that Prepare wrote or took for a change that is not
// committed.
func (c *Change) Discard() (err error) {
	if m := c.large; m != nil {
		c.large = nil
		err = m.cancel()
	}
	if c.merged != nil {
		err = errors.Join(err, c.merged.f.Close(), os.Remove(c.s.path(c.merged.number)))
		c.merged = nil
	}
	return err
}
