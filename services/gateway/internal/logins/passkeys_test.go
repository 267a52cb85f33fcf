package logins

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/passkey/passkeytest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestRegistration shows that the attestation of a new passkey is verified against the challenge
// of the state, the origin and the person, and that the arguments of the call are those of the
// device; and that a state of another person, login or use is rejected.
func TestRegistration(t *testing.T) {
	s := Voting{&Pages{API: api(t)}}
	const origin = "http://localhost:8080"
	device := passkeytest.New(origin, "localhost")
	challenge := base64.RawURLEncoding.EncodeToString(make([]byte, 32))
	ann := &auth.Caller{Tenant: "t", Actor: "ann", Login: "l-1"}
	register := func(who *auth.Caller, at string, claims token.Claims, credential []byte) (map[string]any, error) {
		now := time.Now()
		state, err := s.API.issue(&claims, "ann", now, now.Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		c := echo.New().NewContext(httptest.NewRequest(http.MethodPost, at+PasskeysPath, nil), httptest.NewRecorder())
		raw, err := s.registration(c, who, url.Values{"state": {state}, "name": {"phone"}, "credential": {string(credential)}})
		if err != nil {
			return nil, err
		}
		var args map[string]any
		return args, json.Unmarshal(raw, &args)
	}
	claims := token.Claims{Use: token.UsePasskey, Tenant: "t", Login: "l-1", Nonce: challenge}
	args, err := register(ann, origin, claims, device.Create(challenge))
	want := device.Registered("ann")
	if err != nil || args["public_key"] != want.PublicKey || args["id"] != want.ID || args["origin"] != origin || args["rp_id"] != "localhost" || args["attestation"] != "none" || args["aaguid"] != want.AAGUID || args["name"] != "phone" {
		t.Fatal(args, err)
	}
	elsewhere, absent := *device, *device
	elsewhere.Origin, absent.Flags = "http://localhost:9090", 1
	state := func(change func(*token.Claims)) token.Claims { c := claims; change(&c); return c }
	for name, c := range map[string]struct {
		who        *auth.Caller
		at         string
		claims     token.Claims
		credential []byte
		want       string
	}{
		"another challenge":      {ann, origin, claims, device.Create(strings.Repeat("A", 42) + "B"), "does not verify"},
		"another origin":         {ann, origin, claims, elsewhere.Create(challenge), "does not verify"},
		"not verified":           {ann, origin, claims, absent.Create(challenge), "does not verify"},
		"no response":            {ann, origin, claims, []byte("{}"), "is not the response"},
		"another login":          {&auth.Caller{Tenant: "t", Actor: "ann", Login: "l-2"}, origin, claims, device.Create(challenge), "another login"},
		"another person":         {&auth.Caller{Tenant: "t", Actor: "bob", Login: "l-1"}, origin, claims, device.Create(challenge), "another login"},
		"another tenant":         {ann, origin, state(func(c *token.Claims) { c.Tenant = "u" }), device.Create(challenge), "another login"},
		"a token of another use": {ann, origin, state(func(c *token.Claims) { c.Use = token.UseBrowser }), device.Create(challenge), "another login"},
		"an address":             {ann, "http://127.0.0.1:8080", claims, device.Create(challenge), "name of a host over TLS"},
		"a host without TLS":     {ann, "http://mesh.example", claims, device.Create(challenge), "name of a host over TLS"},
	} {
		if _, err := register(c.who, c.at, c.claims, c.credential); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestScriptPolicy shows that only pages with the script permit a script, and no other one, and
// that the script in such a page is exactly that one, whatever values the page has.
func TestScriptPolicy(t *testing.T) {
	script, err := os.ReadFile("passkeys.js")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(script)
	only := "script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	served := func(x *page) (string, string) {
		w := httptest.NewRecorder()
		if err := show(echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), w), http.StatusOK, x); err != nil {
			t.Fatal(err)
		}
		return w.Header().Get("Content-Security-Policy"), w.Body.String()
	}
	if policy, body := served(&page{Title: "x", Login: true}); strings.Contains(policy, "script-src") || strings.Contains(body, "<script") || !strings.HasPrefix(policy, "default-src 'none';") {
		t.Error(policy, body)
	}
	policy, body := served(&page{Title: "x", Script: passkeyScript, Who: &auth.Caller{Actor: `"><script>alert(1)</script>`, Tenant: "t"},
		Passkeys: &passkeysPage{Options: `{"a":"'\"<script>"}`, State: "s"}})
	if policy != pagePolicy+"; "+only || strings.Count(body, "<script>") != 1 || !strings.Contains(body, "<script>"+string(script)+"</script>") {
		t.Error(policy, body)
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "connect-src") {
		t.Error(policy)
	}
}
