package logins

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
	"github.com/labstack/echo/v4"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Provider authenticates persons at an identity provider by OpenID Connect: the
// authorization code flow with PKCE (RFC 7636). It discovers the provider's endpoints and
// keys at the first login, and again at later ones until that succeeds. It is safe for
// concurrent use.
type Provider struct {
	config config.OIDC
	secret string
	client *http.Client

	asking singleflight.Group

	mu         sync.Mutex
	discovered *oidc.Provider
	failed     error     // why the last discovery failed
	again      time.Time // when the next one may begin
}

// providerTimeout is the timeout of one request to the identity provider.
const providerTimeout = 10 * time.Second

// discoverAgain is the time after a discovery that failed in which no other one begins. Anyone may
// begin a login, and each discovery is recorded by the egress-broker.
const discoverAgain = time.Second

// stateTTL is the time within which a person must log in at the identity provider.
const stateTTL = 10 * time.Minute

// stateCookie is the name of the cookie with the state of a login that is in progress. Its
// SameSite is Lax, because the browser must send it when the identity provider sends the browser
// back.
const stateCookie = "__Host-binnacle-state"

// NewProvider returns the Provider that c describes, or nil if c has no issuer. It reads the
// client's secret and the authority's certificate, and does not contact the provider. t, which
// leads to the endpoint egress.EndpointOIDC of the egress-broker, then belongs to the Provider. Errors
// name the setting.
func NewProvider(c config.OIDC, t *endpoint.Transport) (*Provider, error) {
	if c.Issuer == "" {
		return nil, nil
	}
	at, err := url.Parse(c.Issuer)
	if err != nil || at.Host == "" || at.Scheme != "https" && !loopback(at.Hostname()) {
		return nil, errors.New("gateway.oidc.issuer: want an https URL, or an http URL of a loopback address")
	}
	if c.ClientID == "" {
		return nil, errors.New("gateway.oidc.client_id: is required with an issuer")
	}
	p := &Provider{config: c}
	if c.ClientSecret.Given() {
		if p.secret, err = c.ClientSecret.Read(); err != nil {
			return nil, fmt.Errorf("gateway.oidc.client_secret: %w", err)
		}
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		if t.TLSClientConfig.RootCAs, err = authorities(c.CA); err != nil {
			return nil, fmt.Errorf("gateway.oidc.ca: %w", err)
		}
	}
	p.client = &http.Client{Transport: t, Timeout: providerTimeout}
	return p, nil
}

// authorities returns the certificates in a PEM file.
func authorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := x509.NewCertPool()
	if !out.AppendCertsFromPEM(pem) {
		return nil, errors.New(path + " has no certificate in PEM")
	}
	return out, nil
}

// loopback reports whether a host is localhost or a loopback address.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Name returns the host of the provider, for the page on which persons log in.
func (p *Provider) Name() string {
	at, _ := url.Parse(p.config.Issuer) // NewProvider has parsed it
	return at.Host
}

// discover returns the provider's endpoints and keys. All who need them at the same time wait for
// one discovery, each until its ctx ends.
func (p *Provider) discover(ctx context.Context) (*oidc.Provider, error) {
	if d, err := p.known(); d != nil || err != nil {
		return d, err
	}
	select {
	case r := <-p.asking.DoChan("", func() (any, error) { return p.ask() }):
		d, _ := r.Val.(*oidc.Provider)
		return d, r.Err
	case <-ctx.Done():
		return nil, apierr.Unavailable("the identity provider " + p.Name() + " does not respond")
	}
}

// known returns what the last discovery returned, or nothing if another one may begin.
func (p *Provider) known() (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil && time.Now().Before(p.again) {
		return nil, p.failed
	}
	return p.discovered, nil
}

