// Package secrets accepts the values of secrets and holds them, sealed, for the
// vault-broker.
package secrets

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API proposes the calls that store secrets, and holds their values. Its exported fields
// are set before its first use.
type API struct {
	Gate   *auth.Gate
	Calls  *calls.API
	Trust  *run.Trust
	Ledger eventlog.Log
	Box    *transient.Box

	values heldValues
}

// SecretRequest is the body of POST /api/v1/secrets.
type SecretRequest struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// SecretResponse is the response of POST /api/v1/secrets: the output of the vault-broker.
type SecretResponse struct {
	Fingerprint string `json:"fingerprint"` // "hmac-sha256:" and, in hex, the first 16 bytes of the HMAC of the value under a key that only the vault-broker has
	Name        string `json:"name"`
}

// Put handles POST /api/v1/secrets. The value is not an argument of the call: it is
// sealed to the key of the vault-broker, which fetches it once the call is allowed. If
// the call waits for approval, the response is 202, and the value is held until it is
// fetched, at most until one minute after the end of the time to vote. The error is 503
// if the vault-broker's key is not published yet, or if too many values are held.
func (s *API) Put(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Vault)
	if err != nil {
		return err
	}
	var req SecretRequest
	if _, err := body.Into(c, &req); err != nil {
		return err
	}
	if !secret.ValidName(req.Name) {
		return apierr.BadRequest("/name", "a secret's name is 1 to 64 of [A-Za-z0-9._-], not beginning with "+secret.ReservedNames)
	}
	if req.Value == "" || len(req.Value) > 64<<10 {
		return apierr.BadRequest("/value", "a secret's value has 1 to 65536 bytes")
	}
	key, ok := s.Trust.Current("vault-broker", contract.UseSeal)
	if !ok {
		return apierr.Unavailable("the vault-broker's key is not published yet")
	}
	args := canon.Object(nil)
	args.Str("name", req.Name)
	r, err := s.Calls.Request(c, "vault.put", "vault.put", args.End(), who)
	if err != nil {
		return err
	}
	sealed, err := seal.To(key.PublicKey, secret.PutInfo(who.Tenant, req.Name, r.ID), []byte(req.Value))
	if err != nil {
		return err
	}
	if err := s.values.hold(r.ID, heldValue{tenant: r.Tenant, session: r.Session, sealed: sealed}); err != nil {
		return apierr.Unavailable(err.Error())
	}
	out, output, err := s.Calls.Run(c, r)
	var esc *apierr.Escalation
	switch {
	case out != nil: // the call has ended
		s.values.drop(r.ID)
	case errors.As(err, &esc): // the value is held until it is fetched, or until one minute after the end of the time to vote
		if until, bad := contract.ParseTime(esc.Doc.Expires); bad == nil {
			s.values.until(r.ID, until.Add(time.Minute))
		}
		s.values.leave(r.ID)
		return calls.Accepted(c, r, esc)
	default:
		s.values.leave(r.ID)
	}
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, output)
}

// heldValues holds sealed values of secrets until they are fetched or expire, until
// their calls end, or until no request waits any more (see leave). A value is sent to
// the vault-broker only once the ledger contains the event that allows its call.
type heldValues struct {
	mu   sync.Mutex
	by   map[string]heldValue // by call id
	room fair.Room            // number of the values in by, by tenant
}

// heldValue is the sealed value of one call, and the time at which it expires.
type heldValue struct {
	tenant    string
	session   string
	sealed    []byte
	until     time.Time
	escalated bool // held until it expires, whether or not a request waits
	requests  int  // requests under the call's id that wait for its outcome
}

const (
	maxHeldValues = 256 // each of at most 64 KiB before it is sealed
	holdValue     = 15 * time.Minute
)

// hold stores the value of a call for a request, unless a value of that call is held
// already for another request. At most maxHeldValues are held, which fair.Room divides
// among the tenants; hold returns an error if the tenant of v may not hold one more. If
// the error is nil, the request must later call drop or leave.
func (h *heldValues) hold(call string, v heldValue) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for call, v := range h.by {
		if now.After(v.until) {
			h.remove(call)
		}
	}
	if first, held := h.by[call]; held {
		first.requests++
		h.by[call] = first
		return nil
	}
	if !h.room.Take(v.tenant, 1, maxHeldValues) {
		return errors.New("this gateway holds too many values of undecided calls; try again when some calls are decided")
	}
	if h.by == nil {
		h.by = map[string]heldValue{}
	}
	v.until, v.requests = now.Add(holdValue), 1
	h.by[call] = v
	return nil
}

// leave ends the wait of a request whose call may still need the value. The value is
// dropped if no other request waits and the call was not escalated.
func (h *heldValues) leave(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.by[call]
	if !ok {
		return
	}
	if v.requests--; v.requests < 1 && !v.escalated {
		h.remove(call)
		return
	}
	h.by[call] = v
}

// drop drops the value of a call that has ended or whose value was fetched.
func (h *heldValues) drop(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(call)
}

// remove removes the value of a call, if it is held. The caller holds mu.
func (h *heldValues) remove(call string) {
	if v, ok := h.by[call]; ok {
		delete(h.by, call)
		h.room.Give(v.tenant, 1)
	}
}

// until marks the call of a held value as escalated, and sets the time at which the
// value expires.
func (h *heldValues) until(call string, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.by[call]; ok {
		v.until, v.escalated = t, true
		h.by[call] = v
	}
}

// get returns the value of a call, and reports whether it is held and has not expired.
func (h *heldValues) get(call string) (heldValue, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.by[call]
	return v, ok && time.Now().Before(v.until)
}

// Serve serves the query by which the vault-broker fetches a held value, which is then
// dropped. The error is not_found if no value is held for the call or the call is of
// another tenant than the query, and denied if the call is not allowed yet or the ledger
// cannot be read.
func (s *API) Serve() {
	rpc.Serve(&rpc.Server{Box: s.Box}, query.SealedValueQuery, func(ctx context.Context, q *query.SealedValueRequest) ([]byte, error) {
		v, ok := s.values.get(q.CallID)
		if !ok || v.tenant != transient.Tenant(ctx) {
			return nil, rpc.Errorf(contract.CodeNotFound, "no value is held for call %s", q.CallID)
		}
		if ok, err := s.allowed(ctx, q.CallID, &v); err != nil || !ok {
			return nil, errors.Join(rpc.Errorf(contract.CodeDenied, "the call is not allowed"), err)
		}
		s.values.drop(q.CallID)
		return v.sealed, nil
	})
}

// allowed reports whether the ledger contains the event by which policy allows the
// vault-broker to execute the call of a held value.
func (s *API) allowed(ctx context.Context, call string, v *heldValue) (bool, error) {
	c := outcome.Call{Tenant: v.tenant, Session: v.session, ID: call, Executor: "vault-broker"}
	_, _, err := c.Allowed(ctx, s.Ledger, 0)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
