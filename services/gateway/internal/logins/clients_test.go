package logins

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// clients returns the Clients of a configuration. f responds to requests for documents.
func clients(t *testing.T, c config.OAuth, f transport) *Clients {
	t.Helper()
	out, err := NewClients(c, &endpoint.Transport{Transport: &http.Transport{}})
	if err != nil {
		t.Fatal(err)
	}
	out.documents.Transport = f
	return out
}

// TestConfiguredClients shows that the error about an invalid client of the configuration names the
// setting.
func TestConfiguredClients(t *testing.T) {
	for _, entry := range []string{"ide", "=https://ide.example", "a b=https://ide.example", CommandLine + "=https://ide.example", "ide=http://ide.example", "ide=javascript:alert(1)"} {
		if _, err := NewClients(config.OAuth{Clients: []string{entry}}, &endpoint.Transport{Transport: &http.Transport{}}); err == nil || !strings.HasPrefix(err.Error(), "gateway.oauth.clients: ") {
			t.Errorf("%s: %v", entry, err)
		}
	}
	if _, err := NewClients(config.OAuth{DocumentsCA: "/none"}, &endpoint.Transport{Transport: &http.Transport{}}); err == nil || !strings.HasPrefix(err.Error(), "gateway.oauth.documents_ca: ") {
		t.Error(err)
	}
	s := clients(t, config.OAuth{Clients: []string{"ide=https://ide.example/a", "ide=http://127.0.0.1/b"}}, nil)
	if c, err := s.find(t.Context(), nil, "ide", nil); err != nil || len(c.redirects) != 2 {
		t.Error(c, err)
	}
}

// TestDocuments shows which documents identify a client, that the result is cached, and that no
// request is made for other hosts and after a refusal of admit.
func TestDocuments(t *testing.T) { synctest.Test(t, testDocuments) }

func testDocuments(t *testing.T) {
	const id = "https://app.example/client.json"
	const valid = `{"client_id":"` + id + `","client_name":"App","redirect_uris":["http://127.0.0.1/callback"]}`
	fetched, status, kind, body := 0, 200, "application/json", ""
	s := clients(t, config.OAuth{Documents: []string{"app.example"}}, func(r *http.Request) (*http.Response, error) {
		fetched++
		resp, err := respond(r, status, body)
		resp.Header.Set("Content-Type", kind)
		resp.Header.Set("Location", "https://internal.example/")
		return resp, err
	})
	admit := func() error { return nil }
	for _, bad := range []string{"https://other.example/client.json", "https://app.example:8443/client.json", "https://app.example", "https://app.example/", "https://app.example/a/../b", "https://u@app.example/c", "https://app.example/c#f", "http://app.example/client.json", "app.example/client.json"} {
		if c, err := s.find(t.Context(), nil, bad, admit); err == nil {
			t.Errorf("%s: %v", bad, c)
		}
	}
	refused := errors.New("too many")
	if _, err := s.find(t.Context(), nil, id, func() error { return refused }); !errors.Is(err, refused) || fetched != 0 {
		t.Errorf("%v, %d requests", err, fetched)
	}
	for what, x := range map[string]struct {
		status     int
		kind, body string
	}{
		"redirect": {302, "application/json", valid}, "missing": {404, "application/json", valid}, "HTML": {200, "text/html", valid}, "no JSON": {200, "application/json", "x"}, "large": {200, "application/json", valid + strings.Repeat(" ", maxDocument)},
		"another id":       {200, "application/json", strings.Replace(valid, "client.json", "other.json", 1)},
		"no redirect URI":  {200, "application/json", `{"client_id":"` + id + `"}`},
		"a secret":         {200, "application/json", strings.Replace(valid, "{", `{"token_endpoint_auth_method":"client_secret_post",`, 1)},
		"another grant":    {200, "application/json", strings.Replace(valid, "{", `{"grant_types":["client_credentials"],`, 1)},
		"another response": {200, "application/json", strings.Replace(valid, "{", `{"response_types":["token"],`, 1)},
		"control":          {200, "application/json", strings.Replace(valid, "App", `\n`, 1)},
	} {
		status, kind, body = x.status, x.kind, x.body
		var r *refusal
		if _, err := s.find(t.Context(), nil, id, admit); !errors.As(err, &r) || r.code != contract.OAuthClient || strings.Contains(r.text, "internal") {
			t.Errorf("%s: %v", what, err)
		}
		time.Sleep(failureTTL + 1)
	}
	status, kind, body, fetched = 200, "application/json; charset=utf-8", valid, 0
	for range 3 {
		c, err := s.find(t.Context(), nil, id, admit)
		if err != nil || c.name != "App" || !strings.HasPrefix(c.label, "app.example:") || len(c.label) > maxClient || fetched != 1 {
			t.Fatalf("%+v %v, %d requests", c, err, fetched)
		}
	}
}

