// Package archive stores a ledger in a folder of sealed segments, files of consecutive
// events. All segments have the same number of events, a power of two, so that each is a
// complete subtree of the log; only the last one may be shorter. An index lists the
// segments and holds the checkpoint over all of them. It commits to every segment, so
// verification reports each missing segment and still verifies the others. A folder can
// be extended, copied to any storage, and verified without the mesh.
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
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Index is the content of the file archive.json, which lists the segments of the folder.
type Index = evidence.Archive

// Ledger returns a reader of the stored bytes of the events with sequences in [from,
// to], one event per line. The caller closes the reader.
type Ledger func(from, to uint64) (io.ReadCloser, error)

// Add extends the archive in dir to the checkpoint note, or creates it if dir has none.
// segment is the number of events per segment: a power of two, the same at each call.
// cosigned holds witnesses' signature lines over the checkpoint. Add verifies no
// signatures, and does not read full segments in dir again. If the error is nil, the files
// are written and synced; an interrupted Add leaves the previous or the new archive intact.
// Add returns the errors of read and of the file system. It also returns an error if note
// or the index is malformed, if segment is not a power of two, if the archive covers more
// events than the checkpoint or has segments of another size, or if read returns other
// events than the checkpoint covers.
func Add(dir string, segment uint64, note string, cosigned []string, read Ledger) (*Index, error) {
	head, err := ledger.ReadHead([]byte(note))
	if err != nil {
		return nil, err
	}
	size := head.Size
	if err := private.Mkdir(dir); err != nil {
		return nil, err
	}
	ix, err := evidence.OpenArchive(dir)
	if errors.Is(err, fs.ErrNotExist) {
		ix, err = &Index{Format: evidence.ArchiveFormat, Segment: segment}, nil
	}
	if err != nil {
		return nil, err
	}
	if segment == 0 || segment&(segment-1) != 0 || ix.Segment != segment {
		return nil, fmt.Errorf("segments of %d events: the archive has segments of %d, and it takes a power of two", segment, ix.Segment)
	}
	var old []evidence.Segment
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
	ix.Checkpoint, ix.Cosignatures = note, cosigned
	if err := ix.Commits(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(ix, "", " ")
	if err != nil {
		return nil, err
	}
	if err := private.Write(filepath.Join(dir, evidence.ArchiveFile), append(b, '\n')); err != nil {
		return nil, err
	}
	for _, s := range old { // removes a last segment that was not full and that a longer one has replaced
		if !slices.ContainsFunc(ix.Segments, func(x evidence.Segment) bool { return x.File == s.File }) {
			if err := os.Remove(filepath.Join(dir, s.File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	return ix, nil
}

// write writes the segment of the events with sequences in [from, to] and returns its
// entry in the index. It returns an error if the ledger returns fewer or more events.
func write(dir string, from, to uint64, read Ledger) (*evidence.Segment, error) {
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
	s := &evidence.Segment{File: fmt.Sprintf("events-%012d-%012d.jsonl.gz", from, to), From: from, To: to, Root: hex.EncodeToString(root[:])}
	sum := sha256.Sum256(b.Bytes())
	s.SHA256 = hex.EncodeToString(sum[:])
	return s, private.Write(filepath.Join(dir, s.File), b.Bytes())
}

// rootOf returns the Merkle root (RFC 6962) over the lines of r, and the number of
// lines.
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
