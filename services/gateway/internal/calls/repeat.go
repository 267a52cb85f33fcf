package calls

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// An Idempotency-Key identifies a call: a retry under the same key is the same call,
// whichever gateway receives the retry and however late. The call's id is derived from
// tenant, actor, key and attempt. A gateway first looks the id up in audit's index. If
// the index does not contain the first proposal yet, the ledger rejects the second one,
// because both have the same message id. A call that was denied or expired never
// started, so its retry is a new attempt with a new id.

// maxAttempts is the number of the last attempt under one key. Attempts are numbered
// from 0.
const maxAttempts = 32

// repeatable returns the id of the call that a caller's Idempotency-Key now identifies:
// that of the first attempt that was not denied and has not expired, or else that of
// attempt maxAttempts.
func (s *Maker) repeatable(ctx context.Context, who *auth.Caller, key string) (string, error) {
	for n := 0; ; n++ {
		id := attemptID(who.Tenant, who.Actor, key, strconv.Itoa(n))
		e, err := s.Queries.In(who.Tenant).Last(ctx, id)
		if err != nil || e == nil || e.Name != contract.EventEffectRecorded || n == maxAttempts {
			return id, err
		}
		var rec contract.Recorded
		if err := contract.Decode(e.Data, &rec); err != nil {
			return "", err
		}
		if rec.Effect.Status != contract.Denied && rec.Effect.Status != contract.Expired {
			return id, nil
		}
	}
}

// attemptID derives the id of a call from parts: the prefix of call ids and 26
// characters of the base32 encoding of a SHA-256 hash.
func attemptID(parts ...string) string {
	h := sha256.New()
	for _, s := range append([]string{"binnacle idempotency v1"}, parts...) {
		n := sha256.Sum256([]byte(s)) // each part adds 32 bytes to h, so that different lists of parts cannot add the same bytes
		h.Write(n[:])
	}
	return contract.IDCall + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil))[:26]
}

// RoundID returns the id of the call that continues the work of a call with the n-th
// answers to its requests for input. The first call is round 0.
func RoundID(call string, n int) string {
	if n == 0 {
		return call
	}
	return attemptID("round", call, strconv.Itoa(n))
}

// Conflict returns the error (409) for an Idempotency-Key that was used for another
// call, or whose response cannot be sent again.
func Conflict(r propose.Request, message string) *apierr.Error {
	return &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: contract.CodeIdempotencyConflict, Param: "Idempotency-Key", Message: message, CallID: r.ID}
}

// notStored returns the error (410) for a call that succeeded and whose output was not
// stored.
func notStored(call string) *apierr.Error {
	return &apierr.Error{Status: http.StatusGone, Type: "invalid_request_error", Code: contract.CodeOutputNotStored, CallID: call, ReceiptID: receipt.ID(call),
		Message: "the call succeeded, but its output was sent once and not stored, as the capture mode requires; send the request under a new Idempotency-Key to make another call"}
}

// same reports whether the recorded call c has the kind, tool, ReportWithin and args that r
// proposes, and the same body if both have one. It does not compare sessions, timeouts or
// delegations. It returns false if the recorded args were erased. Two requests to a language model
// that have bodies are compared as sameModel does; for other calls, same returns false if the
// recorded body was erased. It returns an error if a content cannot be read.
func (s *Runner) same(ctx context.Context, c *contract.Call, r propose.Request) (bool, error) {
	if c.Kind != r.Kind || c.Tool != r.Tool || c.ReportWithin != r.ReportWithin.Milliseconds() {
		return false, nil
	}
	blobs := s.Blobs.In(r.Tenant)
	args, err := blobs.Open(ctx, &c.Args)
	if errors.Is(err, contract.ErrErased) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if c.Body == nil || r.Body == nil {
		return bytes.Equal(args, r.Args), nil
	}
	if slices.Contains(llm.Kinds, c.Kind) {
		return s.sameModel(ctx, c, args, r)
	}
	first, err := blobs.Open(ctx, c.Body)
	if errors.Is(err, contract.ErrErased) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now, err := blobs.OpenObject(ctx, &r.Body.Content, r.Body.Object)
	return bytes.Equal(args, r.Args) && bytes.Equal(first, now), err
}

