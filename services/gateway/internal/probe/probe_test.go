package probe

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestProbe checks that the ledger is probed only while a caller waits or after a loss,
// and that a loss is detected within two seconds. It also checks that after a recovery
// the ledger is not down, but unsteady for the time settling.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Probe
		var down atomic.Bool
		var probes atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx, func(try context.Context) error {
			probes.Add(1)
			if down.Load() {
				<-try.Done()
				return errors.New("no response")
			}
			return nil
		})
		time.Sleep(10 * time.Second)
		if probes.Load() != 0 {
			t.Error("nothing waits, and the ledger was probed", probes.Load(), "times")
		}
		done := p.Watch()
		time.Sleep(time.Second)
		if probes.Load() == 0 || p.Down() || p.Unsteady() {
			t.Error(probes.Load(), p.Down(), p.Unsteady())
		}
		lost := p.Lost()
		down.Store(true)
		began := time.Now()
		<-lost
		if took := time.Since(began); took > 2*time.Second {
			t.Error("the loss was noticed after", took)
		}
		if !p.Down() {
			t.Error("lost, and not down")
		}
		done()
		time.Sleep(10 * time.Second) // after a loss the ledger is probed even if no caller waits
		down.Store(false)
		time.Sleep(time.Second)
		if p.Down() || !p.Unsteady() {
			t.Error("back:", p.Down(), p.Unsteady())
		}
		select {
		case <-p.Lost():
			t.Error("a call after the loss begins lost")
		default:
		}
		if time.Sleep(settling); p.Unsteady() {
			t.Error("still unsteady after", settling)
		}
	})
}

// TestOneMiss checks that a single failed probe does not count as a loss.
func TestOneMiss(t *testing.T) {
	var p Probe
	lost := p.Lost()
	for range 5 {
		p.beat(false)
		p.beat(true)
	}
	select {
	case <-lost:
		t.Error("lost")
	default:
	}
	if p.Unsteady() {
		t.Error("unsteady")
	}
}

// TestStuckProbe checks that a loss is detected within two seconds if check does not end
// with its context, as a request does during a reconnection, and that check is not
// called again before it has returned.
func TestStuckProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Probe
		var running atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer p.Watch()()
		var run sync.WaitGroup
		run.Go(func() {
			p.Run(ctx, func(context.Context) error {
				if running.Add(1) > 1 {
					t.Error("check is called twice at a time")
				}
				defer running.Add(-1)
				time.Sleep(10 * time.Second)
				return nil
			})
		})
		select {
		case <-p.Lost():
		case <-time.After(2 * time.Second):
			t.Error("the loss is not noticed within two seconds")
		}
		time.Sleep(20 * time.Second)
		if !p.Down() {
			t.Error("a response after 10 s counts")
		}
		cancel()
		run.Wait()
		time.Sleep(10 * time.Second) // until the last check has returned
	})
}
