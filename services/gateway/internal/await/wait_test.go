package await

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// source is a Source whose channels a test fills.
type source struct {
	outcome   chan propose.Outcome
	escalated chan contract.Escalated
	allowed   chan *contract.Event
	started   chan *contract.Event
	failed    chan error
	stored    chan struct{} // closed unless a test replaces it
}

func newSource() *source {
	s := &source{make(chan propose.Outcome, 2), make(chan contract.Escalated, 1), make(chan *contract.Event, 1), make(chan *contract.Event, 1), make(chan error, 1), make(chan struct{})}
	close(s.stored)
	return s
}

func (s *source) Outcome() <-chan propose.Outcome      { return s.outcome }
func (s *source) Escalated() <-chan contract.Escalated { return s.escalated }
func (s *source) Allowed() <-chan *contract.Event      { return s.allowed }
func (s *source) Started() <-chan *contract.Event      { return s.started }
func (s *source) Failed() <-chan error                 { return s.failed }
func (s *source) Stored() <-chan struct{}              { return s.stored }

// ended delivers an outcome whose response consists of the given number of frames.
func (s *source) ended(id string, frames int64) {
	out := propose.Outcome{Event: &contract.Event{ID: id}}
	out.Recorded.Effect.Status, out.Recorded.Effect.Frames = contract.Succeeded, frames
	s.outcome <- out
}

// ledger is a Probe whose results a test sets.
type ledger struct {
	mu       sync.Mutex
	lost     chan struct{}
	unsteady bool
}

func (l *ledger) Lost() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// set makes the ledger stop responding, or respond again.
func (l *ledger) set(silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if silent {
		close(l.lost)
	} else {
		l.lost = make(chan struct{})
	}
}

func (l *ledger) Unsteady() bool { return l.unsteady }

// frames is a Sink that adds up the numbers of frames that a test sends.
type frames struct {
	wake chan struct{}
	mu   sync.Mutex
	sent []int64
	n    int64
}

// Arguments of send that make Take return an error.
const (
	left = -1 // the client has disconnected
	lost = -2 // a frame is missing
)

var errFrame = errors.New("frame 7 was lost")

// send makes the next Take receive n frames, or return an error if n is left or lost.
func (f *frames) send(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, n)
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *frames) Wake() <-chan struct{} { return f.wake }

func (f *frames) Take() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	running := false
	for _, n := range f.sent {
		switch n {
		case left:
			return running, fmt.Errorf("write: %w", ErrGone)
		case lost:
			return running, errFrame
		}
		f.n, running = f.n+n, true
	}
	f.sent = nil
	return running, nil
}

func (f *frames) Complete(r *contract.Recorded) bool { return f.n >= r.Effect.Frames }

var anEscalation = contract.Escalated{Expires: "2026-01-01T00:00:00.000Z"}

