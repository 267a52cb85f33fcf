package policy

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/approval"
)

// An escalated call waits on the ledger. Votes are events of its session, one
// after the other by expectation; the one that settles it is the work item of
// settleWork, which decides the call again with what people said as a fact.

var settleWork = bus.Work{Name: "settle", Filters: []string{"evt.*.policy.*.approval_recorded.>"}, AckWait: 10 * time.Second, MaxAckPending: 256}

func voteFilter(tenant, session string) string {
	return "evt." + tenant + ".policy.*.approval_recorded." + session
}

// voteArgs is the input of policy.vote. With kid and sig the approver is the
// key's owner, whoever brings the ballot; without, it is the caller.
type voteArgs struct {
	CallID string `json:"call_id"`
	Vote   string `json:"vote"`
	Reason string `json:"reason"`
	KID    string `json:"kid"`
	Sig    string `json:"sig"`
}

// signer is the principal that a ballot's key belongs to, and the ballot as an
// approval, or an error.
func (s *Service) signer(a *voteArgs, w *waiting) (string, error) {
	for _, k := range s.env.Trust.Keys() {
		if k.KID != a.KID {
			continue
		}
		who, ok := strings.CutPrefix(k.Owner, guard.ApproverOwner(""))
		if !ok {
			return "", errors.New("kid: is not an approver's key")
		}
		v := contract.Approval{Approver: who, CallID: a.CallID, KID: a.KID, Reason: a.Reason, Sig: a.Sig, Tenant: w.doc.Decision.Tenant, Vote: a.Vote}
		return who, guard.VerifyBallot(&v, &w.doc.Decision, s.env.Trust.At, s.env.Emit.Tick())
	}
	return "", errors.New("kid: is not in the trust registry")
}

// verifies reports whether the ballot among a vote's args, if it is signed,
// verifies. It is looked at before the call is decided, so that a forgery is
// denied, with its receipt.
func (s *Service) verifies(args []byte) bool {
	var a voteArgs
	if json.Unmarshal(args, &a) != nil || a.Sig == "" && a.KID == "" {
		return true // the schema speaks about the rest
	}
	w := s.state.escalated(a.CallID)
	if w == nil {
		return true // there is nothing to vote on, which the effect will say
	}
	_, err := s.signer(&a, w)
	return err == nil
}

// vote does policy.vote.
func (s *Service) vote(ctx context.Context, w *execute.Work) execute.Result {
	var a voteArgs
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	waits := s.state.escalated(a.CallID)
	for range 20 { // the view may be a moment behind
		if waits != nil {
			break
		}
		sleep(ctx, 50*time.Millisecond)
		waits = s.state.escalated(a.CallID)
	}
	if waits == nil {
		return execute.Fail("not_found", "no call %s waits for approval", a.CallID)
	}
	v := approval.Vote{Approver: w.Event.Actor, Vote: a.Vote, Reason: a.Reason, KID: a.KID, Sig: a.Sig}
	if a.Sig != "" {
		who, err := s.signer(&a, waits)
		if err != nil {
			return execute.Fail("invalid_input", "%v", err)
		}
		v.Approver = who
	}
	if err := s.state.MayVote(v.Approver); err != nil {
		return execute.Fail("invalid_input", "%v", err)
	}
	got, err := s.record(ctx, waits, v, w.Event.Client)
	switch {
	case errors.Is(err, approval.ErrSettled):
		return execute.Fail("conflict", "%v", err)
	case errors.Is(err, eventlog.ErrConflict):
		return execute.Fail("unavailable", "%v", err)
	case err != nil:
		return execute.Fail("invalid_input", "%v", err)
	}
	return result("approval."+a.Vote, map[string]any{"approver": v.Approver, "call_id": a.CallID, "resolved": got.Resolved})
}

// record appends a vote behind those before it.
func (s *Service) record(ctx context.Context, waits *waiting, v approval.Vote, client string) (*contract.Approval, error) {
	e := waits.event
	var got *contract.Approval
	_, err := handle.Do(ctx, s.env.Emit.Log, voteFilter(e.Tenant, e.Session), func(h []*contract.Event) (*contract.Event, error) {
		votes, _, err := votesOf(h, e.CallID)
		if err != nil {
			return nil, err
		}
		now := s.env.Emit.Now()
		v.Roles = s.state.roles(v.Approver, contract.Time(now))
		if got, err = approval.Decide(&waits.doc, votes, v, now); err != nil {
			return nil, err
		}
		ev := s.env.Emit.New("approval_recorded", e.Session, contract.Bytes(got), e)
		ev.Actor, ev.Client = got.Approver, client
		return ev, nil
	})
	return got, err
}

