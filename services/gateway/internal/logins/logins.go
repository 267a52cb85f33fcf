// Package logins serves the API of logins: a person authenticates at a gateway, and
// receives a short-lived access token and a refresh token (RFC 6749), which the gateways
// sign with keys of the registry. It publishes these keys (RFC 7517), and serves the
// introspection (RFC 7662) and revocation (RFC 7009) of tokens, and the codes of devices
// (RFC 8628).
//
// A login is opened, renewed and ended by a call that policy decides, so each is on the
// ledger, which every gateway reads. The gateway states only how the person
// authenticated.
package logins

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
	"github.com/binnacle-mesh/binnacle/services/gateway/password"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API serves the routes of logins. Its exported fields are set before its first use.
type API struct {
	Gate      *auth.Gate
	Calls     *calls.API
	Queries   *queries.Services
	Ledger    eventlog.Log
	Key       func() *sign.Key   // returns the gateway's signing key, or nil if it has none now
	Keys      func() []trust.Key // returns the keys of the registry
	Original  func() string      // returns the mesh's original tenant, for logins that name none
	Passwords string             // path of the file of passwords; see package password
	Clients   *Clients
	Resources []string // paths of the routes to which tokens may be limited (RFC 8707)

	attempts throttle
	hashing  sync.Mutex // serializes the hashing of passwords, because each hash uses 19 MiB of memory
}

// The lifetimes of tokens and logins.
const (
	AccessTTL  = 10 * time.Minute
	browserTTL = 12 * time.Hour
	programTTL = 30 * 24 * time.Hour
)

// latest is a Lamport time after every event, at which only keys that are not revoked are
// valid.
const latest = ^uint64(0) >> 1

// KeyOf returns a token.KeyOf that looks up keys with at; see run.Trust.At. It returns
// only keys with which gateways sign tokens and that are not revoked.
func KeyOf(at func(kid, owner, use string, lamport uint64) ([]byte, error)) token.KeyOf {
	return func(kid string) (ed25519.PublicKey, error) {
		k, err := at(kid, contract.CallerExecutor, contract.UseToken, latest)
		return k, err
	}
}

// JWK is a public key that verifies tokens (RFC 7517, RFC 8037).
type JWK struct {
	Alg string `json:"alg"`
	Crv string `json:"crv"`
	KID string `json:"kid"`
	Kty string `json:"kty"`
	Use string `json:"use"`
	X   string `json:"x"`
}

// JWKS is a set of public keys.
type JWKS struct {
	Keys []JWK `json:"keys"`
}

// PublishKeys handles GET /.well-known/jwks.json. It responds with the keys with which
// gateways sign tokens, without those that are revoked.
func (s *API) PublishKeys(c echo.Context) error {
	out := JWKS{Keys: []JWK{}}
	for _, k := range s.Keys() {
		if k.Owner != contract.CallerExecutor || k.RevokedSince != 0 || !slices.Contains(k.Uses, contract.UseToken) {
			continue
		}
		if public, err := sign.Base64(k.PublicKey); err == nil {
			out.Keys = append(out.Keys, JWK{Alg: "EdDSA", Crv: "Ed25519", KID: k.KID, Kty: "OKP", Use: "sig", X: base64.RawURLEncoding.EncodeToString(public)})
		}
	}
	c.Response().Header().Set("Cache-Control", "public, max-age=60")
	return c.JSON(http.StatusOK, out)
}

