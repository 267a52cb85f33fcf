// Package token mints and verifies the gateway's bearer tokens: JWTs (RFC 7519) signed
// with EdDSA. The gateway holds only the public key.
package token

import (
	"crypto/ed25519"
	"crypto/rand"
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

// Verify checks the signature, issuer, audience and lifetime of a token, and returns its
// JWT claims, with "-" for a missing client. The caller checks that the tenant exists.
// Verify rejects a token without a subject or with a malformed tenant (see
// contract.Token), and a token with an id of more than 128 bytes. It also rejects a
// token without an id or a time of issue, because such a token could not be revoked.
func Verify(public ed25519.PublicKey, raw string) (*Claims, error) {
	var c Claims
	_, err := jwt.ParseWithClaims(raw, &c, func(*jwt.Token) (any, error) { return public, nil },
		jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithIssuer(issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired())
	if err != nil {
		return nil, err
	}
	if !contract.Token(c.Tenant) {
		return nil, errors.New("token names no tenant")
	}
	if c.Subject == "" {
		return nil, errors.New("token names no subject")
	}
	if c.ID == "" || len(c.ID) > 128 || c.IssuedAt == nil {
		return nil, errors.New("token names no id or no time of issue")
	}
	if c.Client == "" {
		c.Client = "-"
	}
	return &c, nil
}

// Has reports whether a token has a scope, without verifying the token. It is false if raw
// is not a token.
func Has(raw, scope string) bool {
	var c Claims
	_, _, err := jwt.NewParser().ParseUnverified(raw, &c)
	return err == nil && slices.Contains(c.Scopes, scope)
}

// ID returns the id of a token without verifying the token, or raw if raw is not a token
// with an id.
func ID(raw string) string {
	var c Claims
	if _, _, err := jwt.NewParser().ParseUnverified(raw, &c); err != nil || c.ID == "" {
		return raw
	}
	return c.ID
}
