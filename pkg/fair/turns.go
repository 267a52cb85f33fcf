package fair

import (
	"context"
	"sync"
	"time"
)

// Turns limits the requests that run at once while several tenants send requests, so that
// a tenant with many requests does not occupy the processors: a request of another tenant
// starts at once, and competes with few others. While only one tenant sends requests,
// there is no limit.
//
// If one tenant has queued requests, and other tenants send requests but have none
// queued, the tenant with the queue pauses after each request for three times as long as the
// request ran. Without the pauses, each request of the others would compete with one of its
// requests.
//
// The fields are set before the first use. It is safe for concurrent use.
type Turns struct {
	// Places is the number of requests that run at once; a number less than 2 counts as 2.
	// A tenant has at most half of them.
	Places int
	// Hold is the time after which a request that still runs gives up its place:
	// requests that wait, for example for a model, need no processor.
	Hold time.Duration

	mu      sync.Mutex
	latest  string               // tenant of the last request
	at      time.Time            // time of the last request
	others  time.Time            // time of the last request of a tenant other than latest
	held    map[string]int       // places by tenant
	taken   int                  // places of all tenants
	waiting Queue[chan struct{}] // a channel is closed when its request has a place
}

const (
	// lately is the time for which a tenant counts as present after its last request.
	lately = 10 * time.Second
	// pauses is the time since the last request of another tenant within which a tenant
	// with queued requests pauses after each of its requests.
	pauses = time.Second
	// rest is the length of such a pause, in multiples of the time that the request ran.
	rest = 3
)

// Enter waits until a request of an owner, who belongs to the tenant, may run, and returns
// a function that the caller must call when the request has ended. It returns the error
// of ctx if ctx is done first, or ErrFull if too many requests of the owner are queued.
func (t *Turns) Enter(ctx context.Context, tenant, owner string) (leave func(), err error) {
	t.mu.Lock()
	if !t.several(tenant, time.Now()) {
		t.grant(func(string) bool { return true }) // no other tenant sends requests, so the queued requests of this one are admitted
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
	if tenant != t.latest {
		t.latest, t.others = tenant, t.at
	}
	t.at = now
	return now.Sub(t.others) <= lately || t.waiting.Len() > 0 && !t.waiting.Only(tenant)
}

// may reports whether a tenant may have another place. t.mu must be held.
func (t *Turns) may(tenant string) bool {
	return t.taken < max(t.Places, 2) && t.held[tenant] < max(t.Places/2, 1)
}

// take gives a place to a tenant, and returns the function that releases it. t.mu must be
// held.
func (t *Turns) take(tenant string) (leave func()) {
	t.hold(tenant)
	return t.until(tenant)
}

// hold counts a place of a tenant. t.mu must be held.
func (t *Turns) hold(tenant string) {
	if t.held == nil {
		t.held = map[string]int{}
	}
	t.taken++
	t.held[tenant]++
}

// until returns a function that ends a request of a tenant, whose place is taken already.
// The function releases the place, at once or, if the tenant pauses, after a pause of rest
// times as long as the request ran. In any case the place is released t.Hold after until was
// called, even if the function is not called.
func (t *Turns) until(tenant string) (leave func()) {
	began := time.Now()
	var once sync.Once
	release := func() { once.Do(func() { t.release(tenant) }) }
	timer := time.AfterFunc(t.Hold, release)
	return func() {
		if now := time.Now(); t.pause(tenant, now) {
			timer.Reset(min(rest*now.Sub(began), began.Add(t.Hold).Sub(now)))
			return
		}
		timer.Stop()
		release()
	}
}

// pause reports whether a tenant pauses after a request: it has queued requests, no other
// tenant has any, and the last request of another tenant is not older than the constant
// pauses.
func (t *Turns) pause(tenant string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.others
	if tenant != t.latest {
		last = t.at
	}
	return now.Sub(last) <= pauses && t.waiting.Only(tenant)
}

// release releases a place of a tenant, and gives free places to queued requests.
func (t *Turns) release(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	if t.held[tenant]--; t.held[tenant] == 0 {
		delete(t.held, tenant)
	}
	t.grant(t.may)
}

// grant gives places to queued requests of tenants for which the function may returns
// true, until it returns true for none. t.mu must be held.
func (t *Turns) grant(may func(tenant string) bool) {
	for {
		next := ""
		ch, ok := t.waiting.Pop(func(of string) bool {
			if !may(of) {
				return false
			}
			next = of
			return true
		})
		if !ok {
			return
		}
		t.hold(next)
		close(ch)
	}
}
