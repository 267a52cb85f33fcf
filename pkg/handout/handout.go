// Package handout hands out the intents of permitted calls to callers that execute the
// calls themselves, and records the outcomes of these calls from their callers' reports.
// It is the one exception to the rule that package execute is the only path to an
// effect: the claim is stored in the ledger before the intent is handed out, but the
// effect happens outside the mesh, and only the caller attests it. Only the gateway may
// import the package.
package handout

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/budgetfence"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/freeze"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Lender hands out intents and records the outcomes of their calls for one instance.
// Every exported field but Tenants must be set before Run is called. Its methods are
// safe for concurrent use.
type Lender struct {
	Conn     *bus.Conn
	Emit     *emit.Emitter
	Recorder *outcome.Recorder
	Keys     guard.KeyAt
	Instance string
	// Tenants reports whether a tenant exists and whether it is suspended, according to
	// the part of the ledger that this instance has read. If it is nil, every tenant
	// exists and none is suspended.
	Tenants func(id string) (exists, suspended bool)
	// Cell returns the current state of the cell, whose events freeze the mesh; see
	// freeze.State.
	Cell func(context.Context) (handle.Cell, error)

	frozen freeze.State
	fence  budgetfence.Fence
}

// Errors of HandOut and Withholds.
var (
	// ErrFrozen is returned if the mesh is frozen; the intent is not handed out.
	ErrFrozen = errors.New("the mesh is frozen")
	// ErrStarting is returned while the instance has not read from the ledger whether
	// the mesh is frozen.
	ErrStarting = errors.New("the gateway has not read the ledger to its end yet")
	// ErrClaimed is returned if the call has been claimed before.
	ErrClaimed = errors.New("the call is claimed")

	errFenced    = errors.New("the budget that the call was granted had been taken back before")
	errSuspended = errors.New("the tenant is suspended")
	errNoTenant  = errors.New("tenant not found")
)

// lent is the durable consumer of the allowed calls whose executor is their caller. Each
// message stays pending until nothing is left to do for its call, so that the NATS
// server stores the deadlines and no instance has to.
var lent = bus.Work{Name: "work", Filters: []string{bus.AllowedFilter(contract.CallerExecutor)},
	Ends: bus.OutcomesOf(services.Gateway), AckWait: 10 * time.Second, MaxAckPending: 65536}

// Work returns the durable consumer that a service with a Lender must declare.
func Work() bus.Work { return lent }

// Withholds returns ErrFrozen or ErrStarting if no intent may be handed out now, and nil
// otherwise.
func (l *Lender) Withholds() error {
	switch {
	case l.frozen.On():
		return ErrFrozen
	case !l.frozen.Known():
		return ErrStarting
	}
	return nil
}

// HandOut claims the call that e allows, so that its intent may be handed out to its
// caller. If the error is nil, the event effect_started, with the caller as executor, is
// stored in the ledger. HandOut returns ErrClaimed if a hand-out or an expiry has claimed
// the call before, ErrFrozen, ErrStarting, an error of guard.CheckIntent or of the
// ledger, the error of a context if the instance has not read the ledger up to e within
// fenceWait, or another error if the call's tenant does not exist or is suspended, or if
// the amounts that the call draws from a budget are void. If the amounts are void, the
// tenant is suspended, or the mesh is frozen after the claim, HandOut records the call's
// outcome as cancelled.
func (l *Lender) HandOut(ctx context.Context, e *contract.Event, a *contract.Allowed) error {
	if err := guard.CheckIntent(a, e.Tenant, e.Session, contract.CallerExecutor, l.Emit.Now(), l.Keys); err != nil {
		return err
	}
	if exists, _ := l.tenant(e.Tenant); !exists {
		return errNoTenant
	}
	if err := l.Withholds(); err != nil {
		return err
	}
	return l.claim(ctx, e, a)
}

// tenant returns the result of l.Tenants, or its default.
func (l *Lender) tenant(id string) (exists, suspended bool) {
	if l.Tenants == nil {
		return true, false
	}
	return l.Tenants(id)
}

