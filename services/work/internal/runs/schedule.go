package runs

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/timetable"
)

// MaxSchedules is the maximum number of schedules of an instance at a time. A tenant has at
// most half of them, and fewer if other tenants have schedules; see fair.Places.
const MaxSchedules = 512

// look is the interval at which a schedule polls the ledger for the outcome of its newest run.
const look = time.Second

// scheduleArgs are the arguments of a call pipeline.schedule, beside those of Args.
type scheduleArgs struct {
	Cron     string `json:"cron"`
	Missed   string `json:"missed"`
	Timezone string `json:"timezone"`
}

// schedule is a schedule in progress.
type schedule struct {
	*Runner
	w      *execute.Work
	state  timetable.State
	args   []byte // of the calls of its runs
	filter string // of the aggregate
	key    string
	last   uint64 // sequence of the newest event of the aggregate

	stored string // call of a run whose proposal is stored
	seen   uint64 // sequence from which the outcome of that call is searched
}

// Schedule executes a call pipeline.schedule: it starts runs of a pipeline, which are calls
// nested in this one, until the call is cancelled, its deadline has passed or the schedule has
// no further time. Each time of the schedule is recorded, with an expected sequence, before the
// call of its run is proposed, so that two instances never start two runs for one time.
func (r *Runner) Schedule(ctx context.Context, w *execute.Work) execute.Result {
	var a scheduleArgs
	doc, digest, inputs, refused := r.read(w)
	if refused != nil {
		return *refused
	}
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "arguments: %v", err)
	}
	next, err := timetable.Times(a.Cron, a.Timezone)
	if err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	if refused := r.check(doc); refused != nil {
		return *refused
	}
	leave, ok := r.schedules.Take(w.Event.Tenant)
	if !ok {
		return execute.Fail(contract.CodeUnavailable, "this instance has no place for another schedule of the tenant: start the schedule again later")
	}
	defer leave()
	key := timetable.Key(w.Event.Tenant, w.Event.Actor, digest, a.Cron, a.Timezone, inputs)
	x := &schedule{Runner: r, w: w, key: key, filter: bus.AggregateFilter(w.Event.Tenant, services.Work, key),
		state: timetable.State{ID: w.Call.ID, Next: next, Missed: a.Missed}}
	if x.args, err = runArgs(w.Args); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "arguments: %v", err)
	}
	other, err := x.begin(ctx, &events.ScheduleStarted{CallID: w.Call.ID, Cron: a.Cron, Digest: digest, Missed: a.Missed, Name: doc.Name, Timezone: a.Timezone})
	switch {
	case err != nil:
		return x.interrupted(ctx, err)
	case other != "":
		return output(map[string]any{"coalesced": true, "pipeline": doc.Name, "schedule": other})
	}
	return x.drive(ctx)
}

