// Package probe reports whether the ledger responds, so that callers do not wait for
// one that does not.
package probe

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A caller learns within two seconds that the ledger takes nothing: two probes in
// a row fail.
const (
	Every  = 250 * time.Millisecond
	Within = 600 * time.Millisecond
)

// Probe knows whether the ledger responds. Without a leader, or without a server,
// it does not, and no caller should wait as long as an election takes. The zero
// value is ready for use; it is safe for concurrent use.
type Probe struct {
	mu     sync.Mutex
	missed int
	gone   chan struct{}
	back   time.Time // when it last answered again

	callers atomic.Int64 // that wait; without any, a ledger that was well is let be
}

// Watch has the ledger probed until done is called.
func (p *Probe) Watch() (done func()) {
	p.callers.Add(1)
	return func() { p.callers.Add(-1) }
}

// Run probes the ledger with check until ctx ends; check returns nil if the ledger
// responds within the time of its context.
func (p *Probe) Run(ctx context.Context, check func(context.Context) error) {
	t := time.NewTicker(Every)
	defer t.Stop()
	for {
		if p.callers.Load() > 0 || !p.well() {
			try, cancel := context.WithTimeout(ctx, Within)
			err := check(try)
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

func (p *Probe) well() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missed == 0
}

func (p *Probe) beat(ok bool) {
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

func (p *Probe) channel() chan struct{} {
	if p.gone == nil {
		p.gone = make(chan struct{})
	}
	return p.gone
}

// Lost is closed while the ledger does not respond. Every call needs its own.
func (p *Probe) Lost() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.channel()
}

// Down reports whether the ledger does not respond now.
func (p *Probe) Down() bool {
	select {
	case <-p.Lost():
		return true
	default:
		return false
	}
}

// Unsteady reports whether the ledger did not respond not long ago: it has a leader
// again, and the services' queues on it may have none yet.
func (p *Probe) Unsteady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.back) < settling
}

// settling is how long elections may go on after the ledger's own; Unstarted is
// how long a call may wait for its start meanwhile.
const (
	settling  = 15 * time.Second
	Unstarted = 1500 * time.Millisecond
)
