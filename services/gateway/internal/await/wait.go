// Package await follows a call from its proposal to its outcome. It is the one
// state machine of the gateway: every API waits for calls by Waiter.Wait, with a
// Sink that takes what arrives before the outcome, and translates the Result. It
// writes nothing to the ledger and knows no HTTP. A new kind of response is a new
// Sink; a new way in which a wait may end is a new State.
package await

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
)

// Source delivers what becomes of one call; propose.Pending implements it. Each
// channel delivers at most one value that counts, and none is ever closed.
type Source interface {
	Outcome() <-chan propose.Outcome
	Escalated() <-chan contract.Escalated
	Allowed() <-chan *contract.Event // of calls that their callers execute
	Started() <-chan *contract.Event // of such calls, where the intent was handed out before
	Failed() <-chan error            // the proposal could not be recorded
}

// Sink takes the part of a response that arrives before the outcome is known. Wait
// calls it from one goroutine.
type Sink interface {
	// Wake receives when Take has something to take; nil if it never has.
	Wake() <-chan struct{}
	// Take takes what has arrived and reports whether that shows the call running.
	// An error that wraps ErrGone says that the reader of the response has left, any
	// other that a part of it was lost.
	Take() (running bool, err error)
	// Complete reports whether everything that belongs to the outcome was taken.
	Complete(r *contract.Recorded) bool
}

// Whole is the Sink of a response that is sent when the outcome is known.
type Whole struct{}

// Wake implements Sink.
func (Whole) Wake() <-chan struct{} { return nil }

// Take implements Sink.
func (Whole) Take() (bool, error) { return false, nil }

// Complete implements Sink.
func (Whole) Complete(*contract.Recorded) bool { return true }

// State is how a wait ended.
type State int

// The states in which a wait ends.
const (
	Ended     State = iota + 1 // the outcome is on the ledger and the sink is complete
	Allowed                    // the intent of the call may be handed out
	Started                    // the intent was handed out before
	Escalated                  // the call waits for people, and the caller no longer
	Failed                     // the proposal is not on the ledger
	Silent                     // the ledger does not respond
	Overdue                    // no outcome within the time of the wait
	Left                       // the context ended: the caller left or lost its authority
	Gone                       // the reader of the response left
	Broken                     // a part of the response was lost
)

// Result is what a wait came to.
type Result struct {
	State     State
	Outcome   *propose.Outcome    // in Ended; else what was known
	Event     *contract.Event     // the decision in Allowed, the claim in Started
	Escalated *contract.Escalated // the call was escalated during the wait, whatever the state
	Err       error               // the reason, in Failed and Broken
}

// Terms bound a wait.
type Terms struct {
	Within time.Duration // for the outcome, from now
	Async  bool          // end at an escalation
	People time.Duration // for the outcome, from an escalation; 0: what is left of Within
}

// lastFrames is how long frames may arrive after their call's outcome.
const lastFrames = 3 * time.Second

// Probe tells whether the ledger responds; probe.Probe implements it.
type Probe interface {
	// Lost returns a channel that is closed while the ledger does not respond.
	Lost() <-chan struct{}
	// Unsteady reports whether it did not respond not long ago.
	Unsteady() bool
}

// Waiter waits for calls. It has no state of its own.
type Waiter struct {
	Probe Probe

	// Progress reports whether the ledger holds that the call has started or ended.
	// It is called while the ledger has responded again for a short time only, when
	// the queues of executors may not work yet; nil: the call is not expected to start.
	Progress func(context.Context) bool
}

// Wait waits until the call of src ends, or until the wait itself does, and returns
// how. The outcome in the result is durable. ctx ends the wait, not the call.
func (w Waiter) Wait(ctx context.Context, src Source, t Terms, sink Sink) Result {
	m := &machine{terms: t, sink: sink, deadline: time.NewTimer(t.Within), late: time.NewTimer(probe.Unstarted), lost: w.Probe.Lost()}
	defer m.deadline.Stop()
	defer m.late.Stop()
	for {
		select {
		case <-sink.Wake():
			m.take()
		case out := <-src.Outcome():
			m.outcome(&out)
		case e := <-src.Allowed():
			m.end(Allowed, e)
		case e := <-src.Started():
			m.end(Started, e)
		case x := <-src.Escalated():
			m.escalate(&x)
		case err := <-src.Failed():
			m.State, m.Err = Failed, err
		case <-m.lost:
			m.State = Silent
		case <-m.late.C:
			m.check(ctx, w)
		case <-m.deadline.C:
			m.overdue()
		case <-ctx.Done():
			m.State = Left
		}
		if m.State != 0 {
			return m.Result
		}
	}
}

// machine is one wait; Result.State is 0 while it goes on.
type machine struct {
	Result
	terms          Terms
	sink           Sink
	deadline, late *time.Timer
	lost           <-chan struct{} // nil once the call is seen running
}

func (m *machine) end(s State, e *contract.Event) { m.State, m.Event = s, e }

// take empties the sink's source into it. What runs is no longer withdrawn where
// the ledger stops responding: what is on its way may still arrive.
func (m *machine) take() {
	running, err := m.sink.Take()
	switch {
	case isGone(err):
		m.State = Gone
		return
	case err != nil:
		m.State, m.Err = Broken, err
		return
	case running:
		m.lost = nil
		m.late.Stop()
	}
	m.settle()
}

// outcome takes the call's outcome; the first one counts.
func (m *machine) outcome(out *propose.Outcome) {
	if m.Outcome == nil {
		m.Outcome = out
		m.deadline.Reset(lastFrames)
	}
	m.settle()
}

// settle ends the wait if the outcome is known and the sink has all of it.
func (m *machine) settle() {
	if m.Outcome != nil && m.sink.Complete(&m.Outcome.Recorded) {
		m.State = Ended
	}
}

func (m *machine) escalate(x *contract.Escalated) {
	if m.Escalated = x; m.terms.Async {
		m.State = Escalated
	} else if m.terms.People > 0 {
		m.deadline.Reset(m.terms.People)
	}
}

// check ends the wait for a call that no executor has taken up since the ledger
// responded again.
func (m *machine) check(ctx context.Context, w Waiter) {
	if m.Escalated == nil && m.Outcome == nil && w.Progress != nil && w.Probe.Unsteady() && !w.Progress(ctx) {
		m.State = Silent
		return
	}
	m.late.Reset(probe.Every)
}

// overdue ends the wait at its deadline.
func (m *machine) overdue() {
	switch {
	case m.Outcome != nil:
		m.State, m.Err = Broken, transient.ErrGap
	case m.Escalated != nil:
		m.State = Escalated
	default:
		m.State = Overdue
	}
}