// Metadata describes the token routes (RFC 8414).
type Metadata struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Registration  string   `json:"registration_endpoint,omitempty"`
	Token         string   `json:"token_endpoint"`
	Device        string   `json:"device_authorization_endpoint"`
	Introspection string   `json:"introspection_endpoint"`
	Revocation    string   `json:"revocation_endpoint"`
	JWKS          string   `json:"jwks_uri"`
	Grants        []string `json:"grant_types_supported"`
	Responses     []string `json:"response_types_supported"`
	Methods       []string `json:"token_endpoint_auth_methods_supported"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	Scopes        []string `json:"scopes_supported"`
	Identified    bool     `json:"authorization_response_iss_parameter_supported"` // RFC 9207
	Documents     bool     `json:"client_id_metadata_document_supported"`
}

// Describe handles GET /.well-known/oauth-authorization-server.
func (s *API) Describe(c echo.Context) error {
	at := s.Gate.Base(c)
	m := Metadata{Issuer: at, Authorization: at + AuthorizePath, Token: at + "/oauth/token", Device: at + "/oauth/device", Introspection: at + "/oauth/introspect",
		Revocation: at + "/oauth/revoke", JWKS: at + "/.well-known/jwks.json", Grants: []string{grantCode, grantRefresh, grantDevice, grantPassword},
		Responses: []string{responseCode}, Methods: []string{methodNone}, Challenges: []string{methodS256}, Scopes: contract.MemberScopes([]string{contract.RoleOwner}), Identified: true, Documents: len(s.Clients.hosts) > 0}
	if s.Clients.registration {
		m.Registration = at + RegisterPath
	}
	return c.JSON(http.StatusOK, m)
}

// The grants of POST /oauth/token.
const (
	grantCode     = "authorization_code"
	grantPassword = "password"
	grantRefresh  = "refresh_token"
	grantDevice   = "urn:ietf:params:oauth:grant-type:device_code"
)

// TokenRequest is the form of POST /oauth/token. RFC 6749, RFC 7636 and RFC 8628 specify which
// members a grant needs. Tenant is the tenant of the login; if it is absent, the
// tenant is the mesh's original one.
type TokenRequest struct {
	Grant    string `json:"grant_type"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	Refresh  string `json:"refresh_token,omitempty"`
	Device   string `json:"device_code,omitempty"`
	Code     string `json:"code,omitempty"`
	Verifier string `json:"code_verifier,omitempty"`
	Redirect string `json:"redirect_uri,omitempty"`
	Resource string `json:"resource,omitempty"` // the one of the authorization request, or absent
	Client   string `json:"client_id,omitempty"`
	Scope    string `json:"scope,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
}

// TokenResponse is the response to a grant.
type TokenResponse struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token,omitempty"`
	Type    string `json:"token_type"`
	Expires int64  `json:"expires_in"` // seconds
	Scope   string `json:"scope"`
	Login   string `json:"login"`
}

// oauthError is the form of errors of the token routes (RFC 6749, section 5.2).
type oauthError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
}

// Token handles POST /oauth/token.
func (s *API) Token(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	form, err := formOf(c)
	if err != nil {
		return failed(c, err)
	}
	f := form.Get
	var out *TokenResponse
	switch f("grant_type") {
	case grantCode:
		out, err = s.byCode(c.Request().Context(), form)
	case grantPassword:
		out, err = s.byPassword(c, f("tenant"), f("username"), f("password"), f("client_id"), strings.Fields(f("scope")))
	case grantRefresh:
		out, err = s.refresh(c.Request().Context(), form)
	case grantDevice:
		out, err = s.byDevice(c.Request().Context(), f("device_code"))
	default:
		err = refuse(contract.OAuthGrantType, "grant_type: want "+grantCode+", "+grantPassword+", "+grantRefresh+" or "+grantDevice)
	}
	if err != nil {
		return failed(c, err)
	}
	return c.JSON(http.StatusOK, out)
}

// refusal is an error with the code that RFC 6749 or RFC 8628 gives it, and a status.
type refusal struct {
	status     int
	code, text string
}

// Error implements error.
func (r *refusal) Error() string { return r.text }

// refuse returns a refusal with status 400.
func refuse(code, text string) error { return &refusal{http.StatusBadRequest, code, text} }

// errCredentials is the error for a wrong name or password. It does not reveal which is
// wrong.
var errCredentials = refuse(contract.OAuthGrant, "the name or the password is wrong")

