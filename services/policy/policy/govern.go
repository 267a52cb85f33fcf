package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/tenant"
)

// governor executes the calls that govern the mesh.
type governor struct {
	*instance
	sessions  *sessions
	names     *names
	ballots   *ballots
	activator *activator
	freezes   *freezes
	tenants   *tenants
}

// handle executes one governing call and returns its result. If the call succeeds, the
// event that it causes, if any, is on the ledger when handle returns, and, except for a
// vote, the running instances have usually applied it; see caughtUp. For a freeze, handle also waits
// for the executors' acknowledgements.
func (g *governor) handle(ctx context.Context, w *execute.Work) execute.Result {
	switch w.Call.Kind {
	case kindVote:
		return g.ballots.vote(ctx, w)
	case kindActivate, kindRollback, kindRetire:
		return g.activator.change(ctx, w)
	}
	if tenant.Governs(w.Call.Kind) {
		return g.tenants.change(ctx, w)
	}
	c, err := govern.Parse(w.Call.Kind, w.Args)
	if err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	st := g.tenant(ctx, w.Event.Tenant)
	if st == nil {
		return unknownTenant(w.Event.Tenant)
	}
	by := govern.Caller{CallID: w.Call.ID, Actor: w.Event.Actor, Client: w.Event.Client, Tenant: w.Event.Tenant, Held: w.Call.Scopes, Now: g.emit.Now(), View: st,
		Consistent: func(limits []guard.Limit) error { return g.consistent(w.Event.Tenant, limits) }}
	by.Owns = func(session string) bool {
		owner, err := g.sessions.opener(ctx, by.Tenant, session, "")
		return err == nil && owner == by.Actor
	}
	var fact govern.Fact
	decide := func(h []*contract.Event) (*contract.Event, error) {
		if first := st.Created(); first != nil && c.Aggregate == govern.KeyIdentity {
			h = append([]*contract.Event{first}, h...)
		}
		st, err := folded(h)
		if err != nil {
			return nil, err
		}
		if fact, err = c.Decide(st, by); err != nil {
			return nil, invalid{err}
		}
		return g.fact(fact.Name, c.Aggregate, contract.Bytes(fact.Data), w.Event), nil
	}
	var ev *contract.Event
	if c.Aggregate == govern.KeyFreeze {
		ev, err = g.inCell(ctx, w.Event, c.Aggregate, func(_ handle.Cell, h []*contract.Event) (*contract.Event, error) { return decide(h) })
	} else {
		ev, err = handle.Do(ctx, g.emit.Log, bus.AggregateFilter(w.Event.Tenant, services.Policy, c.Aggregate), decide)
	}
	if res, failed := failure(err); failed {
		return res
	}
	out := map[string]any{"event": ev.ID, "result": json.RawMessage(contract.Bytes(fact.Data))}
	if w.Call.Kind == govern.KindFreeze {
		out["acknowledged"], out["missing"] = g.freezes.acknowledged(ctx, govern.FreezeID(by.CallID))
	}
	g.caughtUp(ctx, ev)
	return result("policy."+fact.Name, out)
}

// folded returns the state that results from the events of an aggregate.
func folded(h []*contract.Event) (*govern.State, error) {
	st := &govern.State{}
	for _, e := range h {
		if err := govern.Evolve(st, e); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// unknownTenant returns the result of a governing call of a tenant that does not exist.
func unknownTenant(tenant string) execute.Result {
	return execute.Fail(contract.CodeInvalidInput, "tenant %s does not exist", tenant)
}

// consistent returns the reason why the limits of a tenant are inconsistent with the
// ceilings in force or refer to names that do not exist, or nil. The tenant must exist.
func (g *governor) consistent(tenant string, limits []guard.Limit) error {
	in := g.states.Of(tenant).Stack()
	st := cpi.Stack{P0: in.Ceilings(), Limits: limits, Known: g.names.known(tenant, "limits", "")}
	findings := cpi.Validate(&st)
	if err := refusal(findings); err != nil {
		at := strings.TrimPrefix(cpi.Errors(findings)[0].Pointer, "/")
		return fmt.Errorf("%s: %w", cmp.Or(at, "limits"), err)
	}
	return nil
}

// refusal returns the findings that prevent an activation as one error, or nil.
func refusal(fs []cpi.Finding) error {
	errs := cpi.Errors(fs)
	if len(errs) == 0 {
		return nil
	}
	lines := make([]string, len(errs))
	for i := range errs {
		lines[i] = errs[i].String()
	}
	return errors.New(strings.Join(lines, "; "))
}

// canonical returns the canonical form of a JSON literal in this package; it
// panics for invalid JSON.
func canonical(s string) contract.Raw {
	b, err := canon.Transform(nil, []byte(s))
	if err != nil {
		panic(err) // an error in this package's source
	}
	return b
}

// result returns a successful result with doc as its output, or a failed one if doc
// cannot be encoded.
func result(effect string, doc any) execute.Result {
	raw, err := json.Marshal(doc)
	if err == nil {
		raw, err = canon.Transform(nil, raw)
	}
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	return execute.Result{EffectType: effect, Output: raw}
}
