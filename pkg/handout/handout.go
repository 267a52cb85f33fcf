// Package handout gives the intents of permitted calls to callers that execute the
// calls themselves, and records what they report. It is the one exception to the
// rule that package execute is the only path to an effect: the claim is on the
// ledger before the intent leaves, but the effect happens where the mesh does not
// see it, and its outcome is the caller's attestation. Only the gateway may use it.
package handout

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/freeze"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// Lender hands intents out for one instance. Every exported field must be set
// before Run; the methods are safe for concurrent use.
type Lender struct {
	Conn     *bus.Conn
	Emit     *emit.Emitter
	Recorder *outcome.Recorder
	Keys     guard.KeyAt
	Instance string

	frozen freeze.State
}

// Errors of hand-outs and reports.
var (
	// ErrFrozen: the mesh is frozen, the intent was withheld.
	ErrFrozen = errors.New("the mesh is frozen")
	// ErrStarting: the instance has not read yet whether the mesh is frozen.
	ErrStarting = errors.New("the gateway has not read the ledger to its end yet")
	// ErrClaimed: the call is claimed already.
	ErrClaimed = errors.New("the call is claimed")
)

// lent is the intents that are handed out. Each stays pending until its call
// has an outcome, so that the server keeps the deadlines.
var lent = bus.Work{Name: "work", Filters: []string{bus.AllowedFilter(contract.CallerExecutor)}, AckWait: 10 * time.Second, MaxAckPending: 65536}

// Work is what a service with a Lender declares.
func Work() bus.Work { return lent }

// Withholds returns why no intent leaves now, ErrFrozen or ErrStarting, or nil.
func (l *Lender) Withholds() error {
	switch {
	case l.frozen.On():
		return ErrFrozen
	case !l.frozen.Known():
		return ErrStarting
	}
	return nil
}

// HandOut claims the call that e allows, so that its intent may go to its caller:
// on return effect_started, executed by the caller, is on the ledger. ErrClaimed
// says that the call was claimed before, by a hand-out or by its expiry.
func (l *Lender) HandOut(ctx context.Context, e *contract.Event, a *contract.Allowed) error {
	if err := guard.CheckIntent(a, e.Tenant, e.Session, contract.CallerExecutor, l.Emit.Now(), l.Keys); err != nil {
		return err
	}
	if err := l.Withholds(); err != nil {
		return err
	}
	claim := outcome.ClaimOf(l.Emit, e, a, contract.Caller)
	err := outcome.Claim(ctx, l.Emit.Log, claim, contract.CallerExecutor)
	if errors.Is(err, eventlog.ErrIDConflict) {
		return ErrClaimed
	}
	if err != nil || !l.frozen.On() {
		return err
	}
	// Frozen between the check and the claim: the intent does not leave.
	eff := outcome.EffectOf(claim, a, l.Emit.Time(), l.Instance)
	eff.Status, eff.ErrorCode, eff.ErrorMessage = contract.Cancelled, "system_frozen", "the mesh was frozen before the intent was handed out"
	if err := l.Recorder.Record(ctx, claim, &a.Decision, false, eff, nil); err != nil && !errors.Is(err, outcome.ErrSuperseded) {
		return err
	}
	return ErrFrozen
}

// Report is what a caller says came of a call that it executed.
type Report struct {
	Status       string // succeeded, failed, timed_out or cancelled
	ErrorCode    string
	ErrorMessage string
	Output       *contract.Content
	Usage        *contract.Usage
}

// Check reports what no caller can say of a call.
func (r *Report) Check() error {
	switch r.Status {
	case contract.Succeeded:
		if r.ErrorCode != "" || r.ErrorMessage != "" {
			return &ReportError{r.errorField(), "a call that succeeded has none"}
		}
		return nil
	case contract.Failed, contract.TimedOut, contract.Cancelled:
		if r.Output != nil {
			return &ReportError{"output", "belongs to status succeeded"}
		}
		return nil
	}
	return &ReportError{"status", "want succeeded, failed, timed_out or cancelled"}
}

// errorField is the member that says what went wrong.
func (r *Report) errorField() string {
	if r.ErrorCode != "" {
		return "error_code"
	}
	return "error_message"
}