// failed responds with an error in the form of RFC 6749.
func failed(c echo.Context, err error) error {
	var status int
	out := oauthError{contract.OAuthServer, err.Error()}
	var r *refusal
	var e *apierr.Error
	switch {
	case errors.As(err, &r):
		status, out.Code = r.status, r.code
	case errors.As(err, &e):
		status = e.Status
		if e.RetryAfter != "" {
			c.Response().Header().Set("Retry-After", e.RetryAfter)
		}
		switch {
		case status == http.StatusBadRequest, status == http.StatusConflict, status == http.StatusForbidden && e.ReasonCode == "":
			status, out.Code = http.StatusBadRequest, contract.OAuthGrant
		case status == http.StatusForbidden:
			out.Code = contract.OAuthDenied
		case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
			out.Code = contract.OAuthUnavailable
		}
	default:
		status = http.StatusInternalServerError
		out.Description = "the login failed"
	}
	return c.JSON(status, out)
}

// byPassword opens a login of a person who presents a password.
func (s *API) byPassword(c echo.Context, tenant, principal, secret, client string, scopes []string) (*TokenResponse, error) {
	who, err := s.authenticate(c, tenant, principal, secret)
	if err != nil {
		return nil, err
	}
	return s.open(c.Request().Context(), who, opening{client: client, scopes: scopes, ttl: programTTL})
}

// tenant returns the tenant of a login that names one, or the mesh's original one.
func (s *API) tenant(name string) string {
	if name == "" {
		return s.Original()
	}
	return name
}

// authenticate verifies a password and returns the person as the sender of calls about
// logins. The error is errCredentials if the name or the password is wrong, 429 after
// too many failed attempts (see throttle), or 503 if passwords cannot be verified now.
func (s *API) authenticate(c echo.Context, tenant, principal, secret string) (*auth.Caller, error) {
	tenant = s.tenant(tenant)
	keys := attempt(peer(c), tenant, principal)
	if err := s.attempts.check(keys, time.Now()); err != nil {
		return nil, err
	}
	s.hashing.Lock()
	defer s.hashing.Unlock()
	ok, err := password.Verify(s.Passwords, tenant, principal, []byte(secret))
	if err != nil {
		return nil, apierr.Unavailable("passwords cannot be verified now")
	}
	if !ok {
		return nil, errCredentials
	}
	s.attempts.succeeded(keys)
	return person(tenant, principal, "password"), nil
}

// peer returns the address of the peer of a request, without its port.
func peer(c echo.Context) string {
	host, _, err := net.SplitHostPort(c.Request().RemoteAddr)
	if err != nil {
		return c.Request().RemoteAddr
	}
	return host
}

// person returns a person that has authenticated as the sender of calls about logins. It
// has no scopes.
func person(tenant, principal, method string) *auth.Caller {
	return &auth.Caller{Tenant: tenant, Actor: principal, Client: contract.LoginClient + method}
}

// opening describes a login that is to be opened.
type opening struct {
	id, client string
	party      string   // digest of the client_id, of a login by a code
	resource   string   // URL that the access tokens are limited to, or ""
	scopes     []string // the login is limited to these; empty means those of the person's roles
	ttl        time.Duration
	browser    bool // the tokens are for a cookie
}

// maxClient is the maximum length of the client of a token, in bytes.
const maxClient = 64

// open opens a login of a person who has authenticated, and returns its tokens. For a
// browser these are one token that is valid as long as the login, without a refresh
// token. A client that is empty, contains a slash or is longer than 64 bytes is
// recorded as "-".
func (s *API) open(ctx context.Context, who *auth.Caller, o opening) (*TokenResponse, error) {
	if o.id == "" {
		o.id = contract.IDLogin + rand.Text()
	}
	if o.client == "" || strings.ContainsRune(o.client, '/') || len(o.client) > maxClient {
		o.client = "-"
	}
	now := time.Now()
	refresh, err := s.issue(&token.Claims{Use: token.UseRefresh, Login: o.id, Tenant: who.Tenant, Client: o.client, Party: o.party, Resource: o.resource}, who.Actor, now, now.Add(o.ttl))
	if err != nil {
		return nil, err
	}
	w := canon.Object(nil)
	w.Str("id", o.id)
	w.Str("method", strings.TrimPrefix(who.Client, contract.LoginClient))
	w.Str("refresh", sign.Digest([]byte(refresh)))
	if len(o.scopes) > 0 {
		w.Strs("requested", o.scopes)
	}
	w.Int("ttl_ms", o.ttl.Milliseconds())
	var d events.LoginOpened
	if err := s.call(ctx, who, "policy.open_login", w.End(), &d); err != nil {
		return nil, err
	}
	use, ttl := token.UseAccess, AccessTTL
	if o.browser {
		use, ttl, refresh = token.UseBrowser, o.ttl, ""
	}
	return s.tokens(&token.Claims{Use: use, Login: o.id, Tenant: who.Tenant, Client: o.client, Party: o.party, Resource: o.resource, Scopes: d.Scopes}, who.Actor, refresh, ttl)
}

