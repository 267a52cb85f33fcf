package logins

import (
	"crypto/ed25519"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// transport is a function that implements http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

const issuer = "https://idp.example"

// provider returns a provider whose server is f.
func provider(f transport) *Provider {
	return &Provider{config: config.OIDC{Issuer: issuer, ClientID: "c"}, client: &http.Client{Transport: f, Timeout: providerTimeout}}
}

// respond returns a response with a JSON body.
func respond(r *http.Request, status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

const discovery = `{"issuer":"` + issuer + `","authorization_endpoint":"` + issuer + `/a","token_endpoint":"` + issuer + `/t","jwks_uri":"` + issuer + `/k"}`

// TestDiscovery shows that logins at the same time wait for one discovery and not for one after
// the other, that none begins immediately after one that failed, and that a later one succeeds.
func TestDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		up := false
		p := provider(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			if up {
				return respond(r, http.StatusOK, discovery)
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		began := time.Now()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				var e *apierr.Error
				if _, err := p.discover(t.Context()); !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > providerTimeout || asked.Load() != 1 {
			t.Errorf("%d discoveries in %s", asked.Load(), took)
		}
		up = true
		if _, err := p.discover(t.Context()); err == nil || asked.Load() != 1 {
			t.Errorf("%d discoveries immediately after one that failed: %v", asked.Load(), err)
		}
		time.Sleep(discoverAgain)
		for range 2 {
			if d, err := p.discover(t.Context()); err != nil || d.Endpoint().TokenURL != issuer+"/t" || asked.Load() != 2 {
				t.Errorf("%d discoveries, %v", asked.Load(), err)
			}
		}
	})
}

// api returns the API of a gateway with a key.
func api(t *testing.T) *API {
	t.Helper()
	key, err := sign.NewKey(make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	return &API{Key: func() *sign.Key { return key }, Original: func() string { return "t" }, Ledger: &memlog.Log{},
		Gate: &auth.Gate{Authority: &auth.Authority{}, LoginKeys: func(string) (ed25519.PublicKey, error) { return key.Public(), nil }}}
}

// TestInventedCodes shows that the attempts of an address to log in with codes that the identity
// provider refuses are delayed: each of them is a request to the provider and is on the ledger.
func TestInventedCodes(t *testing.T) { synctest.Test(t, inventedCodes) }

func inventedCodes(t *testing.T) {
	exchanges := 0
	p := provider(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/t" {
			if r.Header.Get("Authorization") != "" { // the client authenticates in one way, then in the other
				exchanges++
			}
			return respond(r, http.StatusBadRequest, `{"error":"invalid_grant"}`)
		}
		return respond(r, http.StatusOK, discovery)
	})
	s, e := &Pages{API: api(t), Provider: p}, echo.New()
	begin := httptest.NewRequest(http.MethodPost, "http://localhost"+ProviderPath, strings.NewReader("tenant="))
	begin.Header = http.Header{"Content-Type": {formType}, "Origin": {"http://localhost"}}
	w := httptest.NewRecorder()
	if err := s.Begin(e.NewContext(begin, w)); err != nil || w.Code != http.StatusOK {
		t.Fatal(err, w.Code, w.Body)
	}
	next, err := url.Parse(strings.TrimPrefix(w.Header().Get("Refresh"), "0;url="))
	if err != nil {
		t.Fatal(err)
	}
	callback := func(from string) int {
		r := httptest.NewRequest(http.MethodGet, "http://localhost"+CallbackPath+"?code=invented&state="+next.Query().Get("state"), nil)
		r.RemoteAddr = from
		r.AddCookie(w.Result().Cookies()[0])
		got := httptest.NewRecorder()
		if err := s.Callback(e.NewContext(r, got)); err != nil {
			t.Fatal(err)
		}
		return got.Code
	}
	statuses := map[int]int{}
	for range 2 * freeOfAddress {
		statuses[callback("192.0.2.1:1000")]++
	}
	if statuses[http.StatusForbidden] != freeOfAddress || statuses[http.StatusTooManyRequests] != freeOfAddress || exchanges != freeOfAddress {
		t.Errorf("%v, %d requests to the provider", statuses, exchanges)
	}
	if got := callback("192.0.2.2:1000"); got != http.StatusForbidden {
		t.Errorf("from another address: %d", got)
	}
}

// TestRevokedApproval shows that the revocation of a person's credentials ends the approval of a
// program that has not opened its login yet.
func TestRevokedApproval(t *testing.T) {
	s := api(t)
	now := time.Now()
	device, err := s.issue(&token.Claims{Use: token.UseDevice, Tenant: "t", Client: "cli", Scopes: []string{"llm:call"}}, "", now, now.Add(deviceTTL))
	if err != nil {
		t.Fatal(err)
	}
	policy := &emit.Emitter{Source: "policy/policy-1", Tenant: "t", Log: s.Ledger, Now: time.Now}
	code := userCode(device)
	if _, err := policy.Append(t.Context(), policy.New(contract.EventDeviceApproved, deviceKey(code), contract.Bytes(&events.DeviceApproved{Code: sign.Digest([]byte(code)),
		Expires: contract.Time(now.Add(deviceTTL)), Principal: "ann", Scopes: []string{"tools:call"}}), nil)); err != nil {
		t.Fatal(err)
	}
	refused := func(want string) {
		t.Helper()
		var r *refusal
		if _, err := s.byDevice(t.Context(), device); !errors.As(err, &r) || r.code != contract.OAuthDenied || !strings.Contains(r.text, want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	refused("none of the scopes") // the approval is in force
	revoked := policy.New(contract.EventTokenRevoked, "identity", contract.Bytes(&events.TokenRevoked{Principal: "ann", Before: contract.Time(now.Add(time.Minute)), Reason: "stolen"}), nil)
	if err := s.Gate.Authority.Apply(revoked); err != nil {
		t.Fatal(err)
	}
	refused("were revoked")
}
