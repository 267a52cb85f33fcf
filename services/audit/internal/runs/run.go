package runs

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/bits"
	"os"
	"sort"

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// A run is a file of records in ascending order of keys, in pages of pageSize bytes,
// followed by an index that is held in memory: the first 8 bytes of the first key of each
// page, and a Bloom filter of bitsPerKey bits per record. A page is perPage records,
// fewer in the last page, then zeros, and in the last 4 bytes the CRC-32C of all bytes
// before. The last 20 bytes of the file are the number of records, the number of 64-bit
// words of the index, and the CRC-32C of the index.
const (
	pageSize   = 4096
	perPage    = (pageSize - 4) / recordSize
	bitsPerKey = 10
	probes     = 7
	tailSize   = 20
)

// run is a run of the map: its open file, and in memory the index at the end of the file.
type run struct {
	number uint64
	f      *os.File
	n      int      // number of records
	first  []uint64 // first 8 bytes of the first key of each page
	filter []uint64
}

// castagnoli is the table of the CRC-32C, which processors compute in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// page is a page of records with its checksum.
type page [pageSize]byte

// seal writes the checksum of the page.
func (p *page) seal() {
	binary.BigEndian.PutUint32(p[pageSize-4:], crc32.Checksum(p[:pageSize-4], castagnoli))
}

// check returns ErrDamaged if the page does not match its checksum.
func (p *page) check() error {
	if crc32.Checksum(p[:pageSize-4], castagnoli) != binary.BigEndian.Uint32(p[pageSize-4:]) {
		return ErrDamaged
	}
	return nil
}

// read reads the page with the given number, counted from 0, and returns its number of
// records.
func (r *run) read(number int, p *page) (n int, err error) {
	if _, err := r.f.ReadAt(p[:], int64(number)*pageSize); err != nil {
		return 0, err
	}
	return min(perPage, r.n-number*perPage), p.check()
}

// words returns the lengths of the fields first and filter of a run with n records.
func words(n int) (first, filter int) { return (n + perPage - 1) / perPage, (n*bitsPerKey + 63) / 64 }

