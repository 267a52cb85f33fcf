package fair

import (
	"context"
	"sync"
	"time"
)

// Turns limits the requests that run at once while several tenants send requests, so that
// a tenant with many of them does not occupy the processors: a request of another tenant
// starts at once, and competes with few. While one tenant alone sends requests, there is
// no limit. The fields are set before the first use. It is safe for concurrent use.
type Turns struct {
	// Places is the number of requests that run at once. A tenant has at most half of
	// them, but at least one.
	Places int
	// Hold is the time after which a request that still runs gives up its place:
	// requests that wait, for example for a model, need no processor.
	Hold time.Duration

	mu      sync.Mutex
	seen    map[string]time.Time // when the last request of a tenant arrived
	pruned  time.Time            // when outdated elements were removed from seen
	held    map[string]int       // places by tenant
	taken   int                  // places of all tenants
	waiting Queue[chan struct{}] // a channel is closed when its request has a place
}

// lately is the time for which a tenant counts as present after its last request.
const lately = 10 * time.Second

// Enter waits until a request of an owner, who belongs to the tenant, may run, and returns
// a function that the caller must call when the request has ended. It returns the error
// of ctx if ctx is done first, or ErrFull if too many requests of the owner are queued.
func (t *Turns) Enter(ctx context.Context, tenant, owner string) (leave func(), err error) {
	t.mu.Lock()
	if !t.several(tenant, time.Now()) {
		t.mu.Unlock()
		return func() {}, nil
	}
	if t.may(tenant) {
		defer t.mu.Unlock()
		return t.take(tenant), nil
	}
	if t.waiting.Waiting(tenant, owner) >= maxWaiting {
		t.mu.Unlock()
		return nil, ErrFull
	}
	ch := make(chan struct{})
	t.waiting.Push(tenant, owner, ch)
	t.mu.Unlock()
	select {
	case <-ch:
	case <-ctx.Done():
		t.mu.Lock()
		queued := t.waiting.Remove(tenant, owner, func(c chan struct{}) bool { return c == ch })
		t.mu.Unlock()
		if !queued { // the place was granted while ctx ended
			t.release(tenant)
		}
		return nil, ctx.Err()
	}
	return t.until(tenant), nil
}

// several records a request of a tenant, and reports whether another tenant has sent one
// lately, or waits. t.mu must be held.
func (t *Turns) several(tenant string, now time.Time) bool {
	if t.seen == nil {
		t.seen, t.held = map[string]time.Time{}, map[string]int{}
	}
	t.seen[tenant] = now
	if len(t.seen) > 1 && now.Sub(t.pruned) > time.Second {
		t.pruned = now
		for of, at := range t.seen {
			if now.Sub(at) > lately {
				delete(t.seen, of)
			}
		}
	}
	return len(t.seen) > 1 || t.waiting.Len() > 0
}

// may reports whether a tenant may have another place. t.mu must be held.
func (t *Turns) may(tenant string) bool {
	return t.taken < max(t.Places, 2) && t.held[tenant] < max(t.Places/2, 1)
}

// take gives a place to a tenant, and returns the function that releases it. t.mu must be
// held.
func (t *Turns) take(tenant string) (leave func()) {
	t.taken++
	t.held[tenant]++
	return t.until(tenant)
}

// until returns a function that releases a place of a tenant, which is also released after
// t.Hold.
func (t *Turns) until(tenant string) (leave func()) {
	var once sync.Once
	release := func() { once.Do(func() { t.release(tenant) }) }
	timer := time.AfterFunc(t.Hold, release)
	return func() {
		timer.Stop()
		release()
	}
}

// release releases a place of a tenant, and gives free places to queued requests.
func (t *Turns) release(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	if t.held[tenant]--; t.held[tenant] == 0 {
		delete(t.held, tenant)
	}
	for t.taken < max(t.Places, 2) {
		next := ""
		ch, ok := t.waiting.Pop(func(of string) bool {
			if !t.may(of) {
				return false
			}
			next = of
			return true
		})
		if !ok {
			return
		}
		t.taken++
		t.held[next]++
		close(ch)
	}
}
