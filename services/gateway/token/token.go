// Package token mints and verifies the gateway's bearer tokens: JWTs (RFC 7519) signed
// with EdDSA. Mint makes tokens with the mesh's token key, of which the gateway holds
// only the public part. Issue makes the tokens of logins, which a gateway signs with its
// own key.
package token

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// The time of issue has a precision of milliseconds, so that a revocation of earlier
// tokens does not affect a token that is minted immediately afterwards.
func init() { jwt.TimePrecision = time.Millisecond }

const (
	issuer   = "binnacle"
	audience = "binnacle"
)

// Scopes that a token may hold. All also contains any other scope that the registry of
// services declares. Policy receives the scopes as facts; the gateway checks the scopes
// that a route requires.
const (
	LLM    = "llm:call"
	Tools  = "tools:call"
	Vault  = "vault:write"
	Erase  = "vault:erase" // destroys content keys
	Judge  = "judge:run"
	Admin  = "policy:admin"
	Audit  = "audit:read"
	Health = "health:read"
	Vote   = "approvals:vote"
	Cosign = "log:cosign"
	Decide = "calls:decide" // obtain decisions about calls that the caller executes itself, and report how they ended

	// The scopes of operators, which concern the mesh as a whole and not one tenant.
	CellAdmin = "cell:admin" // create, suspend and limit tenants
	CellAudit = "cell:audit" // read the whole ledger, and the list of tenants
)

// All lists the constants above, and the scopes that the registry of services declares
// for other kinds of calls.
var All = all()

func all() []string {
	out := []string{Admin, Audit, CellAdmin, CellAudit, Cosign, Decide, Erase, Health, Judge, LLM, Tools, Vault, Vote}
	for _, k := range services.Kinds() {
		if !slices.Contains(out, k.Scope) {
			out = append(out, k.Scope)
		}
	}
	return out
}

// Claims holds the JWT claims of a token.
type Claims struct {
	jwt.RegisteredClaims
	Client string   `json:"client"`
	Tenant string   `json:"tenant"`
	Scopes []string `json:"scopes"`
	Login  string   `json:"sid,omitempty"` // id of the login that the token belongs to; empty for a token that Mint made
	Use    string   `json:"use,omitempty"` // one of the uses of the tokens of logins; empty for a token that Mint made

	// Resource is the URL that an access token is limited to (RFC 8707); empty means all of the
	// API. In the other tokens of a login it is the one of the access tokens.
	Resource string `json:"resource,omitempty"`
	Party    string `json:"azp,omitempty"` // client_id of the program that obtained the login by a code; empty for other logins

	// An authorization request, and the code that permits it; see UseRequest and UseCode.
	Redirect  string `json:"redirect_uri,omitempty"`
	Challenge string `json:"code_challenge,omitempty"` // of RFC 7636, with the method S256
	State     string `json:"state,omitempty"`          // of the client
	Name      string `json:"client_name,omitempty"`    // of the client, which may have chosen it

	Redirects []string `json:"redirect_uris,omitempty"` // of a registered client; see UseClient

	// The state of a login at the identity provider; see UseState.
	Nonce      string `json:"nonce,omitempty"`      // or the challenge of UsePasskey
	Verifier   string `json:"pkce,omitempty"`       // of RFC 7636
	Back       string `json:"back,omitempty"`       // URL to which the identity provider sends the browser back
	Invitation string `json:"invitation,omitempty"` // digest of the code of an invitation
	UserCode   string `json:"user_code,omitempty"`  // code of a program, or id of an authorization request, that the person then approves

	KID string            `json:"-"` // key id in the header; empty for a token that Mint made
	Key ed25519.PublicKey `json:"-"` // key that verified a token that Mint made
}

// The uses of the tokens that Issue makes. An access token is a credential of API
// requests. Each other token is valid only for the purpose that its use states.
const (
	UseAccess  = "access"
	UseRefresh = "refresh"
	UseDevice  = "device"  // the code of a device, which is exchanged for tokens after its approval
	UseBrowser = "browser" // the credential of a browser, which is valid only in a cookie
	UsePasskey = "passkey" // the state of the registration of a passkey
	UseState   = "state"   // the state of an OpenID Connect login that is in progress
	UseRequest = "request" // an authorization request to which a person has not consented yet
	UseCode    = "code"    // an authorization code, which is exchanged for tokens once
	UseClient  = "client"  // the client_id of a registered client
)

// impersonal lists the uses of tokens that need not have a subject.
var impersonal = []string{UseDevice, UseState, UseRequest, UseClient}

// audienceOf returns the audience of a token that Issue makes.
func audienceOf(c *Claims) string {
	switch {
	case c.Use != UseAccess:
		return audience + "/" + c.Use
	case c.Resource != "":
		return c.Resource
	}
	return audience
}

// Signer signs with a key that the registry of keys holds. sign.Key implements it.
type Signer interface {
	Raw(msg []byte) []byte
}

// Issue returns a token with the claims c, signed with the key kid, whose private part key
// holds. It sets the issuer and the audience in c, and the id if it is empty. Unlike the seed of
// Mint, the key is rotated: every gateway signs with its own, and verifiers find it by its id
// (RFC 7517).
func Issue(key Signer, kid string, c *Claims) (string, error) {
	c.Issuer, c.Audience = issuer, jwt.ClaimStrings{audienceOf(c)}
	if c.ID == "" {
		c.ID = rand.Text()
	}
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	t.Header["kid"] = kid
	msg, err := t.SigningString()
	if err != nil {
		return "", err
	}
	return msg + "." + base64.RawURLEncoding.EncodeToString(key.Raw([]byte(msg))), nil
}

