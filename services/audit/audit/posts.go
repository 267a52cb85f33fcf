package audit

import (
	"bytes"
	"encoding/binary"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// A list of ascending numbers is stored in chunks, one for each range of 4096 numbers.
// The key of a chunk is the prefix of the list, followed by the number of the range in 8
// bytes. Its value is the offset of its last number in the range, in 2 bytes, and the
// difference of each number from the one before, as varints; that of the first number is
// its offset in the range. So a chunk does not depend on how the numbers were grouped in
// transactions.
const chunkBits = 12

// posts appends numbers, which must be ascending and greater than those in the list, to
// the list with the given prefix.
func posts(b *bbolt.Bucket, prefix []byte, numbers []uint64) error {
	for len(numbers) > 0 {
		part := numbers[0] >> chunkBits
		k := append(bytes.Clone(prefix), key(part)...)
		v := bytes.Clone(b.Get(k))
		if v == nil {
			v = []byte{0, 0}
		}
		base := part << chunkBits
		last := base + uint64(binary.BigEndian.Uint16(v))
		for len(numbers) > 0 && numbers[0]>>chunkBits == part {
			v = binary.AppendUvarint(v, numbers[0]-last)
			last, numbers = numbers[0], numbers[1:]
		}
		binary.BigEndian.PutUint16(v, uint16(last-base))
		if err := b.Put(k, v); err != nil {
			return err
		}
	}
	return nil
}

// list calls each for the numbers of a list that are at least from, in ascending order,
// until each returns false.
func list(b *bbolt.Bucket, prefix []byte, from uint64, each func(n uint64) bool) {
	c := b.Cursor()
	for k, v := c.Seek(append(bytes.Clone(prefix), key(from>>chunkBits)...)); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if !chunk(k, v, func(n uint64) bool { return n < from || each(n) }) {
			return
		}
	}
}

// chunk calls each for the numbers of a chunk in ascending order, until each returns
// false. It returns false if each did.
func chunk(k, v []byte, each func(n uint64) bool) bool {
	n := binary.BigEndian.Uint64(k[len(k)-8:]) << chunkBits
	for v = v[2:]; len(v) > 0; {
		d, size := binary.Uvarint(v)
		n, v = n+d, v[size:]
		if !each(n) {
			return false
		}
	}
	return true
}

// chunkBefore returns the newest chunk of a list whose range is part or an earlier one.
// k is nil if there is none. The cursor is at the chunk.
func chunkBefore(c *bbolt.Cursor, prefix []byte, part uint64) (k, v []byte) {
	at := append(bytes.Clone(prefix), key(part)...)
	k, v = c.Seek(at)
	switch {
	case k == nil:
		k, v = c.Last()
	case !bytes.Equal(k, at):
		k, v = c.Prev()
	}
	if !bytes.HasPrefix(k, prefix) {
		return nil, nil
	}
	return k, v
}

// inAll calls each for the numbers that are in all of the lists, at least from and at
// most to, in descending order, until each returns false.
func inAll(b *bbolt.Bucket, prefixes [][]byte, from, to uint64, each func(n uint64) bool) {
	c := b.Cursor()
	chunks := make([][2][]byte, len(prefixes))
	for part := to >> chunkBits; ; part-- {
		for i := 0; i < len(prefixes); {
			k, v := chunkBefore(c, prefixes[i], part)
			if k == nil {
				return
			}
			chunks[i] = [2][]byte{k, v}
			if at := binary.BigEndian.Uint64(k[len(k)-8:]); at < part {
				part, i = at, 0 // no newer range is in all lists, so look for this one in each list
				continue
			}
			i++
		}
		if part < from>>chunkBits || !inChunks(chunks, from, to, each) || part == 0 {
			return
		}
	}
}

// inChunks is inAll for chunks of one range. It returns false if each did.
func inChunks(chunks [][2][]byte, from, to uint64, each func(n uint64) bool) bool {
	var in [1 << chunkBits]uint8 // for each number of the range, how many lists contain it
	var first uint64
	for _, kv := range chunks {
		chunk(kv[0], kv[1], func(n uint64) bool {
			first = n &^ (1<<chunkBits - 1)
			in[n-first]++
			return true
		})
	}
	for i := len(in) - 1; i >= 0; i-- {
		if n := first + uint64(i); int(in[i]) == len(chunks) && n >= from && n <= to && !each(n) {
			return false
		}
	}
	return true
}

// lastOdd returns the greatest odd number of a list that is at most max, or 0.
func lastOdd(b *bbolt.Bucket, prefix []byte, max uint64) (last uint64) {
	c := b.Cursor()
	for k, v := chunkBefore(c, prefix, max>>chunkBits); last == 0 && bytes.HasPrefix(k, prefix); k, v = c.Prev() {
		chunk(k, v, func(n uint64) bool {
			if n <= max && n&1 == 1 {
				last = n
			}
			return n < max
		})
	}
	return last
}

// dumpSearch calls line with one line for each term of each tenant in the search index.
// names holds the names of the tenants by their numbers.
func dumpSearch(tx *bbolt.Tx, names map[uint32]string, line func([]byte) error) error {
	c := tx.Bucket(bSearch).Cursor()
	for k, _ := c.First(); k != nil; {
		term := k[:len(k)-9]
		name := names[binary.BigEndian.Uint32(term)] + "." + string(term[4:])
		if err := dumpList(tx.Bucket(bSearch), "search", name, k[:len(k)-8], line); err != nil {
			return err
		}
		k, _ = c.Seek(append(bytes.Clone(term), 1))
	}
	return nil
}

// dumpEvents calls line with one line for each session, which contains the number of its
// events and a digest over their sequences.
func dumpEvents(tx *bbolt.Tx, line func([]byte) error) error {
	return tx.Bucket(bSessions).ForEach(func(id, b []byte) error {
		return dumpList(tx.Bucket(bEvents), "events", string(id), b[:8], line)
	})
}

// dumpList calls line with one line, which contains the number of a list's elements and
// a digest over them.
func dumpList(b *bbolt.Bucket, bucket, name string, prefix []byte, line func([]byte) error) error {
	var all []byte
	list(b, prefix, 0, func(n uint64) bool {
		all = binary.BigEndian.AppendUint64(all, n)
		return true
	})
	w := canon.Object(nil)
	w.Str("bucket", bucket)
	w.Int("count", int64(len(all)/8))
	w.Str("key", name)
	w.Str("seqs", sign.Digest(all))
	return line(w.End())
}