// claim implements HandOut for a call whose intent is valid.
func (l *Lender) claim(ctx context.Context, e *contract.Event, a *contract.Allowed) error {
	void, err := l.void(ctx, e, a)
	if err != nil {
		return err
	}
	claim := outcome.ClaimOf(l.Emit, e, a, contract.Caller)
	err = outcome.Claim(ctx, l.Emit.Log, claim, contract.CallerExecutor)
	if errors.Is(err, eventlog.ErrIDConflict) {
		return ErrClaimed
	}
	if err != nil {
		return err
	}
	eff := outcome.EffectOf(claim, a, l.Emit.Time(), l.Instance)
	eff.Status = contract.Cancelled
	_, suspended := l.tenant(e.Tenant)
	switch {
	case void:
		eff.ErrorCode, eff.ErrorMessage, err = contract.CodeBudgetFenced, "the part of the budget that the call was granted had been taken back before; call again", errFenced
	case l.frozen.On(): // the freeze may have begun after the check before the claim
		eff.ErrorCode, eff.ErrorMessage, err = contract.CodeSystemFrozen, "the mesh was frozen before the intent was handed out", ErrFrozen
	case suspended:
		eff.ErrorCode, eff.ErrorMessage, err = contract.CodeTenantSuspended, "the tenant was suspended before the intent was handed out", errSuspended
	default:
		return nil
	}
	if err := l.Recorder.Record(ctx, claim, &a.Decision, false, eff, nil); err != nil && !errors.Is(err, outcome.ErrSuperseded) {
		return err
	}
	return err
}

// fenceWait is how long HandOut waits until the instance has read the ledger up to the
// event that allows the call.
const fenceWait = 2 * time.Second

// void reports whether the amounts that a call draws from a budget are void. It returns
// the error of the ledger, or that of a context if the instance has not read the ledger up
// to e within fenceWait.
func (l *Lender) void(ctx context.Context, e *contract.Event, a *contract.Allowed) (bool, error) {
	if !budgetfence.Draws(a.Decision.Facts) {
		return false, nil
	}
	ctx, stop := context.WithTimeout(ctx, fenceWait)
	defer stop()
	_, seq, err := outcome.CallOf(e, contract.CallerExecutor).Allowed(ctx, l.Emit.Log, 0)
	if err != nil {
		return false, err
	}
	return l.fence.Void(ctx, a.Decision.Facts, seq)
}

// Report is a caller's report of how a call that it executed ended.
type Report struct {
	Status       string // succeeded, failed, timed_out or cancelled
	ErrorCode    string
	ErrorMessage string
	Output       *contract.Content
	Usage        *contract.Usage
}

// Check returns a *ReportError if the members of the report contradict each other or its
// status is not one that a caller can report.
func (r *Report) Check() error {
	switch r.Status {
	case contract.Succeeded:
		if r.ErrorCode != "" || r.ErrorMessage != "" {
			return &ReportError{r.errorField(), "a call that succeeded has none"}
		}
		return nil
	case contract.Failed, contract.TimedOut, contract.Cancelled: // the output of a tool that failed may have what it changed
		return nil
	}
	return &ReportError{"status", "want succeeded, failed, timed_out or cancelled"}
}

// errorField returns the JSON name of the error member that is set, or error_code if
// both are.
func (r *Report) errorField() string {
	if r.ErrorCode != "" {
		return "error_code"
	}
	return "error_message"
}

// ReportError describes the problem of a Report, and names the invalid member by its
// JSON name.
type ReportError struct{ Field, Problem string }

// Error implements error. Its form is FIELD: PROBLEM.
func (e *ReportError) Error() string { return e.Field + ": " + e.Problem }

// Close records the outcome of a call from its caller's report, marked as attested by
// the caller, and returns the reported effect. started is the claim of the call. late is
// true if the deadline has passed or is malformed: Close then records the outcome
// unknown, unless the call has one, and the code that called Close must record the
// report as a separate event. The errors are those of Recorder.Record;
// outcome.ErrSuperseded, which means that the call already has an outcome, is returned
// only if late is false.
func (l *Lender) Close(ctx context.Context, started *contract.Event, a *contract.Allowed, r *Report) (eff contract.Effect, late bool, err error) {
	eff = outcome.EffectOf(started, a, l.Emit.Time(), l.Instance)
	eff.AttestedBy, eff.Status, eff.ErrorCode, eff.ErrorMessage, eff.Usage = contract.Caller, r.Status, r.ErrorCode, r.ErrorMessage, r.Usage
	if r.Output != nil {
		eff.OutputDigest = r.Output.Commitment
	}
	if l.overdue(a) {
		return eff, true, l.lose(ctx, started, a)
	}
	return eff, false, l.Recorder.Record(ctx, started, &a.Decision, false, eff, r.Output)
}

