package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// keyPrefix begins every virtual key, so that scanners find one that leaked.
const keyPrefix = "bk-"

func digestOf(raw string) string {
	sum := sha256.Sum256([]byte(raw))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// KeyRequest is the body of POST /api/v1/keys.
type KeyRequest struct {
	ID           string   `json:"id"`
	Actor        string   `json:"actor"`
	Scopes       []string `json:"scopes,omitempty"` // empty = llm:call
	Models       []string `json:"models,omitempty"` // patterns; empty = every model
	Tags         []string `json:"tags,omitempty"`
	Budget       int64    `json:"budget_usd_micros,omitempty"` // 0 = not bounded
	BudgetWindow string   `json:"budget_window,omitempty"`     // day, month, total
	Rate         int64    `json:"rate_calls,omitempty"`
	RateWindow   string   `json:"rate_window,omitempty"` // second, minute, hour
	Concurrent   int64    `json:"concurrent,omitempty"`
	Cache        bool     `json:"cache,omitempty"`
	TTLMS        int64    `json:"ttl_ms,omitempty"` // 0 = for good
}

// KeyResponse shows a virtual key, this once.
type KeyResponse struct {
	ID  string `json:"id"`
	Key string `json:"key"`
}

// createKey is POST /api/v1/keys. The key is made here and shown once; the call
// that creates it holds its digest.
func (s *Service) createKey(c echo.Context) error {
	who, err := s.auth(c, token.Admin)
	if err != nil {
		return err
	}
	var req KeyRequest
	if _, err := readBodyInto(c, &req); err != nil {
		return err
	}
	if !contract.Token(req.ID) || len(req.ID) > 64 {
		return badRequest("/id", "want 1 to 64 of [A-Za-z0-9_-]")
	}
	if req.Actor == "" {
		req.Actor = who.actor
	}
	if len(req.Scopes) == 0 {
		req.Scopes = []string{token.LLM}
	}
	if err := who.checkScopes(req.Scopes); err != nil {
		return err
	}
	key := keyPrefix + strings.ToLower(rand.Text()+rand.Text())
	doc, err := json.Marshal(struct {
		KeyRequest
		Digest string `json:"digest"`
	}{req, digestOf(key)})
	if err != nil {
		return err
	}
	args, err := canon.Transform(nil, doc)
	if err != nil {
		return badRequest(wholeBody, err.Error())
	}
	r, err := s.request(c, "policy.create_key", "policy.create_key", args, who)
	if err != nil {
		return err
	}
	if _, _, err := s.run(c, r); err != nil {
		return err
	}
	for end := time.Now().Add(2 * time.Second); s.authority.keyOf(key) == nil && time.Now().Before(end); { // it works when its maker has it
		time.Sleep(2 * time.Millisecond)
	}
	return c.JSON(http.StatusOK, KeyResponse{req.ID, key})
}

// checkScopes returns an error for the first scope that there is not, or else for
// the first that the caller cannot give.
func (k *caller) checkScopes(scopes []string) error {
	for i, sc := range scopes {
		if !slices.Contains(token.All, sc) {
			return badRequest("/scopes/"+strconv.Itoa(i), "scope "+sc+" is unknown; known are "+strings.Join(token.All, ", "))
		}
	}
	for i, sc := range scopes {
		if !slices.Contains(k.scopes, sc) {
			return badRequest("/scopes/"+strconv.Itoa(i), "scope "+sc+" is not yours to give: your credential lacks it")
		}
	}
	return nil
}

// ConsentRequest is the body of POST /api/v1/keys/{id}/consent.
type ConsentRequest struct {
	Maker  string   `json:"maker"`  // who may make the key
	Scopes []string `json:"scopes"` // the most it may be used for
	TTLMS  int64    `json:"ttl_ms"` // until when it must be made
}

// consentKey is POST /api/v1/keys/{id}/consent: the caller agrees that another
// principal makes a virtual key that calls as the caller.
func (s *Service) consentKey(c echo.Context) error {
	var req ConsentRequest
	who, _, err := s.callerInto(c, &req)
	if err != nil {
		return err
	}
	w := canon.Object(nil)
	w.Str("id", c.Param("id"))
	w.Str("maker", req.Maker)
	w.Strs("scopes", req.Scopes)
	w.Int("ttl_ms", req.TTLMS)
	return s.respond(c, who, "policy.consent_key", "policy.consent_key", w.End())
}

// withdrawConsent is DELETE /api/v1/keys/{id}/consent.
func (s *Service) withdrawConsent(c echo.Context) error {
	who, err := s.auth(c, "")
	if err != nil {
		return err
	}
	w := canon.Object(nil)
	w.Str("id", c.Param("id"))
	return s.respond(c, who, "policy.withdraw_consent", "policy.withdraw_consent", w.End())
}

// RevocationRequest is the body of POST /api/v1/tokens/revocations: one of id and
// principal.
type RevocationRequest struct {
	ID        string `json:"id,omitempty"`        // of a token (jti)
	Principal string `json:"principal,omitempty"` // all that its credentials gave until now
	Reason    string `json:"reason"`
}

// revokeToken is POST /api/v1/tokens/revocations.
func (s *Service) revokeToken(c echo.Context) error {
	who, raw, err := s.callerInto(c, &RevocationRequest{})
	if err != nil {
		return err
	}
	return s.respond(c, who, "policy.revoke_token", "policy.revoke_token", raw)
}

// listKeys is GET /api/v1/keys.
func (s *Service) listKeys(c echo.Context) error {
	if _, err := s.auth(c, token.Admin); err != nil {
		return err
	}
	return s.askPolicy(c, "keys", nil)
}
