// Package secrets accepts the values of secrets and holds them, sealed, for the
// vault-broker.
package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API proposes the calls that store secrets, and holds their values. Its exported fields
// are set before its first use.
type API struct {
	Gate      *auth.Gate
	Calls     *calls.API
	Trust     *run.Trust
	Ledger    eventlog.Log
	Transport *transient.Transport

	values heldValues
}

// SecretRequest is the body of POST /api/v1/secrets.
type SecretRequest struct {
	Expires string `json:"expires,omitempty"` // time (RFC 3339) from which on the value is no longer released
	Name    string `json:"name"`
	Overlap int64  `json:"overlap_seconds,omitempty"` // time in seconds for which the previous value is released too, under NAME.previous
	Type    string `json:"type,omitempty"`            // api_key, certificate, cookie, file, login, oauth or ssh; by default that of the previous value
	Value   string `json:"value"`
}

// call returns the kind and the arguments of the call that stores the secret. A request with
// a name and a value alone has the kind vault.put, as in earlier releases.
func (r *SecretRequest) call() (kind string, args []byte) {
	kind = "vault.put"
	c := canon.Object(nil)
	if r.Expires != "" {
		kind = "vault.store"
		c.Str("expires", r.Expires)
	}
	c.Str("name", r.Name)
	if r.Overlap != 0 {
		kind = "vault.store"
		c.Int("overlap_seconds", r.Overlap)
	}
	if r.Type != "" {
		kind = "vault.store"
		c.Str("type", r.Type)
	}
	return kind, c.End()
}

// SecretResponse is the response of POST /api/v1/secrets: the output of the vault-broker.
type SecretResponse struct {
	Expires     string `json:"expires,omitempty"`
	Fingerprint string `json:"fingerprint"` // "hmac-sha256:" and, in hex, the first 16 bytes of the HMAC of the value under a key that only the vault-broker has
	Name        string `json:"name"`
	Overlap     string `json:"overlap,omitempty"` // time until which the previous value is released as NAME.previous
	Type        string `json:"type,omitempty"`
	Version     int64  `json:"version,omitempty"`
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
	key, ok := s.Trust.Current(services.VaultBroker, contract.UseSeal)
	if !ok {
		return apierr.Unavailable("the vault-broker's key is not published yet")
	}
	kind, args := req.call()
	r, err := s.Calls.Request(c, kind, kind, args, who)
	if err != nil {
		return err
	}
	sealed, err := seal.To(key.PublicKey, secret.PutInfo(who.Tenant, req.Name, r.ID), []byte(req.Value))
	if err != nil {
		return err
	}
	held := heldKey{call: r.ID}
	if r.IdemKey != "" {
		if held.mac, err = s.identify(c.Request().Context(), &r, req.Name, sealed); err != nil {
			return err
		}
	}
	if err := s.values.hold(held, heldValue{tenant: r.Tenant, sessions: []string{r.Session}, sealed: sealed}); err != nil {
		return apierr.Unavailable(err.Error())
	}
	out, output, err := s.Calls.Run(c, r)
	var esc *apierr.Escalation
	switch {
	case out != nil: // the call has ended
		s.values.drop(held)
	case errors.As(err, &esc): // the value is held until it is fetched, or until one minute after the end of the time to vote
		if until, bad := contract.ParseTime(esc.Doc.Expires); bad == nil {
			s.values.until(held, until.Add(time.Minute))
		}
		s.values.leave(held)
		return s.Calls.Accepted(c, r, esc)
	default:
		s.values.leave(held)
	}
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, output)
}

// identify adds a document with the MAC of the value to the proposal of a call with an
// Idempotency-Key, and returns the MAC. A repeated request with another value thus differs
// from the first one (see calls.Runner.Before), whichever gateway receives it. The key of
// the MAC is the vault-broker's, because the ledger must not help to guess a value. The
// error is 503 if the vault-broker does not respond, and that of calls.Conflict after too
// many requests under one key.
func (s *API) identify(ctx context.Context, r *propose.Request, name string, sealed []byte) (mac string, err error) {
	got, err := rpc.Do(ctx, s.Calls.Maker.Queries.In(r.Tenant).Client, vaultbroker.ValueMacQuery, vaultbroker.ValueMacRequest{CallID: r.ID, Name: name, Sealed: sealed})
	switch {
	case rpc.CodeOf(err) == contract.CodeDenied:
		return "", calls.Conflict(*r, "too many requests were sent under this key; use a new one")
	case err != nil:
		return "", queries.Error(services.VaultBroker, err)
	}
	doc, err := json.Marshal(valueIdentity{got.Value})
	if err != nil {
		return "", err
	}
	content, err := s.Calls.Blobs.In(r.Tenant).Commit(ctx, doc, "application/json")
	if err != nil {
		return "", err
	}
	r.Body = &propose.Body{Content: content}
	return got.Value, nil
}

// heldValues holds sealed values of secrets until they are fetched or expire, until
// their calls end, or until no request waits any more (see leave). A value is sent to
// the vault-broker only once the ledger contains the event that allows its call.
type heldValues struct {
	mu   sync.Mutex
	by   map[heldKey]heldValue
	room fair.Room // number of the values in by, by tenant
}

// heldKey identifies a held value. Requests with different values may arrive under one
// Idempotency-Key at the same time; only one of these values belongs to the call that the
// ledger contains (see API.allowed).
type heldKey struct {
	call string // id of the call
	mac  string // of the value if the call has an Idempotency-Key; see API.identify
}

