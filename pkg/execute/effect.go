package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// run executes a claimed call: it prepares the Work, calls the handler and validates the
// handler's output. It returns a result in every case, also if the call must not start.
// If the handler panics, the result is a failure with error code internal, unless ctx has
// ended.
func (x *Executor) run(ctx context.Context, claim *contract.Event, d *item) (res Result) {
	a := &d.a
	if d.void {
		return fenced
	}
	if errors.Is(context.Cause(ctx), errCancelled) {
		return cancelledBefore
	}
	if why := x.withheld(claim.Tenant, a); why != nil {
		return *why
	}
	began := x.Emit.Now()
	ctx, stop := within(ctx, a)
	defer stop()
	w := x.workOf(claim, d)
	defer func() {
		if p := recover(); p != nil {
			slog.Error("handler panicked", "call", a.Call.ID, "panic", w.Redactor().String(fmt.Sprint(p)))
			res = Fail(contract.CodeInternal, "the handler panicked; see the service's log")
		}
		if !res.Again {
			interrupted(ctx, &res)
		}
		res.sent, res.facts = w.frames, w.facts // also after a panic: the frames were sent, and the facts are awaited
		if res.Usage == nil {
			res.Usage = &contract.Usage{}
		}
		res.Usage.WallMS = x.Emit.Now().Sub(began).Milliseconds()
	}()
	tool := x.tool(a.Call.Kind)
	if w.Args, res = x.args(ctx, claim.Tenant, a, tool); res.ErrorCode != "" {
		return res
	}
	if res = x.named(ctx, w, d); res.ErrorCode != "" {
		return res
	}
	if why := d.undurable(ctx, x.Conn); why != nil {
		return *why
	}
	if errors.Is(context.Cause(ctx), errCancelled) {
		return cancelledBefore
	}
	if why := x.withheld(claim.Tenant, a); why != nil { // a freeze may have begun while arguments and secrets were fetched
		return *why
	}
	if res = w.redacted(x.Handler(ctx, w)); res.Again {
		if x.ReRunable != nil && x.ReRunable(a.Call.Kind) {
			return res
		}
		res = Fail(contract.CodeInternal, "the handler returned a call of a kind that may not run again")
	}
	if res.Usage == nil {
		res.Usage = &contract.Usage{}
	}
	if tool != nil && res.Output != nil && res.ErrorCode == "" {
		if err := x.schemas.Output(a.Decision.ToolDigest, tool, res.Output); err != nil {
			res = Result{Status: contract.Failed, ErrorCode: contract.CodeInvalidOutput, ErrorMessage: "the output " + err.Error(), EffectType: res.EffectType,
				Usage: res.Usage, Attestation: res.Attestation}
		}
	}
	return res
}

// Results of calls that were not started because of a cancellation, a freeze, a suspension,
// or a closed allotment of a budget.
var (
	cancelledBefore = Result{Status: contract.Cancelled, ErrorCode: contract.CodeCancelled, ErrorMessage: "cancelled by the caller before the effect started"}

	frozen    = Result{Status: contract.Cancelled, ErrorCode: contract.CodeSystemFrozen, ErrorMessage: "the mesh was frozen before the effect started"}
	fenced    = Result{Status: contract.Cancelled, ErrorCode: contract.CodeBudgetFenced, ErrorMessage: "the part of the budget that the call was granted had been taken back before; call again"}
	suspended = Result{Status: contract.Cancelled, ErrorCode: contract.CodeTenantSuspended, ErrorMessage: "the tenant was suspended before the effect started"}
)

// withheld returns the result of a call that must not start, because of a freeze or
// because its tenant is suspended, and nil if it may start. The call that ends the freeze
// is exempt from the freeze. The caller must not change the result.
func (x *Executor) withheld(tenant string, a *contract.Allowed) *Result {
	if x.frozen.On() && a.Call.Kind != guard.KindUnfreeze {
		return &frozen
	}
	if _, stopped := x.tenant(tenant); stopped {
		return &suspended
	}
	return nil
}

// undurable waits until the claim of the call, its arguments and its body are synced to
// disk, and returns nil. It returns the result of a call that was not started if they
// cannot be.
func (w *item) undurable(ctx context.Context, c *bus.Conn) *Result {
	if w.body != nil {
		_, _ = w.body(ctx) // the handler gets the error from Work.Body; here the body only has to be stored
	}
	if err := c.Durable(ctx); err != nil {
		res := Fail(contract.CodeUnavailable, "the call was not started: %v", err)
		return &res
	}
	return nil
}

// within returns ctx with the intent's deadline or, if the intent has none, with the
// call's. If that deadline is empty or malformed, it returns ctx itself.
func within(ctx context.Context, a *contract.Allowed) (context.Context, context.CancelFunc) {
	deadline := a.Call.Deadline
	if a.Decision.Intent.Deadline != "" {
		deadline = a.Decision.Intent.Deadline
	}
	t, err := contract.ParseTime(deadline)
	if err != nil {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, t)
}

// interrupted changes the result of a call whose context has ended, unless its status is
// succeeded: status and error become cancelled, failed (executor_stopped) or timed_out,
// depending on the cause. An empty status does not count as succeeded. A result with
// status timed_out is unchanged if the deadline passed.
func interrupted(ctx context.Context, res *Result) {
	if res.Status == contract.Succeeded {
		return
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errCancelled):
		res.Status, res.ErrorCode, res.ErrorMessage = contract.Cancelled, contract.CodeCancelled, "cancelled by the caller"
	case errors.Is(cause, errSuspended):
		res.Status, res.ErrorCode, res.ErrorMessage = contract.Cancelled, contract.CodeTenantSuspended, "the tenant was suspended while the call ran"
	case errors.Is(cause, errStopped):
		res.Status, res.ErrorCode, res.ErrorMessage = contract.Failed, contract.CodeExecutorStopped, "the executor was stopped before the call had ended"
	case ctx.Err() != nil && res.Status != contract.TimedOut:
		res.Status, res.ErrorCode, res.ErrorMessage = contract.TimedOut, contract.CodeTimeout, "the call's deadline passed"
	}
}