// KeyOf returns the public key of the gateways with an id, or an error if there is none
// that is valid now.
type KeyOf func(kid string) (ed25519.PublicKey, error)

// VerifyUse verifies a token that Issue made for a use, and returns its JWT claims. The claims
// must also meet the requirements of Verify, except that they may be those of a login, that the
// audience of an access token may be its Resource, which the caller checks, and that a token of
// some uses need not have a subject.
func VerifyUse(keys KeyOf, raw, use string) (*Claims, error) {
	var c Claims
	_, err := jwt.ParseWithClaims(raw, &c, func(t *jwt.Token) (any, error) {
		c.KID, _ = t.Header["kid"].(string)
		return keys(c.KID)
	}, jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithIssuer(issuer), jwt.WithExpirationRequired())
	if err == nil && !slices.Equal(c.Audience, jwt.ClaimStrings{audienceOf(&c)}) {
		err = jwt.ErrTokenInvalidAudience
	}
	if err == nil && c.Use != use {
		err = fmt.Errorf("token is for %q, not for %s", c.Use, use)
	}
	if err != nil {
		return nil, err
	}
	return &c, check(&c)
}

// Issued reports whether a token names a key in its header, as those that Issue makes do,
// without verifying the token.
func Issued(raw string) bool {
	t, _, err := jwt.NewParser().ParseUnverified(raw, &Claims{})
	if err != nil {
		return false
	}
	_, ok := t.Header["kid"]
	return ok
}

// Mint returns a signed token for actor, valid for ttl from now. seed is the 32-byte
// Ed25519 seed of the token key. An unknown scope, or a seed of another length, is an
// error.
func Mint(seed []byte, tenant, actor, client string, scopes []string, now time.Time, ttl time.Duration) (string, error) {
	if len(seed) != ed25519.SeedSize {
		return "", fmt.Errorf("token key has %d bytes, want %d", len(seed), ed25519.SeedSize)
	}
	for _, s := range scopes {
		if !slices.Contains(All, s) {
			return "", fmt.Errorf("scope %q is unknown; known are %v", s, All)
		}
	}
	c := Claims{RegisteredClaims: jwt.RegisteredClaims{Issuer: issuer, Audience: jwt.ClaimStrings{audience}, Subject: actor, ID: rand.Text(),
		IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(ttl))}, Client: client, Tenant: tenant, Scopes: scopes}
	return jwt.NewWithClaims(jwt.SigningMethodEdDSA, c).SignedString(ed25519.NewKeyFromSeed(seed))
}

// Verify checks the signature, issuer, audience and lifetime of a token, and returns
// its JWT claims, with "-" for a missing client. The caller checks that the tenant
// exists. Verify rejects a token without a subject or with a malformed tenant (see
// contract.Token), and a token with an id of more than 128 bytes. It also rejects a
// token without an id or a time of issue, because such a token could not be revoked,
// and a token with the claims of a login, which VerifyUse verifies.
func Verify(public ed25519.PublicKey, raw string) (*Claims, error) {
	c := Claims{Key: public}
	_, err := jwt.ParseWithClaims(raw, &c, func(*jwt.Token) (any, error) { return public, nil },
		jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithIssuer(issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired())
	if err != nil {
		return nil, err
	}
	if c.Use != "" || c.Login != "" {
		return nil, errors.New("token of a login is signed by the mesh's token key")
	}
	return &c, check(&c)
}

// VerifyAny verifies a token by the first of the keys that signed it; see Verify. The error is that
// of the current key.
func VerifyAny(keys Keys, raw string) (*Claims, error) {
	var first error
	for _, k := range keys() {
		c, err := Verify(k, raw)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// check returns an error unless the claims name a tenant, a time of issue, an id of at most
// 128 bytes and, except in a token of the impersonal uses, a subject. It sets a missing
// client to "-".
func check(c *Claims) error {
	if !contract.Token(c.Tenant) {
		return errors.New("token names no tenant")
	}
	if c.Subject == "" && !slices.Contains(impersonal, c.Use) {
		return errors.New("token names no subject")
	}
	if c.ID == "" || len(c.ID) > 128 || c.IssuedAt == nil {
		return errors.New("token names no id or no time of issue")
	}
	if c.Client == "" {
		c.Client = "-"
	}
	return nil
}

// Has reports whether a token has a scope, without verifying the token. It is false if raw
// is not a token.
func Has(raw, scope string) bool {
	var c Claims
	_, _, err := jwt.NewParser().ParseUnverified(raw, &c)
	return err == nil && slices.Contains(c.Scopes, scope)
}

// ID returns the id by which a token is revoked, without verifying the token: the id of
// its login if it belongs to one, and otherwise its own id. It returns raw if raw is not
// a token with an id.
func ID(raw string) string {
	var c Claims
	if _, _, err := jwt.NewParser().ParseUnverified(raw, &c); err != nil || c.ID == "" {
		return raw
	}
	if c.Login != "" {
		return c.Login
	}
	return c.ID
}