// heldValue is the sealed value of one call, and the time at which it expires.
type heldValue struct {
	tenant    string
	sessions  []string // of the requests with the value, one of which is the call's
	sealed    []byte
	until     time.Time
	escalated bool // held until it expires, whether or not a request waits
	requests  int  // requests with the value that wait for the call's outcome
}

const (
	maxHeldValues = 256 // each of at most 64 KiB before it is sealed
	holdValue     = 15 * time.Minute
)

// hold stores the value of a call for a request, with the request's session. If the same value of
// that call is already held for another request, it only adds the session. At most maxHeldValues
// are held, which fair.Room divides among the tenants; hold returns an error if the tenant of v
// may not hold one more. If the error is nil, the request must later call drop or leave.
func (h *heldValues) hold(key heldKey, v heldValue) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for key, v := range h.by {
		if now.After(v.until) {
			h.remove(key)
		}
	}
	if first, held := h.by[key]; held {
		first.requests++
		if !slices.Contains(first.sessions, v.sessions[0]) {
			first.sessions = append(first.sessions, v.sessions...)
		}
		h.by[key] = first
		return nil
	}
	if !h.room.Take(v.tenant, 1, maxHeldValues) {
		return errors.New("this gateway holds too many values of undecided calls; try again when some calls are decided")
	}
	if h.by == nil {
		h.by = map[heldKey]heldValue{}
	}
	v.until, v.requests = now.Add(holdValue), 1
	h.by[key] = v
	return nil
}

// leave ends the wait of a request whose call may still need the value. The value is
// dropped if no other request waits and the call was not escalated.
func (h *heldValues) leave(key heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.by[key]
	if !ok {
		return
	}
	if v.requests--; v.requests < 1 && !v.escalated {
		h.remove(key)
		return
	}
	h.by[key] = v
}

// drop drops a value whose call has ended or that was fetched.
func (h *heldValues) drop(key heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(key)
}

// remove removes a value, if it is held. The caller holds mu.
func (h *heldValues) remove(key heldKey) {
	if v, ok := h.by[key]; ok {
		delete(h.by, key)
		h.room.Give(v.tenant, 1)
	}
}

// until marks the call of a held value as escalated, and sets the time at which the
// value expires.
func (h *heldValues) until(key heldKey, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.by[key]; ok {
		v.until, v.escalated = t, true
		h.by[key] = v
	}
}

// get returns a value, and reports whether it is held and has not expired.
func (h *heldValues) get(key heldKey) (heldValue, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.by[key]
	return v, ok && time.Now().Before(v.until)
}

// sessions returns the sessions of the requests under a call's id in a tenant, sorted.
func (h *heldValues) sessions(tenant, call string) (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, v := range h.by {
		if key.call == call && v.tenant == tenant {
			out = append(out, v.sessions...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Serve serves the query by which the vault-broker fetches a held value, which is then
// dropped. The error is not_found if no value is held for the call or the call is of
// another tenant than the query, and denied if the call is not allowed yet or the ledger
// cannot be read.
func (s *API) Serve() {
	rpc.Serve(&rpc.Server{Transport: s.Transport}, query.SealedValueQuery, func(ctx context.Context, q *query.SealedValueRequest) ([]byte, error) {
		tenant, missing := transient.Tenant(ctx), rpc.Errorf(contract.CodeNotFound, "no value is held for call %s", q.CallID)
		sessions := s.values.sessions(tenant, q.CallID)
		if len(sessions) == 0 {
			return nil, missing
		}
		mac, err := s.allowed(ctx, tenant, q.CallID, sessions)
		if err != nil {
			return nil, errors.Join(rpc.Errorf(contract.CodeDenied, "the call is not allowed"), err)
		}
		key := heldKey{q.CallID, mac}
		v, ok := s.values.get(key)
		if !ok {
			return nil, missing
		}
		s.values.drop(key)
		return v.sealed, nil
	})
}

// allowed returns the MAC in the event by which policy allows the vault-broker to execute a
// call in one of the sessions, or "" if that call has no Idempotency-Key. The error is
// eventlog.ErrNotFound if the ledger contains no such event.
func (s *API) allowed(ctx context.Context, tenant, call string, sessions []string) (mac string, err error) {
	for _, session := range sessions {
		c := outcome.Call{Tenant: tenant, Session: session, ID: call, Executor: services.VaultBroker}
		e, _, err := c.Allowed(ctx, s.Ledger, 0)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		var a contract.Allowed
		if err == nil {
			err = contract.Decode(e.Data, &a)
		}
		if err != nil || a.Call.Body == nil {
			return "", err
		}
		return s.macOf(ctx, tenant, &a.Call)
	}
	return "", eventlog.ErrNotFound
}

// valueIdentity is the document that identify adds to a proposal.
type valueIdentity struct {
	MAC string `json:"value_mac"`
}

// macOf returns the MAC of the value of a recorded call, from the call's body.
func (s *API) macOf(ctx context.Context, tenant string, c *contract.Call) (string, error) {
	raw, err := s.Calls.Blobs.In(tenant).Open(ctx, c.Body)
	if err != nil {
		return "", err
	}
	var doc valueIdentity
	err = json.Unmarshal(raw, &doc)
	return doc.MAC, err
}