// sameModel reports whether a recorded call c to a language model, with the given args,
// is the call that r proposes. It compares the summaries without their members body,
// capture and digest, and the digests of the requests. A recorded request that was
// erased, or whose bytes and digest were not recorded because the capture mode was off,
// counts as equal. sameModel returns false if args are not a valid summary, and an error
// if those of r are not, or if a content cannot be read.
func (s *Runner) sameModel(ctx context.Context, c *contract.Call, args []byte, r propose.Request) (bool, error) {
	now, err := ModelArgs(r.Args)
	if err != nil {
		return false, err
	}
	first, err := ModelArgs(args)
	if err != nil {
		return false, nil
	}
	digest := first.Digest
	first.Body, first.Capture, first.Digest = now.Body, now.Capture, now.Digest
	if !bytes.Equal(contract.Bytes(first), contract.Bytes(now)) {
		return false, nil
	}
	if digest == "" {
		body, err := s.Blobs.In(r.Tenant).Open(ctx, c.Body)
		if errors.Is(err, contract.ErrErased) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		digest = sign.Digest(body)
	}
	object := r.Body.Object
	if r.Body.Content.Store == contract.StoreWithheld {
		object = r.Body.Carried
	}
	body, err := s.Blobs.In(r.Tenant).OpenObject(ctx, &r.Body.Content, object)
	return sign.Digest(body) == digest, err
}

// Prior is a call that was proposed earlier, for example under the same Idempotency-Key.
type Prior struct {
	Proposal *contract.Event
	Call     contract.Call
	Last     *contract.Event // newest known event of the call; Before sets it, and Repeat requires it
	At       uint64          // ledger sequence up to which no event of the call is newer than Last; 0: unknown
}

// Known returns Last and At.
func (p *Prior) Known() await.Known { return await.Known{Last: p.Last, At: p.At} }

// Before returns the call that was proposed earlier under the id of r, or nil if there is
// none or r has no Idempotency-Key. If that call differs from r (see same), the error is
// that of Conflict. If the call exists and its actor or its tenant is suspended, the
// error has status 403, because policy does not decide on the call again. Any other error
// means that the call cannot be read or compared now. lost is nil before r is proposed;
// the call is then read from audit's index. Otherwise lost is the error with which the
// proposal of r failed. If it is an *eventlog.TakenError, Before reads the first proposal
// from the ledger; if it is another error, Before returns nil.
func (s *Runner) Before(ctx context.Context, r propose.Request, lost error) (*Prior, error) {
	if r.IdemKey == "" {
		return nil, nil
	}
	p := &Prior{}
	var err error
	if lost != nil {
		var taken *eventlog.TakenError
		if !errors.As(lost, &taken) {
			return nil, nil
		}
		if p.Proposal, err = s.proposalAt(ctx, taken.Seq, r.Tenant, r.ID); err != nil {
			return nil, apierr.Unavailable("the first call under this Idempotency-Key cannot be read now: " + err.Error())
		}
		p.Last, p.At = p.Proposal, taken.Seq
	} else {
		if p.Last, p.At, err = s.Queries.In(r.Tenant).LastAt(ctx, r.ID); err != nil || p.Last == nil {
			return nil, err
		}
		if p.Proposal, err = s.Queries.In(r.Tenant).Event(ctx, audit.ProposalQuery, r.ID); err != nil {
			return nil, err
		}
	}
	if err := s.Suspended(r.Tenant, r.Actor); err != nil {
		return nil, err
	}
	if p.Proposal == nil || contract.Decode(p.Proposal.Data, &p.Call) != nil {
		return nil, apierr.Unavailable("the first call under this Idempotency-Key cannot be read now")
	}
	same, err := s.same(ctx, &p.Call, r)
	if err != nil {
		return nil, apierr.Unavailable("the first call under this Idempotency-Key cannot be read now: " + err.Error())
	}
	if !same {
		return nil, Conflict(r, "this key was used for another call; use a new one")
	}
	return p, nil
}