// refresh exchanges a refresh token for new tokens. A token that a gateway did not sign is
// rejected before anything is recorded.
func (s *API) refresh(ctx context.Context, f url.Values) (*TokenResponse, error) {
	raw := f.Get("refresh_token")
	c, err := token.VerifyUse(s.Gate.LoginKeys, raw, token.UseRefresh)
	if err != nil {
		return nil, refuse(contract.OAuthGrant, "the refresh token is not valid: "+err.Error())
	}
	if err := errors.Join(sameClient(c, f), sameTarget(c, f)); err != nil {
		return nil, err
	}
	now := time.Now()
	next, err := s.issue(&token.Claims{Use: token.UseRefresh, Login: c.Login, Tenant: c.Tenant, Client: c.Client, Party: c.Party, Resource: c.Resource}, c.Subject, now, c.ExpiresAt.Time)
	if err != nil {
		return nil, err
	}
	w := canon.Object(nil)
	w.Str("id", c.Login)
	w.Str("next", sign.Digest([]byte(next)))
	w.Str("used", sign.Digest([]byte(raw)))
	var d struct {
		Scopes []string `json:"scopes"`
		Reason string   `json:"reason"`
	}
	if err := s.call(ctx, person(c.Tenant, c.Subject, "refresh"), "policy.renew_login", w.End(), &d); err != nil {
		return nil, err
	}
	if d.Reason != "" {
		return nil, refuse(contract.OAuthGrant, "the login has ended: "+d.Reason)
	}
	return s.tokens(&token.Claims{Use: token.UseAccess, Login: c.Login, Tenant: c.Tenant, Client: c.Client, Party: c.Party, Resource: c.Resource, Scopes: d.Scopes}, c.Subject, next, AccessTTL)
}

// tokens issues a token with the claims c, valid for ttl, and returns it as the access token
// together with the refresh token.
func (s *API) tokens(c *token.Claims, subject, refresh string, ttl time.Duration) (*TokenResponse, error) {
	now := time.Now()
	raw, err := s.issue(c, subject, now, now.Add(ttl))
	if err != nil {
		return nil, err
	}
	return &TokenResponse{Access: raw, Refresh: refresh, Type: "Bearer", Expires: int64(ttl / time.Second), Scope: strings.Join(c.Scopes, " "), Login: c.Login}, nil
}

// issue signs a token with the gateway's key. The error is 503 if the gateway has no key
// that the registry holds for tokens.
func (s *API) issue(c *token.Claims, subject string, now, until time.Time) (string, error) {
	k := s.Key()
	if k == nil {
		return "", apierr.Unavailable("this gateway has no signing key")
	}
	if _, err := s.Gate.LoginKeys(k.KID); err != nil {
		return "", apierr.Unavailable("the gateway's signing key is not for tokens; `binnacle trust rotate gateway` makes one that is: " + err.Error())
	}
	c.Subject, c.IssuedAt, c.ExpiresAt = subject, jwt.NewNumericDate(now), jwt.NewNumericDate(until)
	return token.Issue(k, k.KID, c)
}

// callTimeout is the timeout of the calls that open, renew and end logins.
const callTimeout = 10 * time.Second

