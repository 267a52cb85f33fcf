package policy

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/approval"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// decider takes proposals to their decisions.
type decider struct {
	*instance
	sessions  *sessions
	labels    *labels
	ballots   *ballots
	budget    *budget.Ledger
	tracer    *tracing.Tracer
	connected func() time.Time // when the connection to the server was made
}

// proposal is a call on its way to a decision.
type proposal struct {
	event   *contract.Event
	call    contract.Call
	facts   guard.Facts
	args    []byte    // nil: cannot be read
	model   *llm.Args // what the args say, where they are a request's to a model
	retries uint64
	seq     uint64 // of the proposal; 0 where votes have resolved it

	again    bool   // not the first try: labels are read from the ledger
	guess    bool   // labels are what this instance knew
	labelled uint64 // sequence of the event that gave the session its labels
}

// key returns the message id under which the decision on a proposal is appended,
// whatever its verdict: of two deliveries that are decided at the same time and
// differently, one is recorded. What people resolve is decided a second time.
func (p *proposal) key() string {
	if p.facts.Resolution != "" {
		return "resolved:" + p.call.ID
	}
	return "decided:" + p.call.ID
}

// take takes one proposal to its decision. On return the decision is on the ledger,
// or an error says why the proposal has to come again.
func (d *decider) take(ctx context.Context, m delivery) error {
	p := proposal{retries: m.tries, seq: m.entry.Seq}
	var err error
	if p.event, err = eventlog.Open(m.entry); err == nil {
		err = contract.Decode(p.event.Data, &p.call)
	}
	if err != nil || p.call.ID != p.event.CallID || p.event.ID != contract.IDProposal+p.call.ID {
		d.log.Error("not a proposal", "subject", m.entry.Subject, "seq", m.entry.Seq, "err", err)
		return nil
	}
	d.emit.See(p.event.Lamport)
	span := d.tracer.Start(p.event.TraceCtx, "decide "+p.call.Kind, trace.SpanKindConsumer, attribute.String("binnacle.call.id", p.call.ID))
	defer span.End()
	// A server that died may have forgotten that it delivered this before, so what
	// is older than the connection is looked up too.
	if p.retries > 0 || m.stored.Before(d.connected().Add(clockSkew)) {
		if done, err := d.answered(ctx, p.event, p.seq, contract.EventEscalated); err != nil || done {
			return err
		}
		p.again = true
	}
	for {
		if err = d.gather(ctx, &p); err == nil {
			err = d.decide(ctx, &p)
		}
		if !errors.Is(err, errMoved) || p.again {
			return err
		}
		p.again = true
	}
}

// clockSkew is how far the server's clock may be ahead of ours.
const clockSkew = time.Second

// decide evaluates a call and records the decision: allowed, escalated, or denied
// with its receipt. It returns errMoved where the facts are no longer those of the
// ledger.
func (d *decider) decide(ctx context.Context, p *proposal) error {
	eval := d.state.Evaluate(ctx, stack.Call{ID: p.call.ID, IdemKey: p.call.IdemKey, Facts: p.facts, Args: p.args})
	v := eval.Verdict()
	reserved := certain
	if v.Verdict == contract.Allow {
		var err error
		if reserved, err = d.reserve(ctx, p, &eval); err != nil {
			return err
		}
		v = eval.Verdict()
	}
	if v.Verdict == contract.Allow {
		if err := d.labels.spread(ctx, p, eval.Tool()); err != nil {
			return err
		}
	} else if err := d.labels.confirm(ctx, p); err != nil {
		return err
	}
	decision := eval.Decide(d.emit.Tick(), d.signKey())
	switch decision.Verdict {
	case contract.Allow:
		ev := d.emit.New(contract.EventAllowed, p.event.Session, contract.Bytes(&contract.Allowed{Call: p.call, Decision: decision}), p.event)
		ev.Target = decision.Intent.Executor
		return d.append(ctx, p, &decision, ev, reserved)
	case contract.Escalate:
		ev := d.emit.New(contract.EventEscalated, p.event.Session, contract.Bytes(&contract.Escalated{Call: p.call, Decision: decision,
			Expires: contract.Time(approval.Expiry(v.Approvals, d.emit.Now())), Rules: v.Approvals}), p.event)
		return d.append(ctx, p, &decision, ev, reserved)
	}
	return d.deny(ctx, p, &decision, eval.Facts().Budget)
}

// deny records a denial with its receipt.
func (d *decider) deny(ctx context.Context, p *proposal, decision *contract.Decision, b *guard.BudgetFact) error {
	eff := contract.Effect{CallID: p.call.ID, EffectType: p.call.Kind, Ended: d.emit.Time(), ErrorCode: "denied", ErrorMessage: decision.ReasonCode,
		InputDigest: p.call.Args.Commitment, Instance: d.name, Status: contract.Denied, Tool: p.call.Tool}
	if b != nil && b.RetryAt != "" {
		eff.ErrorMessage += "; the window ends at " + b.RetryAt
	}
	err := d.recorder.RecordUnder(ctx, p.key(), p.event, decision, true, eff, nil)
	if errors.Is(err, execute.ErrSuperseded) {
		return nil
	}
	return err
}

// append records a decision that is not a denial, once its reservation is on the
// ledger. A permission that rests on guessed labels expects that the ledger holds
// no others.
func (d *decider) append(ctx context.Context, p *proposal, decision *contract.Decision, ev *contract.Event, reserved func() error) error {
	ev.ID = decision.ID
	b, err := ev.Encode()
	if err != nil {
		return err
	}
	if err := reserved(); err != nil { // it took as long as the signature
		return err
	}
	own := func(e *contract.Event) bool { return e.Service() == "policy" && e.CallID == ev.CallID }
	_, err = eventlog.Contend(ctx, d.emit.Log, p.key(), own, func(id string) (uint64, error) {
		if decision.Verdict == contract.Allow && p.guess {
			return d.emit.Log.AppendExpect(ctx, ev.Subject(), id, b, labelFilter(p.event.Tenant, p.event.Session), p.labelled)
		}
		return d.emit.Log.Append(ctx, ev.Subject(), id, b)
	})
	switch {
	case errors.Is(err, eventlog.ErrIDConflict):
		return nil // decided by the delivery before this one
	case errors.Is(err, eventlog.ErrConflict):
		return errMoved
	}
	return err
}
