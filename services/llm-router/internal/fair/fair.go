// Package fair limits how many requests run at once. It queues the others by caller and
// serves the queues round-robin, so that the first request of one caller does not wait
// until all requests of another have run.
package fair

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned by Enter if too many requests of the owner are queued.
var ErrFull = errors.New("too many requests wait for this provider")

// maxWaiting is the maximum number of queued requests of one owner.
const maxWaiting = 4096

// Gate is a semaphore with one queue per owner. The queues are served round-robin. Make
// one with New. It is safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	free    int
	waiting map[string][]chan struct{}
	turn    []string // owners with queued requests, in the order in which they are served
}

// New returns a gate for n concurrent holders. The queue of each owner is limited to
// 4096 requests; the number of owners is not limited.
func New(n int) *Gate { return &Gate{free: n, waiting: map[string][]chan struct{}{}} }

// Enter waits until the owner may run a request. It returns the error of ctx if ctx is
// done while the request is queued, or ErrFull if too many requests of the owner are
// queued. If Enter returns nil, the caller must call Leave afterwards; after an error it
// must not.
func (g *Gate) Enter(ctx context.Context, owner string) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	if len(g.waiting[owner]) >= maxWaiting {
		g.mu.Unlock()
		return ErrFull
	}
	ch := make(chan struct{})
	if len(g.waiting[owner]) == 0 {
		g.turn = append(g.turn, owner)
	}
	g.waiting[owner] = append(g.waiting[owner], ch)
	g.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range g.waiting[owner] {
		if c == ch {
			g.waiting[owner] = append(g.waiting[owner][:i:i], g.waiting[owner][i+1:]...)
			g.drop(owner)
			return ctx.Err()
		}
	}
	g.next() // the place was granted while ctx ended: grant it to the next request
	return ctx.Err()
}

// drop removes an owner whose queue is empty. g.mu must be held.
func (g *Gate) drop(owner string) {
	if len(g.waiting[owner]) > 0 {
		return
	}
	delete(g.waiting, owner)
	for i, o := range g.turn {
		if o == owner {
			g.turn = append(g.turn[:i:i], g.turn[i+1:]...)
			return
		}
	}
}

// Leave releases a place. The oldest request of the next owner gets it, if any is
// queued.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next()
}

// next gives a free place to the oldest request of the next owner, or counts it as free
// if no request is queued. g.mu must be held.
func (g *Gate) next() {
	if len(g.turn) == 0 {
		g.free++
		return
	}
	owner := g.turn[0]
	ch := g.waiting[owner][0]
	g.waiting[owner] = g.waiting[owner][1:]
	g.turn = append(g.turn[1:], owner)
	if len(g.waiting[owner]) == 0 {
		g.turn = g.turn[:len(g.turn)-1]
		delete(g.waiting, owner)
	}
	close(ch)
}

// Waiting returns the number of queued requests of all owners. It is for tests and
// metrics: the number may be outdated when it returns.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, w := range g.waiting {
		n += len(w)
	}
	return n
}