func openRun(path string, number uint64) (*run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &run{number: number, f: f}
	if err := r.load(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// load reads the index of the run.
func (r *run) load() error {
	i, err := r.f.Stat()
	if err != nil {
		return err
	}
	var tail [tailSize]byte
	if i.Size() < tailSize {
		return ErrDamaged
	}
	if _, err := r.f.ReadAt(tail[:], i.Size()-tailSize); err != nil {
		return err
	}
	n, size := binary.BigEndian.Uint64(tail[:]), binary.BigEndian.Uint64(tail[8:])
	if n == 0 || n > uint64(i.Size()) || size > uint64(i.Size()) {
		return ErrDamaged
	}
	r.n = int(n)
	pages, filter := words(r.n)
	if size != uint64(pages+filter) || i.Size() != int64(pages)*pageSize+int64(size)*8+tailSize {
		return ErrDamaged
	}
	b := make([]byte, size*8)
	if _, err := r.f.ReadAt(b, int64(pages)*pageSize); err != nil {
		return err
	}
	if crc32.Checksum(b, castagnoli) != binary.BigEndian.Uint32(tail[16:]) {
		return ErrDamaged
	}
	all := make([]uint64, size)
	for i := range all {
		all[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	r.first, r.filter = all[:pages], all[pages:]
	return r.counted()
}

// counted returns ErrDamaged if the last page has fewer or more records than the tail of
// the file states, which no checksum covers. It does not verify the checksum of the page.
func (r *run) counted() error {
	var p page
	last := (r.n - 1) / perPage
	if _, err := r.f.ReadAt(p[:], int64(last)*pageSize); err != nil {
		return err
	}
	n := r.n - last*perPage
	if record(p[(n-1)*recordSize:]).Value == 0 || n < perPage && record(p[n*recordSize:]).Value != 0 {
		return ErrDamaged
	}
	return nil
}

// positions calls each for the positions of the key's bits in a Bloom filter of the
// given number of words, until each returns false. Keys are hashes, so their bytes serve
// as the hash functions.
func (k *Key) positions(filter int, each func(word int, bit uint64) bool) {
	a, step := binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])|1
	for range probes {
		at, _ := bits.Mul64(a, uint64(64*filter)) // number of a bit of the filter
		if !each(int(at/64), 1<<(at%64)) {
			return
		}
		a += step
	}
}

// find returns the value of the key, or 0 if the run does not contain it. It returns
// ErrDamaged if a page that may contain the key does not match its checksum.
func (r *run) find(k Key) (value uint64, err error) {
	in := true
	k.positions(len(r.filter), func(word int, bit uint64) bool {
		in = r.filter[word]&bit != 0
		return in
	})
	if !in {
		return 0, nil
	}
	prefix := binary.BigEndian.Uint64(k[:])
	at := max(0, sort.Search(len(r.first), func(i int) bool { return r.first[i] >= prefix })-1)
	var b page
	for ; at < len(r.first) && r.first[at] <= prefix; at++ { // several pages may contain keys with these first 8 bytes
		n, err := r.read(at, &b)
		if err != nil {
			return 0, err
		}
		i := sort.Search(n, func(i int) bool { return bytes.Compare(b[i*recordSize:i*recordSize+len(k)], k[:]) >= 0 })
		if i < n && bytes.Equal(b[i*recordSize:i*recordSize+len(k)], k[:]) {
			return record(b[i*recordSize:]).Value, nil
		}
	}
	return 0, nil
}

// source yields records in ascending order of keys, and io.EOF after the last.
type source interface {
	next() (Record, error)
}

// sorted implements source for a slice of sorted records, from which next removes the
// first.
type sorted []Record

func (s *sorted) next() (r Record, err error) {
	if len(*s) == 0 {
		return r, io.EOF
	}
	r, *s = (*s)[0], (*s)[1:]
	return r, nil
}

// reader implements source for the records in the file of a run. It returns ErrDamaged for a
// page that does not match its checksum.
type reader struct {
	b      *bufio.Reader
	left   int // records of the run after those of the page
	page   page
	at, in int // index of the next record of the page, and the number of its records
}

func (r *run) reader() *reader {
	return &reader{b: bufio.NewReaderSize(io.NewSectionReader(r.f, 0, int64(len(r.first))*pageSize), 64<<10), left: r.n}
}

func (r *reader) next() (Record, error) {
	if r.at == r.in {
		if r.left == 0 {
			return Record{}, io.EOF
		}
		if _, err := io.ReadFull(r.b, r.page[:]); err != nil {
			return Record{}, errors.Join(ErrDamaged, err)
		}
		if err := r.page.check(); err != nil {
			return Record{}, err
		}
		r.at, r.in = 0, min(perPage, r.left)
		r.left -= r.in
	}
	r.at++
	return record(r.page[(r.at-1)*recordSize:]), nil
}

// compare compares the keys as bytes.Compare does.
func (k *Key) compare(o *Key) int {
	if c := cmp.Compare(binary.BigEndian.Uint64(k[:]), binary.BigEndian.Uint64(o[:])); c != 0 {
		return c
	}
	return bytes.Compare(k[8:], o[8:])
}

// merge calls yield for the records of all sources, in ascending order of keys. It
// returns the first error of yield or of a source.
func merge(sources []source, yield func(Record) error) error {
	heads := make([]Record, 0, len(sources))
	advance := func(i int) error {
		r, err := sources[i].next()
		if errors.Is(err, io.EOF) {
			heads, sources = append(heads[:i], heads[i+1:]...), append(sources[:i], sources[i+1:]...)
			return nil
		}
		heads[i] = r
		return err
	}
	heads = heads[:len(sources)]
	for i := len(sources) - 1; i >= 0; i-- {
		if err := advance(i); err != nil {
			return err
		}
	}
	for len(heads) > 0 {
		least := 0
		for i := 1; i < len(heads); i++ {
			if heads[i].Key.compare(&heads[least].Key) < 0 {
				least = i
			}
		}
		if err := yield(heads[least]); err != nil {
			return err
		}
		if err := advance(least); err != nil {
			return err
		}
	}
	return nil
}

// writeRun writes the n records of the sources, whose keys must be distinct, to a new run. If
// the sources have another number of records, it returns ErrDamaged. After an error it
// removes the file.
func writeRun(path string, number uint64, n int, sources []source) (*run, error) {
	f, err := private.Create(path)
	if err != nil {
		return nil, err
	}
	r := &run{number: number, f: f, n: n}
	if err := r.write(sources); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return r, nil
}

func (r *run) write(sources []source) error {
	pages, filter := words(r.n)
	r.first, r.filter = make([]uint64, 0, pages), make([]uint64, filter)
	w := bufio.NewWriterSize(r.f, 256<<10)
	i := 0
	var p page
	write := func() error {
		p.seal()
		_, err := w.Write(p[:])
		p = page{}
		return err
	}
	err := merge(sources, func(rec Record) error {
		if i%perPage == 0 {
			r.first = append(r.first, binary.BigEndian.Uint64(rec.Key[:]))
		}
		rec.Key.positions(filter, func(word int, bit uint64) bool {
			r.filter[word] |= bit
			return true
		})
		rec.append(p[:i%perPage*recordSize])
		if i++; i%perPage == 0 || i == r.n {
			return write()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if i != r.n {
		return ErrDamaged
	}
	index := make([]byte, 0, (pages+filter)*8+tailSize)
	for _, words := range [][]uint64{r.first, r.filter} {
		for _, word := range words {
			index = binary.BigEndian.AppendUint64(index, word)
		}
	}
	sum := crc32.Checksum(index, castagnoli)
	index = binary.BigEndian.AppendUint64(index, uint64(r.n))
	index = binary.BigEndian.AppendUint64(index, uint64(pages+filter))
	index = binary.BigEndian.AppendUint32(index, sum)
	if _, err := w.Write(index); err != nil {
		return err
	}
	return w.Flush()
}
