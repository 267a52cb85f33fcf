package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

var once, twice = bus.Declaration{Service: "once", Slots: 1}, bus.Declaration{Service: "twice", Slots: 2}

// acquire leases a slot over a connection of its own, as another process would, and
// returns how long that took. If keep is set, it renews the lease until the test ends.
func acquire(t *testing.T, b *meshtest.Bus, d bus.Declaration, keep bool) (*bus.Slot, time.Duration, error) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := bus.AcquireSlot(ctx, b.Connect(t, d.Service), &d)
	if err == nil && keep {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Keep(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
	}
	return s, time.Since(began), err
}

// TestSlotRunsOnce checks that AcquireSlot returns a *bus.RunningError if running
// instances hold all slots of the service. For a service with one slot, the error names
// the running instance, and is returned long before a lease could expire.
func TestSlotRunsOnce(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{once, twice})
	if _, _, err := acquire(t, b, once, true); err != nil {
		t.Fatal(err)
	}
	_, took, err := acquire(t, b, once, true)
	var running *bus.RunningError
	if !errors.As(err, &running) || len(running.Holders) != 1 || !strings.HasPrefix(running.Holders[0], "once-1 on ") {
		t.Fatalf("a second instance: %v", err)
	}
	if took > 3*time.Second {
		t.Errorf("it took %v to find that the first one runs", took)
	}
	for range 2 {
		if _, _, err := acquire(t, b, twice, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := acquire(t, b, twice, true); !errors.As(err, &running) || len(running.Holders) != 2 {
		t.Errorf("a third instance of two: %v", err)
	}
}

// TestSlotAfterCrash checks that the lease of a dead process does not count as a running
// instance: the next instance waits until the lease expires, and then starts.
func TestSlotAfterCrash(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{once, twice})
	if _, _, err := acquire(t, b, once, false); err != nil { // The lease is not renewed, as if its process had died.
		t.Fatal(err)
	}
	s, took, err := acquire(t, b, once, true)
	if err != nil || s.Instance != "once-1" {
		t.Fatalf("the next instance after a crash: %v, %v", s, err)
	}
	if took < time.Second {
		t.Errorf("the slot was taken %v after the crash, while its lease was valid", took)
	}
	// One of two instances has died, and a third waits for its slot.
	if _, _, err := acquire(t, b, twice, true); err != nil {
		t.Fatal(err)
	}
	if _, _, err := acquire(t, b, twice, false); err != nil {
		t.Fatal(err)
	}
	if s, _, err := acquire(t, b, twice, true); err != nil || s.Instance != "twice-2" {
		t.Errorf("the next instance beside one that runs and one that died: %v, %v", s, err)
	}
}

// TestLease shows that a lease is read as renewed if its process has renewed it, and as ended
// if the process has freed it or has died; in the second case also after another process has
// taken the slot. Running returns no lease before an instance has started, that of a running
// instance without that of one that has died, and those of two that run.
func TestLease(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{once, twice})
	c := b.Connect(t, twice.Service)
	running := func() *bus.Lease {
		t.Helper()
		all, err := bus.Running(t.Context(), c, twice.Service)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			return nil
		}
		return all[0]
	}
	if l := running(); l != nil {
		t.Fatalf("%s runs before it has started", l.Instance())
	}
	if _, _, err := acquire(t, b, twice, false); err != nil {
		t.Fatal(err)
	}
	dead := running()
	if renewed, ended, err := dead.Read(t.Context()); dead.Instance() != "twice-1" || renewed || ended || err != nil {
		t.Fatalf("%s: renewed %v, ended %v, %v", dead.Instance(), renewed, ended, err)
	}
	second, _, err := acquire(t, b, twice, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- second.Keep(ctx) }()
	for ended := false; !ended; {
		time.Sleep(dead.Left())
		var renewed bool
		if renewed, ended, err = dead.Read(t.Context()); renewed || err != nil {
			t.Fatalf("the lease of a dead process: renewed %v, %v", renewed, err)
		}
	}
	l := running()
	if l.Instance() != "twice-2" {
		t.Fatalf("%s runs, want twice-2", l.Instance())
	}
	time.Sleep(l.Left())
	if renewed, ended, err := l.Read(t.Context()); !renewed || ended || err != nil {
		t.Errorf("the lease of a running process: renewed %v, ended %v, %v", renewed, ended, err)
	}
	if _, _, err := acquire(t, b, twice, true); err != nil {
		t.Fatal(err)
	}
	if _, ended, err := dead.Read(t.Context()); !ended || err != nil || running().Instance() != "twice-1" {
		t.Errorf("after another process took the slot: ended %v, %v", ended, err)
	}
	if all, err := bus.Running(t.Context(), c, twice.Service); len(all) != 2 || err != nil {
		t.Errorf("%d instances run, want 2: %v", len(all), err)
	}
	stop()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	if _, ended, err := l.Read(t.Context()); !ended || err != nil {
		t.Errorf("a freed lease: ended %v, %v", ended, err)
	}
}
