package calls

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// An Idempotency-Key names a call: the caller's retry of it is the same call,
// whichever gateway it comes to and however long after. The call's id follows
// from tenant, actor, key and attempt, so the ledger itself holds the place:
// the second proposal finds the first, or loses against it. A call that ended
// denied or expired never started, so its retry is another attempt.

// maxAttempts bounds how often a key is tried again.
const maxAttempts = 32

// repeatable is the id of the call that an actor's Idempotency-Key names now.
func (s *API) repeatable(ctx context.Context, actor, key string) (string, error) {
	for n := 0; ; n++ {
		id := attemptID(s.Tenant, actor, key, strconv.Itoa(n))
		e, err := s.Queries.Last(ctx, id)
		if err != nil || e == nil || e.Name != "effect_recorded" || n == maxAttempts {
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

func attemptID(parts ...string) string {
	h := sha256.New()
	for _, s := range append([]string{"binnacle idempotency v1"}, parts...) {
		n := sha256.Sum256([]byte(s)) // fixed length: no two splits look alike
		h.Write(n[:])
	}
	return "c-" + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil))[:26]
}

// Conflict is the refusal of an Idempotency-Key that cannot be repeated.
func Conflict(r propose.Request, message string) *apierr.Error {
	return &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: "idempotency_conflict", Param: "Idempotency-Key", Message: message, CallID: r.ID}
}

// Same reports whether a recorded call is the one that r proposes. Of a request to a
// language model the summaries are compared, and the requests where the ledger
// keeps them.
func (s *API) Same(ctx context.Context, c *contract.Call, r propose.Request) (bool, error) {
	args, err := s.Blobs.Open(ctx, &c.Args)
	if err != nil || c.Kind != r.Kind || c.Tool != r.Tool || c.ReportWithin != r.ReportWithin.Milliseconds() {
		return false, err
	}
	if c.Body == nil || r.Body == nil {
		return bytes.Equal(args, r.Args), nil
	}
	first, err1 := ModelArgs(args)
	now, err2 := ModelArgs(r.Args)
	if err1 != nil || err2 != nil {
		return false, errors.Join(err1, err2)
	}
	if first.Body = now.Body; !bytes.Equal(contract.Bytes(first), contract.Bytes(now)) {
		return false, nil
	}
	body, err := s.Blobs.Open(ctx, c.Body)
	if errors.Is(err, contract.ErrErased) {
		return true, nil
	}
	again, err2 := s.Blobs.OpenObject(ctx, &r.Body.Content, r.Body.Object)
	return err == nil && err2 == nil && bytes.Equal(body, again), errors.Join(err, err2)
}

// Repeat answers a call that was made before, once it has ended. The same key
// with other arguments is a mistake of the caller's.
func (s *API) Repeat(ctx context.Context, r propose.Request, e *contract.Event) (*propose.Outcome, []byte, error) {
	first, err := s.Queries.Event(ctx, "proposal", r.ID)
	if err != nil {
		return nil, nil, err
	}
	var c contract.Call
	if first == nil || contract.Decode(first.Data, &c) != nil {
		return nil, nil, apierr.Unavailable("the first call under this Idempotency-Key cannot be read now")
	}
	if same, err := s.Same(ctx, &c, r); err != nil || !same {
		return nil, nil, Conflict(r, "this key was used for another call; use a new one")
	}
	for until := time.Now().Add(r.Timeout); e == nil || e.Name != "effect_recorded"; {
		if time.Now().After(until) {
			if e != nil && e.Name == "escalated" {
				var x contract.Escalated
				if err := contract.Decode(e.Data, &x); err != nil {
					return nil, nil, err
				}
				return nil, nil, &apierr.Escalation{CallID: r.ID, Doc: &x}
			}
			return nil, nil, WaitError(r, propose.ErrUnknownOutcome)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if e, err = s.Queries.Last(ctx, r.ID); err != nil {
			return nil, nil, err
		}
	}
	out := &propose.Outcome{Event: e}
	if err := contract.Decode(e.Data, &out.Recorded); err != nil {
		return nil, nil, err
	}
	if e := apierr.OfOutcome(&out.Recorded); e != nil {
		s.PointAt(e, r)
		return out, nil, e
	}
	body, err := s.output(ctx, out)
	return out, body, err
}

// ModelArgs decodes the args of a call of a language model.
func ModelArgs(raw []byte) (*llm.Args, error) {
	var a llm.Args
	return &a, contract.Decode(raw, &a)
}
