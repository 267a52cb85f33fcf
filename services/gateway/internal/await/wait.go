// Package await waits for calls from their proposal to their outcome. The gateway's APIs
// wait with Waiter.Wait and a Sink, and translate the Result into their responses. The
// Sink processes the frames of the response. The package writes nothing to the ledger
// and does not depend on HTTP.
package await

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/probe"
)

// Source delivers the events of one call; propose.Pending implements it. Only the first
// outcome counts. No channel is closed except that of Stored.
type Source interface {
	Outcome() <-chan propose.Outcome
	Escalated() <-chan contract.Escalated
	Allowed() <-chan *contract.Event // the event that allowed the call, if the call's caller executes it
	Started() <-chan *contract.Event // the claim of such a call, if its intent was handed out before
	Failed() <-chan error            // the proposal could not be recorded
	Stored() <-chan struct{}         // closed when the append of the proposal has ended
}

// Sink processes the frames of a response, which may arrive before or after the outcome.
// Wait calls its methods from one goroutine.
type Sink interface {
	// Wake returns a channel that receives a value when Take has something to process.
	// The channel may be nil.
	Wake() <-chan struct{}
	// Take processes the frames that have arrived, and reports whether they show that
	// the call is running. An error that wraps ErrGone means that the client has
	// disconnected; any other error means that the response cannot be completed, for
	// example because frames were lost.
	Take() (running bool, err error)
	// Complete reports whether the sink has processed all frames of the response to the
	// call with outcome r.
	Complete(r *contract.Recorded) bool
}

// Notified is a Sink that is notified when its call is escalated, unless the wait is asynchronous.
type Notified interface {
	Sink
	// Escalated reports whether the wait ends now. Otherwise it returns the maximum time to the
	// outcome from now, or 0 for Terms.People. It must not block.
	Escalated(x *contract.Escalated) (end bool, people time.Duration)
}

// ErrGone is wrapped by the error of a Sink whose client has disconnected.
var ErrGone = errors.New("the client has disconnected")

// Whole is the Sink of a response that is sent only when the outcome is known.
type Whole struct{}

// Wake implements Sink.
func (Whole) Wake() <-chan struct{} { return nil }

// Take implements Sink.
func (Whole) Take() (bool, error) { return false, nil }

// Complete implements Sink.
func (Whole) Complete(*contract.Recorded) bool { return true }

// State is the reason why a wait ended.
type State int

// States in which a wait ends.
const (
	Ended     State = iota + 1 // the outcome is on the ledger and the sink has the complete response
	Allowed                    // the intent of the call may be handed out
	Started                    // the intent was handed out before
	Escalated                  // the call was escalated, and the wait is asynchronous or its time has passed without an outcome
	Failed                     // the proposal could not be recorded
	Silent                     // the ledger does not respond or has not stored the proposal, or it has recently recovered and no executor has started the call
	Overdue                    // no outcome within the bounds of the wait
	Left                       // the context is done, for example because the client disconnected or its credential became invalid
	Gone                       // the sink reported that the client disconnected
	Broken                     // the response cannot be completed, for example because frames were lost
)

// Result holds the state in which a wait ended, and the events that were received
// before.
type Result struct {
	State     State
	Outcome   *propose.Outcome    // set in Ended; in other states, if the outcome was received
	Event     *contract.Event     // the event that allowed the call in Allowed, the claim in Started
	Escalated *contract.Escalated // set in any state if an escalation was received
	Err       error               // the reason, in Failed and Broken
}

// Terms holds the bounds of a wait.
type Terms struct {
	Within time.Duration // maximum time to the outcome, from the start of the wait
	Async  bool          // the wait ends when the call is escalated
	People time.Duration // maximum time to the outcome, from an escalation; 0 means the rest of Within

	// Patience is the time for which the wait goes on although all checks find a reason to end it
	// as Silent. 0 means that it ends at once.
	Patience time.Duration
}

// lastFrames is the maximum time to wait, after the outcome, for the last frames of a
// response.
const lastFrames = 3 * time.Second

// Probe reports whether the ledger responds; probe.Probe implements it.
type Probe interface {
	// Lost returns a channel that is closed when the ledger stops responding, or is
	// closed already if the ledger does not respond now.
	Lost() <-chan struct{}
	// Unsteady reports whether the ledger has recovered so recently that executors may
	// not receive work yet.
	Unsteady() bool
}

// Waiter waits for calls. It has no state of its own.
type Waiter struct {
	Probe Probe

	// Progress reports whether the ledger contains an event that shows that the call has
	// started or ended. Wait calls it only shortly after the ledger has recovered, when
	// executors may not receive work yet; if Progress returns false, the wait ends as
	// Silent. If Progress is nil, Wait does not check whether the call has started.
	Progress func(context.Context) bool
}

