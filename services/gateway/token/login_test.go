package token

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// privateKey is a Signer.
type privateKey ed25519.PrivateKey

func (k privateKey) Raw(msg []byte) []byte { return ed25519.Sign(ed25519.PrivateKey(k), msg) }

// key returns a key of a gateway, and a KeyOf that has it as k1.
func key(t *testing.T) (privateKey, KeyOf) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return privateKey(private), func(kid string) (ed25519.PublicKey, error) {
		if kid != "k1" {
			return nil, fmt.Errorf("no key %q", kid)
		}
		return public, nil
	}
}

// claims returns the claims of a token of a login.
func claims(use string) *Claims {
	now := time.Now()
	return &Claims{RegisteredClaims: jwt.RegisteredClaims{Subject: "alice", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour))}, Tenant: "t", Scopes: []string{Tools}, Login: "l1", Use: use}
}

// issue returns a token with claims, after set has changed them.
func issue(t *testing.T, k Signer, use string, set func(*Claims)) string {
	t.Helper()
	c := claims(use)
	if set != nil {
		set(c)
	}
	raw, err := Issue(k, "k1", c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestIssue checks that a token of a login is valid for its use alone, and is no token of
// the mesh's token key.
func TestIssue(t *testing.T) {
	k, keys := key(t)
	uses := []string{UseAccess, UseRefresh, UseDevice, UseBrowser, UseState}
	for _, use := range uses {
		raw := issue(t, k, use, nil)
		for _, as := range uses {
			c, err := VerifyUse(keys, raw, as)
			if (err == nil) != (as == use) {
				t.Errorf("%s as %s: %v", use, as, err)
			}
			if err == nil && (c.KID != "k1" || c.Subject != "alice" || c.Tenant != "t" || c.Client != "-" || c.Login != "l1" || c.Use != use || c.ID == "") {
				t.Errorf("%s: %+v", use, c)
			}
		}
		public, _ := keys("k1")
		if _, err := Verify(public, raw); err == nil {
			t.Errorf("%s: accepted as a minted token", use)
		}
		if !Issued(raw) || ID(raw) != "l1" {
			t.Errorf("%s: issued %v, id %s", use, Issued(raw), ID(raw))
		}
	}
	raw := issue(t, k, UseAccess, func(c *Claims) { c.ID, c.Client = "i1", "cli" })
	if c, err := VerifyUse(keys, raw, UseAccess); err != nil || c.ID != "i1" || c.Client != "cli" {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := VerifyUse(func(string) (ed25519.PublicKey, error) { return nil, errors.New("no keys") }, issue(t, k, UseAccess, nil), UseAccess); err == nil || !strings.Contains(err.Error(), "no keys") {
		t.Error(err)
	}
}

// TestClaims checks the claims that a token of a login must have, at their limits.
func TestClaims(t *testing.T) {
	k, keys := key(t)
	for name, c := range map[string]struct {
		use string
		set func(*Claims)
		ok  bool
	}{
		"complete":                {UseAccess, nil, true},
		"no tenant":               {UseAccess, func(c *Claims) { c.Tenant = "" }, false},
		"a malformed tenant":      {UseAccess, func(c *Claims) { c.Tenant = "t.u" }, false},
		"no subject":              {UseAccess, func(c *Claims) { c.Subject = "" }, false},
		"no subject to renew":     {UseRefresh, func(c *Claims) { c.Subject = "" }, false},
		"no subject in a browser": {UseBrowser, func(c *Claims) { c.Subject = "" }, false},
		"no subject on a device":  {UseDevice, func(c *Claims) { c.Subject = "" }, true},
		"no subject in a state":   {UseState, func(c *Claims) { c.Subject = "" }, true},
		"the longest id":          {UseAccess, func(c *Claims) { c.ID = strings.Repeat("x", 128) }, true},
		"a longer id":             {UseAccess, func(c *Claims) { c.ID = strings.Repeat("x", 129) }, false},
		"no time of issue":        {UseAccess, func(c *Claims) { c.IssuedAt = nil }, false},
		"no expiry":               {UseAccess, func(c *Claims) { c.ExpiresAt = nil }, false},
		"expired":                 {UseAccess, func(c *Claims) { c.ExpiresAt = jwt.NewNumericDate(time.Now().Add(-time.Second)) }, false},
	} {
		if got, err := VerifyUse(keys, issue(t, k, c.use, c.set), c.use); (err == nil) != c.ok {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}

// sign returns a token with any claims and header, signed by a key.
func sign(t *testing.T, k privateKey, header map[string]any, c jwt.Claims) string {
	t.Helper()
	tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	for name, v := range header {
		tok.Header[name] = v
	}
	raw, err := tok.SignedString(ed25519.PrivateKey(k))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestForeign checks that Verify and VerifyUse reject tokens that neither Mint nor Issue makes,
// although their signatures are valid.
func TestForeign(t *testing.T) {
	k, keys := key(t)
	public, err := keys("k1")
	if err != nil {
		t.Fatal(err)
	}
	base := func(set func(*Claims)) *Claims {
		c := claims("")
		c.Login, c.Issuer, c.Audience, c.ID = "", issuer, jwt.ClaimStrings{audience}, "i1"
		set(c)
		return c
	}
	for name, c := range map[string]struct {
		claims *Claims
		ok     bool
	}{
		"minted":           {base(func(*Claims) {}), true},
		"of a use":         {base(func(c *Claims) { c.Use = UseAccess }), false},
		"of a login":       {base(func(c *Claims) { c.Login = "l1" }), false},
		"without an id":    {base(func(c *Claims) { c.ID = "" }), false},
		"another issuer":   {base(func(c *Claims) { c.Issuer = "x" }), false},
		"another audience": {base(func(c *Claims) { c.Audience = jwt.ClaimStrings{"x"} }), false},
		"no subject":       {base(func(c *Claims) { c.Subject = "" }), false},
	} {
		raw := sign(t, k, nil, c.claims)
		if _, err := Verify(public, raw); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if Issued(raw) {
			t.Errorf("%s: issued", name)
		}
	}
	access := base(func(c *Claims) { c.Use = UseAccess })
	limited := func(to string) *Claims {
		return base(func(c *Claims) {
			c.Use, c.Resource, c.Audience = UseAccess, "https://mesh.example/mcp", jwt.ClaimStrings{to}
		})
	}
	for name, c := range map[string]struct {
		header map[string]any
		claims *Claims
		use    string
		ok     bool
	}{
		"a key":                               {map[string]any{"kid": "k1"}, access, UseAccess, true},
		"another key":                         {map[string]any{"kid": "k2"}, access, UseAccess, false},
		"a number":                            {map[string]any{"kid": 1}, access, UseAccess, false},
		"no key":                              {nil, access, UseAccess, false},
		"a refresh token for API requests":    {map[string]any{"kid": "k1"}, base(func(c *Claims) { c.Use = UseRefresh }), UseAccess, false},
		"an access token for renewal":         {map[string]any{"kid": "k1"}, base(func(c *Claims) { c.Use, c.Audience = UseAccess, jwt.ClaimStrings{audience + "/" + UseRefresh} }), UseRefresh, false},
		"a resource":                          {map[string]any{"kid": "k1"}, limited("https://mesh.example/mcp"), UseAccess, true},
		"another audience than the resource":  {map[string]any{"kid": "k1"}, limited("https://other.example/mcp"), UseAccess, false},
		"the audience in spite of a resource": {map[string]any{"kid": "k1"}, limited(audience), UseAccess, false},
		"the audience of API requests only":   {map[string]any{"kid": "k1"}, base(func(c *Claims) { c.Use = UseRefresh }), UseRefresh, false},
	} {
		if _, err := VerifyUse(keys, sign(t, k, c.header, c.claims), c.use); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestID checks the id by which a token is revoked.
func TestID(t *testing.T) {
	k, _ := key(t)
	for want, c := range map[string]*Claims{
		"i1": {RegisteredClaims: jwt.RegisteredClaims{ID: "i1"}},
		"l1": {RegisteredClaims: jwt.RegisteredClaims{ID: "i1"}, Login: "l1"},
	} {
		if got := ID(sign(t, k, nil, c)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, raw := range []string{"", "x", "a.b.c", sign(t, k, nil, &Claims{Login: "l1"}), "e30." + base64.RawURLEncoding.EncodeToString([]byte("{}"))} {
		if got := ID(raw); got != raw {
			t.Errorf("%q: %q", raw, got)
		}
		if raw == "" || raw == "x" {
			if Issued(raw) {
				t.Errorf("%q: issued", raw)
			}
		}
	}
}

// TestAll checks that All contains the scopes of the constants, and no scope twice, that the role
// owner gives all of them but those of operators, and that no role gives another scope.
func TestAll(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All {
		if seen[s] {
			t.Errorf("%s is listed twice", s)
		}
		seen[s] = true
	}
	for _, s := range []string{LLM, Tools, Vault, Erase, Judge, Admin, Audit, Health, Vote, Cosign, Decide, CellAdmin, CellAudit} {
		if !seen[s] {
			t.Errorf("%s is missing", s)
		}
	}
	owner := contract.MemberScopes([]string{contract.RoleOwner})
	for _, s := range All {
		if operator := s == CellAdmin || s == CellAudit; slices.Contains(owner, s) == operator {
			t.Errorf("%s: the role owner has it: %v", s, !operator)
		}
	}
	for _, role := range []string{"approver", contract.RoleOwner, contract.RoleAdmin, contract.RoleDeveloper, contract.RoleViewer, contract.RoleAuditor} {
		for _, s := range contract.MemberScopes([]string{role}) {
			if !seen[s] {
				t.Errorf("the role %s gives the unknown scope %s", role, s)
			}
		}
	}
}
