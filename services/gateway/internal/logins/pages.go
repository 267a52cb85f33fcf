package logins

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Pages serves the pages with which persons log in in a browser and permit programs to log in. They
// need no script. Its exported fields are set before its first use.
type Pages struct {
	API      *API
	Provider *Provider // nil if no identity provider is configured
}

// The paths of the pages.
const (
	LoginPath    = "/auth/login"
	LogoutPath   = "/auth/logout"
	DevicePath   = "/auth/device"
	ProviderPath = "/auth/oidc"
	CallbackPath = "/auth/callback"
)

// BrowserLogin is the form of POST /auth/login.
type BrowserLogin struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Tenant   string `json:"tenant,omitempty"` // absent or empty: the mesh's original tenant
	Code     string `json:"code,omitempty"`   // code of a program, or id of an authorization request or of a call, that the person then approves
}

// ProviderLogin is the form of POST /auth/oidc.
type ProviderLogin struct {
	Invitation string `json:"invitation,omitempty"` // code of an invitation; only at the first login
	Tenant     string `json:"tenant,omitempty"`     // absent or empty: the mesh's original tenant
	Code       string `json:"code,omitempty"`       // code of a program, or id of an authorization request or of a call, that the person then approves
}

// BrowserApproval is the form of POST /auth/device. The field scope may be repeated.
type BrowserApproval struct {
	Code  string `json:"code"`            // the code that the program shows
	Scope string `json:"scope,omitempty"` // the program is limited to these scopes; absent: those of the person's login
}

// page holds the values of page.html.
type page struct {
	Title, Text string
	Next        string        // path or URL to which the browser continues at once; empty if it stays
	Login       bool          // with the forms to log in
	Provider    string        // name of the identity provider; empty if there is none
	Who         *auth.Caller  // the person who is logged in
	Device      bool          // with the form to approve a code
	Code        string        // the code to approve, or the id of the authorization request
	Passkeys    *passkeysPage // with the passkeys of the person
	Ballot      *ballotPage   // with calls that wait for approval
	Script      template.JS   // the one script of the page; empty if it needs none
	Request     *token.Claims // the authorization request to consent to
	Target      string        // place to which the program's redirect URI leads
	Scopes      []string      // scopes that the person may give
	Link        template.URL  // URL at which the person may continue
	Style       template.CSS
}

//go:embed page.html
var pageText string

const style template.CSS = `body{font:16px/1.5 sans-serif;max-width:34em;margin:3em auto;padding:0 1em}label{display:block;margin:.5em 0}form{margin:1.5em 0}`

var (
	pageTemplate = template.Must(template.New("page").Parse(pageText))
	pagePolicy   = contentPolicy()
)

// contentPolicy returns the content security policy of the pages: nothing is loaded or run
// but the one style, and forms are sent only to the gateway itself.
func contentPolicy() string {
	return "default-src 'none'; style-src 'sha256-" + digestOf(string(style)) + "'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
}

// digestOf returns the SHA-256 of a style or script, as a content security policy names it.
func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// show responds with a page. The browser continues at x.Next by the header Refresh and not
// by a redirect, because a cookie with SameSite=Strict is not sent with a redirect that
// began at the page of another site, and because form-action forbids one to another site.
func show(c echo.Context, status int, x *page) error {
	var b bytes.Buffer
	x.Style = style
	if err := pageTemplate.Execute(&b, x); err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("Content-Security-Policy", pagePolicy)
	if x.Script != "" {
		h.Set("Content-Security-Policy", scriptPolicy)
	}
	h.Set("Referrer-Policy", "same-origin") // under no-referrer, browsers state the origin null with a form
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if x.Next != "" {
		h.Set("Refresh", "0;url="+x.Next)
	}
	return c.HTMLBlob(status, b.Bytes())
}

// fail responds with a page that states an error.
func (s *Pages) fail(c echo.Context, err error) error {
	status, text := http.StatusInternalServerError, "The login failed."
	var r *refusal
	var e *apierr.Error
	switch {
	case errors.As(err, &r):
		status, text = r.status, r.text
	case errors.As(err, &e):
		status, text = e.Status, e.Message
		if e.RetryAfter != "" {
			c.Response().Header().Set("Retry-After", e.RetryAfter)
		}
	}
	return show(c, status, &page{Title: "That did not work", Text: text})
}

// userCodes matches the codes that userCode returns.
var userCodes = regexp.MustCompile(`^[0-9A-Z]{3}-[0-9A-Z]{3}-[0-9A-Z]{3}$`)

// callIDs matches the ids of calls.
var callIDs = regexp.MustCompile(`^` + contract.IDCall + `[0-9A-Z]{1,64}$`)

// after returns the path to which a browser continues after a login: the page that approves
// the code of a program, an authorization request or a call, if there is one, or else the page of
// the login.
func after(code string) string {
	switch {
	case userCodes.MatchString(code):
		return DevicePath + "?code=" + url.QueryEscape(code)
	case requestIDs.MatchString(code):
		return ConsentPath + "?request=" + code
	case callIDs.MatchString(code):
		return auth.ApprovalsPath + "?call=" + code
	}
	return LoginPath
}

// Show handles GET /auth/login: the page on which a person logs in or, if the browser has a
// login, the page that shows it.
func (s *Pages) Show(c echo.Context) error { return s.either(c, false) }

// Device handles GET /auth/device, the page on which a person approves the code of a
// program (RFC 8628, section 3.3).
func (s *Pages) Device(c echo.Context) error { return s.either(c, true) }

