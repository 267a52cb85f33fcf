package policy

import (
	"context"
	"errors"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// explain returns the steps of a recorded decision. It does not search the ledger for
// documents unless the decision names one that is not in force any more. It fails with
// invalid_input if the events of the request are not the proposal and a decision of one
// call of the tenant, with unavailable if the ledger cannot be read or ctx is done, with
// not_found if a document that the decision names cannot be read for another reason, for
// example because it was erased, and with the errors of inTenant.
func (q *queries) explain(ctx context.Context, r *events.ExplainRequest) ([]events.Step, error) {
	st, err := q.inTenant(ctx)
	if err != nil {
		return nil, err
	}
	e, err := eventlog.OpenBytes(r.Proposal, eventlog.Every)
	var call contract.Call
	if err != nil || e.Name != contract.EventCallProposed || e.Tenant != transient.Tenant(ctx) || contract.Decode(e.Data, &call) != nil {
		return nil, rpc.Errorf(contract.CodeInvalidInput, "proposal: want the event that proposed a call of the tenant")
	}
	decided, err := eventlog.OpenBytes(r.Decision, eventlog.Every)
	if err != nil || decided.CallID != e.CallID || decided.Tenant != e.Tenant {
		return nil, rpc.Errorf(contract.CodeInvalidInput, "decision: want an event of call %s", e.CallID)
	}
	d, err := contract.DecisionIn(decided)
	if err != nil || d == nil {
		return nil, rpc.Errorf(contract.CodeInvalidInput, "decision: event %s has no decision", decided.ID)
	}
	args, err := q.contents(e.Tenant).Open(ctx, &call.Args)
	if err != nil {
		args = nil // Evaluate denies the call for that reason
	}
	eval, err := st.Explain(ctx, decided, d, args, q.documents(ctx))
	switch {
	case errors.Is(err, eventlog.ErrUnavailable) || ctx.Err() != nil:
		return nil, rpc.Errorf(contract.CodeUnavailable, "%v", err)
	case err != nil:
		return nil, rpc.Errorf(contract.CodeNotFound, "%v", err)
	}
	out := []events.Step{}
	for _, s := range eval.Steps() {
		out = append(out, events.Step{At: s.At, Digest: s.Digest, Layer: s.Part, Name: s.Name, ReasonCode: s.Reason, Verdict: s.Verdict})
	}
	return out, nil
}

// documents yields every event that activates or retires a policy document, and then every
// event that registers a tool, in the order of the ledger. It omits entries that are not
// valid events.
func (q *queries) documents(ctx context.Context) func(func(*contract.Event, error) bool) {
	return func(yield func(*contract.Event, error) bool) {
		for _, f := range []bus.Filter{{Service: services.Policy, Event: contract.EventPolicyActivated}, {Event: contract.EventToolRegistered}} {
			for en, err := range q.emit.Log.Scan(ctx, f.String(), 1) {
				if err != nil {
					yield(nil, err)
					return
				}
				e, err := eventlog.Open(en, f.String())
				if err == nil && !yield(e, nil) {
					return
				}
			}
		}
	}
}
