// Package keys serves the API of virtual keys, of consents to their creation, and of
// revocations.
package keys

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API proposes the calls that create virtual keys, give and withdraw consent to their
// creation, and revoke credentials. It also lists the keys. Its fields are set before
// its first use.
type API struct {
	Gate      *auth.Gate
	Calls     *calls.API
	Queries   *queries.Services
	Authority Authority
}

// Authority is the view of credentials. auth.Authority implements it.
type Authority interface {
	// AwaitKey waits until this gateway accepts the virtual key raw, or until ctx is
	// done.
	AwaitKey(ctx context.Context, tenant, raw string)
}

// inForce is the maximum time that the response to the creation of a key waits until
// this gateway accepts the key.
const inForce = 2 * time.Second

// KeyRequest is the body of POST /api/v1/keys.
type KeyRequest struct {
	ID           string   `json:"id"`
	Actor        string   `json:"actor"`
	Scopes       []string `json:"scopes,omitempty"` // empty = llm:call
	Kinds        []string `json:"kinds,omitempty"`  // patterns of the kinds of calls that the key is for, such as tool.cmd.upper; it is then for no reads; empty = whatever the scopes allow
	Models       []string `json:"models,omitempty"` // patterns of model names; empty = every model
	Tags         []string `json:"tags,omitempty"`
	Budget       int64    `json:"budget_usd_micros,omitempty"` // 0 means unbounded
	BudgetWindow string   `json:"budget_window,omitempty"`     // day, month or total; empty = total
	Rate         int64    `json:"rate_calls,omitempty"`
	RateWindow   string   `json:"rate_window,omitempty"` // second, minute, hour or total; empty = minute
	Concurrent   int64    `json:"concurrent,omitempty"`
	Cache        bool     `json:"cache,omitempty"`
	TTLMS        int64    `json:"ttl_ms,omitempty"` // time to live in milliseconds; 0 means that the key does not expire
}

// KeyResponse is the response to the creation of a virtual key. No other response
// contains the key.
type KeyResponse struct {
	ID  string `json:"id"`
	Key string `json:"key"`
}

// Create handles POST /api/v1/keys. The key is generated here and returned once; the
// call that creates it contains only the key's digest.
func (s *API) Create(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Admin)
	if err != nil {
		return err
	}
	var req KeyRequest
	if _, err := body.Into(c, &req); err != nil {
		return err
	}
	if !contract.Token(req.ID) || len(req.ID) > 64 {
		return apierr.BadRequest("/id", "want 1 to 64 of [A-Za-z0-9_-]")
	}
	if req.Actor == "" {
		req.Actor = who.Actor
	}
	if len(req.Scopes) == 0 {
		req.Scopes = []string{token.LLM}
	}
	if err := checkScopes(who, req.Scopes); err != nil {
		return err
	}
	key := auth.KeyPrefix + strings.ToLower(rand.Text()+rand.Text())
	doc, err := json.Marshal(struct {
		KeyRequest
		Digest string `json:"digest"`
	}{req, auth.DigestOf(key)})
	if err != nil {
		return err
	}
	args, err := canon.Transform(nil, doc)
	if err != nil {
		return apierr.BadRequest(apierr.WholeBody, err.Error())
	}
	r, err := s.Calls.Request(c, "policy.create_key", "policy.create_key", args, who)
	if err != nil {
		return err
	}
	if _, _, err := s.Calls.Run(c, r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), inForce) // the maker can then use the key at once
	defer cancel()
	s.Authority.AwaitKey(ctx, who.Tenant, key)
	return c.JSON(http.StatusOK, KeyResponse{req.ID, key})
}

// checkScopes returns an error for the first scope that does not exist, or else for the
// first scope that the caller does not have and so cannot pass on.
func checkScopes(k *auth.Caller, scopes []string) error {
	for i, sc := range scopes {
		if !slices.Contains(token.All, sc) {
			return apierr.BadRequest("/scopes/"+strconv.Itoa(i), "scope "+sc+" is unknown; known are "+strings.Join(token.All, ", "))
		}
	}
	for i, sc := range scopes {
		if !slices.Contains(k.Scopes, sc) {
			return apierr.BadRequest("/scopes/"+strconv.Itoa(i), "your credential lacks scope "+sc+", so it cannot create a key with this scope")
		}
	}
	return nil
}

// ConsentRequest is the body of POST /api/v1/keys/{id}/consent.
type ConsentRequest struct {
	Maker  string   `json:"maker"`  // principal that may create the key
	Scopes []string `json:"scopes"` // the key may have these scopes or some of them
	TTLMS  int64    `json:"ttl_ms"` // milliseconds within which the key must be created
}

// Consent handles POST /api/v1/keys/{id}/consent. The caller consents that another
// principal creates a virtual key that acts as the caller.
func (s *API) Consent(c echo.Context) error {
	var req ConsentRequest
	who, _, err := s.Gate.Into(c, &req)
	if err != nil {
		return err
	}
	w := canon.Object(nil)
	w.Str("id", c.Param("id"))
	w.Str("maker", req.Maker)
	w.Strs("scopes", req.Scopes)
	w.Int("ttl_ms", req.TTLMS)
	return s.Calls.Respond(c, who, "policy.consent_key", "policy.consent_key", w.End())
}

// Withdraw handles DELETE /api/v1/keys/{id}/consent. It ends the caller's consent to the
// key, and revokes the key if it acts as the caller.
func (s *API) Withdraw(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	w := canon.Object(nil)
	w.Str("id", c.Param("id"))
	return s.Calls.Respond(c, who, "policy.withdraw_consent", "policy.withdraw_consent", w.End())
}

// RevocationRequest is the body of POST /api/v1/tokens/revocations. It names either a token or a
// principal.
type RevocationRequest struct {
	ID        string `json:"id,omitempty"`        // id of the token to revoke (jti)
	Principal string `json:"principal,omitempty"` // principal whose tokens, virtual keys, delegations, consents and session grants issued so far are revoked
	Reason    string `json:"reason"`
}

// Revoke handles POST /api/v1/tokens/revocations. It proposes a call
// policy.revoke_token.
func (s *API) Revoke(c echo.Context) error {
	who, raw, err := s.Gate.Into(c, &RevocationRequest{})
	if err != nil {
		return err
	}
	return s.Calls.Respond(c, who, "policy.revoke_token", "policy.revoke_token", raw)
}

// List handles GET /api/v1/keys. It responds with the virtual keys of the caller's
// tenant.
func (s *API) List(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Admin)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), policy.KeysQuery, policy.KeysRequest{})
}
