// Package keys serves the API of virtual keys, of consents to them, and of revocations.
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

// API creates virtual keys and revokes credentials. Its fields are set before its first
// use.
type API struct {
	Gate      *auth.Gate
	Calls     *calls.API
	Queries   *queries.Client
	Authority Authority
}

// Authority is the view of credentials; auth.Authority implements it.
type Authority interface {
	// AwaitKey waits until the key is in force at this gateway, or until ctx is done.
	AwaitKey(ctx context.Context, raw string)
}

// inForce bounds how long the response to the creation of a key waits until the key is
// in force.
const inForce = 2 * time.Second

// KeyRequest is the body of POST /api/v1/keys.
type KeyRequest struct {
	ID           string   `json:"id"`
	Actor        string   `json:"actor"`
	Scopes       []string `json:"scopes,omitempty"` // empty = llm:call
	Models       []string `json:"models,omitempty"` // patterns; empty = every model
	Tags         []string `json:"tags,omitempty"`
	Budget       int64    `json:"budget_usd_micros,omitempty"` // 0 means unbounded
	BudgetWindow string   `json:"budget_window,omitempty"`     // day, month, total
	Rate         int64    `json:"rate_calls,omitempty"`
	RateWindow   string   `json:"rate_window,omitempty"` // second, minute, hour
	Concurrent   int64    `json:"concurrent,omitempty"`
	Cache        bool     `json:"cache,omitempty"`
	TTLMS        int64    `json:"ttl_ms,omitempty"` // 0 means that the key does not expire
}

// KeyResponse is the response to the creation of a virtual key, the only one that
// contains the key.
type KeyResponse struct {
	ID  string `json:"id"`
	Key string `json:"key"`
}

// Create is POST /api/v1/keys. The key is generated here and returned once; the call
// that creates it contains only its digest.
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
	ctx, cancel := context.WithTimeout(c.Request().Context(), inForce) // so that the maker can use the key at once
	defer cancel()
	s.Authority.AwaitKey(ctx, key)
	return c.JSON(http.StatusOK, KeyResponse{req.ID, key})
}

// checkScopes returns an error for the first scope that does not exist, or else for the
// first that the caller does not hold and so cannot give.
func checkScopes(k *auth.Caller, scopes []string) error {
	for i, sc := range scopes {
		if !slices.Contains(token.All, sc) {
			return apierr.BadRequest("/scopes/"+strconv.Itoa(i), "scope "+sc+" is unknown; known are "+strings.Join(token.All, ", "))
		}
	}
	for i, sc := range scopes {
		if !slices.Contains(k.Scopes, sc) {
			return apierr.BadRequest("/scopes/"+strconv.Itoa(i), "scope "+sc+" is not yours to give: your credential lacks it")
		}
	}
	return nil
}

// ConsentRequest is the body of POST /api/v1/keys/{id}/consent.
type ConsentRequest struct {
	Maker  string   `json:"maker"`  // principal that may make the key
	Scopes []string `json:"scopes"` // scopes that the key may have at most
	TTLMS  int64    `json:"ttl_ms"` // time within which the key must be made
}

// Consent is POST /api/v1/keys/{id}/consent: the caller agrees that another
// principal makes a virtual key that calls as the caller.
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

// Withdraw is DELETE /api/v1/keys/{id}/consent. It also revokes a key that was made
// under the consent.
func (s *API) Withdraw(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	w := canon.Object(nil)
	w.Str("id", c.Param("id"))
	return s.Calls.Respond(c, who, "policy.withdraw_consent", "policy.withdraw_consent", w.End())
}

// RevocationRequest is the body of POST /api/v1/tokens/revocations. It names a token or
// a principal.
type RevocationRequest struct {
	ID        string `json:"id,omitempty"`        // id of a token (jti)
	Principal string `json:"principal,omitempty"` // ends the principal's tokens, virtual keys and session grants issued so far
	Reason    string `json:"reason"`
}

// Revoke is POST /api/v1/tokens/revocations.
func (s *API) Revoke(c echo.Context) error {
	who, raw, err := s.Gate.Into(c, &RevocationRequest{})
	if err != nil {
		return err
	}
	return s.Calls.Respond(c, who, "policy.revoke_token", "policy.revoke_token", raw)
}

// List is GET /api/v1/keys.
func (s *API) List(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Admin); err != nil {
		return err
	}
	return queries.Send(c, s.Queries, policy.KeysQuery, policy.KeysRequest{})
}