// TestWait checks the states in which a wait for a whole response ends, the time that it
// takes, and its result.
func TestWait(t *testing.T) {
	minute := Terms{Within: time.Minute}
	type world struct {
		src      *source
		ledger   *ledger
		progress func(context.Context) bool
		cancel   context.CancelFunc
	}
	after := func(d time.Duration, f func()) { time.Sleep(d); f() }
	for name, c := range map[string]struct {
		terms Terms
		do    func(w *world) // runs in its own goroutine from the start of the wait
		set   func(w *world) // runs before the wait
		state State
		took  time.Duration
		want  func(r *Result) bool
	}{
		"ends": {terms: minute, do: func(w *world) { after(time.Second, func() { w.src.ended("r-1", 0) }) }, state: Ended, took: time.Second,
			want: func(r *Result) bool { return r.Outcome.Event.ID == "r-1" && r.Escalated == nil }},
		"ends after an escalation": {terms: minute, do: func(w *world) {
			w.src.escalated <- anEscalation
			after(30*time.Second, func() { w.src.ended("r-1", 0) })
		}, state: Ended, took: 30 * time.Second, want: func(r *Result) bool { return r.Escalated != nil }},
		"is escalated for a caller who does not wait": {terms: Terms{Within: time.Minute, Async: true}, do: func(w *world) { w.src.escalated <- anEscalation },
			state: Escalated, want: func(r *Result) bool { return r.Escalated.Expires == anEscalation.Expires }},
		"is escalated and the caller's time ends": {terms: minute, do: func(w *world) { w.src.escalated <- anEscalation }, state: Escalated, took: time.Minute},
		"is escalated and people have less time": {terms: Terms{Within: time.Hour, People: time.Minute}, do: func(w *world) {
			after(time.Second, func() { w.src.escalated <- anEscalation })
		}, state: Escalated, took: time.Minute + time.Second},
		"is allowed": {terms: minute, do: func(w *world) { w.src.allowed <- &contract.Event{ID: "d-1"} }, state: Allowed,
			want: func(r *Result) bool { return r.Event.ID == "d-1" }},
		"was handed out": {terms: minute, do: func(w *world) { w.src.started <- &contract.Event{ID: "e-1"} }, state: Started,
			want: func(r *Result) bool { return r.Event.ID == "e-1" }},
		"is not recorded": {terms: minute, do: func(w *world) { w.src.failed <- errFrame }, state: Failed,
			want: func(r *Result) bool { return errors.Is(r.Err, errFrame) }},
		"has no outcome in time": {terms: minute, state: Overdue, took: time.Minute},
		"is left":                {terms: minute, do: func(w *world) { after(2*time.Second, w.cancel) }, state: Left, took: 2 * time.Second},
		"meets a silent ledger":  {terms: minute, do: func(w *world) { after(time.Second, func() { close(w.ledger.lost) }) }, state: Silent, took: time.Second},
		"is escalated before the ledger is silent": {terms: minute, do: func(w *world) {
			w.src.escalated <- anEscalation
			after(time.Second, func() { close(w.ledger.lost) })
		}, state: Silent, took: time.Second, want: func(r *Result) bool { return r.Escalated != nil }},
		"outlasts a ledger that is silent three times": {terms: Terms{Within: time.Hour, Patience: time.Minute}, do: func(w *world) {
			for range 3 {
				after(50*time.Second, func() { w.ledger.set(true) })
				after(50*time.Second, func() { w.ledger.set(false) })
			}
			w.src.ended("r-1", 0)
		}, state: Ended, took: 5 * time.Minute},
		"meets a ledger that is silent for long": {terms: Terms{Within: time.Hour, Patience: time.Minute}, do: func(w *world) {
			after(time.Second, func() { w.ledger.set(true) })
		}, state: Silent, took: time.Minute + 1500*time.Millisecond},
		"is stored late, with patience": {terms: Terms{Within: time.Hour, Patience: time.Minute}, set: func(w *world) { w.src.stored = make(chan struct{}) },
			do: func(w *world) { after(59*time.Second, func() { close(w.src.stored) }) }, state: Overdue, took: time.Hour},
		"is not stored, with patience": {terms: Terms{Within: time.Hour, Patience: time.Minute}, set: func(w *world) { w.src.stored = make(chan struct{}) },
			state: Silent, took: time.Minute + 1500*time.Millisecond},
		"does not start for a while after an election, with patience": {terms: Terms{Within: time.Hour, Patience: time.Minute}, set: func(w *world) {
			w.ledger.unsteady = true
			began := time.Now()
			w.progress = func(context.Context) bool { return time.Since(began) > 30*time.Second }
		}, state: Overdue, took: time.Hour},
		"does not start after an election": {terms: minute, set: func(w *world) {
			w.ledger.unsteady = true
			w.progress = func(context.Context) bool { return false }
		}, state: Silent, took: 1500 * time.Millisecond},
		"starts after an election": {terms: minute, set: func(w *world) {
			w.ledger.unsteady = true
			w.progress = func(context.Context) bool { return true }
		}, do: func(w *world) { after(10*time.Second, func() { w.src.ended("r-1", 0) }) }, state: Ended, took: 10 * time.Second},
		"is not expected to start": {terms: minute, set: func(w *world) { w.ledger.unsteady = true }, state: Overdue, took: time.Minute},
		"is not stored, though the ledger responds to probes": {terms: minute, set: func(w *world) { w.src.stored = make(chan struct{}) },
			state: Silent, took: 1500 * time.Millisecond},
		"is stored late": {terms: minute, set: func(w *world) { w.src.stored = make(chan struct{}) },
			do: func(w *world) { after(time.Second, func() { close(w.src.stored) }) }, state: Overdue, took: time.Minute},
		"is handled before its append is acknowledged": {terms: minute, set: func(w *world) {
			w.src.stored = make(chan struct{})
			w.src.escalated <- anEscalation
		}, state: Escalated, took: time.Minute},
		"waits for people after an election": {terms: minute, set: func(w *world) {
			w.ledger.unsteady = true
			w.progress = func(context.Context) bool { return false }
			w.src.escalated <- anEscalation
		}, state: Escalated, took: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w := &world{src: newSource(), ledger: &ledger{lost: make(chan struct{})}, cancel: cancel}
				if c.set != nil {
					c.set(w)
				}
				if c.do != nil {
					go c.do(w)
				}
				began := time.Now()
				r := Waiter{Probe: w.ledger, Progress: w.progress}.Wait(ctx, w.src, c.terms, Whole{})
				if took := time.Since(began); r.State != c.state || took != c.took {
					t.Errorf("state %d after %s, want %d after %s", r.State, took, c.state, c.took)
				}
				if c.want != nil && !c.want(&r) {
					t.Errorf("result %+v", r)
				}
			})
		})
	}
}

