package logins

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// codeTTL is the time within which a program must exchange an authorization code.
const codeTTL = time.Minute

// registrationTTL is the time for which the registration of a client is valid.
const registrationTTL = 365 * 24 * time.Hour

// byCode opens the login that an authorization code permits. The code contains what the person
// consented to, and the ledger contains the consent, so any gateway can exchange it. The id of the
// login is derived from the code, so policy opens it once; a code that is exchanged again
// ends the login (RFC 6749, section 4.1.2).
func (s *API) byCode(ctx context.Context, f url.Values) (*TokenResponse, error) {
	raw := f.Get("code")
	x, err := token.VerifyUse(s.Gate.LoginKeys, raw, token.UseCode)
	if err != nil {
		return nil, refuse(contract.OAuthGrant, "the code is not valid, or has expired")
	}
	if err := bound(x, f); err != nil {
		return nil, err
	}
	d, err := s.approvalOf(ctx, x.Tenant, raw)
	var r *refusal
	if errors.As(err, &r) {
		return nil, refuse(contract.OAuthGrant, r.text)
	}
	if err != nil {
		return nil, err
	}
	id := contract.IDLogin + x.ID
	out, err := s.open(ctx, person(x.Tenant, d.Principal, "code"), opening{id: id, client: x.Client, party: x.Party, resource: x.Resource, scopes: d.Scopes, ttl: programTTL})
	if err == nil {
		return out, nil
	}
	if used, e := s.opened(ctx, x.Tenant, id); e != nil || !used {
		return nil, errors.Join(err, e)
	}
	var e *apierr.Error
	if err := s.end(ctx, x.Tenant, x.Subject, id, "an authorization code was used twice"); err != nil && !(errors.As(err, &e) && e.Status == http.StatusBadRequest) { // with this status, the login has ended before
		return nil, err
	}
	return nil, refuse(contract.OAuthGrant, "the code was used before; its login has ended")
}

// opened reports whether the ledger contains the opening of a login.
func (s *API) opened(ctx context.Context, tenant, id string) (bool, error) {
	_, err := s.Ledger.Last(ctx, bus.Filter{Tenant: tenant, Service: services.Policy, Event: contract.EventLoginOpened, Key: id}.String())
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// bound returns an error unless the client, the redirect URI, the verifier (RFC 7636, section 4.6)
// and the resource in the form f are those of the code x.
func bound(x *token.Claims, f url.Values) error {
	sum := sha256.Sum256([]byte(f.Get("code_verifier")))
	switch {
	case sign.Digest([]byte(f.Get("client_id"))) != x.Party:
		return refuse(contract.OAuthGrant, "client_id: the code was issued to another client")
	case f.Get("redirect_uri") != x.Redirect:
		return refuse(contract.OAuthGrant, "redirect_uri: not the one of the authorization request")
	case subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(x.Challenge)) != 1:
		return refuse(contract.OAuthGrant, "code_verifier: does not match the code_challenge of the authorization request")
	}
	return sameTarget(x, f)
}

// sameTarget returns an error if the form f has a resource other than that of the token x.
func sameTarget(x *token.Claims, f url.Values) error {
	if f.Has("resource") && f.Get("resource") != x.Resource {
		return refuse(contract.OAuthTarget, "resource: not the one of the authorization request")
	}
	return nil
}

// sameClient returns an error if the form f has a client_id other than that of the login of the
// token x, which a program obtained by a code.
func sameClient(x *token.Claims, f url.Values) error {
	if x.Party != "" && f.Has("client_id") && sign.Digest([]byte(f.Get("client_id"))) != x.Party {
		return refuse(contract.OAuthGrant, "client_id: the token was issued to another client")
	}
	return nil
}

// resources returns the URLs to which tokens may be limited.
func (s *API) resources(c echo.Context) []string {
	var out []string
	for _, path := range s.Resources {
		out = append(out, s.Gate.Base(c)+path)
	}
	return out
}

// Register handles POST /oauth/register (RFC 7591). The client_id is a token with the client's
// metadata, which any gateway can verify: gateways store nothing, and requests without a
// credential add nothing to the ledger.
func (s *API) Register(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	raw, err := bodyOf(c)
	if err != nil {
		return failed(c, err)
	}
	if !s.Clients.registration {
		return failed(c, &refusal{http.StatusForbidden, contract.OAuthDenied, "clients cannot register at this mesh; the operator permits it with gateway.oauth.registration, or lists clients in gateway.oauth.clients"})
	}
	if err := s.attempts.check(map[string]int{"r " + peer(c): freeOfAddress}, time.Now()); err != nil {
		return failed(c, err)
	}
	var m ClientMetadata
	if json.Unmarshal(raw, &m) != nil {
		return failed(c, refuse(contract.OAuthMetadata, "the body is not a JSON object with the metadata of a client"))
	}
	if err := m.check(); err != nil {
		return failed(c, err)
	}
	now := time.Now()
	x := &token.Claims{RegisteredClaims: jwt.RegisteredClaims{ID: rand.Text()}, Use: token.UseClient, Tenant: s.tenant(""), Name: m.Name, Redirects: m.Redirects}
	if m.ID, err = s.issue(x, "", now, now.Add(registrationTTL)); err != nil {
		return failed(c, err)
	}
	m.Issued, m.Method, m.Grants, m.Responses = now.Unix(), methodNone, []string{grantCode, grantRefresh}, []string{responseCode}
	return c.JSON(http.StatusCreated, m)
}
