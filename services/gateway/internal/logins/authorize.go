package logins

import (
	"crypto/rand"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// The paths of the authorization endpoint (RFC 6749, section 3.1), of the registration of clients, and
// of the page on which a person consents to a request.
const (
	AuthorizePath = "/oauth/authorize"
	RegisterPath  = "/oauth/register" // of the registration of clients (RFC 7591)
	ConsentPath   = "/auth/consent"
)

const (
	responseCode = "code"
	methodS256   = "S256"
)

// requestTTL is the time within which a person must consent to an authorization request.
const requestTTL = 10 * time.Minute

// requestCookie is the prefix of the names of the cookies with authorization requests, each of
// which is sealed by a gateway, so that any gateway can continue. The request's id follows it.
const requestCookie = "__Host-binnacle-request-"

// requestIDs matches the ids of authorization requests.
var requestIDs = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// challenges matches the challenges of PKCE with S256 (RFC 7636, section 4.2).
var challenges = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// Consent is the form of POST /auth/consent. The field scope may be repeated.
type Consent struct {
	Request string `json:"request"`         // id of the authorization request
	Choice  string `json:"choice"`          // approve or deny
	Scope   string `json:"scope,omitempty"` // a scope that the program gets
}

// maxRequest is the maximum size of a sealed request: browsers store cookies of up to 4096 bytes.
const maxRequest = 3800

// Authorize handles GET /oauth/authorize. It stores the request in a cookie and sends the browser to
// the page ConsentPath, which receives the cookie of the person's login also if another site sent
// the browser here. An error about the client or its redirect URI is shown on a page; other
// errors are for the client.
func (s *Pages) Authorize(c echo.Context) error {
	if err := s.protected(c); err != nil {
		return s.fail(c, err)
	}
	q, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return s.fail(c, apierr.BadRequest("query", "the query is malformed"))
	}
	x, err := s.requested(c, q)
	if err != nil {
		return s.fail(c, err)
	}
	if code, text := fault(q, s.API.resources(c)); code != "" {
		return s.reject(c, x, code, text)
	}
	now := time.Now()
	raw, err := s.API.issue(x, "", now, now.Add(requestTTL))
	if err != nil {
		return s.fail(c, err)
	}
	if len(raw) > maxRequest {
		return s.reject(c, x, contract.OAuthRequest, "the request is too long")
	}
	setCookie(c, requestCookie+x.ID, raw, requestTTL, http.SameSiteStrictMode)
	return show(c, http.StatusOK, &page{Title: "Continue to log in", Next: after(x.ID)})
}

// requested returns the request in a query. The error states why its client or its redirect URI is
// not valid; the browser must not be sent to the redirect URI then.
func (s *Pages) requested(c echo.Context, q url.Values) (*token.Claims, error) {
	for _, name := range []string{"client_id", "redirect_uri"} {
		if len(q[name]) != 1 {
			return nil, refuse(contract.OAuthRequest, name+": want one value")
		}
	}
	id, to := q.Get("client_id"), q.Get("redirect_uri")
	// Anyone can invent documents, and each fetch of one is recorded by the egress-broker.
	from := map[string]int{"c " + peer(c): freeOfAddress}
	fetches := false
	known, err := s.API.Clients.find(c.Request().Context(), s.API.Gate.LoginKeys, id, func() error {
		fetches = true
		return s.API.attempts.check(from, time.Now())
	})
	if err != nil {
		return nil, err
	}
	if fetches {
		s.API.attempts.succeeded(from)
	}
	if !slices.ContainsFunc(known.redirects, func(r string) bool { return sameRedirect(r, to) }) {
		return nil, refuse(contract.OAuthRequest, "redirect_uri: not one of the client's redirect URIs")
	}
	return &token.Claims{RegisteredClaims: jwt.RegisteredClaims{ID: rand.Text()}, Use: token.UseRequest, Tenant: s.API.tenant(""), Client: known.label, Party: sign.Digest([]byte(id)), Name: known.name,
		Redirect: to, Challenge: q.Get("code_challenge"), State: q.Get("state"), Resource: q.Get("resource"), Scopes: strings.Fields(q.Get("scope"))}, nil
}

// fault returns the error code, with a text, of a request that is not valid for another reason than
// its client or redirect URI, or "" if there is none. resources are the URLs to which tokens may be
// limited.
func fault(q url.Values, resources []string) (code, text string) {
	for name, values := range q {
		if len(values) > 1 {
			return contract.OAuthRequest, word(name) + ": want one value"
		}
	}
	scopes := strings.Fields(q.Get("scope"))
	switch {
	case q.Get("response_type") == "":
		return contract.OAuthRequest, "response_type is missing"
	case q.Get("response_type") != responseCode:
		return contract.OAuthResponse, "response_type: want " + responseCode
	case q.Has("response_mode") && q.Get("response_mode") != "query":
		return contract.OAuthRequest, "response_mode: want query"
	case q.Get("code_challenge_method") != methodS256 || !challenges.MatchString(q.Get("code_challenge")):
		return contract.OAuthRequest, "PKCE is required: code_challenge_method " + methodS256 + ", and a code_challenge of 43 characters"
	case q.Has("resource") && !slices.Contains(resources, q.Get("resource")):
		return contract.OAuthTarget, "resource: want " + strings.Join(resources, " or ") + ", or none for all of the API"
	case len(scopes) > 0 && len(approved(contract.MemberScopes([]string{contract.RoleOwner}), scopes)) == 0:
		return contract.OAuthScope, "scope: this mesh has none of these scopes"
	}
	return "", ""
}

