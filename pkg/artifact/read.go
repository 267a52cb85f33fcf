package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// ahead is the maximum number of parts that a reader fetches in advance; see Reader.load.
const ahead = 3

// Reader reads the content of an object and verifies each part. It implements
// io.ReadSeeker. Its methods must not be called concurrently; Close ends its goroutines.
type Reader struct {
	ctx    context.Context
	cancel context.CancelFunc
	store  Store
	object Object
	prefix string
	index  []byte
	at     int64
	part   []byte // content of part n
	n      int64  // number of part; -1 before the first load
	queue  []fetch
}

// fetch is a part that is being read.
type fetch struct {
	n    int64
	done chan result
}

type result struct {
	part []byte
	err  error
}

// Open returns a reader of an object at its beginning. It reads and verifies the index. The error
// is ErrNotFound if the content was removed, one that wraps ErrCorrupt if the index does not match,
// or that of the store. The caller must close the reader. After ctx ends, reads fail for parts that
// were not fetched before.
func Open(ctx context.Context, s Store, o Object) (*Reader, error) {
	r := &Reader{store: s, object: o, prefix: prefix(o.Tenant, o.Service, o.Upload), n: -1}
	r.ctx, r.cancel = context.WithCancel(ctx)
	size := parts(o.Size) * sha256.Size
	for n := int64(0); n*PartSize < size; n++ {
		part, err := s.Get(ctx, indexKey(r.prefix, n))
		if err != nil {
			r.cancel()
			return nil, err
		}
		r.index = append(r.index, part...)
		if int64(len(r.index)) > size {
			break
		}
	}
	sum := sha256.Sum256(r.index)
	if int64(len(r.index)) != size || digest(sum[:]) != o.Index {
		r.cancel()
		return nil, fmt.Errorf("the index of upload %s: %w", o.Upload, ErrCorrupt)
	}
	return r, nil
}

// Close cancels the reader's fetches. It returns nil.
func (r *Reader) Close() error {
	r.cancel()
	return nil
}

// Seek implements io.Seeker.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.object.Size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning of an artifact")
	}
	r.at = offset
	return offset, nil
}

// Read implements io.Reader. Its errors are io.EOF and those of Open.
func (r *Reader) Read(p []byte) (int, error) {
	if r.at >= r.object.Size {
		return 0, io.EOF
	}
	if n := r.at / PartSize; n != r.n {
		part, err := r.load(n)
		if err != nil {
			return 0, err
		}
		r.part, r.n = part, n
	}
	n := copy(p, r.part[r.at%PartSize:])
	r.at += int64(n)
	return n, nil
}

// load returns part n. It also starts to fetch up to ahead parts after it if n follows
// the current part, or if n is 0 and no part was loaded before.
func (r *Reader) load(n int64) ([]byte, error) {
	if len(r.queue) > 0 && r.queue[0].n != n {
		r.queue = nil // the results of earlier fetches are dropped
	}
	most := 1
	if n == r.n+1 {
		most = 1 + ahead
	}
	for next := n + int64(len(r.queue)); len(r.queue) < most && next < parts(r.object.Size); next++ {
		f := fetch{next, make(chan result, 1)}
		go func() { f.done <- r.fetch(next) }()
		r.queue = append(r.queue, f)
	}
	got := <-r.queue[0].done
	r.queue = r.queue[1:]
	return got.part, got.err
}

// fetch reads and verifies part n.
func (r *Reader) fetch(n int64) result {
	part, err := r.store.Get(r.ctx, partKey(r.prefix, n))
	if err != nil {
		return result{err: err}
	}
	sum := sha256.Sum256(part)
	size := min(PartSize, r.object.Size-n*PartSize)
	if int64(len(part)) != size || !bytes.Equal(sum[:], r.index[n*sha256.Size:(n+1)*sha256.Size]) {
		return result{err: fmt.Errorf("part %d of upload %s: %w", n, r.object.Upload, ErrCorrupt)}
	}
	return result{part: part}
}

// Verify reads the whole content and compares it with the digest of the object. Its errors
// are those of Open.
func Verify(ctx context.Context, s Store, o Object) error {
	r, err := Open(ctx, s, o)
	if err != nil {
		return err
	}
	defer r.Close()
	whole := sha256.New()
	if _, err := io.Copy(whole, r); err != nil {
		return err
	}
	if digest(whole.Sum(nil)) != o.Digest {
		return fmt.Errorf("upload %s: %w", o.Upload, ErrCorrupt)
	}
	return nil
}