// either responds with the page for a person who is logged in, or with the forms to log in.
func (s *Pages) either(c echo.Context, device bool) error {
	code := strings.ToUpper(strings.TrimSpace(c.QueryParam("code")))
	if !userCodes.MatchString(code) {
		code = ""
	}
	who, err := s.API.Gate.Browser(c)
	switch {
	case err != nil:
		return s.enterFirst(c, err, code)
	case device:
		return show(c, http.StatusOK, &page{Title: "Approve a program", Who: who, Device: true, Code: code})
	}
	return show(c, http.StatusOK, &page{Title: "Logged in", Who: who})
}

// enterFirst responds to err, the error of Gate.Browser: with the forms to log in if the browser has
// no login. The person then approves code; see after.
func (s *Pages) enterFirst(c echo.Context, err error, code string) error {
	var e *apierr.Error
	if !errors.As(err, &e) || e.Status != http.StatusUnauthorized {
		return s.fail(c, err)
	}
	x := page{Title: "Log in", Login: true, Code: code}
	if s.Provider != nil {
		x.Provider = s.Provider.Name()
	}
	return show(c, http.StatusOK, &x)
}

// posted returns the form of a request that a page of this gateway sent. The error has
// status 403 if another page sent it, or if the browser would not store a cookie; other
// errors are those of protected and formOf.
func (s *Pages) posted(c echo.Context) (url.Values, error) {
	if err := s.API.Gate.SameOrigin(c); err != nil {
		return nil, err
	}
	if err := s.protected(c); err != nil {
		return nil, err
	}
	return formOf(c)
}

// protected returns an error (403) if the browser reaches the gateway neither over TLS nor
// by a loopback address: it would send the password in plain text, and store no cookie. It
// returns an error (400) if the address in the request is not a URL's host.
func (s *Pages) protected(c echo.Context) error {
	at, err := url.Parse(s.API.Gate.Base(c))
	if err != nil {
		return apierr.BadRequest("Host", "is not the name of a host")
	}
	if at.Scheme == "https" || loopback(at.Hostname()) {
		return nil
	}
	return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeDenied,
		Message: "persons log in in a browser over TLS only; configure gateway.tls, or set gateway.public_url to the https address of a proxy"}
}

// ByPassword handles POST /auth/login.
func (s *Pages) ByPassword(c echo.Context) error {
	f, err := s.posted(c)
	if err != nil {
		return s.fail(c, err)
	}
	who, err := s.API.authenticate(c, f.Get("tenant"), f.Get("username"), f.Get("password"))
	if err != nil {
		return s.fail(c, err)
	}
	return s.enter(c, who, opening{}, f.Get("code"))
}

// enter opens a login of a person for this browser, and responds with its cookie and a page
// from which the browser continues. A login that the browser had before ends.
func (s *Pages) enter(c echo.Context, who *auth.Caller, o opening, code string) error {
	o.client, o.ttl, o.browser = "browser", browserTTL, true
	t, err := s.API.open(c.Request().Context(), who, o)
	if err != nil {
		return s.fail(c, err)
	}
	if before, err := s.API.Gate.Browser(c); err == nil && before.Login != "" {
		_ = s.API.end(c.Request().Context(), before.Tenant, before.Actor, before.Login, loggedOut) // otherwise it expires
	}
	setCookie(c, auth.BrowserCookie, t.Access, browserTTL, http.SameSiteStrictMode)
	return show(c, http.StatusOK, &page{Title: "Logged in", Next: after(code)})
}

// setCookie sets a cookie that scripts cannot read, and that a browser sends with requests from
// pages of other sites only as far as same permits. An empty value removes the cookie.
func setCookie(c echo.Context, name, value string, ttl time.Duration, same http.SameSite) {
	age := int(ttl / time.Second)
	if value == "" {
		age = -1
	}
	c.SetCookie(&http.Cookie{Name: name, Value: value, Path: "/", MaxAge: age, Secure: true, HttpOnly: true, SameSite: same})
}

// Logout handles POST /auth/logout: it ends the login of the browser and removes its cookie.
func (s *Pages) Logout(c echo.Context) error {
	if _, err := s.posted(c); err != nil {
		return s.fail(c, err)
	}
	who, err := s.API.Gate.Browser(c)
	if err == nil {
		err = s.API.end(c.Request().Context(), who.Tenant, who.Actor, who.Login, loggedOut)
	}
	var e *apierr.Error
	if err != nil && !(errors.As(err, &e) && (e.Status == http.StatusUnauthorized || e.Status == http.StatusBadRequest)) { // with these statuses, the login has ended before
		return s.fail(c, err)
	}
	setCookie(c, auth.BrowserCookie, "", 0, http.SameSiteStrictMode)
	return show(c, http.StatusOK, &page{Title: "Logged out", Next: LoginPath})
}

// ApproveDevice handles POST /auth/device: the person permits the program that shows a code
// to open a login.
func (s *Pages) ApproveDevice(c echo.Context) error {
	f, err := s.posted(c)
	if err != nil {
		return s.fail(c, err)
	}
	who, err := s.API.Gate.Browser(c)
	if err != nil {
		return s.fail(c, err)
	}
	args, err := approval(f.Get("code"), f["scope"])
	if err != nil {
		return s.fail(c, err)
	}
	if err := s.propose(c, who, kindApprove, args); err != nil {
		return s.fail(c, err)
	}
	return show(c, http.StatusOK, &page{Title: "Approved", Text: "The program is logged in as you. You can close this page."})
}

// propose proposes a call of the person who is logged in, and waits until it has succeeded.
func (s *Pages) propose(c echo.Context, who *auth.Caller, kind string, args []byte) error {
	leave, err := s.API.Gate.Meter(c.Request().Context(), who)
	if err != nil {
		return err
	}
	defer leave()
	r, err := s.API.Calls.Request(c, kind, kind, args, who)
	if err == nil {
		_, _, err = s.API.Calls.Run(c, r)
	}
	return err
}