// overdue reports whether the deadline for a call's report has passed or is malformed.
func (l *Lender) overdue(a *contract.Allowed) bool {
	due, err := contract.ParseTime(a.Decision.Intent.Deadline)
	return err != nil || !l.Emit.Now().Before(due)
}

// lose records the outcome unknown for a call that was not reported in time. It returns
// nil if the call already has an outcome.
func (l *Lender) lose(ctx context.Context, started *contract.Event, a *contract.Allowed) error {
	eff := outcome.EffectOf(started, a, l.Emit.Time(), l.Instance)
	eff.Status, eff.ErrorCode = contract.Unknown, contract.CodeReportMissing
	eff.ErrorMessage = "the caller, who executed the call, did not report its outcome by " + a.Decision.Intent.Deadline
	if err := l.Recorder.Record(ctx, started, &a.Decision, false, eff, nil); !errors.Is(err, outcome.ErrSuperseded) {
		return err
	}
	return nil
}

// Run tracks the freeze and ends calls that are not reported in time, until ctx ends.
// Each instance ends calls that any instance handed out. Run returns an error if the
// state of the freeze cannot be read, and otherwise nil.
func (l *Lender) Run(ctx context.Context) error {
	l.frozen.Emit, l.frozen.Instance, l.frozen.Cell = l.Emit, l.Instance, l.Cell
	last, err := l.Conn.Tail(ctx, bus.Events)
	if err != nil {
		return nil // ctx ended
	}
	if err := l.frozen.Load(ctx); err != nil {
		return err
	}
	if err := eventlog.Retry(ctx, func() error { return l.fence.Load(ctx, l.Emit.Log, last) }); err != nil {
		return nil // ctx ended
	}
	control := follow.New(l.Conn, l.Instance, bus.ExecutorControl(contract.CallerExecutor), func(en eventlog.Entry) error {
		l.fence.Apply(en)
		if e, err := eventlog.Open(en, bus.Control.Filters...); err == nil {
			l.frozen.Apply(ctx, en.Seq, e)
		}
		return nil
	})
	go func() { _ = control.Run(ctx, last+1) }()
	return consumer.Run(ctx, l.Conn, contract.CallerExecutor, lent, 16, l.watch)
}

// lookAgain is the maximum time between two checks of a handed-out intent.
const lookAgain = time.Hour

// watch processes one delivery of an allowed call whose executor is its caller. It
// acknowledges the message if nothing is left to do for the call. Otherwise it has the
// message delivered again: after the time that due returns, but at most lookAgain, or
// after a second if due fails.
func (l *Lender) watch(ctx context.Context, d *consumer.Delivery) {
	wait, err := l.due(ctx, d)
	switch {
	case err != nil:
		slog.Warn("intent that was handed out not checked, retrying", "subject", d.Subject, "err", err)
		d.Nak(time.Second)
	case wait > 0:
		d.Nak(min(wait, lookAgain))
	default:
		d.Ack()
	}
}

// due returns the time until a call must be checked again, or 0 if nothing is left to
// do. It records the outcome unknown of a call that was handed out and whose report is
// overdue.
func (l *Lender) due(ctx context.Context, d *consumer.Delivery) (time.Duration, error) {
	var a contract.Allowed
	e, err := d.Open()
	if err == nil {
		err = contract.Decode(e.Data, &a)
	}
	if err != nil || a.Decision.Intent == nil {
		slog.Error("not a decision", "subject", d.Subject, "seq", d.Seq, "err", err)
		return 0, nil
	}
	// The key that signed the decision may not have arrived in this instance yet, so a
	// decision that does not verify is checked again later.
	if err := guard.VerifyDecision(&a.Decision, l.Keys); err != nil {
		return 0, err
	}
	if due, err := contract.ParseTime(a.Decision.Intent.Deadline); err == nil && l.Emit.Now().Before(due) {
		return max(due.Sub(l.Emit.Now()), time.Millisecond), nil
	}
	h, err := outcome.CallOf(e, contract.CallerExecutor).Look(ctx, l.Emit.Log, d.Seq)
	switch {
	case err != nil || h.Over(contract.CallerExecutor):
		return 0, err
	case h.Claim == nil: // the call is not claimed; policy is going to expire it
		return time.Second, nil
	}
	return 0, l.lose(ctx, h.Claim, &a)
}
