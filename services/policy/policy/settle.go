package policy

import (
	"bytes"
	"context"
	"errors"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/approval"
)

// settler decides an escalated call again when its escalation is resolved: granted,
// denied or expired.
type settler struct{ *decider }

// take processes one approval event: a vote, or the expiry of the time to vote. If the
// event resolves the escalation of its call, take decides the call again, and the result
// has the same meaning as that of decider.take. It ignores any other approval event.
func (s *settler) take(ctx context.Context, m delivery) error {
	e := m.event
	var last contract.Approval
	if err := contract.Decode(e.Data, &last); err != nil {
		return errors.Join(errMalformed, err)
	}
	s.emit.See(e.Lamport)
	if last.Resolved == "" {
		return nil
	}
	if done, err := s.answered(ctx, e, m.seq); err != nil || done {
		return err
	}
	p, err := s.proposed(ctx, e, m.seq)
	if err != nil {
		return err
	}
	if err := s.gather(ctx, p); err != nil {
		return err
	}
	var h []*contract.Event
	for en, err := range s.emit.Log.Scan(ctx, voteFilter(e.Tenant, e.Session), p.after) {
		if err != nil {
			return err
		}
		if v, err := eventlog.Open(en, voteFilter(e.Tenant, e.Session)); err == nil {
			h = append(h, v)
		}
	}
	votes, from, err := votesOf(h, e.CallID)
	if err != nil {
		return err
	}
	ids := make([]string, len(from))
	for i := range from {
		ids[i] = from[i].ID
	}
	p.facts.Approvals = approval.Facts(votes, ids)
	p.facts.Resolution, p.facts.Resolved = last.Resolved, e.Time
	return s.decide(ctx, p)
}

// proposed reads the proposal of the call to which the vote at sequence seq belongs. Any
// service can publish a proposal with the id of the call; only the one that policy
// escalated is returned.
func (s *settler) proposed(ctx context.Context, vote *contract.Event, seq uint64) (*proposal, error) {
	escalated, esc, at, err := s.escalation(ctx, vote, seq)
	if err != nil {
		return nil, err
	}
	en, err := eventlog.Before(ctx, s.emit.Log, proposals(vote.Tenant, vote.Session), at, eventlog.OfCall(vote.CallID, func(e *contract.Event) bool {
		return e.ID == escalated.Cause && e.Actor == escalated.Actor && bytes.Equal(e.Data, contract.Bytes(&esc.Call))
	}))
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, errors.New("the proposal of call " + vote.CallID + " is not on the ledger")
	}
	if err != nil {
		return nil, err
	}
	p := &proposal{again: true, after: en.Seq}
	if p.event, err = eventlog.Open(en, proposals(vote.Tenant, vote.Session)); err != nil {
		return nil, err
	}
	return p, contract.Decode(p.event.Data, &p.call)
}
