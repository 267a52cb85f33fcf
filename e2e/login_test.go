package e2e

import (
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// tokens holds the members of the response to a grant that the test reads.
type tokens struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
	Error   string `json:"error"`
	Login   string `json:"login"`
	Status  int    `json:"-"`
}

// grantAt sends a form to a path of the gateway at addr, and returns the members of the response.
func grantAt(t *testing.T, m *harness.Mesh, addr, path string, form url.Values) (out tokens) {
	t.Helper()
	x := m.As("")
	x.Addr = addr
	r, err := x.DoHeader(t.Context(), "POST", path, form.Encode(), map[string]string{"Content-Type": "application/x-www-form-urlencoded"})
	if err != nil {
		t.Fatal(err)
	}
	if out.Status = r.Status; len(r.Body) > 0 {
		r.JSON(t, &out)
		out.Status = r.Status
	}
	return out
}

// TestLoginsEverywhere shows that the tokens of a login are valid at every gateway,
// that they end at every gateway within three seconds, that a refresh token can be
// used once and repeated once, whichever gateways receive it, that tokens are valid
// after the gateways' key was rotated, and not after it was revoked, and that an
// attempt after several failed ones is refused with 429.
func TestLoginsEverywhere(t *testing.T) {
	p := startProvider(t)
	m := harness.Processes(t, harness.Options{Noop: true, Env: p.env})
	second := m.StartGateway("gateway-b")
	t.Run("provider", func(t *testing.T) { byProvider(t, m, p, m.Addr, second) })
	const secret = "correct horse battery staple"
	if _, err := m.CLIStdin(secret, "password", "set", "admin"); err != nil {
		t.Fatal(err)
	}
	cli(t, m, "roles", "grant", "admin", "developer")
	status := func(addr, token string) int {
		x := m.As(token)
		x.Addr = addr
		r, err := x.Do(t.Context(), "POST", "/api/v1/packs/noop", "", "{}")
		if err != nil {
			return 0
		}
		return r.Status
	}
	login := func(addr string) tokens {
		t.Helper()
		k := grantAt(t, m, addr, "/oauth/token", url.Values{"grant_type": {"password"}, "username": {"admin"}, "password": {secret}})
		if k.Status != 200 {
			t.Fatalf("%+v", k)
		}
		return k
	}
	refresh := func(addr, token string) tokens {
		return grantAt(t, m, addr, "/oauth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}})
	}
	// On an idle machine, a token ends within a second. The limit allows for other tests that
	// run at the same time.
	ends := func(what, token string) {
		t.Helper()
		since := time.Now()
		defer func() { t.Logf("%s: the token ended after %s", what, time.Since(since)) }()
		for _, a := range []string{m.Addr, second} {
			for status(a, token) != 401 {
				if time.Since(since) > 3*time.Second {
					t.Fatalf("%s: the token works at %s after %s", what, a, time.Since(since))
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
	k := login(m.Addr)
	for _, a := range []string{m.Addr, second} {
		if s := status(a, k.Access); s != 200 {
			t.Errorf("%s: %d", a, s)
		}
	}
	if s := status(m.Addr, k.Refresh); s != 401 {
		t.Errorf("a refresh token is a credential: %d", s)
	}
	next := refresh(second, k.Refresh)
	if next.Status != 200 || status(m.Addr, next.Access) != 200 {
		t.Fatalf("%+v", next)
	}
	// A program that did not receive the response may repeat the request once.
	if next = refresh(m.Addr, k.Refresh); next.Status != 200 {
		t.Errorf("a repeated refresh: %+v", next)
	}
	if again := refresh(m.Addr, k.Refresh); again.Error != "invalid_grant" {
		t.Errorf("a refresh token was used three times: %+v", again)
	}
	ends("refresh token used again", next.Access)

	// Of several refreshes at the same time, two at most succeed, and the login ends.
	k = login(second)
	var wg sync.WaitGroup
	var won atomic.Int32
	for i := range 6 {
		wg.Go(func() {
			if refresh([]string{m.Addr, second}[i%2], k.Refresh).Status == 200 {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() > 2 {
		t.Errorf("%d refreshes succeeded", won.Load())
	}
	ends("concurrent refreshes", k.Access)

	for what, end := range map[string]func(k tokens){
		"logout":      func(k tokens) { grantAt(t, m, second, "/oauth/revoke", url.Values{"token": {k.Refresh}}) },
		"revocation":  func(k tokens) { cli(t, m, "token", "revoke", k.Access, "--reason", "test") },
		"of the role": func(tokens) { cli(t, m, "roles", "revoke", "admin", "developer") },
	} {
		cli(t, m, "roles", "grant", "admin", "developer")
		k := login(m.Addr)
		end(k)
		ends(what, k.Access)
	}

	cli(t, m, "roles", "grant", "admin", "developer")
	k = login(m.Addr)
	old := strings.Fields(cli(t, m, "trust", "list"))
	var kid string
	for i, w := range old {
		if w == "gateway" {
			kid = old[i-1]
		}
	}
	cli(t, m, "trust", "rotate", "gateway")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		r, err := m.Do(t.Context(), "GET", "/readyz", "", "")
		if err == nil && !strings.Contains(string(r.Body), kid) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the gateways do not use the new key")
		}
	}
	fresh := login(second)
	for _, token := range []string{k.Access, fresh.Access} {
		if status(m.Addr, token) != 200 || status(second, token) != 200 {
			t.Error("a token is not valid after the rotation")
		}
	}
	cli(t, m, "trust", "revoke", kid)
	ends("revoked key", k.Access)
	if status(second, fresh.Access) != 200 {
		t.Error("a token of the new key is not valid")
	}
	r, err := m.Do(t.Context(), "GET", "/.well-known/jwks.json", "", "")
	if err != nil || strings.Contains(string(r.Body), kid) || !strings.Contains(string(r.Body), "Ed25519") {
		t.Errorf("%v %s", err, r.Body)
	}

	for i := range 8 {
		k := grantAt(t, m, m.Addr, "/oauth/token", url.Values{"grant_type": {"password"}, "username": {"admin"}, "password": {"wrong wrong wrong"}})
		if i < 4 && k.Status != 400 || i == 7 && k.Status != 429 {
			t.Errorf("attempt %d: %+v", i, k)
		}
	}
	m.Kill("gateway")
	m.Restart("gateway")
	m.WaitReady()
	ends("after a restart", k.Access)
	proves(t, m)
}
