package policy

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/approval"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// decider decides proposals and records the decisions.
type decider struct {
	*instance
	sessions  *sessions
	labels    *labels
	ballots   *ballots
	budget    *budget.Ledgers
	tracer    *tracing.Tracer
	connected func() time.Time       // returns the time at which the connection to the NATS server was made
	parents   *lru.Cache[liveParent] // parent calls, by tenant, session, call id and executor
}

// proposal is a call that is being decided, with the facts collected about it.
type proposal struct {
	event   *contract.Event
	call    contract.Call
	facts   guard.Facts
	state   *state.State // state of the call's tenant, or of the cell's own tenant if the call's does not exist
	args    []byte       // nil if they cannot be read
	model   *llm.Args    // decoded args of a request to a model, otherwise nil
	retries uint64
	seq     uint64 // sequence of the proposal; 0 for the second decision after votes
	after   uint64 // for the second decision: the sequence of the proposal; otherwise 0

	early    bool   // whether the call governs the whole mesh because the cell is not opened, according to the state
	again    bool   // whether the labels are read from the ledger, as in a second attempt
	guess    bool   // whether the labels were read from this instance's cache
	labelled uint64 // sequence of the event with the session's labels; 0 = no labels are known
}

// key returns the message id under which the decision is appended, whatever its
// verdict. If two deliveries are decided concurrently and differently, the stream
// therefore stores only one decision. The decision after votes has an id of its
// own.
func (p *proposal) key() string {
	if p.facts.Resolution != "" {
		return "resolved:" + p.call.ID
	}
	return "decided:" + p.call.ID
}

// take decides one proposal. If it returns nil, a decision about the proposal is on the
// ledger. It returns an error that wraps errMalformed if the event is not a valid
// proposal; after any other error the proposal must be delivered again.
func (d *decider) take(ctx context.Context, m delivery) error {
	p := proposal{event: m.event, retries: m.tries, seq: m.seq}
	err := contract.Decode(p.event.Data, &p.call)
	if err != nil || p.call.ID != p.event.CallID || p.event.ID != contract.IDProposal+p.call.ID {
		return errors.Join(errMalformed, err)
	}
	d.emit.See(p.event.Lamport)
	span := d.tracer.Start(p.event.TraceCtx, "decide "+p.call.Kind, trace.SpanKindConsumer, attribute.String("binnacle.call.id", p.call.ID), attribute.String("binnacle.tenant", p.event.Tenant))
	defer span.End()
	// After a restart, the server may report a delivery as the first one although it
	// delivered the message before. For proposals that are older than the connection,
	// the ledger is therefore searched for a decision.
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

// clockSkew is how far the server's clock may be ahead of this instance's.
const clockSkew = time.Second

// decide evaluates a call and records the decision: allowed, escalated, or denied
// with a receipt. It returns errMoved if the facts no longer match the ledger.
func (d *decider) decide(ctx context.Context, p *proposal) error {
	eval := p.state.Evaluate(ctx, stack.Call{ID: p.call.ID, IdemKey: p.call.IdemKey, Facts: p.facts, Args: p.args})
	v := eval.Verdict()
	if v.Verdict == contract.Allow {
		if err := d.reserve(ctx, p, &eval); err != nil {
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
		return d.append(ctx, p, &decision, ev, eval.Facts().Budget)
	case contract.Escalate:
		ev := d.emit.New(contract.EventEscalated, p.event.Session, contract.Bytes(&contract.Escalated{Call: p.call, Decision: decision,
			Expires: contract.Time(approval.Expiry(v.Approvals, d.emit.Now())), Rules: v.Approvals}), p.event)
		return d.append(ctx, p, &decision, ev, eval.Facts().Budget)
	}
	return d.deny(ctx, p, &decision, eval.Facts().Budget)
}

// deny records a denial with its receipt. It returns nil if another delivery of the
// proposal was decided first.
func (d *decider) deny(ctx context.Context, p *proposal, decision *contract.Decision, b *guard.BudgetFact) error {
	eff := contract.Effect{CallID: p.call.ID, EffectType: p.call.Kind, Ended: d.emit.Time(), ErrorCode: contract.CodeDenied, ErrorMessage: decision.ReasonCode,
		InputDigest: p.call.Args.Commitment, Instance: d.name, Status: contract.Denied, Tool: p.call.Tool}
	if b != nil && b.RetryAt != "" {
		eff.ErrorMessage += "; the window ends at " + b.RetryAt
	}
	err := d.recorder.RecordUnder(ctx, p.key(), p.event, decision, true, eff, nil)
	if errors.Is(err, outcome.ErrSuperseded) {
		return nil
	}
	return err
}

// append records a decision that is not a denial. b is the reservation of the call, nil if
// nothing is reserved; append returns errMoved if the allotment that b names was closed
// meanwhile. If the decision is an ALLOW that was made with cached labels, the append
// expects the sequence of the event with those labels; append returns errMoved if there is
// a newer one. An ALLOW of a proposal with early set is not stored if the cell is opened by
// then: append then waits until the state has applied that, and returns errMoved. It
// returns nil if another delivery of the proposal was decided first.
func (d *decider) append(ctx context.Context, p *proposal, decision *contract.Decision, ev *contract.Event, b *guard.BudgetFact) error {
	ev.ID = decision.ID
	body, err := ev.Encode()
	if err != nil {
		return err
	}
	if b != nil && !d.budget.Valid(p.event.Tenant, b) { // last, so that the allotment is checked right before the append
		return errMoved
	}
	own := func(e *contract.Event) bool {
		return e.Service() == services.Policy && e.Tenant == ev.Tenant && e.CallID == ev.CallID
	}
	_, err = eventlog.Contend(ctx, d.emit.Log, p.key(), own, func(id string) (uint64, error) {
		if decision.Verdict == contract.Allow && p.early {
			return d.emit.Log.AppendExpect(ctx, ev.Subject(), id, body, openingFilter(p.event.Tenant), 0)
		}
		if decision.Verdict == contract.Allow && p.guess {
			return d.emit.Log.AppendExpect(ctx, ev.Subject(), id, body, labelFilter(p.event.Tenant, p.event.Session), p.labelled)
		}
		return d.emit.Log.Append(ctx, ev.Subject(), id, body)
	})
	switch {
	case errors.Is(err, eventlog.ErrIDConflict):
		return nil // the proposal was decided in another delivery
	case errors.Is(err, eventlog.ErrConflict) && p.early:
		return errors.Join(errMoved, d.reach(ctx))
	case errors.Is(err, eventlog.ErrConflict):
		return errMoved
	}
	return err
}

// openingFilter returns the filter of cell_opened on a ledger that began in a tenant.
func openingFilter(tenant string) string {
	return bus.AggregateFilter(tenant, services.Provision, "cell")
}
