package runs

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
)

// Times of a run.
const (
	again      = time.Second      // delay before a step of drive that returned an error is repeated
	settle     = 3 * time.Second  // time for which a run whose context has ended waits for the outcomes of the calls that it cancelled
	lastAppend = 10 * time.Second // for appends after the context has ended
)

// drive runs the pipeline from its state to its end.
func (x *run) drive(ctx context.Context) execute.Result {
	defer x.leave()
	for {
		wake, err := x.step(ctx)
		switch {
		case ctx.Err() != nil:
			return x.interrupted(ctx, ctx.Err())
		case errors.Is(err, errReloaded):
			continue
		case errors.Is(err, flow.ErrTooLarge):
			return x.fail(ctx, contract.CodeResourceExhausted, err.Error())
		case err != nil:
			x.Log.Warn("a run of a pipeline is tried again", "run", x.state.Run, "err", err)
			wake = x.Emit.Now().Add(again)
		case x.state.Ended != nil:
			return x.result()
		}
		x.wait(ctx, wake)
	}
}

// step takes the actions that are due, until there are none, and returns when to decide
// again.
func (x *run) step(ctx context.Context) (wake time.Time, err error) {
	for x.state.Ended == nil {
		if err := x.outputs(ctx); err != nil {
			return wake, err
		}
		a := x.state.Decide(x.Emit.Now())
		for _, c := range x.state.Running() {
			if err := x.attach(ctx, c); err != nil {
				return wake, err
			}
		}
		if a.Stop {
			x.stop(ctx)
		}
		for _, e := range a.Ends {
			if err := x.append(ctx, contract.EventPipelineStepEnded, e); err != nil {
				return wake, err
			}
		}
		for i := range a.Starts {
			if err := x.start(ctx, &a.Starts[i]); err != nil {
				return wake, err
			}
		}
		if a.End != nil {
			if err := x.append(ctx, contract.EventPipelineEnded, a.End); err != nil {
				return wake, err
			}
		}
		if len(a.Ends)+len(a.Starts) == 0 && a.End == nil {
			return a.Wake, nil
		}
	}
	return wake, x.outputs(ctx)
}

// wait waits until a call has an outcome, which it records, until wake unless that is
// zero, or until ctx ends.
func (x *run) wait(ctx context.Context, wake time.Time) {
	var timer <-chan time.Time
	if !wake.IsZero() {
		timer = time.After(wake.Sub(x.Emit.Now()))
	}
	select {
	case <-ctx.Done():
	case <-timer:
	case d := <-x.ended:
		if err := x.record(ctx, d); err != nil && !errors.Is(err, errReloaded) {
			x.Log.Warn("the end of a step is not recorded yet", "run", x.state.Run, "call", d.call.CallID, "err", err)
		}
	}
}

// record records the end of a call. If that fails, the next call of step attaches to
// it again.
func (x *run) record(ctx context.Context, d ended) error {
	if l := x.live[d.call.CallID]; l != nil {
		l.close()
		delete(x.live, d.call.CallID)
	}
	if d.err != nil {
		return d.err
	}
	rec := &d.outcome.Recorded
	code := rec.ErrorCode()
	if code == "" && rec.Effect.Status != contract.Succeeded {
		code = contract.CodeHandlerFailed
	}
	return x.append(ctx, contract.EventPipelineStepEnded, x.state.Judge(d.call, rec.Effect.Status, code, d.outcome.Seq))
}

// outputs reads the outputs of the calls that succeeded.
func (x *run) outputs(ctx context.Context) error {
	for _, c := range x.state.Lacking() {
		raw, err := x.outputOf(ctx, c)
		if err != nil {
			return err
		}
		if err := x.state.Put(c, raw); err != nil {
			return err
		}
	}
	return nil
}

// outputOf reads the output of a call, or returns nil if it has none that is stored.
func (x *run) outputOf(ctx context.Context, c flow.Call) ([]byte, error) {
	en, err := x.Emit.Log.Get(ctx, c.Outcome)
	if err != nil {
		return nil, err
	}
	e, err := eventlog.Open(en, bus.ChainFilter(x.w.Event.Tenant, x.w.Event.Session))
	if err != nil {
		return nil, err
	}
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return nil, err
	}
	if e.CallID != c.CallID || rec.Output == nil || rec.Output.Store == contract.StoreWithheld {
		return nil, nil
	}
	raw, err := x.Blobs.In(x.w.Event.Tenant).Open(ctx, rec.Output)
	if errors.Is(err, contract.ErrErased) {
		return nil, nil
	}
	return raw, err
}

// start records that a call starts, and proposes it.
func (x *run) start(ctx context.Context, s *flow.Start) error {
	id := flow.CallID(x.state.Run, s.Step.ID, s.Item, s.Attempt)
	d := &events.PipelineStepStarted{Attempt: int64(s.Attempt), CallID: id, Item: int64(s.Item), Kind: flow.KindOf(s.Step), Run: x.state.Run, Step: s.Step.ID}
	if err := x.append(ctx, contract.EventPipelineStepStarted, d); err != nil {
		return err
	}
	c := flow.Call{Step: s.Step.ID, Item: s.Item, Attempt: s.Attempt, CallID: id, Kind: d.Kind, Since: x.last}
	return x.propose(ctx, c, s.Args)
}