// ask makes one discovery, unless another one has ended meanwhile.
func (p *Provider) ask() (*oidc.Provider, error) {
	if d, err := p.known(); d != nil || err != nil {
		return d, err
	}
	// The keys are fetched later with this context, too.
	d, err := oidc.NewProvider(oidc.ClientContext(context.Background(), p.client), p.config.Issuer)
	if err != nil {
		err = apierr.Unavailable("the identity provider " + p.Name() + " does not respond as OpenID Connect Discovery says: " + err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.discovered, p.failed, p.again = d, err, time.Now().Add(discoverAgain)
	return d, err
}

// flow returns the client of the authorization code flow. back is the URL to which the
// provider sends browsers back.
func (p *Provider) flow(d *oidc.Provider, back string) *oauth2.Config {
	return &oauth2.Config{ClientID: p.config.ClientID, ClientSecret: p.secret, Endpoint: d.Endpoint(), RedirectURL: back, Scopes: p.config.Scopes}
}

// identity is a person as the identity provider describes it.
type identity struct {
	digest string // of the issuer and the subject, as in the event identity_linked
	groups []string
}

// exchange exchanges the authorization code of the login that began with state for the
// identity of the person. It verifies the ID token's signature, issuer, audience, time and
// nonce.
func (p *Provider) exchange(ctx context.Context, code string, state *token.Claims) (*identity, error) {
	d, err := p.discover(ctx)
	if err != nil {
		return nil, err
	}
	ctx = oidc.ClientContext(ctx, p.client)
	tokens, err := p.flow(d, state.Back).Exchange(ctx, code, oauth2.VerifierOption(state.Verifier))
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) && refused.Response.StatusCode < http.StatusInternalServerError {
		return nil, forbidden("the identity provider refused the code of this login: " + word(refused.ErrorCode))
	}
	if err != nil {
		return nil, apierr.Unavailable("the identity provider " + p.Name() + " does not respond")
	}
	raw, _ := tokens.Extra("id_token").(string)
	t, err := d.Verifier(&oidc.Config{ClientID: p.config.ClientID}).Verify(ctx, raw)
	if err != nil {
		return nil, forbidden("the ID token is not valid: " + err.Error())
	}
	if subtle.ConstantTimeCompare([]byte(t.Nonce), []byte(state.Nonce)) != 1 || state.Nonce == "" {
		return nil, forbidden("the ID token belongs to another login")
	}
	out := &identity{digest: sign.Digest([]byte(t.Issuer + "\n" + t.Subject))}
	var found bool
	if out.groups, found, err = p.groupsIn(t.Claims); err != nil || found || d.UserInfoEndpoint() == "" {
		return out, err
	}
	info, err := d.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
	if err != nil {
		return nil, apierr.Unavailable("the identity provider " + p.Name() + " does not return the claims of the person")
	}
	if info.Subject != t.Subject {
		return nil, forbidden("the identity provider returned the claims of another person")
	}
	out.groups, _, err = p.groupsIn(info.Claims)
	return out, err
}

// maxGroups is the maximum number of groups that are read.
const maxGroups = 1000

// groupsIn returns the groups in the claims that read decodes, at most maxGroups, and reports
// whether there is a claim of groups, which must be a string or a list of strings.
func (p *Provider) groupsIn(read func(any) error) (groups []string, found bool, err error) {
	var claims map[string]json.RawMessage
	if err := read(&claims); err != nil {
		return nil, false, forbidden("the claims of the person are not JSON")
	}
	raw, found := claims[p.config.Groups]
	if !found {
		return nil, false, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		groups = []string{one}
	} else if json.Unmarshal(raw, &groups) != nil {
		return nil, true, forbidden("the claim " + p.config.Groups + " is neither a string nor a list of strings")
	}
	return groups[:min(len(groups), maxGroups)], true, nil
}

// words matches the error codes of OAuth 2.0.
var words = regexp.MustCompile(`^[a-z_]{1,64}$`)

// word returns an error code of the identity provider, or "error" if it is not one: pages
// show no other text that a URL contains.
func word(code string) string {
	if words.MatchString(code) {
		return code
	}
	return "error"
}

// forbidden returns the error (403) of a login that the identity provider or the mesh refuses.
func forbidden(text string) error { return &refusal{http.StatusForbidden, "access_denied", text} }

// Begin handles POST /auth/oidc: it sends the browser to the identity provider. The state of the
// login is in a cookie that the gateway signs, so that any gateway can continue when the browser
// comes back.
func (s *Pages) Begin(c echo.Context) error {
	f, err := s.posted(c)
	if err != nil {
		return s.fail(c, err)
	}
	if s.Provider == nil {
		return s.fail(c, apierr.NotFound("no identity provider is configured; set gateway.oidc"))
	}
	d, err := s.Provider.discover(c.Request().Context())
	if err != nil {
		return s.fail(c, err)
	}
	now := time.Now()
	x := &token.Claims{RegisteredClaims: jwt.RegisteredClaims{ID: rand.Text()}, Use: token.UseState, Tenant: s.API.tenant(f.Get("tenant")), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), UserCode: f.Get("code"), Back: s.API.Gate.Base(c) + CallbackPath}
	if code := f.Get("invitation"); code != "" {
		x.Invitation = InvitationDigest(code)
	}
	if after(x.UserCode) == LoginPath {
		x.UserCode = ""
	}
	raw, err := s.API.issue(x, "", now, now.Add(stateTTL))
	if err != nil {
		return s.fail(c, err)
	}
	setCookie(c, stateCookie, raw, stateTTL, http.SameSiteLaxMode)
	next := s.Provider.flow(d, x.Back).AuthCodeURL(x.ID, oidc.Nonce(x.Nonce), oauth2.S256ChallengeOption(x.Verifier))
	return show(c, http.StatusOK, &page{Title: "Continue at " + s.Provider.Name(), Next: next})
}