// register sends metadata to the registration from an address, and returns the response.
func register(t *testing.T, s *API, from, metadata string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://localhost"+RegisterPath, strings.NewReader(metadata))
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	if err := s.Register(echo.New().NewContext(r, w)); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestRegister shows that clients register only if that is configured, which metadata is refused, and
// that registrations of one address are delayed.
func TestRegister(t *testing.T) {
	s := api(t)
	s.Clients = clients(t, config.OAuth{}, nil)
	const valid = `{"redirect_uris":["http://127.0.0.1/callback"],"client_name":"App","token_endpoint_auth_method":"client_secret_post","unknown":1}`
	if w := register(t, s, "192.0.2.1:1", valid); w.Code != http.StatusForbidden {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	s.Clients = clients(t, config.OAuth{Registration: true}, nil)
	for metadata, code := range map[string]string{
		`[`: contract.OAuthMetadata, `{}`: contract.OAuthRedirect, `{"redirect_uris":["http://evil.example/"]}`: contract.OAuthRedirect, `{"redirect_uris":["https://a.example/` + strings.Repeat("x", 2000) + `"]}`: contract.OAuthRedirect,
		`{"redirect_uris":["https://a.example/"],"client_name":"` + strings.Repeat("x", 101) + `"}`: contract.OAuthMetadata,
	} {
		if w := register(t, s, "192.0.2.1:1", metadata); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"`+code+`"`) {
			t.Errorf("%s: %d %s", metadata, w.Code, w.Body)
		}
	}
	w := register(t, s, "192.0.2.1:1", valid)
	_, id, _ := strings.Cut(w.Body.String(), `"client_id":"`)
	id, _, _ = strings.Cut(id, `"`)
	if w.Code != http.StatusCreated || !strings.Contains(w.Body.String(), `"token_endpoint_auth_method":"none"`) || strings.Contains(w.Body.String(), "secret") {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if c, err := s.Clients.find(t.Context(), s.Gate.LoginKeys, id, nil); err != nil || c.name != "App" || c.redirects[0] != "http://127.0.0.1/callback" {
		t.Error(c, err)
	}
	s.Clients.registration = false
	if c, err := s.Clients.find(t.Context(), s.Gate.LoginKeys, id, nil); err == nil {
		t.Errorf("a registration is valid after the end of registrations: %v", c)
	}
	s.Clients.registration = true
	for range freeOfAddress {
		w = register(t, s, "192.0.2.1:1", valid)
	}
	if w.Code != http.StatusTooManyRequests || register(t, s, "192.0.2.2:1", valid).Code != http.StatusCreated {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestBound shows that a code is bound to its client, redirect URI, challenge and resource.
func TestBound(t *testing.T) {
	// The verifier and the challenge are those of RFC 7636, appendix B.
	x := &token.Claims{Party: sign.Digest([]byte("ide")), Redirect: "http://127.0.0.1:7/callback", Challenge: "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM", Resource: "https://mesh.example/mcp"}
	form := func(set ...string) url.Values {
		f := url.Values{"client_id": {"ide"}, "redirect_uri": {x.Redirect}, "code_verifier": {"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"}}
		for i := 0; i < len(set); i += 2 {
			f.Set(set[i], set[i+1])
		}
		return f
	}
	for _, ok := range []url.Values{form(), form("resource", x.Resource)} {
		if err := bound(x, ok); err != nil {
			t.Error(err)
		}
	}
	for _, set := range [][]string{{"client_id", "cli"}, {"client_id", ""}, {"redirect_uri", "http://127.0.0.1:8/callback"}, {"redirect_uri", ""}, {"code_verifier", ""}, {"code_verifier", x.Challenge}, {"resource", ""}, {"resource", "https://mesh.example"}} {
		var r *refusal
		if err := bound(x, form(set...)); !errors.As(err, &r) || r.status != http.StatusBadRequest {
			t.Errorf("%q: %v", set, err)
		}
	}
}
