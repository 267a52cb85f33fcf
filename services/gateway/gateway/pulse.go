package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// A caller is told within two seconds that the ledger takes nothing: two
// questions in a row without an answer say so.
const (
	beatEvery  = 250 * time.Millisecond
	beatWithin = 600 * time.Millisecond
)

// pulse knows whether the ledger answers. Without a leader, or without a
// server, it does not, and nobody should hang on it for as long as an election
// takes.
type pulse struct {
	mu     sync.Mutex
	missed int
	gone   chan struct{}
	back   time.Time // when it last answered again

	callers atomic.Int64 // that wait; without any, a ledger that was well is let be
}

// watch has the pulse felt until the caller calls what it returns.
func (p *pulse) watch() (done func()) {
	p.callers.Add(1)
	return func() { p.callers.Add(-1) }
}

// run feels the pulse until ctx ends.
func (p *pulse) run(ctx context.Context, conn *bus.Conn) {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		if p.callers.Load() > 0 || !p.well() {
			try, cancel := context.WithTimeout(ctx, beatWithin)
			_, err := conn.LastSeq(try, bus.Events)
			cancel()
			p.beat(err == nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (p *pulse) well() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missed == 0
}

func (p *pulse) beat(ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok {
		if p.missed >= 2 {
			p.gone, p.back = nil, time.Now()
		}
		p.missed = 0
		return
	}
	if p.missed++; p.missed == 2 {
		close(p.channel())
	}
}

func (p *pulse) channel() chan struct{} {
	if p.gone == nil {
		p.gone = make(chan struct{})
	}
	return p.gone
}

// lost is closed while the ledger does not answer. Ask anew for every call.
func (p *pulse) lost() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.channel()
}

// down tells whether the ledger does not answer now.
func (p *pulse) down() bool {
	select {
	case <-p.lost():
		return true
	default:
		return false
	}
}

// unsteady tells whether the ledger was silent not long ago: it has a leader
// again, and the services' queues on it may have none yet.
func (p *pulse) unsteady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.back) < settling
}

// settling is how long elections may go on behind the ledger's own; unstarted
// is how long a call may wait for its start meanwhile.
const (
	settling  = 15 * time.Second
	unstarted = 1500 * time.Millisecond
)
