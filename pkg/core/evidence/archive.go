package evidence

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// ArchiveFile is the name of the index file in the folder of an archive.
const ArchiveFile = "archive.json"

// ArchiveFormat is the value of the member "format" in an archive's index.
const ArchiveFormat = "binnacle-archive/v1"

// maxIndex is the greatest size of an archive's index in bytes.
const maxIndex = 64 << 20

// Archive is the index of a ledger that is stored as a folder of segments. It is
// JSON but not canonical, because nothing signs it: the signed checkpoint
// determines the roots of the segments.
type Archive struct {
	Format       string    `json:"format"`
	Segment      uint64    `json:"segment"`                // events per segment, a power of two; the last segment may have fewer
	Checkpoint   string    `json:"checkpoint"`             // checkpoint over the events of all segments, as a signed note
	Cosignatures []string  `json:"cosignatures,omitempty"` // witnesses' signature lines over Checkpoint
	Segments     []Segment `json:"segments"`
}

// Segment is one file of an archive: the stored bytes of consecutive events, one
// event per line, compressed with gzip.
type Segment struct {
	File   string `json:"file"`
	From   uint64 `json:"from"` // sequence of the first event, from 1
	To     uint64 `json:"to"`
	Root   string `json:"root"`   // hex hash of the Merkle subtree over the events
	SHA256 string `json:"sha256"` // SHA-256 of the compressed file in hex
}

