package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
)

// serve registers policy's questions.
func (s *Service) serve(view *follow.Follower) {
	s.env.Box.Serve("view", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		// The position and the dump are taken together or not at all.
		for {
			at := view.Position()
			dump := s.state.Dump()
			if view.Position() == at {
				return reply(map[string]any{"name": "policy.state", "position": at, "dump": string(dump)})
			}
		}
	})
	s.env.Box.Serve("budget_view", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		doc, err := s.budget.dump()
		if err != nil {
			return err
		}
		return reply(doc)
	})
	s.env.Box.Serve("starts_view", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		at, dump := s.unstarted.Dump()
		return reply(map[string]any{"name": "policy.starts", "position": at, "dump": string(dump)})
	})
	s.env.Box.Serve("approvals", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		return reply(s.state.approvals())
	})
	s.env.Box.Serve("approval", func(ctx context.Context, raw json.RawMessage, reply func(any) error) error {
		var q struct {
			CallID string `json:"call_id"`
		}
		if err := json.Unmarshal(raw, &q); err != nil {
			return err
		}
		w := s.state.escalated(q.CallID)
		if w == nil {
			return errors.New("not found: no call " + q.CallID + " waits for approval")
		}
		out := w.show()
		if b, err := s.env.Blobs.Open(ctx, &w.doc.Call.Args); err == nil {
			out.Args = b
		}
		return reply(out)
	})
	s.env.Box.Serve("limits", func(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
		if err := s.budget.read(ctx); err != nil {
			return err
		}
		limits := s.state.limits()
		if limits == nil {
			limits = []guard.Limit{}
		}
		return reply(map[string]any{"limits": limits, "accounts": s.budget.rows("")})
	})
	s.env.Box.Serve("keys", func(_ context.Context, _ json.RawMessage, reply func(any) error) error {
		s.state.mu.RLock()
		defer s.state.mu.RUnlock()
		return reply(s.state.gov.Keys.List())
	})
	s.env.Box.Serve("identities", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		var q struct {
			At uint64 `json:"at"` // lamport; 0 = all of history
		}
		if err := json.Unmarshal(raw, &q); err != nil {
			return err
		}
		s.state.mu.RLock()
		defer s.state.mu.RUnlock()
		list := s.state.gov.Identities()
		if q.At > 0 {
			list = s.state.gov.IdentitiesAt(q.At, "")
		}
		return reply(map[string]any{"identities": list, "break_glass": s.state.gov.Emergencies.List(), "frozen": s.state.gov.Freeze.ID()})
	})
	s.env.Box.Serve("policies", func(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
		return reply(s.state.policies(ctx))
	})
}

func (st *State) approvals() []Waiting {
	st.mu.RLock()
	defer st.mu.RUnlock()
	out := []Waiting{}
	for _, w := range st.waiting {
		out = append(out, w.show())
	}
	slices.SortFunc(out, func(a, b Waiting) int { return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.CallID, b.CallID)) })
	return out
}

// InForce is one policy document in force, with its body.
type InForce struct {
	contract.Activated
	Body []byte `json:"body"`
}

func (st *State) policies(context.Context) []InForce {
	st.mu.RLock()
	list := st.stack.InForce()
	st.mu.RUnlock()
	out := []InForce{}
	for _, a := range list {
		x := InForce{Activated: *a}
		x.Body, _ = st.Open(&a.Bundle) // erased: the digest stands
		out = append(out, x)
	}
	return out
}
