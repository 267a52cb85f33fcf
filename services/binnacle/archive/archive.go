// Package archive keeps a ledger as a folder of sealed segments: files of equal
// size in events, each a complete subtree of the log, an index that names them,
// and the checkpoint over all of them. A folder can be added to, copied to any
// storage, and verified without the mesh. The index commits to every segment,
// so one that is missing is missed, and those that are there still verify.
package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
)

// IndexFile is the index's name in the folder.
const IndexFile = "archive.json"

const format = "binnacle-archive/v1"

// Index is the folder's table of contents.
type Index struct {
	Format     string    `json:"format"`
	Segment    uint64    `json:"segment"`    // events per segment, a power of two; the last may have fewer
	Checkpoint string    `json:"checkpoint"` // signed note over all of them
	Segments   []Segment `json:"segments"`
}

// Segment is one file: stored bytes, one event a line, gzip.
type Segment struct {
	File   string `json:"file"`
	From   uint64 `json:"from"` // sequence
	To     uint64 `json:"to"`
	Root   string `json:"root"`   // hex, of the subtree over its events
	SHA256 string `json:"sha256"` // of the file
}

// Ledger gives the stored bytes of sequences from to to, one a line.
type Ledger func(from, to uint64) (io.ReadCloser, error)

// Add brings the archive in dir up to the checkpoint, beginning it if it is not
// there. Full segments that it holds are not read again.
func Add(dir string, segment uint64, note string, read Ledger) (*Index, error) {
	head, err := ledger.ReadHead([]byte(note))
	if err != nil {
		return nil, err
	}
	size := head.Size
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	ix, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		ix, err = &Index{Format: format, Segment: segment}, nil
	}
	if err != nil {
		return nil, err
	}
	if segment == 0 || segment&(segment-1) != 0 || ix.Segment != segment {
		return nil, fmt.Errorf("segments of %d events: the archive has segments of %d, and it takes a power of two", segment, ix.Segment)
	}
	var old []Segment
	if n := len(ix.Segments); n > 0 {
		if ix.Segments[n-1].To > size {
			return nil, fmt.Errorf("the archive holds %d events, the checkpoint covers %d: the ledger is another, or was cut", ix.Segments[n-1].To, size)
		}
		if ix.Segments[n-1].To%segment != 0 {
			old, ix.Segments = slices.Clone(ix.Segments[n-1:]), ix.Segments[:n-1]
		}
	}
	for from := uint64(len(ix.Segments))*segment + 1; from <= size; from += segment {
		s, err := write(dir, from, min(from+segment-1, size), read)
		if err != nil {
			return nil, err
		}
		ix.Segments = append(ix.Segments, *s)
	}
	ix.Checkpoint = note
	if err := ix.commits(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(ix, "", " ")
	if err != nil {
		return nil, err
	}
	if err := replace(filepath.Join(dir, IndexFile), append(b, '\n')); err != nil {
		return nil, err
	}
	for _, s := range old { // the short one, where it is part of a longer now
		if !slices.ContainsFunc(ix.Segments, func(x Segment) bool { return x.File == s.File }) {
			if err := os.Remove(filepath.Join(dir, s.File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	return ix, nil
}

func write(dir string, from, to uint64, read Ledger) (*Segment, error) {
	r, err := read(from, to)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	root, n, err := rootOf(io.TeeReader(r, z))
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	if n != to-from+1 {
		return nil, fmt.Errorf("the ledger gave %d of the events %d to %d", n, from, to)
	}
	s := &Segment{File: fmt.Sprintf("events-%012d-%012d.jsonl.gz", from, to), From: from, To: to, Root: hex.EncodeToString(root[:])}
	sum := sha256.Sum256(b.Bytes())
	s.SHA256 = hex.EncodeToString(sum[:])
	return s, replace(filepath.Join(dir, s.File), b.Bytes())
}

// replace writes a file whole or not at all.
func replace(name string, b []byte) error {
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// rootOf is the Merkle root over lines.
func rootOf(r io.Reader) (root translog.Hash, n uint64, err error) {
	var t ledger.Tree
	b := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := b.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			break
		}
		if err != nil {
			return root, t.Size, err
		}
		if err := t.Add(line[:len(line)-1]); err != nil {
			return root, t.Size, err
		}
	}
	root, err = t.Root()
	return root, t.Size, err
}

// Open reads an archive's index.
func Open(dir string) (*Index, error) {
	b, err := os.ReadFile(filepath.Join(dir, IndexFile))
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var ix Index
	if err := d.Decode(&ix); err != nil || ix.Format != format {
		return nil, fmt.Errorf("%s: format %q is not %s (%w)", IndexFile, ix.Format, format, err)
	}
	return &ix, nil
}

// commits checks that the segments named follow one another without a gap and
// that their roots are those of the checkpoint's tree.
func (ix *Index) commits() error {
	head, err := ledger.ReadHead([]byte(ix.Checkpoint))
	if err != nil {
		return err
	}
	size := head.Size
	if ix.Segment == 0 || ix.Segment&(ix.Segment-1) != 0 {
		return fmt.Errorf("%s: segments of %d events", IndexFile, ix.Segment)
	}
	next := uint64(1)
	roots := make([]translog.Hash, len(ix.Segments))
	for i, s := range ix.Segments {
		b, err := hex.DecodeString(s.Root)
		if err != nil || len(b) != 32 || filepath.Base(s.File) != s.File {
			return fmt.Errorf("%s: segment %d is malformed", IndexFile, i+1)
		}
		if s.From != next || s.To != min(s.From+ix.Segment-1, size) {
			return fmt.Errorf("%s: the events from %d on are in no segment", IndexFile, next)
		}
		roots[i], next = translog.Hash(b), s.To+1
	}
	if next != size+1 {
		return fmt.Errorf("%s: the events from %d to %d are in no segment", IndexFile, next, size)
	}
	root := translog.EmptyRoot()
	if len(roots) > 0 {
		root = fold(roots)
	}
	if root != head.Root {
		return fmt.Errorf("%s: its segments do not have the checkpoint's root", IndexFile)
	}
	return nil
}

// fold is the root over subtrees of equal size, of which the last may be
// smaller: RFC 6962 splits at the largest power of two.
func fold(roots []translog.Hash) translog.Hash {
	if len(roots) == 1 {
		return roots[0]
	}
	k := 1
	for k*2 < len(roots) {
		k *= 2
	}
	return translog.NodeHash(fold(roots[:k]), fold(roots[k:]))
}

// Verify checks an archive against the root key that is trusted: every segment
// against the index, the index against the checkpoint, and, when all are there,
// every signature and chain in them. Its error names every segment that is
// missing or wrong.
func Verify(dir, rootKID string) (*evidence.LedgerReport, error) {
	ix, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if err := ix.commits(); err != nil {
		return nil, err
	}
	var all bytes.Buffer
	var bad []error
	for _, s := range ix.Segments {
		if err := s.read(dir, &all); err != nil {
			bad = append(bad, fmt.Errorf("events %d to %d: %w", s.From, s.To, err))
		}
	}
	if len(bad) > 0 {
		return nil, fmt.Errorf("%d of %d segments verify: %w", len(ix.Segments)-len(bad), len(ix.Segments), errors.Join(bad...))
	}
	trailer, err := evidence.LedgerTrailer(ix.Checkpoint)
	if err != nil {
		return nil, err
	}
	return evidence.VerifyLedger(append(all.Bytes(), trailer...), rootKID)
}

func (s *Segment) read(dir string, into *bytes.Buffer) error {
	b, err := os.ReadFile(filepath.Join(dir, s.File))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing", s.File)
	}
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != s.SHA256 {
		return fmt.Errorf("%s is not the file that the index names", s.File)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("%s: %w", s.File, err)
	}
	root, n, err := rootOf(io.TeeReader(z, into))
	if err != nil {
		return fmt.Errorf("%s: %w", s.File, err)
	}
	if n != s.To-s.From+1 || hex.EncodeToString(root[:]) != s.Root {
		return fmt.Errorf("%s does not hold the events that the log does", s.File)
	}
	return nil
}