// OpenArchive reads the index of the archive in a folder. It returns an error of the
// file system, or an error for an index that is larger than 64 MiB, is nested too
// deeply, is malformed, has unknown members, or is not of ArchiveFormat. It ignores what
// follows the JSON value in the file, and verifies neither the checkpoint nor the
// segments.
func OpenArchive(dir string) (*Archive, error) {
	b, err := readFile(filepath.Join(dir, ArchiveFile), maxIndex)
	if err != nil {
		return nil, err
	}
	if err := canon.CheckDepth(b); err != nil {
		return nil, fmt.Errorf("%s: %w", ArchiveFile, err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var ix Archive
	if err := d.Decode(&ix); err != nil {
		return nil, fmt.Errorf("%s: %w", ArchiveFile, err)
	}
	if ix.Format != ArchiveFormat {
		return nil, fmt.Errorf("%s: format %q is not %s", ArchiveFile, ix.Format, ArchiveFormat)
	}
	return &ix, nil
}

// readFile reads a file, and returns an error if it has more than limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return b, err
}

// Commits compares the index with the checkpoint that it contains. It returns an error
// unless the checkpoint is well-formed, Segment is a power of two, the segments list the
// events from 1 to the size of the checkpoint without a gap, every segment but the last
// has Segment events, each root is 32 bytes in hex, no file name contains a folder, and
// the roots of the segments result in the checkpoint's root. It checks neither the
// checkpoint's signature nor the files.
func (ix *Archive) Commits() error {
	size, want, err := unsignedHead(ix.Checkpoint)
	if err == nil {
		var roots []translog.Hash
		if roots, err = ix.roots(size); err == nil && fold(roots) != want {
			err = errors.New("its segments do not have the checkpoint's root")
		}
	}
	return in(ArchiveFile, err)
}

// roots returns the roots of the segments. It returns an error if Segment is not a power of two, if
// the root or the file name of a segment is malformed, or if the segments do not list the events
// from 1 to size without a gap, each with Segment events and the last with the rest.
func (ix *Archive) roots(size uint64) ([]translog.Hash, error) {
	if ix.Segment == 0 || ix.Segment&(ix.Segment-1) != 0 {
		return nil, fmt.Errorf("segments of %d events", ix.Segment)
	}
	next := uint64(1)
	roots := make([]translog.Hash, len(ix.Segments))
	for i := range ix.Segments {
		s := &ix.Segments[i]
		b, err := hex.DecodeString(s.Root)
		if err != nil || len(b) != 32 || filepath.Base(s.File) != s.File {
			return nil, fmt.Errorf("segment %d is malformed", i+1)
		}
		if !s.holds(next, min(next+ix.Segment-1, size)) {
			return nil, fmt.Errorf("the events from %d on are in no segment", next)
		}
		roots[i], next = translog.Hash(b), s.To+1
	}
	if next != size+1 {
		return nil, fmt.Errorf("the events from %d to %d are in no segment", next, size)
	}
	return roots, nil
}

// holds reports whether the segment holds exactly the events from sequence from to
// sequence to, and at least one event.
func (s *Segment) holds(from, to uint64) bool { return s.From == from && s.To == to && from <= to }

// unsignedHead reads the size and root of a note without verifying its signature.
func unsignedHead(note string) (size uint64, root translog.Hash, err error) {
	rows := strings.SplitN(note, "\n", 4)
	if len(rows) < 4 {
		return 0, root, errors.New("not a checkpoint")
	}
	b, err := sign.Base64(rows[2])
	size, err2 := strconv.ParseUint(rows[1], 10, 63)
	if err != nil || err2 != nil || len(b) != len(root) {
		return 0, root, errors.New("not a checkpoint")
	}
	return size, translog.Hash(b), nil
}

// fold returns the root of a tree from the roots of its subtrees. These have the same
// number of leaves, a power of two; only the last may have fewer. RFC 6962 splits a tree
// of n leaves at the largest power of two below n.
func fold(roots []translog.Hash) translog.Hash {
	switch len(roots) {
	case 0:
		return translog.EmptyRoot()
	case 1:
		return roots[0]
	}
	k := 1
	for k*2 < len(roots) {
		k *= 2
	}
	return translog.NodeHash(fold(roots[:k]), fold(roots[k:]))
}

// VerifyArchive verifies an archive against the key id of the trusted root: the index
// against the checkpoint, every segment against the index, and then everything that
// VerifyLedger checks, and the demands. If the files of segments are missing or do not
// match the index, the error names all of them.
func VerifyArchive(dir, rootKID string, demands Demands) (*LedgerReport, error) {
	ix, err := OpenArchive(dir)
	if err != nil {
		return nil, err
	}
	if err := ix.Commits(); err != nil {
		return nil, err
	}
	checked := make([]error, len(ix.Segments))
	concurrently(len(ix.Segments), func(i int) { checked[i] = ix.Segments[i].check(dir) })
	var bad []error
	for i, err := range checked {
		if s := &ix.Segments[i]; err != nil {
			bad = append(bad, fmt.Errorf("events %d to %d: %w", s.From, s.To, err))
		}
	}
	if len(bad) > 0 {
		return nil, fmt.Errorf("%d of %d segments verify: %w", len(ix.Segments)-len(bad), len(ix.Segments), errors.Join(bad...))
	}
	return VerifyLedgerFrom(func() (io.ReadCloser, error) { return &archiveReader{dir: dir, ix: ix}, nil }, rootKID, demands)
}

// check compares a segment's file with the index. It holds one line in memory at
// a time.
func (s *Segment) check(dir string) error {
	r, err := s.open(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	var tree translog.Frontier
	in := newLineReader(r)
	for {
		b, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && tree.Size == s.To-s.From+1 {
			err = errors.New("more events than the index names")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.File, err)
		}
		tree.Add(translog.LeafHash(b))
	}
	if err := r.whole(s.SHA256); err != nil {
		return fmt.Errorf("%s %w", s.File, err)
	}
	root := tree.Root()
	if tree.Size != s.To-s.From+1 || hex.EncodeToString(root[:]) != s.Root {
		return fmt.Errorf("%s does not hold the events that the log does", s.File)
	}
	return nil
}

// segmentReader decompresses a segment and computes the digest of its file at the
// same time.
type segmentReader struct {
	*gzip.Reader
	file *os.File
	in   io.Reader
	sum  hash.Hash
}

// open opens a segment's file for reading.
func (s *Segment) open(dir string) (*segmentReader, error) {
	f, err := os.Open(filepath.Join(dir, s.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing", s.File)
	}
	if err != nil {
		return nil, err
	}
	r := &segmentReader{file: f, sum: sha256.New()}
	r.in = io.TeeReader(f, r.sum)
	if r.Reader, err = gzip.NewReader(r.in); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", s.File, err)
	}
	return r, nil
}

// whole reads the rest of the file and compares its digest with the index.
func (r *segmentReader) whole(want string) error {
	if _, err := io.Copy(io.Discard, r.in); err != nil {
		return err
	}
	if hex.EncodeToString(r.sum.Sum(nil)) != want {
		return errors.New("is not the file that the index names")
	}
	return nil
}

// Close closes the file. It does not check the file's digest; the method whole does.
func (r *segmentReader) Close() error { return r.file.Close() }

// archiveReader reads the segments of an archive, one after the other, in the
// form of an exported ledger.
type archiveReader struct {
	dir  string
	ix   *Archive
	next int
	cur  io.ReadCloser
}

// Read implements io.Reader over the decompressed segments and the checkpoint
// line that follows them.
func (a *archiveReader) Read(p []byte) (int, error) {
	for {
		if a.cur == nil {
			switch {
			case a.next < len(a.ix.Segments):
				r, err := a.ix.Segments[a.next].open(a.dir)
				if err != nil {
					return 0, err
				}
				a.cur = r
			case a.next == len(a.ix.Segments):
				a.cur = io.NopCloser(bytes.NewReader(LedgerTrailer(a.ix.Checkpoint, a.ix.Cosignatures...)))
			default:
				return 0, io.EOF
			}
			a.next++
		}
		n, err := a.cur.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		if err := a.Close(); err != nil || n > 0 {
			return n, err
		}
	}
}

// Close implements io.Closer. It closes the segment that is being read, if any.
func (a *archiveReader) Close() error {
	if a.cur == nil {
		return nil
	}
	err := a.cur.Close()
	a.cur = nil
	return err
}
