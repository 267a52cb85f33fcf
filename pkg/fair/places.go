package fair

import "sync"

// Places limits the requests that run at once, without a queue: a request that finds no
// place for its tenant is refused at once. A tenant has at most half of the places, and
// once two tenants have requested some, at most as many as remain free (see Room). So each
// tenant that fills its part leaves the same number free, and of N places a further tenant
// finds none only after log2(N) others have taken all that they can get. The field is set
// before the first use. It is safe for concurrent use.
type Places struct {
	// N is the number of places, at least 2.
	N int64

	mu   sync.Mutex
	room Room
}

// Take gives a place to a request of a tenant and reports true, or reports false if the
// tenant may not have another one. The caller must call leave when the request has ended;
// further calls of leave have no effect. leave is nil if Take reports false.
func (p *Places) Take(tenant string) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.room.Of(tenant) >= p.N/2 || !p.room.Take(tenant, 1, p.N) {
		return nil, false
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.room.Give(tenant, 1)
	}), true
}

// Held returns the number of places that a tenant holds. It is for tests and metrics: the
// number may be outdated when it returns.
func (p *Places) Held(tenant string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room.Of(tenant)
}
