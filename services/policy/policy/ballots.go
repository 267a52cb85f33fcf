package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/approval"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// ballots records votes on escalated calls. Votes are events of the call's session,
// serialized by optimistic concurrency, and work items of settleWork. When the settler
// consumes the vote that settles a call, it decides the call again with the votes among
// its facts.
type ballots struct{ *instance }

// voteFilter returns the filter for the votes on the calls of a session.
func voteFilter(tenant, session string) string {
	return bus.Filter{Tenant: tenant, Service: services.Policy, Event: contract.EventApprovalRecorded, Key: session}.String()
}

// escalation returns the newest ESCALATE decision of policy on the call of e that has a
// sequence lower than before, or the newest one if before is 0: its event, its data, and
// its sequence. The error wraps eventlog.ErrNotFound if there is none.
func (i *instance) escalation(ctx context.Context, e *contract.Event, before uint64) (ev *contract.Event, esc contract.Escalated, seq uint64, err error) {
	f := bus.Filter{Tenant: e.Tenant, Service: services.Policy, Event: contract.EventEscalated, Key: e.Session}
	en, err := eventlog.Before(ctx, i.emit.Log, f.String(), before, eventlog.OfCall(e.CallID, nil))
	if err != nil {
		return nil, esc, 0, fmt.Errorf("the escalation of call %s: %w", e.CallID, err)
	}
	if ev, err = eventlog.Open(en, f.String()); err == nil {
		err = contract.Decode(ev.Data, &esc)
	}
	return ev, esc, en.Seq, err
}

// voteArgs is the input of policy.vote. A vote with KID and Sig is that of the key's
// owner, and any other vote is that of the caller. A vote with only one of them does not
// verify. With Passkey, a passkey of the caller has signed the vote.
type voteArgs struct {
	CallID  string              `json:"call_id"`
	Vote    string              `json:"vote"`
	Reason  string              `json:"reason"`
	KID     string              `json:"kid"`
	Passkey *contract.Assertion `json:"passkey"`
	Sig     string              `json:"sig"`
}

// signed reports whether the vote has a signature, or a part of one.
func (a *voteArgs) signed() bool { return a.Sig != "" || a.KID != "" || a.Passkey != nil }

// approval returns the vote as it is recorded, without roles and resolution.
func (a *voteArgs) approval(approver string, w *state.Waiting) *contract.Approval {
	return &contract.Approval{Approver: approver, CallID: a.CallID, KID: a.KID, Passkey: a.Passkey, Reason: a.Reason, Sig: a.Sig, Tenant: w.Escalated.Decision.Tenant, Vote: a.Vote}
}

// byPasskey returns an error unless a passkey of the caller has signed the vote. If the
// authenticator counts its signatures, the count must have increased since the last vote;
// otherwise the passkey may have been copied.
func (b *ballots) byPasskey(caller string, a *voteArgs, w *state.Waiting) error {
	var last uint32
	find := func(tenant, id string, _ uint64) (p *contract.PasskeyRegistered, err error) {
		b.states.Of(tenant).Read(func(v *state.View) { p, last, err = v.People.Passkeys.Find(id) })
		return p, err
	}
	count, err := guard.VerifyPasskey(a.approval(caller, w), &w.Escalated.Decision, find, 0)
	if err == nil && (count != 0 || last != 0) && count <= last {
		err = fmt.Errorf("passkey: the authenticator has counted %d signatures, and %d at the last vote; it may be a copy", count, last)
	}
	return err
}

// signer returns the principal that signed a ballot: the caller for that of a passkey, and
// otherwise the owner of the key. The error is not nil unless the ballot's signature
// verifies and the principal is of the waiting call's tenant.
func (b *ballots) signer(caller string, a *voteArgs, w *state.Waiting) (string, error) {
	if a.Passkey != nil {
		return caller, b.byPasskey(caller, a, w)
	}
	for _, k := range b.trust.Keys() {
		if k.KID != a.KID {
			continue
		}
		who, ok := strings.CutPrefix(k.Owner, contract.OwnerApprover)
		if !ok {
			return "", errors.New("kid: is not an approver's key")
		}
		return who, guard.VerifyBallot(a.approval(who, w), &w.Escalated.Decision, b.trust.At, nil, b.emit.Tick())
	}
	return "", errors.New("kid: is not in the trust registry")
}

