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

// queries serves the queries of other services and of the command line. No query
// changes anything.
type queries struct {
	*instance
	budget *budget.Ledger
	starts *starts.View
}

// serve registers the handlers; view is the follower of the state.
func (q *queries) serve(box *transient.Box, view *follow.Follower) {
	box.Serve("view", plain(func() any {
		// Position and dump must match, so the dump is repeated if an event was
		// applied meanwhile.
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

// plain returns the handler of a query without arguments.
func plain(answer func() any) transient.Handler {
	return func(_ context.Context, _ json.RawMessage, reply func(any) error) error { return reply(answer()) }
}

// dumped returns a view's canonical form and its position.
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

// limits returns the limits in force, and the accounts after reading the newest
// budget events.
func (q *queries) limits(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
	if err := q.budget.Read(ctx); err != nil {
		return err
	}
	limits := []guard.Limit{}
	q.state.Read(func(v *state.View) { limits = append(limits, v.Limits()...) })
	return reply(map[string]any{"limits": limits, "accounts": q.budget.Rows()})
}

// identities returns the principals and what gives or ends authority, at a
// Lamport time or over the whole history.
func (q *queries) identities(_ context.Context, raw json.RawMessage, reply func(any) error) error {
	var a struct {
		At uint64 `json:"at"` // Lamport time; 0 = the whole history
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
