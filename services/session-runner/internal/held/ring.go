package held

import "sync"

// Ring holds the last bytes of an output. Positions count from the first byte that was
// ever written. It is safe for concurrent use. Max is set before its first use.
type Ring struct {
	Max int64

	mu    sync.Mutex
	buf   []byte
	first int64 // position of buf[0]
	wake  chan struct{}
}

// Write implements io.Writer. It never fails; it discards the oldest bytes above Max.
func (r *Ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf, p...)
	if over := int64(len(r.buf)) - r.Max; over > 0 {
		r.first += over
		r.buf = append(r.buf[:0], r.buf[over:]...)
	}
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
	return len(p), nil
}

// Read returns a copy of at most n bytes from position at on, and the position after them. If
// the bytes at that position were discarded, Read begins at the oldest byte, and skipped is
// the number of bytes between the two. A position after the end is treated as the end.
func (r *Ring) Read(at, n int64) (data []byte, next, skipped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := r.first + int64(len(r.buf))
	if at > end {
		at = end
	}
	if at < r.first {
		skipped, at = r.first-at, r.first
	}
	next = min(at+n, end)
	return append([]byte{}, r.buf[at-r.first:next-r.first]...), next, skipped
}

// Written returns the number of bytes that were written.
func (r *Ring) Written() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first + int64(len(r.buf))
}

// Wake returns a channel that is closed at the next Write.
func (r *Ring) Wake() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake == nil {
		r.wake = make(chan struct{})
	}
	return r.wake
}
