package policy

import (
	"context"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/starts"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// queries implements the queries of policy, which other services send. Queries append
// nothing to the ledger.
type queries struct {
	*instance
	budget *budget.Ledgers
	starts *starts.View
}

// serve registers the query handlers. view and started are the followers of the state
// and of the view of unstarted calls.
func (q *queries) serve(transport rpc.Registrar, view, started *follow.Follower) {
	server := &rpc.Server{Transport: transport, View: view}
	rpc.Serve(server, query.ViewQuery, func(context.Context, *query.ViewRequest) (query.ViewDump, error) {
		// The position and the dump must match. If an event was applied in between, the
		// dump is repeated.
		for {
			at := view.Position()
			dump := q.states.Dump()
			if view.Position() == at {
				return query.ViewDump{Name: "policy.state", Position: at, Dump: string(dump)}, nil
			}
		}
	})
	rpc.Serve(server, events.ApprovalsQuery, q.approvals)
	rpc.Serve(server, events.ApprovalQuery, q.approval)
	rpc.Serve(server, events.ExplainQuery, q.explain)
	rpc.Serve(server, events.KeysQuery, q.keys)
	rpc.Serve(server, events.IdentitiesQuery, q.identities)
	rpc.Serve(server, events.PoliciesQuery, q.policies)
	rpc.Serve(server, events.TenantsQuery, q.tenants)
	money := &rpc.Server{Transport: transport, View: accounts{q.budget}, Fresh: q.budget.Read}
	rpc.Serve(money, events.LimitsQuery, q.limits)
	rpc.Serve(money, events.BudgetViewQuery, func(context.Context, *events.BudgetViewRequest) (query.ViewDump, error) {
		at, dump := q.budget.Dump()
		return query.ViewDump{Name: "policy.budget", Position: at, Dump: string(dump)}, nil
	})
	rpc.Serve(&rpc.Server{Transport: transport, View: started}, events.StartsViewQuery, func(context.Context, *events.StartsViewRequest) (query.ViewDump, error) {
		at, dump := q.starts.Dump()
		return query.ViewDump{Name: "policy.starts", Position: at, Dump: string(dump)}, nil
	})
}

// inTenant returns the state of the tenant that a query was sent for. It fails with not_found
// if that tenant does not exist, and with unavailable if this instance cannot determine
// that; see known.
func (q *queries) inTenant(ctx context.Context) (*state.State, error) {
	tenant := transient.Tenant(ctx)
	st, err := q.known(ctx, tenant)
	if err != nil {
		return nil, rpc.Errorf(contract.CodeUnavailable, "%v", err)
	}
	if st != nil {
		return st, nil
	}
	return nil, rpc.Errorf(contract.CodeNotFound, "tenant %s does not exist", tenant)
}

// accounts implements rpc.View for the budget ledger.
type accounts struct{ *budget.Ledgers }

// Position implements rpc.View. It returns the sequence of the last entry that the budget
// ledgers have applied.
func (x accounts) Position() uint64 { at, _ := x.Dump(); return at }

// Pending implements rpc.View. It returns 0, because each query first reads the budget
// ledger to its end.
func (accounts) Pending() uint64 { return 0 }

// tenants returns the tenants of the mesh, sorted by id.
func (q *queries) tenants(context.Context, *events.TenantsRequest) ([]events.Tenant, error) {
	all, original := state.Tenants(&q.states)
	out := make([]events.Tenant, len(all))
	for i := range all {
		out[i] = tenantRow(&all[i], original)
	}
	return out, nil
}

// tenantRow returns a tenant as queries return it. original is the id of the original one.
func tenantRow(t *trust.Tenant, original string) events.Tenant {
	out := events.Tenant{Tenant: t.ID, Original: t.ID == original, Since: t.Since, Suspended: t.Suspended, Quota: t.Quota}
	if parts := strings.Split(t.ID, "_"); len(parts) == 3 {
		if _, err := contract.TenantID(parts[0], parts[1], parts[2]); err == nil {
			out.Organization, out.Project, out.Environment = parts[0], parts[1], parts[2]
		}
	}
	return out
}

// approvals returns the calls that wait for approval, without their args.
func (q *queries) approvals(ctx context.Context, _ *events.ApprovalsRequest) ([]events.PendingCall, error) {
	st, err := q.inTenant(ctx)
	if err != nil {
		return nil, err
	}
	waiting := st.Escalations()
	out := make([]events.PendingCall, len(waiting))
	for i := range waiting {
		out[i] = pendingCall(&waiting[i])
	}
	return out, nil
}

// approval returns one call that waits for approval, with its args if they can be read.
// It fails with not_found if the call does not wait. The state may not have applied the escalation
// yet, since a person or a program that was notified of it may query it at once.
func (q *queries) approval(ctx context.Context, r *events.ApprovalRequest) (out events.PendingCall, err error) {
	st, err := q.inTenant(ctx)
	if err != nil {
		return out, err
	}
	x, args, ok := st.Escalation(r.CallID)
	if !ok {
		if err := q.reach(ctx); err != nil {
			return out, err
		}
		x, args, ok = st.Escalation(r.CallID)
	}
	if !ok {
		return out, rpc.Errorf(contract.CodeNotFound, "no call %s waits for approval", r.CallID)
	}
	out = pendingCall(&x)
	if b, err := q.contents(x.Tenant).Open(ctx, &args); err == nil {
		out.Args = b
	}
	return out, nil
}

func pendingCall(x *state.Escalation) events.PendingCall {
	return events.PendingCall{CallID: x.CallID, SessionID: x.Session, Tenant: x.Tenant, Kind: x.Kind, Tool: x.Tool, Actor: x.Actor, OnBehalfOf: x.OnBehalfOf,
		ReasonCode: x.Reason, Since: x.Since, Expires: x.Expires, Rules: slices.Concat([]contract.ApprovalRule{}, x.Rules), Votes: x.Votes, DecisionDigest: x.DecisionDigest}
}

// limits returns the limits in force and the accounts of the budget ledger. Before it is
// called, the newest budget events have been applied.
func (q *queries) limits(ctx context.Context, _ *events.LimitsRequest) (out events.LimitsState, err error) {
	st, err := q.inTenant(ctx)
	if err != nil {
		return out, err
	}
	out.Limits = []guard.Limit{}
	st.Read(func(v *state.View) { out.Limits = append(out.Limits, v.Limits()...) })
	rows, err := q.budget.Rows(ctx, transient.Tenant(ctx))
	if err != nil {
		return out, err
	}
	out.Accounts = []events.Account{}
	for _, r := range rows {
		out.Accounts = append(out.Accounts, events.Account{Account: r.Account, Window: r.Window, Reserved: r.Reserved, Committed: r.Committed})
	}
	return out, nil
}

// keys returns all virtual keys, including revoked ones.
func (q *queries) keys(ctx context.Context, _ *events.KeysRequest) ([]events.VirtualKey, error) {
	st, err := q.inTenant(ctx)
	if err != nil {
		return nil, err
	}
	out := []events.VirtualKey{}
	st.Read(func(v *state.View) {
		for _, k := range v.People.Keys.List() {
			out = append(out, events.VirtualKey{ID: k.ID, Actor: k.Actor, Maker: k.Maker, Digest: k.Digest, Scopes: k.Scopes, Kinds: k.Kinds, Models: k.Models, Tags: k.Tags,
				BudgetUSDMicros: k.BudgetUSDMicros, BudgetWindow: k.BudgetWindow, RateCalls: k.RateCalls, RateWindow: k.RateWindow, Concurrent: k.Concurrent,
				Cache: k.Cache, Expires: k.Expires, Revoked: k.Revoked})
		}
	})
	return out, nil
}

// identities returns the principals, and the records that give or end authority, at the
// Lamport time r.At or, if that is 0, over the whole history. It also returns all
// break-glass grants and the id of the freeze in force now.
func (q *queries) identities(ctx context.Context, r *events.IdentitiesRequest) (events.IdentitiesState, error) {
	out := events.IdentitiesState{Identities: []events.Identity{}, BreakGlass: []events.BreakGlassGrant{}}
	st, err := q.inTenant(ctx)
	if err != nil {
		return out, err
	}
	st.Read(func(v *state.View) {
		list := v.People.Identities()
		if r.At > 0 {
			list = v.People.IdentitiesAt(r.At, "")
		}
		for _, i := range list {
			out.Identities = append(out.Identities, events.Identity{Kind: i.Kind, Type: i.Type, Suspended: i.Suspended, ID: i.ID, Name: i.Name, Principal: i.Principal, Role: i.Role,
				Delegate: i.Delegate, Kinds: i.Kinds, Expires: i.Expires, FromLamport: i.From, ToLamport: i.To})
		}
		for _, g := range v.People.Emergencies.List() {
			out.BreakGlass = append(out.BreakGlass, events.BreakGlassGrant{ID: g.ID, Actor: g.Actor, Reason: g.Reason, Expires: g.Expires, Reviewer: g.Reviewer, Verdict: g.Verdict})
		}
		out.Frozen = v.Frozen()
	})
	return out, nil
}

// policies returns the policy documents in force.
func (q *queries) policies(ctx context.Context, _ *events.PoliciesRequest) ([]events.PolicyDocument, error) {
	st, err := q.inTenant(ctx)
	if err != nil {
		return nil, err
	}
	out := []events.PolicyDocument{}
	for _, x := range st.InForce() {
		out = append(out, events.PolicyDocument{Bundle: x.Bundle, Digest: x.Digest, Layer: x.Layer, Name: x.Name, Precedence: x.Precedence, Retired: x.Retired, Source: x.Source, Body: x.Body})
	}
	return out, nil
}