// propose proposes a call and awaits its outcome in the background.
func (x *run) propose(ctx context.Context, c flow.Call, args []byte) error {
	step := &x.state.Doc.Steps[x.state.Doc.Index(c.Step)]
	timeout := time.Duration(step.Timeout()) * time.Second
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	w := x.w
	r := propose.Request{ID: c.CallID, Kind: c.Kind, Tool: step.PackOf(), Args: args, Actor: w.Event.Actor, Client: w.Event.Client, Session: w.Event.Session,
		SessionName: w.Call.SessionName, Token: w.Call.Token, OnBehalfOf: w.Call.OnBehalfOf, Delegation: w.Call.Delegation, Scopes: w.Call.Scopes, Timeout: timeout, Parent: w.Event}
	r.Inherit(w.Call)
	p, err := x.Proposer.Propose(ctx, r)
	if err != nil {
		return err
	}
	x.await(ctx, c, p)
	return nil
}

// await adds a call to x.live, and starts a goroutine that sends the outcome of the
// call, or the error of waiting for it, to x.ended.
func (x *run) await(ctx context.Context, c flow.Call, p *propose.Pending) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	x.live[c.CallID] = &live{pending: p, cancel: cancel}
	go func() {
		out, err := p.Wait(ctx)
		if errors.Is(err, eventlog.ErrIDConflict) { // another instance proposed the call
			out, err = p.Wait(ctx)
		}
		select {
		case x.ended <- ended{c, out, err}:
		case <-ctx.Done():
		}
	}()
}

// attach awaits a call that has started, and proposes it if that was not done.
func (x *run) attach(ctx context.Context, c flow.Call) error {
	if x.live[c.CallID] != nil {
		return nil
	}
	tenant, session := x.w.Event.Tenant, x.w.Event.Session
	proposals := bus.Filter{Tenant: tenant, Service: services.Work, Event: contract.EventCallProposed, Key: session}.String()
	en, err := eventlog.First(ctx, x.Emit.Log, proposals, c.Since, eventlog.OfCall(c.CallID, nil))
	if errors.Is(err, eventlog.ErrNotFound) {
		args, err := x.state.Args(c)
		if err != nil {
			return err
		}
		return x.propose(ctx, c, args)
	}
	if err != nil {
		return err
	}
	e, err := eventlog.Open(en, proposals)
	if err != nil {
		return err
	}
	var call contract.Call
	if err := contract.Decode(e.Data, &call); err != nil {
		return err
	}
	p := x.Proposer.Join(e, &call)
	x.await(ctx, c, p)
	// The outcome may be stored already. The Proposer delivers an outcome that is stored
	// from now on.
	en, err = eventlog.First(ctx, x.Emit.Log, bus.ChainFilter(tenant, session), en.Seq, eventlog.OfCall(c.CallID, p.Expects))
	if err == nil {
		return x.Proposer.Deliver(en)
	}
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil
	}
	return err
}

// stop requests the cancellation of the calls that run.
func (x *run) stop(ctx context.Context) {
	for id, l := range x.live {
		if l.stopped {
			continue
		}
		l.stopped = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAppend)
		if err := l.pending.Cancel(ctx); err != nil && !errors.Is(err, eventlog.ErrIDConflict) {
			x.Log.Warn("a step of a pipeline is not cancelled", "run", x.state.Run, "call", id, "err", err)
		}
		cancel()
	}
}

// close ends the wait for a call.
func (l *live) close() {
	l.cancel()
	l.pending.Close()
}

// leave ends the waits for all calls. The calls go on.
func (x *run) leave() {
	for id, l := range x.live {
		l.close()
		delete(x.live, id)
	}
}

// interrupted returns the result of a run whose context has ended, or that could not
// begin. If the instance is stopping, another one continues the run. If the context has
// ended for another reason, the calls that run are cancelled, and the end of the run is
// recorded. A run that could not begin fails, and nothing more is recorded.
func (x *run) interrupted(ctx context.Context, err error) execute.Result {
	if execute.Stopping(ctx) {
		return execute.Result{Again: true}
	}
	if ctx.Err() == nil {
		return execute.Fail(contract.CodeUnavailable, "the run cannot be recorded: %v", err)
	}
	status, code := contract.Cancelled, contract.CodeCancelled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		status, code = contract.TimedOut, contract.CodeTimeout
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
	defer cancel()
	x.stop(last)
	for len(x.live) > 0 && last.Err() == nil {
		x.wait(last, time.Time{})
	}
	x.end(last, &events.PipelineEnded{Run: x.state.Run, Status: status, ErrorCode: code})
	res := execute.Fail(code, "the run ended before its last step")
	res.Status = status
	return res
}

// end records the end of a run, unless the run has not begun or its end is recorded. If
// that fails, end logs the error.
func (x *run) end(ctx context.Context, e *events.PipelineEnded) {
	for x.from > 0 && x.state.Ended == nil {
		err := x.append(ctx, contract.EventPipelineEnded, e)
		if err == nil || !errors.Is(err, errReloaded) {
			if err != nil {
				x.Log.Error("the end of a run of a pipeline is not recorded", "run", x.state.Run, "err", err)
			}
			return
		}
	}
}

// fail ends the run with a failure.
func (x *run) fail(ctx context.Context, code, message string) execute.Result {
	x.stop(ctx)
	x.end(ctx, &events.PipelineEnded{Run: x.state.Run, Status: contract.Failed, ErrorCode: code, Error: message})
	return execute.Fail(code, "%s", message)
}

// result returns the result of a run that has ended.
func (x *run) result() execute.Result {
	e := x.state.Ended
	if e.Status != contract.Succeeded {
		res := execute.Fail(e.ErrorCode, "%s", e.Error)
		res.EffectType = "pipeline"
		if e.Status != contract.Failed {
			res.Status = e.Status
		}
		return res
	}
	out, err := x.state.Output()
	if err != nil {
		return execute.Fail(contract.CodeInvalidOutput, "/output: %v", err)
	}
	return output(map[string]any{"output": out, "pipeline": x.state.Doc.Name, "run": x.state.Run, "status": e.Status})
}
