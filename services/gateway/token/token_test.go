package token

import (
	"crypto/ed25519"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

func keys() (seed []byte, public ed25519.PublicKey) {
	seed = make([]byte, ed25519.SeedSize)
	public, _ = ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	return seed, public
}

// TestMint checks that Verify returns the claims that were passed to Mint, and that Mint
// rejects an unknown scope and a short seed. It also checks the results of Has.
func TestMint(t *testing.T) {
	seed, public := keys()
	now := time.Now()
	raw, err := Mint(seed, "t", "alice", "cli", []string{Tools, Audit}, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Verify(public, raw)
	if err != nil || c.Tenant != "t" || c.Subject != "alice" || c.Client != "cli" || !slices.Equal(c.Scopes, []string{Tools, Audit}) || c.ID == "" {
		t.Fatalf("%+v %v", c, err)
	}
	if !Has(raw, Tools) || Has(raw, LLM) || Has("no token", Tools) {
		t.Error("Has returns wrong results")
	}
	if c.IssuedAt.Time.Sub(now).Abs() > 2*time.Millisecond || !c.ExpiresAt.Time.After(now.Add(59*time.Minute)) {
		t.Error(c.IssuedAt, c.ExpiresAt)
	}
	if _, err := Mint(seed, "t", "alice", "-", []string{"root:all"}, now, time.Hour); err == nil {
		t.Error("an unknown scope is minted")
	}
	if _, err := Mint(seed[:7], "t", "alice", "-", nil, now, time.Hour); err == nil {
		t.Error("a short seed mints")
	}
}

// TestVerify checks that Verify rejects tokens of another key or without a valid tenant, expired
// tokens, tokens with another algorithm or with a shortened or missing signature, and the empty
// string.
func TestVerify(t *testing.T) {
	seed, public := keys()
	other := slices.Clone(seed)
	other[0] = 1
	now := time.Now()
	mint := func(seed []byte, tenant string, at time.Time, ttl time.Duration) string {
		raw, err := Mint(seed, tenant, "alice", "-", []string{Tools}, at, ttl)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	good := mint(seed, "t", now, time.Hour)
	parts := strings.Split(good, ".")
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"sub": "alice", "tenant": "t"}).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	hmac, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "alice", "tenant": "t"}).SignedString([]byte(public))
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{
		"another key":            mint(other, "t", now, time.Hour),
		"no tenant":              mint(seed, "", now, time.Hour),
		"a tenant of two tokens": mint(seed, "t.u", now, time.Hour),
		"expired":                mint(seed, "t", now.Add(-2*time.Hour), time.Hour),
		"cut":                    good[:len(good)-2],
		"without a signature":    parts[0] + "." + parts[1] + ".",
		"the algorithm none":     none,
		"HMAC by the public key": hmac,
		"nothing":                "",
	} {
		if c, err := Verify(public, raw); err == nil {
			t.Errorf("%s is accepted: %+v", name, c)
		}
	}
}

// TestScopesDocumented checks that docs/how-to/README.md lists every scope.
func TestScopesDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range All {
		if !strings.Contains(string(page), "`"+s+"`") {
			t.Errorf("scope %s is missing", s)
		}
	}
}