// verifies returns false if args, those of the vote that e proposes, contain a signature or a
// key id, the call waits for votes in the tenant of e, and the ballot does not verify. It
// returns true for any other vote. The tenant must exist. verifies is called before the
// decision, so that a call with a forged ballot is denied and has a receipt.
func (b *ballots) verifies(e *contract.Event, args []byte) bool {
	var a voteArgs
	if json.Unmarshal(args, &a) != nil || !a.signed() {
		return true // the vote has no signature, or the schema denies its args
	}
	w := b.states.Of(e.Tenant).WaitingFor(a.CallID)
	if w == nil {
		return true // the call does not wait for votes; the executor reports that
	}
	_, err := b.signer(e.Actor, &a, w)
	return err == nil
}

// vote executes policy.vote. It fails with not_found if no such call of the same tenant
// waits for approval, with conflict if the call was settled but the state has not
// applied that yet, with invalid_input if the tenant, the args or the vote is not valid,
// and with unavailable if the ledger fails or if other votes are recorded first at every
// attempt.
func (b *ballots) vote(ctx context.Context, w *execute.Work) execute.Result {
	var a voteArgs
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	st := b.tenant(ctx, w.Event.Tenant)
	if st == nil {
		return unknownTenant(w.Event.Tenant)
	}
	waits := st.WaitingFor(a.CallID)
	for range 20 { // the state may not have applied the escalation yet
		if waits != nil {
			break
		}
		sleep(ctx, 50*time.Millisecond)
		st = b.states.Of(w.Event.Tenant) // the tenant's first event replaces its state
		waits = st.WaitingFor(a.CallID)
	}
	if waits == nil {
		return execute.Fail(contract.CodeNotFound, "no call %s waits for approval", a.CallID)
	}
	v := approval.Vote{Approver: w.Event.Actor, Vote: a.Vote, Reason: a.Reason, KID: a.KID, Sig: a.Sig, Passkey: a.Passkey}
	if a.signed() {
		who, err := b.signer(w.Event.Actor, &a, waits)
		if err != nil {
			return execute.Fail(contract.CodeInvalidInput, "%v", err)
		}
		v.Approver = who
	}
	if err := st.MayVote(v.Approver); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	got, err := b.record(ctx, waits, v, w.Event.Client)
	if errors.Is(err, approval.ErrSettled) {
		return execute.Fail(contract.CodeConflict, "%v", err)
	}
	if res, failed := failure(err); failed {
		return res
	}
	return result("approval."+a.Vote, map[string]any{"approver": v.Approver, "call_id": a.CallID, "resolved": got.Resolved})
}

// record appends a vote if the session has no newer vote than those that it has read;
// otherwise it reads them again and retries. It returns the vote as recorded. The error
// wraps approval.ErrSettled if the call is settled, and is of
// type invalid if approval.Decide rejects the vote for another reason. After any other
// error, the vote may or may not be on the ledger.
func (b *ballots) record(ctx context.Context, waits *state.Waiting, v approval.Vote, client string) (*contract.Approval, error) {
	e := waits.Event
	var got *contract.Approval
	_, _, from, err := b.escalation(ctx, e, 0)
	if err != nil {
		return nil, err
	}
	_, err = handle.DoFrom(ctx, b.emit.Log, voteFilter(e.Tenant, e.Session), from, func(h []*contract.Event) (*contract.Event, error) {
		votes, _, err := votesOf(h, e.CallID)
		if err != nil {
			return nil, err
		}
		now := b.emit.Now()
		b.states.Of(e.Tenant).Read(func(s *state.View) { v.Roles = s.People.People.Roles(v.Approver, contract.Time(now)) })
		if got, err = approval.Decide(&waits.Escalated, votes, v, now); errors.Is(err, approval.ErrSettled) {
			return nil, err
		} else if err != nil {
			return nil, invalid{err}
		}
		ev := b.emit.New(contract.EventApprovalRecorded, e.Session, contract.Bytes(got), e)
		ev.Actor, ev.Client = got.Approver, client
		return ev, nil
	})
	return got, err
}

// votesOf returns the votes on a call and their events, selected from the votes of the
// session.
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

// timeouts records the expiry of overdue escalations until ctx is done. Every instance
// does this; optimistic concurrency ensures that each expiry is recorded once.
func (b *ballots) timeouts(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, 250*time.Millisecond)
		for _, w := range b.states.Overdue(b.emit.Time()) {
			if _, err := b.record(ctx, w, approval.Vote{Vote: contract.TimeOut}, "-"); err != nil && !errors.Is(err, approval.ErrSettled) && ctx.Err() == nil {
				b.log.Warn("timeout not recorded, will be tried again", "call", w.Event.CallID, "err", err)
			}
		}
	}
}