// TestWaitWithFrames checks that a response is complete when its outcome and all its
// frames have arrived, whichever arrives first, and broken if the sink reports a lost
// frame, or if frames are still missing lastFrames after the outcome. The wait also ends
// when the client disconnects, or when the ledger stops responding before the first
// frame, but not when the ledger stops responding after it.
func TestWaitWithFrames(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(src *source, f *frames, l *ledger)
		state State
		took  time.Duration
		err   error
	}{
		"frames first":                           {func(src *source, f *frames, _ *ledger) { f.send(2); time.Sleep(time.Second); src.ended("r-1", 2) }, Ended, time.Second, nil},
		"outcome first":                          {func(src *source, f *frames, _ *ledger) { src.ended("r-1", 2); time.Sleep(time.Second); f.send(2) }, Ended, time.Second, nil},
		"none needed":                            {func(src *source, _ *frames, _ *ledger) { src.ended("r-1", 0) }, Ended, 0, nil},
		"one missing":                            {func(src *source, f *frames, _ *ledger) { f.send(1); src.ended("r-1", 2) }, Broken, lastFrames, transient.ErrGap},
		"a gap":                                  {func(_ *source, f *frames, _ *ledger) { f.send(1); f.send(lost) }, Broken, 0, errFrame},
		"reader left":                            {func(_ *source, f *frames, _ *ledger) { f.send(1); f.send(left) }, Gone, 0, nil},
		"a silent ledger before the first frame": {func(_ *source, _ *frames, l *ledger) { close(l.lost) }, Silent, 0, nil},
		"a silent ledger after it": {func(src *source, f *frames, l *ledger) {
			f.send(1)
			synctest.Wait()
			close(l.lost)
			time.Sleep(time.Second)
			src.ended("r-1", 1)
		}, Ended, time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, f, l := newSource(), &frames{wake: make(chan struct{}, 1)}, &ledger{lost: make(chan struct{})}
				go c.do(src, f, l)
				began := time.Now()
				r := Waiter{Probe: l}.Wait(t.Context(), src, Terms{Within: time.Minute}, f)
				if took := time.Since(began); r.State != c.state || took != c.took || !errors.Is(r.Err, c.err) {
					t.Errorf("state %d after %s with %v, want %d after %s with %v", r.State, took, r.Err, c.state, c.took, c.err)
				}
			})
		})
	}
}

// TestOutcomeFirst checks that a wait ends with an outcome that has arrived, although the
// proposal has failed, the ledger has stopped responding, the deadline has passed and the
// context is done.
func TestOutcomeFirst(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	silent := &ledger{lost: make(chan struct{})}
	close(silent.lost)
	for range 100 { // select chooses at random
		src := newSource()
		src.failed <- errors.New("the ledger does not respond")
		src.ended("r-1", 0)
		if r := (Waiter{Probe: silent}).Wait(ctx, src, Terms{}, Whole{}); r.State != Ended || r.Outcome.Event.ID != "r-1" {
			t.Fatalf("the wait ends in state %d with error %v, want the outcome", r.State, r.Err)
		}
	}
}

// TestFirstOutcomeCounts checks that a second outcome, such as a forged one, is ignored.
func TestFirstOutcomeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.ended("r-1", 1)
		src.ended("r-2", 1)
		f := &frames{wake: make(chan struct{}, 1)}
		go func() { time.Sleep(time.Second); f.send(1) }()
		r := Waiter{Probe: &ledger{lost: make(chan struct{})}}.Wait(t.Context(), src, Terms{Within: time.Minute}, f)
		if r.State != Ended || r.Outcome.Event.ID != "r-1" {
			t.Errorf("state %d, outcome %v", r.State, r.Outcome)
		}
	})
}
