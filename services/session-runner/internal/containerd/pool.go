package containerd

import (
	"log/slog"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// pool holds prepared containers, each of which is used for one run. The number that it
// holds for a profile follows the demand: it grows by one with each run that finds none,
// and a profile that was not used for idleTime is dropped. One container is prepared at a
// time, so that the runs themselves have most of the processors. A pool is safe for
// concurrent use.
type pool struct {
	max     int // maximum number of prepared containers of all profiles; 0 disables the pool
	prepare func(profile, *program.Program) (*prepared, error)
	discard func(*prepared)

	mu      sync.Mutex
	shelves map[profile]*shelf
	held    int // containers that are ready or being prepared
	closed  bool
	wake    chan struct{} // has room for one notification of fill
	filled  sync.WaitGroup
}

// shelf holds the prepared containers of one profile.
type shelf struct {
	program *program.Program
	ready   []*prepared
	want    int
	used    time.Time // time of the last call of take
}

// idleTime is the time after which the containers of a profile that is not used are
// removed.
const idleTime = 5 * time.Minute

// open starts the goroutine that refills the pool.
func (p *pool) open() {
	p.shelves, p.wake = map[profile]*shelf{}, make(chan struct{}, 1)
	p.filled.Go(p.fill)
}

// take returns a prepared container, which then belongs to the caller, or nil if there
// is none. If the profile has none, take raises the number that the pool is to hold
// for it by one, up to max.
func (p *pool) take(of profile, prog *program.Program) *prepared {
	if p.max == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	s := p.shelves[of]
	if s == nil {
		s = &shelf{program: prog}
		p.shelves[of] = s
	}
	s.used = time.Now()
	defer p.notify()
	for len(s.ready) > 0 {
		c := s.ready[0]
		s.ready = s.ready[1:]
		p.held--
		if c.alive() {
			return c
		}
		go p.discard(c)
	}
	s.want = min(s.want+1, p.max)
	return nil
}

// ready returns the number of containers that are prepared.
func (p *pool) ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.shelves {
		n += len(s.ready)
	}
	return n
}

// notify wakes fill.
func (p *pool) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// fill prepares containers until close is called. If the pool is full, it first discards a
// container of the least recently used profile; see next.
func (p *pool) fill() {
	for range p.wake {
		for {
			of, s, old := p.next()
			if old != nil {
				p.discard(old)
			}
			if s == nil {
				break
			}
			c, err := p.prepare(of, s.program)
			if !p.put(s, c, err) {
				p.discard(c)
			}
			if err != nil {
				slog.Warn("sandbox: no container could be prepared", "err", err)
				break
			}
		}
	}
}

// next returns the shelf for which a container is to be prepared: the most recently used
// one that lacks a container. It counts the container as held. old, if not nil, is a
// container that the caller must discard to make room. s is nil if the pool is closed, if
// no shelf lacks a container, or if the pool is full and has no ready container of a
// profile that was used earlier.
func (p *pool) next() (of profile, s *shelf, old *prepared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return of, nil, nil
	}
	var oldest *shelf
	for id, at := range p.shelves {
		if len(at.ready) < at.want && (s == nil || at.used.After(s.used)) {
			of, s = id, at
		}
		if len(at.ready) > 0 && (oldest == nil || at.used.Before(oldest.used)) {
			oldest = at
		}
	}
	if s == nil {
		return of, nil, nil
	}
	if p.held >= p.max {
		if oldest == nil || !oldest.used.Before(s.used) {
			return of, nil, nil
		}
		old, oldest.ready = oldest.ready[0], oldest.ready[1:]
		oldest.want = len(oldest.ready)
		p.held--
	}
	p.held++
	return of, s, old
}

// put adds a prepared container to its shelf, or corrects the count if err is not nil. It
// returns false if the container is not needed, because the pool was closed or the
// profile dropped meanwhile.
func (p *pool) put(s *shelf, c *prepared, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.closed || s.want == 0 {
		p.held--
		return err != nil
	}
	s.ready = append(s.ready, c)
	return true
}

// trim removes the profiles whose last use was earlier than before, with their containers.
func (p *pool) trim(before time.Time) {
	p.mu.Lock()
	var out []*prepared
	for of, s := range p.shelves {
		if s.used.Before(before) {
			out = append(out, s.ready...)
			s.ready, s.want = nil, 0
			delete(p.shelves, of)
		}
	}
	p.held -= len(out)
	p.mu.Unlock()
	for _, c := range out {
		p.discard(c)
	}
}

// close removes all containers. After it, take returns nil.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.trim(time.Now().Add(time.Hour))
	close(p.wake)
	p.filled.Wait()
}