// FirstArgs returns the arguments of the call that was proposed earlier under the id of r, or
// nil if audit's index has none. If that call is of another kind, or its arguments were
// erased, the error is that of Conflict.
func (s *Runner) FirstArgs(ctx context.Context, r propose.Request) ([]byte, error) {
	e, err := s.Queries.In(r.Tenant).Event(ctx, audit.ProposalQuery, r.ID)
	if err != nil || e == nil {
		return nil, err
	}
	var call contract.Call
	if err := contract.Decode(e.Data, &call); err != nil {
		return nil, err
	}
	args, err := s.Blobs.In(r.Tenant).Open(ctx, &call.Args)
	if call.Kind != r.Kind || errors.Is(err, contract.ErrErased) {
		return nil, Conflict(r, "this key was used for another call; use a new one")
	}
	return args, err
}

// proposalAt reads the proposal of a call at a sequence of the ledger. Any service can
// publish under any message id, so proposalAt returns an error if the stored event is
// not a gateway's proposal of that call in the given tenant.
func (s *Runner) proposalAt(ctx context.Context, seq uint64, tenant, call string) (*contract.Event, error) {
	en, err := s.Ledger.Get(ctx, seq)
	if err != nil {
		return nil, err
	}
	e, err := eventlog.Open(en, bus.Filter{Tenant: tenant, Service: contract.CallerExecutor, Event: contract.EventCallProposed}.String())
	if err != nil || e.CallID != call {
		return nil, fmt.Errorf("sequence %d holds another event under the id of its proposal", seq)
	}
	return e, err
}

// Repeat waits, for at most r.Timeout, for the outcome of a call that was proposed
// earlier. If before.Last is the outcome, it does not wait. Its results are those of
// Await, but it never cancels the call.
func (s *Runner) Repeat(ctx context.Context, r propose.Request, before *Prior) (*propose.Outcome, []byte, error) {
	if e := before.Last; e.Name == contract.EventEffectRecorded {
		out := &propose.Outcome{Event: e}
		if err := contract.Decode(e.Data, &out.Recorded); err != nil {
			return nil, nil, err
		}
		return s.result(ctx, r, out)
	}
	res := s.WaitAgain(ctx, before.Proposal, &before.Call, before.Known(), await.Terms{Within: r.Timeout, Patience: r.Patience})
	switch res.State {
	case await.Ended:
		return s.result(ctx, r, res.Outcome)
	case await.Silent:
		return nil, nil, Silent(r, "send the request again with its Idempotency-Key")
	case await.Escalated:
		return nil, nil, &apierr.Escalation{CallID: r.ID, Doc: res.Escalated}
	case await.Left:
		return nil, nil, ctx.Err()
	}
	return nil, nil, Pending(r)
}

// OutcomeOf returns the outcome of the call c, which the event e proposed. If the
// outcome is not recorded yet, OutcomeOf waits for it, for at most queries.Timeout or
// until ctx is done, and returns nil if there is none by then. If the ledger does not
// respond during the wait, the error is that of Silent.
func (s *Runner) OutcomeOf(ctx context.Context, e *contract.Event, c *contract.Call) (*contract.Recorded, error) {
	last, at, err := s.Queries.In(e.Tenant).LastAt(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	if last != nil && last.Name == contract.EventEffectRecorded {
		var rec contract.Recorded
		return &rec, contract.Decode(last.Data, &rec)
	}
	res := s.WaitAgain(ctx, e, c, await.Known{Last: last, At: at}, await.Terms{Within: queries.Timeout})
	switch res.State {
	case await.Ended:
		return &res.Outcome.Recorded, nil
	case await.Silent:
		return nil, Silent(propose.Request{ID: c.ID}, "send the request again")
	}
	return nil, nil
}

// repeatOr returns err if it is not nil, or else the results of Repeat. With async, it
// records that the request is answered before the outcome, if that was not recorded before.
func (s *Runner) repeatOr(ctx context.Context, r propose.Request, async bool, before *Prior, err error) (*propose.Outcome, []byte, error) {
	if err != nil {
		return nil, nil, err
	}
	s.followed.begin(nil, before.Proposal, before.Known())
	out, output, err := s.Repeat(ctx, r, before)
	if async {
		deferredAgain(ctx, s, before.Proposal, err)
	}
	return out, output, err
}

// ModelArgs decodes the args of a call to a language model: the summary of its request,
// which policy decides on and the ledger holds.
func ModelArgs(raw []byte) (*llm.Args, error) {
	var a llm.Args
	return &a, contract.Decode(raw, &a)
}