// runArgs returns the arguments of pipeline.run from those of pipeline.schedule.
func runArgs(args []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(args, &all); err != nil {
		return nil, err
	}
	for _, own := range []string{"cron", "missed", "timezone"} {
		delete(all, own)
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return canon.Transform(nil, raw)
}

// begin records that the schedule begins, unless that is recorded already, and loads its state.
// If the same schedule of the same actor is in progress under another call, begin records
// nothing and returns the id of that call.
func (x *schedule) begin(ctx context.Context, d *events.ScheduleStarted) (other string, err error) {
	for {
		started, other, err := x.load(ctx)
		if err != nil || started || other != "" {
			return other, err
		}
		if err := x.append(ctx, contract.EventScheduleStarted, d); err != nil && !errors.Is(err, errReloaded) {
			return "", err
		}
	}
}

// load makes the state from the events of the aggregate. It reports whether this schedule
// has begun, and otherwise returns the id of another one that is in progress. Its cost
// does not grow with the number of runs.
func (x *schedule) load(ctx context.Context) (started bool, other string, err error) {
	newest, err := x.Emit.Log.Last(ctx, x.filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, "", nil
	}
	if err != nil {
		return false, "", err
	}
	x.last = newest.Seq
	begins := bus.Filter{Tenant: x.w.Event.Tenant, Service: services.Work, Event: contract.EventScheduleStarted, Key: x.key}.String()
	en, err := x.Emit.Log.Last(ctx, begins)
	if err != nil {
		return false, "", err
	}
	e, err := eventlog.Open(en, begins)
	if err != nil {
		return false, "", err
	}
	if e.CallID == x.state.ID {
		if x.state.Last, err = contract.ParseTime(e.Time); err != nil {
			return false, "", err
		}
		return true, "", x.fired(ctx, en.Seq)
	}
	ended, _, err := outcome.Call{Tenant: e.Tenant, Session: e.Session, ID: e.CallID, Executor: services.Work}.Ended(ctx, x.Emit.Log, en.Seq)
	if err != nil || ended {
		return false, "", err
	}
	return false, e.CallID, nil
}

// fired applies the newest event schedule_fired that names a run, and then the newest event
// schedule_fired, which may name none. It omits events before the start of the schedule at the
// sequence from.
func (x *schedule) fired(ctx context.Context, from uint64) error {
	filter := bus.Filter{Tenant: x.w.Event.Tenant, Service: services.Work, Event: contract.EventScheduleFired, Key: x.key}.String()
	apply := func(en eventlog.Entry, err error) error {
		if errors.Is(err, eventlog.ErrNotFound) || err == nil && en.Seq < from {
			return nil
		}
		if err != nil {
			return err
		}
		e, err := eventlog.Open(en, filter)
		if err != nil {
			return err
		}
		x.Emit.See(e.Lamport)
		return x.state.Evolve(en.Seq, e)
	}
	err := apply(eventlog.Before(ctx, x.Emit.Log, filter, 0, func(en eventlog.Entry) bool {
		var d events.ScheduleFired
		e, err := eventlog.Open(en, filter)
		return en.Seq < from || err == nil && contract.Decode(e.Data, &d) == nil && d.CallID != ""
	}))
	if err != nil {
		return err
	}
	return apply(x.Emit.Log.Last(ctx, filter))
}

// append records an event of the schedule. If another event was recorded meanwhile, it
// loads the state again and returns errReloaded.
func (x *schedule) append(ctx context.Context, name string, doc canon.Document) error {
	e := x.Emit.New(name, x.key, contract.Bytes(doc), x.w.Event)
	b, err := e.Encode()
	if err != nil {
		return err
	}
	seq, err := x.Emit.Log.AppendExpect(ctx, e.Subject(), e.ID, b, x.filter, x.last)
	if errors.Is(err, eventlog.ErrConflict) {
		if _, _, err := x.load(ctx); err != nil {
			return err
		}
		return errReloaded
	}
	if err != nil {
		return err
	}
	x.last = seq
	return x.state.Evolve(seq, e)
}

// drive starts runs at the times of the schedule until ctx ends or no time is left.
func (x *schedule) drive(ctx context.Context) execute.Result {
	for {
		wake, err := x.step(ctx)
		switch {
		case ctx.Err() != nil:
			return x.interrupted(ctx, ctx.Err())
		case errors.Is(err, errReloaded):
			continue
		case err != nil:
			x.Log.Warn("a schedule of a pipeline is tried again", "schedule", x.state.ID, "err", err)
			wake = x.Emit.Now().Add(again)
		case wake.IsZero():
			return output(map[string]any{"schedule": x.state.ID})
		}
		select {
		case <-ctx.Done():
		case <-time.After(wake.Sub(x.Emit.Now())):
		}
	}
}

// step decides and takes the action that is due, and returns when to decide again.
func (x *schedule) step(ctx context.Context) (time.Time, error) {
	if err := x.settle(ctx); err != nil {
		return time.Time{}, err
	}
	d, wake := x.state.Decide(x.Emit.Now())
	if d == nil {
		if x.state.Open && wake.Sub(x.Emit.Now()) > look {
			wake = x.Emit.Now().Add(look)
		}
		return wake, nil
	}
	if err := x.append(ctx, contract.EventScheduleFired, d); err != nil {
		return time.Time{}, err
	}
	return x.Emit.Now(), nil
}

// settle proposes the call of the newest run if its proposal is not stored, and reads from
// the ledger whether the run has ended.
func (x *schedule) settle(ctx context.Context) error {
	if !x.state.Open {
		return nil
	}
	if x.stored != x.state.Call {
		en, err := x.proposal(ctx)
		if errors.Is(err, eventlog.ErrNotFound) {
			return x.propose(ctx)
		}
		if err != nil {
			return err
		}
		x.stored, x.seen = x.state.Call, en.Seq
	}
	ended, next, err := outcome.Call{Tenant: x.w.Event.Tenant, Session: x.w.Event.Session, ID: x.state.Call, Executor: services.Work}.Ended(ctx, x.Emit.Log, x.seen)
	if err != nil {
		return err
	}
	x.seen, x.state.Open = next, !ended
	return nil
}

// proposal returns the entry that proposed the newest run.
func (x *schedule) proposal(ctx context.Context) (eventlog.Entry, error) {
	return eventlog.First(ctx, x.Emit.Log, x.proposals(), x.state.Since, eventlog.OfCall(x.state.Call, nil))
}

// proposals returns the filter of the service's proposals in the session.
func (x *schedule) proposals() string {
	return bus.Filter{Tenant: x.w.Event.Tenant, Service: services.Work, Event: contract.EventCallProposed, Key: x.w.Event.Session}.String()
}

// propose proposes the call of the newest run, and waits until the proposal is stored or ctx
// ends.
func (x *schedule) propose(ctx context.Context) error {
	w, timeout := x.w, time.Duration(pipeline.MaxTimeout)*time.Second
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	r := propose.Request{ID: x.state.Call, Kind: KindRun, Tool: pipeline.RunPack, Args: x.args, Actor: w.Event.Actor, Client: w.Event.Client, Session: w.Event.Session,
		SessionName: w.Call.SessionName, Token: w.Call.Token, OnBehalfOf: w.Call.OnBehalfOf, Delegation: w.Call.Delegation, Scopes: w.Call.Scopes, Timeout: timeout, Parent: w.Event}
	r.Inherit(w.Call)
	p, err := x.Proposer.Propose(ctx, r)
	if err != nil {
		return err
	}
	defer p.Close()
	select {
	case <-p.Stored():
	case <-ctx.Done():
	}
	return nil
}

// interrupted returns the result of a schedule whose context has ended, or which could not be
// recorded because of err. If the instance is stopping, another one continues the schedule.
// If the call was cancelled, the run in progress is cancelled too. At the deadline of the call
// it is not, since its own deadline is not later.
func (x *schedule) interrupted(ctx context.Context, err error) execute.Result {
	if execute.Stopping(ctx) {
		return execute.Result{Again: true}
	}
	if ctx.Err() == nil {
		return execute.Fail(contract.CodeUnavailable, "the schedule cannot be recorded: %v", err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		res := execute.Fail(contract.CodeTimeout, "the time of the schedule is over")
		res.Status = contract.TimedOut
		return res
	}
	x.cancel(context.WithoutCancel(ctx))
	res := execute.Fail(contract.CodeCancelled, "the schedule was cancelled")
	res.Status = contract.Cancelled
	return res
}

// cancel requests the cancellation of the run in progress, if there is one.
func (x *schedule) cancel(ctx context.Context) {
	if !x.state.Open {
		return
	}
	ctx, stop := context.WithTimeout(ctx, lastAppend)
	defer stop()
	en, err := x.proposal(ctx)
	var e *contract.Event
	var call contract.Call
	if err == nil {
		if e, err = eventlog.Open(en, x.proposals()); err == nil {
			err = contract.Decode(e.Data, &call)
		}
	}
	if err == nil {
		p := x.Proposer.Join(e, &call)
		defer p.Close()
		err = p.Cancel(ctx)
	}
	if err != nil && !errors.Is(err, eventlog.ErrIDConflict) && !errors.Is(err, eventlog.ErrNotFound) {
		x.Log.Warn("the run of a schedule is not cancelled", "schedule", x.state.ID, "call", x.state.Call, "err", err)
	}
}
