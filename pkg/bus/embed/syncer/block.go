package syncer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
)

// The format of a block, from filestore.go of nats-server 2.15: records follow one
// another. A record is a header, the subject, an optional header of the message with its
// length before it, the message, and a checksum:
//
//	length of the record, with the highest bit set if the message has a header   4
//	sequence, with the highest bits set for a deleted message or a tombstone     8
//	time                                                                         8
//	length of the subject                                                        2
//
// Numbers are little endian. The checksum is HighwayHash-64 over the sequence, the time,
// the subject, the header and the message, with the SHA-256 of "<stream>-<block>" as key.
// A compressed block begins with the metadata of server.CompressionInfo.
const (
	recordHead = 22
	recordSum  = 8
	maxRecord  = 32 << 20
	withHeader = 1 << 31
	tombstone  = 1 << 62
	erased     = 1 << 63
)

// blocksOf returns the numbers of a stream's blocks, ascending. The error is that of
// reading the folder.
func blocksOf(dir string) ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "msgs"))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".blk")
		if n, err := strconv.Atoi(name); ok && err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// check reads the records of a block. The first message must have the sequence after+1,
// or any sequence if after is 0; each further message must have the next sequence. No
// sequence may exceed limit. If all records are valid, whole is true and keep is nil.
// Otherwise keep holds the records before the first one that is not valid. last is the
// sequence of the last valid message, or after if there is none.
func check(stream string, index int, stored []byte, after, limit uint64) (last uint64, keep []byte, whole bool) {
	buf, err := decoded(stored)
	if err != nil {
		return after, nil, false
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s-%d", stream, index))
	sum, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		return after, nil, false
	}
	last = after
	for at := 0; at < len(buf); {
		seq, size := record(sum, buf[at:])
		if size == 0 {
			return last, buf[:at], false
		}
		if seq&tombstone == 0 {
			seq &^= erased
			if last != 0 && seq != last+1 || seq > limit || seq == 0 {
				return last, buf[:at], false
			}
			last = seq
		}
		at += size
	}
	return last, nil, true
}

// decoded returns the records of a block, decompressed if the block is compressed.
func decoded(stored []byte) ([]byte, error) {
	var info server.CompressionInfo
	n, err := info.UnmarshalMetadata(stored)
	if err != nil || n == 0 {
		return stored, err
	}
	return info.Algorithm.Decompress(stored[n:])
}

// record returns the sequence, with its highest bits, and the size of the first record in
// buf, or 0 for both if the record is not valid.
func record(sum hash.Hash, buf []byte) (seq uint64, size int) {
	if len(buf) < recordHead+recordSum {
		return 0, 0
	}
	length := binary.LittleEndian.Uint32(buf)
	size, subject := int(length&^withHeader), int(binary.LittleEndian.Uint16(buf[20:]))
	body := recordHead + subject
	if length&withHeader != 0 {
		body += 4
	}
	if size > maxRecord || size > len(buf) || body > size-recordSum {
		return 0, 0
	}
	sum.Reset()
	_, _ = sum.Write(buf[4:20])
	_, _ = sum.Write(buf[recordHead : recordHead+subject])
	_, _ = sum.Write(buf[body : size-recordSum])
	if !bytes.Equal(sum.Sum(nil), buf[size-recordSum:size]) {
		return 0, 0
	}
	return binary.LittleEndian.Uint64(buf[4:]), size
}
