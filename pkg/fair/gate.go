// Package fair divides limited resources among tenants, so that a tenant or an owner with
// many requests does not delay other tenants and owners. Queue and Gate serve the tenants
// in turn, and the owners of a tenant in turn. Turns and Places limit the number of
// requests of a tenant that run at once. Room divides an amount, such as bytes of memory.
package fair

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned by Gate.Enter and Turns.Enter if too many requests of the owner
// are queued.
var ErrFull = errors.New("too many requests of this owner are queued")

// maxWaiting is the maximum number of queued requests of one owner.
const maxWaiting = 4096

// Gate is a semaphore whose waiting requests are served in the order of a Queue: the
// tenants in turn, and within a tenant its owners. Make one with New. It is safe for
// concurrent use.
type Gate struct {
	mu      sync.Mutex
	free    int
	waiting Queue[chan struct{}] // a channel is closed when its request may run
}

// New returns a gate for n concurrent holders. The queue of each owner is limited to
// 4096 requests; the numbers of tenants and owners are not limited.
func New(n int) *Gate { return &Gate{free: n} }

// Enter waits until the owner, who belongs to the tenant, may run a request. It returns
// the error of ctx if ctx is done while the request is queued, or ErrFull if too many
// requests of the owner are queued. If Enter returns nil, the caller must call Leave
// afterwards; after an error it must not.
func (g *Gate) Enter(ctx context.Context, tenant, owner string) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	if g.waiting.Waiting(tenant, owner) >= maxWaiting {
		g.mu.Unlock()
		return ErrFull
	}
	ch := make(chan struct{})
	g.waiting.Push(tenant, owner, ch)
	g.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.waiting.Remove(tenant, owner, func(c chan struct{}) bool { return c == ch }) {
		g.next() // the place was granted while ctx ended: grant it to the next request
	}
	return ctx.Err()
}

// Leave releases a place. The next queued request gets it, if there is one.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next()
}

// next gives a free place to the next queued request, or counts it as free if no request
// is queued. g.mu must be held.
func (g *Gate) next() {
	if ch, ok := g.waiting.Pop(nil); ok {
		close(ch)
		return
	}
	g.free++
}

// Waiting returns the number of queued requests of all owners. It is for tests and
// metrics: the number may be outdated when it returns.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting.Len()
}
