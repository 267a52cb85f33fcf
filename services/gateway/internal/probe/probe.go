// Package probe determines whether the ledger responds, so that callers receive an error
// at once instead of waiting for a ledger that does not respond.
package probe

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Every is the interval between probes, and Within is the timeout of a probe. Two
// consecutive failed probes mean that the ledger does not respond, so waiting callers
// are notified within two seconds.
const (
	Every  = 250 * time.Millisecond
	Within = 600 * time.Millisecond
)

// Probe reports whether the ledger responds. The ledger does not respond without a
// leader or without a connection to a server; a caller should then receive an error
// instead of waiting for an election. The zero Probe is ready for use. A Probe is safe
// for concurrent use.
type Probe struct {
	mu     sync.Mutex
	missed int
	gone   chan struct{}
	back   time.Time // time of the last recovery of the ledger

	callers atomic.Int64 // number of waiting callers; while it is 0, the ledger is probed only if the last probe failed
}

// Watch causes Run to probe the ledger until done is called. The caller must call done
// once.
func (p *Probe) Watch() (done func()) {
	p.callers.Add(1)
	return func() { p.callers.Add(-1) }
}

// Run probes the ledger with check, with the period Every, until ctx is done. It does so
// only while a caller waits (see Watch) or if the last probe failed. check must return
// nil if and only if the ledger responds before the context of check is done. A probe
// fails when that context is done, even if check has not returned. The next probe then
// waits until check has returned, and fails if that takes longer than Every. Run returns
// without waiting for check.
func (p *Probe) Run(ctx context.Context, check func(context.Context) error) {
	t := time.NewTicker(Every)
	defer t.Stop()
	idle := make(chan struct{}, 1) // holds a value unless a check is running
	idle <- struct{}{}
	for {
		if p.callers.Load() > 0 || !p.well() {
			p.beat(try(ctx, idle, check))
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// try calls check with the timeout Within and reports whether it returned nil in time. It
// does not call check if it cannot receive from idle within Every, and sends to idle when
// check has returned. A request to a NATS server can outlast its context, because the
// client locks the connection while it reconnects.
func try(ctx context.Context, idle chan struct{}, check func(context.Context) error) bool {
	select {
	case <-idle: // a check that ends when its context is done may end shortly after try has returned
	case <-time.After(Every):
		return false
	case <-ctx.Done():
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, Within)
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- check(ctx)
		idle <- struct{}{}
	}()
	select {
	case err := <-done:
		return err == nil
	case <-ctx.Done():
		return false
	}
}

// well reports whether the latest probe, if there was one, succeeded.
func (p *Probe) well() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missed == 0
}

// beat records the result of a probe. The second consecutive failure closes the channel
// of Lost; the next success discards that channel and records the time of the recovery.
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

// Lost returns a channel that is closed when the ledger stops responding, and is closed
// already if the ledger does not respond now. A recovery replaces the channel, so every
// wait must call Lost again.
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

// Unsteady reports whether the ledger recovered within the last 15 seconds. The stream
// then has a leader again, but the consumers of the services may not have one yet.
func (p *Probe) Unsteady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.back) < settling
}

// settling is the time after a recovery during which the consumers may still elect
// leaders. Unstarted is the time after which a wait checks whether the proposal of its
// call is stored and, during settling, whether the call has started.
const (
	settling  = 15 * time.Second
	Unstarted = 1500 * time.Millisecond
)
