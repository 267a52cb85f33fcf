package auth

import (
	"crypto/ed25519"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth/authtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestSameOrigin shows which requests SameOrigin accepts: those of pages of the gateway's own
// origin and, if they change nothing, those from the address bar and from programs other than
// browsers.
func TestSameOrigin(t *testing.T) {
	const base = "https://mesh.example:8443"
	for name, c := range map[string]struct {
		method, origin, site string
		ok                   bool
	}{
		"a page of the gateway":      {"POST", base, "same-origin", true},
		"an old browser":             {"POST", base, "", true},
		"without Origin":             {"POST", "", "same-origin", true},
		"no browser":                 {"POST", "", "", false},
		"another site":               {"POST", "https://evil.example", "cross-site", false},
		"another site, old browser":  {"POST", "https://evil.example", "", false},
		"another port of the host":   {"POST", "https://mesh.example:9000", "same-site", false},
		"plain HTTP of the host":     {"POST", "http://mesh.example:8443", "same-site", false},
		"another host of the site":   {"POST", base, "same-site", false},
		"an opaque origin":           {"POST", "null", "", false},
		"the address bar":            {"GET", "", "none", true},
		"a form of the address bar":  {"POST", "", "none", false},
		"a program that reads":       {"GET", "", "", true},
		"an image of another site":   {"GET", "", "cross-site", false},
		"a script of another origin": {"GET", "https://evil.example", "", false},
		"a deletion by another site": {"DELETE", "https://evil.example", "", false},
	} {
		r := httptest.NewRequest(c.method, base+"/api/v1/calls", nil)
		for k, v := range map[string]string{"Origin": c.origin, "Sec-Fetch-Site": c.site} {
			if v != "" {
				r.Header.Set(k, v)
			}
		}
		for _, public := range []string{"", base, base + "/"} {
			g := &Gate{PublicURL: public}
			err := g.SameOrigin(echo.New().NewContext(r, httptest.NewRecorder()))
			var e *apierr.Error
			if (err == nil) != c.ok || err != nil && (!errors.As(err, &e) || e.Status != http.StatusForbidden) {
				t.Errorf("%s (public URL %q): %v", name, public, err)
			}
		}
	}
}

// testKey is a token.Signer.
type testKey ed25519.PrivateKey

func (k testKey) Raw(msg []byte) []byte { return ed25519.Sign(ed25519.PrivateKey(k), msg) }

// TestBrowserCookie shows that the token of a browser is a credential only in the cookie, an
// access token only in the Authorization header, and a refresh token in neither, also once the
// valid ones are cached.
func TestBrowserCookie(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{TokenKeys: token.Fixed(public), Authority: &Authority{}, Tenants: authtest.New("t"), LoginKeys: func(string) (ed25519.PublicKey, error) { return public, nil }}
	now := time.Now()
	raw := map[string]string{}
	for _, use := range []string{token.UseAccess, token.UseBrowser, token.UseRefresh} {
		c := &token.Claims{RegisteredClaims: jwt.RegisteredClaims{Subject: "ann", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour))}, Tenant: "t", Login: "l-1", Use: use}
		if raw[use], err = token.Issue(testKey(private), "k1", c); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time from the cache
		for use, tok := range raw {
			for place, want := range map[string]bool{"Authorization": use == token.UseAccess, "Cookie": use == token.UseBrowser} {
				r := httptest.NewRequest("GET", "https://mesh.example/", nil)
				r.Header.Set(place, map[string]string{"Authorization": "Bearer ", "Cookie": BrowserCookie + "="}[place]+tok)
				who, err := g.Caller(echo.New().NewContext(r, httptest.NewRecorder()), "")
				if (err == nil) != want || err == nil && who.Actor != "ann" {
					t.Errorf("%s in %s: %+v %v", use, place, who, err)
				}
			}
		}
	}
}

// TestResource shows that an access token with a resource is a credential only at the route of that
// URL, also once it is cached, and that one without a resource is one at every route.
func TestResource(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{TokenKeys: token.Fixed(public), Authority: &Authority{}, Tenants: authtest.New("t"), LoginKeys: func(string) (ed25519.PublicKey, error) { return public, nil }}
	now := time.Now()
	for _, resource := range []string{"", "https://mesh.example/mcp"} {
		c := &token.Claims{RegisteredClaims: jwt.RegisteredClaims{Subject: "ann", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour))}, Tenant: "t", Login: "l-1", Use: token.UseAccess, Resource: resource}
		raw, err := token.Issue(testKey(private), "k1", c)
		if err != nil {
			t.Fatal(err)
		}
		for at, path := range map[string]string{"https://mesh.example/mcp": "/mcp", "https://mesh.example/mcp?server=x": "/mcp", "https://other.example/mcp": "/mcp", "http://mesh.example/mcp": "/mcp", "https://mesh.example/api/v1/packs/mcp": "/api/v1/packs/:name", "https://mesh.example/mcp/v1/execute": "/mcp/v1/execute"} {
			for range 2 {
				r := httptest.NewRequest("POST", at, nil)
				r.Header.Set("Authorization", "Bearer "+raw)
				x := echo.New().NewContext(r, httptest.NewRecorder())
				x.SetPath(path)
				var e *apierr.Error
				_, err := g.Caller(x, "")
				if want := resource == "" || path == "/mcp" && strings.HasPrefix(at, resource); (err == nil) != want || err != nil && (!errors.As(err, &e) || e.Status != http.StatusUnauthorized) {
					t.Errorf("resource %q at %s: %v", resource, at, err)
				}
			}
		}
	}
}