// Wait waits until one of the States is reached. The result contains that state and the events that
// were received before. An outcome in the result is durable. The wait lasts for at most the time
// that t or a Notified sink allows, plus lastFrames if the outcome was received. Wait never cancels
// the call: if ctx is done, the wait ends but the call continues.
func (w Waiter) Wait(ctx context.Context, src Source, t Terms, sink Sink) Result {
	m := &machine{terms: t, sink: sink, deadline: time.NewTimer(t.Within), late: time.NewTimer(probe.Unstarted)}
	if t.Patience == 0 {
		m.lost = w.Probe.Lost()
	}
	defer m.deadline.Stop()
	defer m.late.Stop()
	for m.State == 0 {
		m.next(ctx, w, src)
	}
	return m.Result
}

// next processes one event of a wait. The outcome takes precedence over all others: while
// check reads the ledger, the outcome may arrive and the ledger may stop responding. The
// caller should then receive the outcome.
func (m *machine) next(ctx context.Context, w Waiter, src Source) {
	select {
	case out := <-src.Outcome():
		m.outcome(&out)
		return
	default:
	}
	select {
	case <-m.sink.Wake():
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
		m.check(ctx, w, src)
	case <-m.deadline.C:
		m.overdue()
	case <-ctx.Done():
		m.State = Left
	}
}

// machine is the state of one wait; Result.State is 0 while the wait continues.
type machine struct {
	Result
	terms          Terms
	sink           Sink
	deadline, late *time.Timer
	lost           <-chan struct{} // closed when the ledger stops responding; nil once the call is known to run, and with patience
	silent         time.Time       // with patience, the time of the first check since which all checks found a reason to end the wait; zero if the last one found none
}

func (m *machine) end(s State, e *contract.Event) { m.State, m.Event = s, e }

// take calls the sink's Take. It ends the wait if Take returns an error, or if the
// outcome is known and the sink is complete. Once the call is known to run, the wait no
// longer ends as Silent, because frames may still arrive.
func (m *machine) take() {
	running, err := m.sink.Take()
	switch {
	case errors.Is(err, ErrGone):
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

// outcome records the call's outcome, and limits the time for the last frames to
// lastFrames. Later outcomes are ignored.
func (m *machine) outcome(out *propose.Outcome) {
	if m.Outcome == nil {
		m.Outcome = out
		m.deadline.Reset(lastFrames)
	}
	m.settle()
}

// settle ends the wait if the outcome is known and the sink is complete.
func (m *machine) settle() {
	if m.Outcome != nil && m.sink.Complete(&m.Outcome.Recorded) {
		m.State = Ended
	}
}

// escalate records an escalation. It ends an asynchronous wait, and otherwise sets the
// deadline to Terms.People, if that is not 0. A sink that is a Notified may do either.
func (m *machine) escalate(x *contract.Escalated) {
	end, people := m.terms.Async, m.terms.People
	if s, ok := m.sink.(Notified); ok && !end {
		if end, people = s.Escalated(x); people == 0 {
			people = m.terms.People
		}
	}
	if m.Escalated = x; end {
		m.State = Escalated
	} else if people > 0 {
		m.deadline.Reset(people)
	}
}

// check ends the wait as Silent in two cases: the append of the proposal has not ended,
// or the ledger has recovered recently, and Progress is set and returns false. It does
// not end the wait if the call was escalated or its outcome was received. A wait that
// continues is checked again after probe.Every. With patience, a third case is that the
// ledger does not respond, and the wait ends after the time of Terms.Patience in which
// every check found one of the cases.
func (m *machine) check(ctx context.Context, w Waiter, src Source) {
	down := m.terms.Patience > 0 && closed(w.Probe.Lost())
	switch {
	case m.Outcome != nil || !down && (m.Escalated != nil || closed(src.Stored()) && (w.Progress == nil || !w.Probe.Unsteady() || w.Progress(ctx))):
		m.silent = time.Time{}
	case m.terms.Patience == 0:
		m.State = Silent
		return
	case m.silent.IsZero():
		m.silent = time.Now()
	case time.Since(m.silent) >= m.terms.Patience:
		m.State = Silent
		return
	}
	m.late.Reset(probe.Every)
}

// closed reports whether a channel that receives no values is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// overdue ends the wait because its deadline has passed: as Broken if the outcome is
// known, as Escalated if the call was escalated, and otherwise as Overdue.
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
