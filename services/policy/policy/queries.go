package policy

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/starts"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// queries answers the queries of other services. They change nothing.
type queries struct {
	*instance
	budget *budget.Ledger
	starts *starts.View
}

// serve registers them; view is the follower of the state.
func (q *queries) serve(box *transient.Box, view *follow.Follower) {
	box.Serve("view", plain(func() any {
		// The position and the dump are taken together or not at all.
		for {
			at := view.Position()
			dump := q.state.Dump()
			if view.Position() == at {
				return dumped("policy.state", at, dump)
			}
		}
	}))
	box.Serve("budget_view", plain(func() any {
		at, dump := q.budget.Dump()
		return dumped("policy.budget", at, dump)
	}))
	box.Serve("starts_view", plain(func() any {
		at, dump := q.starts.Dump()
		return dumped("policy.starts", at, dump)
	}))
	box.Serve("approvals", plain(func() any { return q.state.Escalations() }))
	box.Serve("approval", q.approval)
	box.Serve("limits", q.limits)
	box.Serve("keys", plain(func() (list any) {
		q.state.Read(func(v *state.View) { list = v.People.Keys.List() })
		return list
	}))
	box.Serve("identities", q.identities)
	box.Serve("policies", plain(func() any { return q.state.InForce() }))
}

// plain makes the handler of a query without arguments.
func plain(answer func() any) transient.Handler {
	return func(_ context.Context, _ json.RawMessage, reply func(any) error) error { return reply(answer()) }
}

// dumped is a view's canonical form at a position.
func dumped(name string, at uint64, dump []byte) any {
	return map[string]any{"name": name, "position": at, "dump": string(dump)}
}

// approval returns one call that waits for approval, with its args if they can be
// read.
func (q *queries) approval(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
	var a struct {
		CallID string `json:"call_id"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	out, args, ok := q.state.Escalation(a.CallID)
	if !ok {
		return errors.New("not found: no call " + a.CallID + " waits for approval")
	}
	if b, err := q.contents.Open(ctx, &args); err == nil {
		out.Args = b
	}
	return reply(out)
}

// limits returns the limits in force and the accounts as the ledger has them now.
func (q *queries) limits(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
	if err := q.budget.Read(ctx); err != nil {
		return err
	}
	limits := []guard.Limit{}
	q.state.Read(func(v *state.View) { limits = append(limits, v.Limits()...) })
	return reply(map[string]any{"limits": limits, "accounts": q.budget.Rows()})
}

// identities returns who is who and what gives or ends authority, at a lamport or
// over all of history.
func (q *queries) identities(_ context.Context, raw json.RawMessage, reply func(any) error) error {
	var a struct {
		At uint64 `json:"at"` // lamport; 0 = all of history
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	var out map[string]any
	q.state.Read(func(v *state.View) {
		list := v.People.Identities()
		if a.At > 0 {
			list = v.People.IdentitiesAt(a.At, "")
		}
		out = map[string]any{"identities": list, "break_glass": v.People.Emergencies.List(), "frozen": v.People.Freeze.ID()}
	})
	return reply(out)
}
