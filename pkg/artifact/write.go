package artifact

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"golang.org/x/sync/errgroup"
)

// inFlight is the maximum number of parts of one writer that are being stored at a time.
const inFlight = 4

// Writer stores content as it is written. It holds the index and at most inFlight+1 parts
// in memory. Its methods must not be called concurrently.
type Writer struct {
	ctx    context.Context
	store  Store
	object Object
	limit  int64
	prefix string
	whole  hash.Hash
	index  []byte // SHA-256 digests of the parts that flush has received
	part   []byte
	puts   *errgroup.Group
	free   chan []byte
}

// NewWriter returns a writer of an upload of a tenant by a service. The content has at
// most limit bytes; 0 means MaxSize. After ctx ends, Write and Close fail when they have
// a part to store. The parts of an upload that is not completed remain until the
// collector removes them.
func NewWriter(ctx context.Context, s Store, tenant, service, upload string, limit int64) *Writer {
	if limit <= 0 || limit > MaxSize {
		limit = MaxSize
	}
	o := Object{Tenant: tenant, Service: service, Upload: upload}
	w := &Writer{store: s, object: o, limit: limit, prefix: prefix(tenant, service, o.Upload), whole: sha256.New(), free: make(chan []byte, inFlight+1)}
	w.puts, w.ctx = errgroup.WithContext(ctx)
	w.puts.SetLimit(inFlight)
	for range inFlight + 1 {
		w.free <- nil
	}
	w.part = w.buffer()
	return w
}

// buffer returns an empty buffer. It waits until one is free.
func (w *Writer) buffer() []byte {
	b := <-w.free
	if b == nil {
		b = make([]byte, 0, PartSize)
	}
	return b[:0]
}

// Write implements io.Writer. It returns ErrTooLarge, without writing anything, if the
// content would exceed the limit, and the error with which a part could not be stored.
func (w *Writer) Write(p []byte) (int, error) {
	if w.object.Size+int64(len(p)) > w.limit {
		return 0, ErrTooLarge
	}
	written := 0
	for len(p) > 0 {
		n := copy(w.part[len(w.part):cap(w.part)], p)
		w.part = w.part[:len(w.part)+n]
		w.object.Size += int64(n)
		written, p = written+n, p[n:]
		if len(w.part) == cap(w.part) {
			if err := w.flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// flush stores the current part if it is the first of the content, and otherwise starts
// to store it. It then replaces the current part by an empty one, for which it may have
// to wait until another part is stored.
func (w *Writer) flush() error {
	if w.ctx.Err() != nil {
		return errors.Join(context.Cause(w.ctx), w.puts.Wait())
	}
	part, key := w.part, partKey(w.prefix, int64(len(w.index)/sha256.Size))
	sum := sha256.Sum256(part)
	w.index = append(w.index, sum[:]...)
	w.whole.Write(part)
	put := func() error {
		err := w.store.Put(w.ctx, key, part)
		w.free <- part
		return err
	}
	if len(w.index) == sha256.Size { // the collector finds an upload by its first part
		if err := put(); err != nil {
			return err
		}
	} else {
		w.puts.Go(put)
	}
	w.part = w.buffer()
	return nil
}

// Close stores what remains of the content, and the index, and returns the object. If the
// error is nil, every part is stored.
func (w *Writer) Close() (Object, error) {
	if len(w.part) > 0 {
		if err := w.flush(); err != nil {
			return Object{}, err
		}
	}
	if err := w.puts.Wait(); err != nil {
		return Object{}, err
	}
	ctx := context.WithoutCancel(w.ctx) // the group's context ends with Wait
	for n := int64(0); n*PartSize < int64(len(w.index)); n++ {
		if err := w.store.Put(ctx, indexKey(w.prefix, n), w.index[n*PartSize:min((n+1)*PartSize, int64(len(w.index)))]); err != nil {
			return Object{}, err
		}
	}
	sum := sha256.Sum256(w.index)
	w.object.Digest, w.object.Index = digest(w.whole.Sum(nil)), digest(sum[:])
	return w.object, nil
}

// Write stores the content of a reader as a new upload of a tenant by a service, with the content
// key key or "", as for NewUpload; see NewWriter and Writer.Close. It also returns the errors of the
// reader.
func Write(ctx context.Context, s Store, tenant, service, key string, limit int64, r io.Reader) (Object, error) {
	return WriteAs(ctx, s, tenant, service, NewUpload(key), limit, r)
}

// WriteAs is like Write, with the id of the upload. It may be repeated with the same content. For
// other content it returns ErrExists, unless the new or the stored content is empty.
func WriteAs(ctx context.Context, s Store, tenant, service, upload string, limit int64, r io.Reader) (Object, error) {
	w := NewWriter(ctx, s, tenant, service, upload, limit)
	if _, err := io.Copy(w, r); err != nil {
		_ = w.puts.Wait() // the error of the copy is the first one
		return Object{}, err
	}
	return w.Close()
}