// reject responds to a request before a person has consented: the error is for the client. The
// browser continues at a program on its computer, but stays on the page if the redirect URI is a
// web site's, because anyone can register a client and send persons here.
func (s *Pages) reject(c echo.Context, x *token.Claims, code, text string) error {
	to := s.back(c, x, url.Values{"error": {code}, "error_description": {text}})
	p := page{Title: "That did not work", Text: text, Link: template.URL(to)} // #nosec G203 -- checkRedirect permits the scheme
	if !strings.HasPrefix(to, "https:") {
		p.Next = to
	}
	return show(c, http.StatusBadRequest, &p)
}

// back returns the redirect URI of a request with the parameters of a response, the state of the
// client and the issuer (RFC 9207).
func (s *Pages) back(c echo.Context, x *token.Claims, add url.Values) string {
	if x.State != "" {
		add.Set("state", x.State)
	}
	add.Set("iss", s.API.Gate.Base(c))
	return withParameters(x.Redirect, add)
}

// pending returns the authorization request with an id that this browser has begun.
func (s *Pages) pending(c echo.Context, id string) (*token.Claims, error) {
	missing := apierr.BadRequest("request", "this browser has begun no such request, or more than ten minutes ago; begin again in the program")
	if !requestIDs.MatchString(id) {
		return nil, missing
	}
	cookie, err := c.Request().Cookie(requestCookie + id)
	if err != nil {
		return nil, missing
	}
	x, err := token.VerifyUse(s.API.Gate.LoginKeys, cookie.Value, token.UseRequest)
	if err != nil || x.ID != id {
		return nil, missing
	}
	return x, nil
}

// Consent handles GET /auth/consent: the page on which a person who is logged in consents to an
// authorization request.
func (s *Pages) Consent(c echo.Context) error {
	id := c.QueryParam("request")
	who, err := s.API.Gate.Browser(c)
	if err != nil {
		return s.enterFirst(c, err, id)
	}
	x, err := s.pending(c, id)
	if err != nil {
		return s.fail(c, err)
	}
	scopes, err := offers(x, who)
	if err != nil {
		return s.fail(c, err)
	}
	return show(c, http.StatusOK, &page{Title: "Approve a program", Who: who, Request: x, Target: target(x.Redirect), Scopes: scopes, Code: id})
}

// offers returns the scopes that a person may give to the program of a request.
func offers(x *token.Claims, who *auth.Caller) ([]string, error) {
	scopes := approved(who.Scopes, x.Scopes)
	if len(scopes) == 0 {
		return nil, forbidden("your login has none of the scopes that the program requests: " + strings.Join(x.Scopes, ", "))
	}
	return scopes, nil
}

// Decide handles POST /auth/consent: the person permits a program to open one login, or does
// not.
func (s *Pages) Decide(c echo.Context) error {
	f, err := s.posted(c)
	if err != nil {
		return s.fail(c, err)
	}
	who, err := s.API.Gate.Browser(c)
	if err != nil {
		return s.fail(c, err)
	}
	x, err := s.pending(c, f.Get("request"))
	if err != nil {
		return s.fail(c, err)
	}
	answer := url.Values{"error": {contract.OAuthDenied}}
	if f.Get("choice") == "approve" {
		code, err := s.consent(c, who, x, f["scope"])
		if err != nil {
			return s.fail(c, err)
		}
		answer = url.Values{"code": {code}}
	}
	setCookie(c, requestCookie+x.ID, "", 0, http.SameSiteStrictMode)
	to := s.back(c, x, answer)
	return show(c, http.StatusOK, &page{Title: "Return to the program", Next: to, Link: template.URL(to)}) // #nosec G203 -- checkRedirect permits the scheme
}

// consent records that a person permits the program of a request to open a login with scopes, and
// returns the authorization code.
func (s *Pages) consent(c echo.Context, who *auth.Caller, x *token.Claims, scopes []string) (string, error) {
	may, err := offers(x, who)
	if err != nil {
		return "", err
	}
	if scopes = slices.DeleteFunc(scopes, func(s string) bool { return !slices.Contains(may, s) }); len(scopes) == 0 {
		return "", apierr.BadRequest("scope", "choose at least one scope")
	}
	now := time.Now()
	code, err := s.API.issue(&token.Claims{Use: token.UseCode, Tenant: who.Tenant, Client: x.Client, Party: x.Party, Redirect: x.Redirect, Challenge: x.Challenge, Resource: x.Resource}, who.Actor, now, now.Add(codeTTL))
	if err != nil {
		return "", err
	}
	return code, s.propose(c, who, kindApprove, approvalArgs(code, scopes, codeTTL))
}
