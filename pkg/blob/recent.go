package blob

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// The limits of a Recent.
const (
	recentBytes = 32 << 20 // maximum total size of its objects, in bytes
	recentLife  = 5 * time.Second
)

// Recent holds content that this process is storing or stored a moment ago, so that another
// service of the process can open it once without reading it from the object store. Opening
// waits until the content is stored, and fails over to the object store if that failed.
//
// The keys contain the tenant, and content is checked against its commitment when it is
// opened, so a Recent can return neither content of another tenant nor changed content. It
// holds plain content only: encrypted content must become unreadable when its key is
// destroyed, so it is read and decrypted each time. An object that is removed from the
// stream can be opened from a Recent for at most recentLife more. A Recent is safe for
// concurrent use. Use NewRecent.
type Recent struct {
	now   func() time.Time
	after func(time.Duration, func()) // calls a function after a delay

	mu    sync.Mutex
	by    map[recentKey]*list.Element
	ages  list.List // of *recent, oldest first
	bytes int
}

type recentKey struct{ tenant, commitment string }

// recent is an object that is being stored or was stored.
type recent struct {
	recentKey
	object  []byte
	expires time.Time
	done    chan struct{} // closed when the storing has ended
	err     error         // result of storing the object; valid once done is closed
}

// NewRecent returns an empty Recent.
func NewRecent() *Recent {
	return &Recent{now: time.Now, after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }, by: map[recentKey]*list.Element{}}
}

// storing adds the object of a reference, unless the content is inline or encrypted or
// the object is larger than a quarter of recentBytes. It returns a function, which the
// caller must call once with the result of storing the object. The object must not be
// changed afterwards. r may be nil.
func (r *Recent) storing(tenant string, c *contract.Content, object []byte) (end func(error)) {
	if r == nil || c.Encryption != nil || c.Store != contract.StoreObject || len(object) > recentBytes/4 {
		return func(error) {}
	}
	x := &recent{recentKey: recentKey{tenant, c.Commitment}, object: object, expires: r.now().Add(recentLife), done: make(chan struct{})}
	r.add(x)
	return func(err error) {
		x.err = err
		close(x.done)
	}
}

// add adds an entry, and removes the oldest entries as long as recentBytes is exceeded.
// If there is an entry with the same key, add does nothing.
func (r *Recent) add(x *recent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by[x.recentKey] != nil {
		return
	}
	if r.ages.Len() == 0 {
		r.after(recentLife, r.expire)
	}
	r.by[x.recentKey] = r.ages.PushBack(x)
	for r.bytes += len(x.object); r.bytes > recentBytes; {
		r.remove(r.ages.Front())
	}
}

// remove removes an entry. The caller holds r.mu.
func (r *Recent) remove(e *list.Element) {
	x := r.ages.Remove(e).(*recent)
	delete(r.by, x.recentKey)
	r.bytes -= len(x.object)
}

// expire removes the entries that have expired, and schedules its next call if entries
// remain.
func (r *Recent) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for e := r.ages.Front(); e != nil; e = r.ages.Front() {
		if wait := e.Value.(*recent).expires.Sub(now); wait > 0 {
			r.after(wait, r.expire)
			return
		}
		r.remove(e)
	}
}

// open removes the entry of a reference from r and returns its content. It waits until
// the storing has ended or ctx ends. ok is false if there is no such entry, if ctx ended
// first, if the object was not stored or has expired, or if it does not match the
// commitment. r may be nil.
func (r *Recent) open(ctx context.Context, tenant string, c *contract.Content) (content []byte, ok bool) {
	if r == nil || c.Encryption != nil || c.Store != contract.StoreObject {
		return nil, false
	}
	x := r.take(recentKey{tenant, c.Commitment})
	if x == nil {
		return nil, false
	}
	select {
	case <-x.done:
	case <-ctx.Done():
		return nil, false
	}
	content, err := c.Open(x.object)
	return content, err == nil && x.err == nil && r.now().Before(x.expires)
}

// take removes the entry with a key and returns it, or nil if there is none.
func (r *Recent) take(k recentKey) *recent {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.by[k]
	if e == nil {
		return nil
	}
	r.remove(e)
	return e.Value.(*recent)
}