// call proposes a call about logins, waits for its outcome, and decodes the call's result, the
// data of the event that policy recorded, into doc.
func (s *API) call(ctx context.Context, who *auth.Caller, kind string, args []byte, doc any) error {
	r, err := s.request(who, kind, args)
	if err != nil {
		return err
	}
	output, err := s.await(ctx, r)
	if err != nil {
		return err
	}
	var out struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(output, &out); err != nil {
		return err
	}
	return json.Unmarshal(out.Result, doc)
}

// request returns the proposal of a call about logins.
func (s *API) request(who *auth.Caller, kind string, args []byte) (propose.Request, error) {
	in := sessions.Session{ID: contract.SessionID(who.Tenant, who.Actor, loginSession)}
	r, err := s.Calls.Plain(http.Header{}, who, in, kind, kind, args)
	r.Timeout = callTimeout
	return r, err
}

// await proposes a call, unless its actor or its tenant is suspended, and returns its
// output.
func (s *API) await(ctx context.Context, r propose.Request) ([]byte, error) {
	if err := s.Gate.Suspended(r.Tenant, r.Actor); err != nil {
		return nil, err
	}
	_, output, err := s.Calls.Await(ctx, r, false) // not asynchronous, because a login needs no approval
	return output, err
}

// loginSession is the name of the session in which calls about the logins of a person
// are made.
const loginSession = contract.IDSession + "login"

// TokenForm is the form of a request about a token.
type TokenForm struct {
	Token string `json:"token"`
}

// Introspection is the response to an introspection.
type Introspection struct {
	Active  bool   `json:"active"`
	Scope   string `json:"scope,omitempty"`
	Client  string `json:"client_id,omitempty"`
	Subject string `json:"sub,omitempty"`
	Expires int64  `json:"exp,omitempty"`
	Login   string `json:"login,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Limit   string `json:"aud,omitempty"` // URL of the only route at which the token is valid; absent: all of the API
	Type    string `json:"token_type,omitempty"`
}

// Introspect handles POST /oauth/introspect. A credential of another tenant than the
// caller's is inactive, like one that is not valid or whose principal is suspended.
func (s *API) Introspect(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	form, err := formOf(c)
	if err != nil {
		return failed(c, err)
	}
	k, err := s.Gate.Verify(c.Request().Context(), form.Get("token"))
	if err != nil || k.Tenant != who.Tenant || s.Gate.Suspended(k.Tenant, k.Actor) != nil {
		return c.JSON(http.StatusOK, Introspection{})
	}
	out := Introspection{Active: true, Scope: strings.Join(k.Scopes, " "), Client: k.Client, Subject: k.Actor, Login: k.Login, Tenant: k.Tenant, Limit: k.Limit, Type: "Bearer"}
	if !k.Until.IsZero() {
		out.Expires = k.Until.Unix()
	}
	return c.JSON(http.StatusOK, out)
}

// Revoke handles POST /oauth/revoke: it ends the login of a refresh or access token. It
// responds with 200 even for a token that is not valid (RFC 7009, section 2.2).
func (s *API) Revoke(c echo.Context) error {
	form, err := formOf(c)
	if err != nil {
		return failed(c, err)
	}
	raw := form.Get("token")
	claims, err := token.VerifyUse(s.Gate.LoginKeys, raw, token.UseRefresh)
	if err != nil {
		claims, err = token.VerifyUse(s.Gate.LoginKeys, raw, token.UseAccess)
	}
	if err != nil || claims.Login == "" {
		return c.NoContent(http.StatusOK)
	}
	err = s.end(c.Request().Context(), claims.Tenant, claims.Subject, claims.Login, loggedOut)
	var e *apierr.Error
	if errors.As(err, &e) && e.Status == http.StatusBadRequest { // the login has ended before
		err = nil
	}
	if err != nil {
		return failed(c, err)
	}
	return c.NoContent(http.StatusOK)
}

// loggedOut is the reason of the end of a login that its holder ends.
const loggedOut = "logged out"

// end ends a login of a person.
func (s *API) end(ctx context.Context, tenant, principal, id, reason string) error {
	w := canon.Object(nil)
	w.Str("id", id)
	w.Str("reason", reason)
	return s.call(ctx, person(tenant, principal, "logout"), "policy.end_login", w.End(), &events.LoginEnded{})
}