// ReportError is what is wrong with a Report, and in which member of its JSON.
type ReportError struct{ Field, Problem string }

// Error names the member and what is wrong with it.
func (e *ReportError) Error() string { return e.Field + ": " + e.Problem }

// Close records the outcome that a caller reports of the call that started claims,
// marked as the caller's attestation. late: the deadline had passed, the call's
// outcome is unknown, and the report is to be recorded as a fact of its own.
// outcome.ErrSuperseded: the call had an outcome already.
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

// overdue reports whether the report of a call was due.
func (l *Lender) overdue(a *contract.Allowed) bool {
	due, err := contract.ParseTime(a.Decision.Intent.Deadline)
	return err != nil || !l.Emit.Now().Before(due)
}

// lose ends a call of which no report came in time.
func (l *Lender) lose(ctx context.Context, started *contract.Event, a *contract.Allowed) error {
	eff := outcome.EffectOf(started, a, l.Emit.Time(), l.Instance)
	eff.Status, eff.ErrorCode = contract.Unknown, "report_missing"
	eff.ErrorMessage = "the caller, who executed the call, did not report its outcome by " + a.Decision.Intent.Deadline
	if err := l.Recorder.Record(ctx, started, &a.Decision, false, eff, nil); !errors.Is(err, outcome.ErrSuperseded) {
		return err
	}
	return nil
}

// Run follows the freeze and ends calls of which no report comes, until ctx
// ends. Any instance ends what any other handed out.
func (l *Lender) Run(ctx context.Context) error {
	l.frozen.Emit, l.frozen.Instance = l.Emit, l.Instance
	last, err := l.Conn.Tail(ctx, bus.Events)
	if err != nil {
		return nil // ctx ended
	}
	if err := l.frozen.Load(ctx); err != nil {
		return err
	}
	control := follow.New(l.Conn, l.Instance, bus.Control, func(en eventlog.Entry) error {
		if e, err := eventlog.Open(en); err == nil {
			l.frozen.Apply(ctx, e)
		}
		return nil
	})
	go func() { _ = control.Run(ctx, last+1) }()
	return consumer.Run(ctx, l.Conn, lent.Consumer(contract.CallerExecutor), 16, lent.AckWait, l.watch)
}

// lookAgain bounds how long a handed out intent is left alone.
const lookAgain = time.Hour

// watch ends one call that was handed out, once its report is due.
func (l *Lender) watch(ctx context.Context, m jetstream.Msg) {
	wait, err := l.due(ctx, m)
	switch {
	case err != nil:
		slog.Warn("an intent that was handed out is looked at again", "subject", m.Subject(), "err", err)
		_ = m.NakWithDelay(time.Second)
	case wait > 0:
		_ = m.NakWithDelay(min(wait, lookAgain))
	default:
		_ = m.Ack()
	}
}

// due is how long until a handed out call has to be looked at again; 0: it has
// ended.
func (l *Lender) due(ctx context.Context, m jetstream.Msg) (time.Duration, error) {
	md, err := m.Metadata()
	if err != nil {
		return 0, err
	}
	var a contract.Allowed
	e, err := eventlog.Open(eventlog.Entry{Seq: md.Sequence.Stream, Subject: m.Subject(), Data: m.Data()})
	if err == nil {
		err = contract.Decode(e.Data, &a)
	}
	if err != nil || a.Decision.Intent == nil {
		slog.Error("not a decision", "subject", m.Subject(), "seq", md.Sequence.Stream, "err", err)
		return 0, nil
	}
	if err := guard.VerifyDecision(&a.Decision, l.Keys); err != nil {
		return 0, err
	}
	if due, err := contract.ParseTime(a.Decision.Intent.Deadline); err == nil && l.Emit.Now().Before(due) {
		return max(due.Sub(l.Emit.Now()), time.Millisecond), nil
	}
	h, err := outcome.CallOf(e, contract.CallerExecutor).Look(ctx, l.Emit.Log, md.Sequence.Stream)
	switch {
	case err != nil || h.Recorded:
		return 0, err
	case h.Claim == nil: // policy expires it
		return time.Second, nil
	case h.Service() != contract.CallerExecutor:
		return 0, nil // expired; policy records that
	}
	return 0, l.lose(ctx, h.Claim, &a)
}