// Callback handles GET /auth/callback, to which the identity provider sends the browser.
func (s *Pages) Callback(c echo.Context) error {
	state, err := s.state(c)
	setCookie(c, stateCookie, "", 0, http.SameSiteLaxMode)
	if err != nil {
		return s.fail(c, err)
	}
	if code := c.QueryParam("error"); code != "" {
		return s.fail(c, forbidden("the identity provider did not log you in: "+word(code)))
	}
	ctx := c.Request().Context()
	// Anyone can begin a login and invent a code, and each exchange is recorded by the egress-broker.
	from := map[string]int{"o " + peer(c): freeOfAddress}
	if err := s.API.attempts.check(from, time.Now()); err != nil {
		return s.fail(c, err)
	}
	who, err := s.Provider.exchange(ctx, c.QueryParam("code"), state)
	if err != nil {
		return s.fail(c, err)
	}
	s.API.attempts.succeeded(from)
	p, err := s.member(ctx, who, state)
	if err != nil {
		return s.fail(c, err)
	}
	return s.enter(c, p, opening{}, state.UserCode)
}

// state returns the state of the login that the browser has begun. The error has status 404 if no
// identity provider is configured, and 403 if the browser has begun no login within stateTTL, or
// if the parameters of the request belong to another one (RFC 6749, section 10.12; RFC 9207).
func (s *Pages) state(c echo.Context) (*token.Claims, error) {
	if s.Provider == nil {
		return nil, apierr.NotFound("no identity provider is configured; set gateway.oidc")
	}
	cookie, err := c.Request().Cookie(stateCookie)
	if err != nil {
		return nil, forbidden("this browser has begun no login, or more than ten minutes ago; begin again at " + LoginPath)
	}
	x, err := token.VerifyUse(s.API.Gate.LoginKeys, cookie.Value, token.UseState)
	if err != nil {
		return nil, forbidden("the login was begun more than ten minutes ago; begin again at " + LoginPath)
	}
	if subtle.ConstantTimeCompare([]byte(x.ID), []byte(c.QueryParam("state"))) != 1 {
		return nil, forbidden("this is the answer to another login; begin again at " + LoginPath)
	}
	if iss := c.QueryParam("iss"); iss != "" && iss != s.Provider.config.Issuer {
		return nil, forbidden("this is the answer of another identity provider; begin again at " + LoginPath)
	}
	return x, nil
}

// InvitationDigest returns the digest that the ledger holds in place of an invitation's code.
func InvitationDigest(code string) string { return sign.Digest([]byte(code)) }

// member returns the person to whom an identity is linked, as the sender of calls about
// logins. If the identity is linked to no person and the login has an invitation, it links
// the identity first. It then reports the person's groups to policy, if they give or gave
// roles.
func (s *Pages) member(ctx context.Context, who *identity, state *token.Claims) (*auth.Caller, error) {
	known := s.API.Gate.Authority
	principal := known.Linked(state.Tenant, who.digest)
	if state.Invitation != "" && principal == "" {
		if principal = known.Invited(state.Tenant, state.Invitation, time.Now()); principal == "" {
			return nil, forbidden("the invitation was not found, or was accepted, withdrawn or expired")
		}
		w := canon.Object(nil)
		w.Str("code", state.Invitation)
		w.Str("identity", who.digest)
		w.Str("issuer", s.Provider.config.Issuer)
		if err := s.API.call(ctx, person(state.Tenant, principal, "oidc"), "policy.accept_invitation", w.End(), &events.IdentityLinked{}); err != nil {
			return nil, err
		}
	}
	if principal == "" {
		return nil, forbidden("your identity is linked to no person of this tenant; log in with the code of an invitation")
	}
	p := person(state.Tenant, principal, "oidc")
	groups, report := known.Groups(state.Tenant, principal, who.groups)
	if !report {
		return p, nil
	}
	slices.Sort(groups)
	w := canon.Object(nil)
	w.Strs("groups", slices.Compact(groups))
	w.Str("identity", who.digest)
	return p, s.API.call(ctx, p, "policy.report_groups", w.End(), &events.GroupsReported{})
}
