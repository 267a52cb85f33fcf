// Package fair limits how many requests run at once and queues the others by
// caller, in turn: one caller's thousand requests do not delay another's first.
package fair

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned where too many wait already.
var ErrFull = errors.New("too many requests wait for this provider")

// maxWaiting bounds how many wait of one owner.
const maxWaiting = 4096

// Gate lets at most a number of holders in at once and queues the others, one
// queue per owner, served in turn. Make one with New. It is safe for concurrent
// use.
type Gate struct {
	mu      sync.Mutex
	free    int
	waiting map[string][]chan struct{}
	turn    []string // owners that wait, the next one first
}

// New makes a gate for n holders at once. The queues of owners are unbounded
// together and bounded each, at 4096.
func New(n int) *Gate { return &Gate{free: n, waiting: map[string][]chan struct{}{}} }

// Enter waits for a place. The errors are ctx's, and ErrFull where too many
// requests of the owner wait already. After nil, Leave must follow; after an error
// it must not.
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
	g.next() // the place came in the same moment: it goes on
	return ctx.Err()
}

// drop takes an owner without waiters out of the turn.
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

// Leave gives a place back, to the request that has waited longest of the owner
// whose turn it is.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next()
}

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

// Waiting is how many requests of all owners wait at the moment. It is for tests
// and metrics: the number may be old on return.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, w := range g.waiting {
		n += len(w)
	}
	return n
}