// workOf returns the Work of a call, without Args and Secrets, which run adds.
func (x *Executor) workOf(claim *contract.Event, d *item) *Work {
	a := &d.a
	w := &Work{Event: claim, Call: &a.Call, Intent: a.Decision.Intent, Facts: a.Decision.Facts, Instance: x.Instance, Proposer: proposerOf(a.Decision.Facts), ToolDigest: a.Decision.ToolDigest}
	w.Frame = func(data []byte) error {
		w.frames++
		return x.Transport.In(claim.Tenant).Post(claim.Origin, a.Call.ID, w.frames, data)
	}
	w.Fact = func(name string, data []byte) { w.facts = append(w.facts, x.fact(w, name, data)) }
	// A body outside the object store is read only if the handler requests it.
	if w.Body = d.body; d.body == nil {
		w.Body = func(ctx context.Context) ([]byte, error) {
			return x.body(ctx, claim.Tenant, w.Proposer, claim.Origin, &a.Call)
		}
	}
	w.Renew = func(ctx context.Context, names ...string) (map[string]string, error) {
		if x.Renew == nil {
			return nil, errors.New("executor " + x.Service + " cannot renew secrets")
		}
		m, err := x.Renew(ctx, claim, a, d.seq, names)
		for name, v := range m {
			w.Hide(name, v)
		}
		return m, err
	}
	w.Secret = func(ctx context.Context, name string) (string, error) {
		if x.Secrets == nil {
			return "", errors.New("executor " + x.Service + " cannot receive secrets")
		}
		m, err := x.Secrets(ctx, claim, a, d.seq, []string{name})
		w.Hide(name, m[name])
		return m[name], err
	}
	return w
}

// fact starts to append the named event about a running call, with the call's secrets
// removed from data. The returned function waits until the event is stored in the
// ledger, or returns an error.
func (x *Executor) fact(w *Work, name string, data []byte) func(context.Context) (uint64, error) {
	data, err := w.Redactor().JSON(data)
	if err == nil {
		e := x.Emit.New(name, w.Event.Session, data, w.Event)
		var b []byte
		if b, err = e.Encode(); err == nil {
			return x.Emit.Log.Start(e.Subject(), e.ID, b)
		}
	}
	return func(context.Context) (uint64, error) { return 0, err }
}

// args returns the arguments of a call of the given tenant, with the defaults of the
// tool's input schema filled in; tool is nil if the service does not offer the tool. If
// the result has an error code, the call cannot run.
func (x *Executor) args(ctx context.Context, tenant string, a *contract.Allowed, tool *contract.Tool) ([]byte, Result) {
	args, err := x.Blobs.In(tenant).Open(ctx, &a.Call.Args)
	if err == nil {
		err = canon.CheckDepth(args) // any service can record arguments, so their depth is untrusted
	}
	if err != nil {
		return nil, Fail(contract.CodeArgsUnavailable, "the call's arguments cannot be read: %v", err)
	}
	if tool == nil {
		return args, Result{}
	}
	// The decision names the digest of the tool document that it was made on. If the
	// pack has been updated since, another program than the permitted one would run.
	if tool.Pack != "" && contract.Digest(tool) != a.Decision.ToolDigest {
		return nil, Fail(contract.CodeToolDrift, "the decision is on tool document %s, and this instance has another program or document: call again", a.Decision.ToolDigest)
	}
	if args, err = toolschema.Defaults(tool.InputSchema, args); err != nil {
		return nil, Fail(contract.CodeArgsUnavailable, "the defaults of the input schema cannot be filled in: %v", err)
	}
	return args, Result{}
}

// named fetches the secrets that the intent permits by name; secrets permitted by a
// pattern are fetched when the handler calls Work.Secret. If the result has an error
// code, the call cannot run.
func (x *Executor) named(ctx context.Context, w *Work, d *item) Result {
	var names []string
	for _, g := range d.a.Decision.Intent.Secrets {
		if !g.Pattern() {
			names = append(names, g.Name)
		}
	}
	if len(names) == 0 {
		return Result{}
	}
	if x.Secrets == nil {
		return Fail(contract.CodeSecretsUnsupported, "executor %s cannot receive secrets", x.Service)
	}
	var err error
	if w.Secrets, err = x.Secrets(ctx, w.Event, &d.a, d.seq, names); err != nil {
		return Refused(err)
	}
	for name, v := range w.Secrets {
		w.Hide(name, v)
	}
	return Result{}
}

// Refused returns the result of a call that fails because of an error of Executor.Secrets or
// Work.Secret.
func Refused(err error) Result {
	code := contract.EventSecretRefused
	var coded interface{ RefusalCode() string }
	if errors.As(err, &coded) {
		code = coded.RefusalCode()
	}
	return Fail(code, "%v", err)
}

// tool returns the document of the tool with the given kind, or nil if the service does
// not offer one.
func (x *Executor) tool(kind string) *contract.Tool {
	for i := range x.Tools {
		if x.Tools[i].Kind == kind {
			return &x.Tools[i]
		}
	}
	if x.ToolOf != nil {
		return x.ToolOf(kind)
	}
	return nil
}