func (st *State) roles(principal, now string) []string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.gov.People.Roles(principal, now)
}

// votesOf picks a call's votes, and their events, out of its session's.
func votesOf(h []*contract.Event, call string) (votes []contract.Approval, events []*contract.Event, err error) {
	for _, e := range h {
		if e.CallID != call {
			continue
		}
		var a contract.Approval
		if err := contract.Decode(e.Data, &a); err != nil {
			return nil, nil, err
		}
		votes, events = append(votes, a), append(events, e)
	}
	return votes, events, nil
}

// settle takes one vote from the ledger; if it settled its call, the call is
// decided again.
func (s *Service) settle(ctx context.Context, m jetstream.Msg) {
	err := s.settled(ctx, m)
	if err == nil {
		_ = m.Ack()
		return
	}
	s.env.Log.Warn("settlement handed back", "subject", m.Subject(), "err", err)
	_ = m.NakWithDelay(250 * time.Millisecond)
}

func (s *Service) settled(ctx context.Context, m jetstream.Msg) error {
	md, err := m.Metadata()
	if err != nil {
		return err
	}
	e, err := eventlog.Open(eventlog.Entry{Seq: md.Sequence.Stream, Subject: m.Subject(), Data: m.Data()})
	var last contract.Approval
	if err == nil {
		err = contract.Decode(e.Data, &last)
	}
	if err != nil || e.Service() != "policy" {
		s.env.Log.Error("not a vote", "subject", m.Subject(), "err", err)
		return nil
	}
	s.env.Emit.See(e.Lamport)
	if last.Resolved == "" {
		return nil
	}
	if done, err := s.answered(ctx, e, 1); err != nil || done {
		return err
	}
	p, err := s.proposed(ctx, e)
	if err != nil {
		return err
	}
	if err := s.gather(ctx, p); err != nil {
		return err
	}
	var h []*contract.Event
	for en, err := range s.env.Emit.Log.Scan(ctx, voteFilter(e.Tenant, e.Session), 1) {
		if err != nil {
			return err
		}
		if v, err := eventlog.Open(en); err == nil {
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

// proposed reads the proposal of the call that a vote was about.
func (s *Service) proposed(ctx context.Context, vote *contract.Event) (*proposal, error) {
	for en, err := range s.env.Emit.Log.Scan(ctx, "evt."+vote.Tenant+".*.*.call_proposed."+vote.Session, 1) {
		if err != nil {
			return nil, err
		}
		e, err := eventlog.Open(en)
		if err != nil || e.CallID != vote.CallID {
			continue
		}
		p := &proposal{event: e, again: true}
		return p, contract.Decode(e.Data, &p.call)
	}
	return nil, errors.New("the proposal of call " + vote.CallID + " is not on the ledger")
}

// timeouts ends the waits whose time is over. Any instance may; the ledger
// takes one end only.
func (s *Service) timeouts(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, 250*time.Millisecond)
		for _, w := range s.state.overdue(s.env.Emit.Time()) {
			if _, err := s.record(ctx, w, approval.Vote{Vote: contract.TimeOut}, "-"); err != nil && !errors.Is(err, approval.ErrSettled) && ctx.Err() == nil {
				s.env.Log.Warn("timeout not recorded, will be tried again", "call", w.event.CallID, "err", err)
			}
		}
	}
}

// Waiting is an escalated call as people see it.
type Waiting struct {
	CallID         string                  `json:"call_id"`
	Session        string                  `json:"session_id"`
	Tenant         string                  `json:"tenant"`
	Kind           string                  `json:"kind"`
	Tool           string                  `json:"tool"`
	Actor          string                  `json:"actor"`
	OnBehalfOf     string                  `json:"on_behalf_of,omitempty"`
	Reason         string                  `json:"reason_code"`
	Since          string                  `json:"since"`
	Expires        string                  `json:"expires"`
	Rules          []contract.ApprovalRule `json:"rules"`
	Votes          []contract.Approval     `json:"votes"`
	Args           json.RawMessage         `json:"args,omitempty"` // with show
	DecisionDigest string                  `json:"decision_digest"`
}

func (w *waiting) show() Waiting {
	d := &w.doc.Decision
	out := Waiting{CallID: d.CallID, Session: d.Session, Tenant: d.Tenant, Kind: d.Kind, Tool: d.Tool, Actor: d.Actor, OnBehalfOf: w.doc.Call.OnBehalfOf, Reason: d.ReasonCode,
		Since: w.event.Time, Expires: w.doc.Expires, Rules: w.doc.Rules, Votes: w.votes, DecisionDigest: contract.Digest(d)}
	if out.Votes == nil {
		out.Votes = []contract.Approval{}
	}
	return out
}
