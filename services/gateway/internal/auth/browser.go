package auth

import (
	"cmp"
	"crypto/sha256"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// BrowserCookie is the name of the cookie that holds the credential of a browser. Because
// of its prefix, browsers accept it only over TLS or from a loopback address, and send it
// only to the host that set it (RFC 6265bis, section 4.1.3.2).
const BrowserCookie = "__Host-binnacle"

// Browser returns the caller whose credential is in the cookie of a request. The error has
// status 401 if there is no valid credential, 403 if the request comes from a page of
// another origin (see SameOrigin), and 503 until the ledger has been read to its end. A
// credential for browsers is valid in the cookie alone, so a stolen cookie is no bearer
// token, and a bearer token is no cookie.
func (s *Gate) Browser(c echo.Context) (*Caller, error) {
	cookie, err := c.Request().Cookie(BrowserCookie)
	if err != nil || s.LoginKeys == nil {
		return nil, TokenMissing()
	}
	if err := s.SameOrigin(c); err != nil {
		return nil, err
	}
	digest := sha256.Sum256([]byte(BrowserCookie + "=" + cookie.Value)) // differs from that of the same text as a bearer token
	who, err := s.verify(c.Request().Context(), digest, func() (*token.Claims, error) {
		return token.VerifyUse(s.LoginKeys, cookie.Value, token.UseBrowser)
	})
	if err != nil {
		return nil, ended(err)
	}
	return who, nil
}

// TokenMissing returns the error (401) for a request without a credential.
func TokenMissing() *apierr.Error {
	return &apierr.Error{Status: http.StatusUnauthorized, Type: "authentication_error", Code: contract.CodeTokenMissing,
		Message: "send Authorization: Bearer <token>; `binnacle token create` makes one"}
}

// SameOrigin returns an error (403) if a page of another origin than Base sent the request,
// or if a request that may change something does not state its origin. Browsers state the
// origin in Origin and, except old ones, in Sec-Fetch-Site; pages can set neither.
func (s *Gate) SameOrigin(c echo.Context) error {
	r := c.Request()
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	ok := safe || site == "same-origin"
	if origin != "" {
		ok = origin == s.Base(c)
	}
	if ok && (site == "" || site == "same-origin" || site == "none" && safe) {
		return nil
	}
	return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeDenied, Param: "Origin",
		Message: "a browser may send this request only from a page of " + s.Base(c) + "; if that is not the address in its address bar, set gateway.public_url"}
}

// ApprovalsPath is the path of the page on which persons vote on calls that wait for approval.
const ApprovalsPath = "/auth/approvals"

// ApprovalPageAt returns the URL of that page of gateways at base, in which {call} stands for the id
// of a call.
func ApprovalPageAt(base string) string {
	return strings.TrimRight(base, "/") + ApprovalsPath + "?call={call}"
}

// ApprovalPage returns the URL of the page on which persons vote on a call.
func ApprovalPage(s *Gate, c echo.Context, call string) string {
	return strings.ReplaceAll(cmp.Or(s.Approvals, ApprovalPageAt(s.Base(c))), "{call}", url.PathEscape(call))
}

// Base returns the URL under which browsers reach the gateways: PublicURL, or that of the
// request, without a trailing slash.
func (s *Gate) Base(c echo.Context) string {
	if s.PublicURL != "" {
		return strings.TrimRight(s.PublicURL, "/")
	}
	return c.Scheme() + "://" + c.Request().Host
}
