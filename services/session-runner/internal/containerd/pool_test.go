package containerd

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// fakes makes containers for a pool and counts those that were not discarded. Making
// one takes a second.
type fakes struct {
	mu   sync.Mutex
	made map[profile]int
	live int
	most int // maximum of live
	fail error
}

func (f *fakes) prepare(of profile, _ *program.Program) (*prepared, error) {
	time.Sleep(time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	f.made[of]++
	f.live++
	f.most = max(f.most, f.live)
	return &prepared{ended: &ending{done: make(chan struct{})}}, nil
}

func (f *fakes) discard(*prepared) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live--
}

// opened returns an open pool that holds at most the given number of fakes.
func opened(most int) (*pool, *fakes) {
	f := &fakes{made: map[profile]int{}}
	p := &pool{max: most, prepare: f.prepare, discard: f.discard}
	p.open()
	return p, f
}

// settle sleeps for d, and then waits until all other goroutines of the test are blocked.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var a, b = profile{image: imageID{program: "a"}}, profile{image: imageID{program: "b"}}

// TestPoolDemand checks that the pool prepares a container for each run that found none,
// that each container is handed out once, that an ended one is not, and that those of an
// unused profile are removed.
func TestPoolDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := opened(4)
		defer p.close()
		for range 2 {
			if p.take(a, nil) != nil {
				t.Error("a new pool is not empty")
			}
		}
		settle(10 * time.Second)
		if f.live != 2 {
			t.Errorf("%d containers after two runs found none, want 2", f.live)
		}
		one, two := p.take(a, nil), p.take(a, nil)
		if one == nil || two == nil || one == two || p.take(a, nil) != nil {
			t.Error("the containers were not handed out once each")
		}
		settle(10 * time.Second)
		if f.made[a] != 5 { // two were used, and the third run raised the demand to three
			t.Errorf("%d containers were made, want 5", f.made[a])
		}
		close(p.shelves[a].ready[0].ended.done)
		if c := p.take(a, nil); c == nil || !c.alive() {
			t.Error("an ended container was handed out")
		}
		settle(10 * time.Second)
		p.trim(time.Now().Add(-idleTime))
		if len(p.shelves[a].ready) != 3 {
			t.Errorf("%d containers are ready, want 3", len(p.shelves[a].ready))
		}
		settle(idleTime)
		p.trim(time.Now().Add(-idleTime))
		if p.held != 0 || len(p.shelves) != 0 || f.live != 3 { // the three that were handed out belong to runs
			t.Errorf("after the idle time %d are held, %d live", p.held, f.live)
		}
	})
}

// TestPoolFull checks that the pool never holds more than its maximum, that the profile
// that was used last gets the place of one that was used earlier, and that close removes
// all containers.
func TestPoolFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := opened(2)
		for range 5 {
			p.take(a, nil)
		}
		settle(10 * time.Second)
		p.take(b, nil)
		settle(10 * time.Second)
		if f.most > 2 || f.live != 2 || len(p.shelves[a].ready) != 1 || len(p.shelves[b].ready) != 1 {
			t.Errorf("at most %d, now %d: %d of a, %d of b", f.most, f.live, len(p.shelves[a].ready), len(p.shelves[b].ready))
		}
		p.close()
		if f.live != 0 || p.held != 0 || p.take(a, nil) != nil {
			t.Errorf("%d containers are left after close", f.live)
		}
	})
}

// TestPoolFails checks that a failed preparation is tried again with the next demand, and
// that close removes a container that is being prepared.
func TestPoolFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := opened(2)
		f.fail = errors.New("no containerd")
		p.take(a, nil)
		settle(10 * time.Second)
		if p.held != 0 {
			t.Errorf("%d are held", p.held)
		}
		f.mu.Lock()
		f.fail = nil
		f.mu.Unlock()
		p.take(a, nil)
		settle(time.Second / 2)
		p.close()
		if f.made[a] != 1 || f.live != 0 || p.held != 0 {
			t.Errorf("made %d, left %d, held %d", f.made[a], f.live, p.held)
		}
	})
}

// TestPoolOff checks that a pool whose maximum is 0 prepares no container.
func TestPoolOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := opened(0)
		defer p.close()
		p.take(a, nil)
		settle(10 * time.Second)
		if len(f.made) != 0 {
			t.Error("a container was prepared")
		}
	})
}
