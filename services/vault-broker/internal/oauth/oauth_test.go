package oauth

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/oauthtest"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// client returns a client of the server.
func client(s *oauthtest.Server) secrettype.OAuthClient {
	return secrettype.OAuthClient{ClientID: oauthtest.ClientID, ClientSecret: oauthtest.ClientSecret, TokenEndpoint: s.TokenEndpoint(), Scope: "read write"}
}

// obtain obtains a token, and checks that no error contains a credential or the request.
func obtain(t *testing.T, s *oauthtest.Server, c secrettype.OAuthClient) (Token, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	tok, err := Obtain(ctx, s.Client().Transport, &c)
	if err != nil {
		for _, hidden := range []string{c.ClientSecret, c.RefreshToken, "the request was", "hunter2"} {
			if hidden != "" && strings.Contains(err.Error(), hidden) {
				t.Errorf("an error contains %q: %v", hidden, err)
			}
		}
	}
	return tok, err
}

// TestObtain shows the requests for both grants and both ways of authentication, over TLS, and that
// the server's tokens, lifetime and rotated refresh token are returned.
func TestObtain(t *testing.T) {
	s := oauthtest.New(true)
	defer s.Close()
	s.Rotate, s.Life = true, 10*time.Minute
	for _, auth := range []string{"", secrettype.AuthBasic, secrettype.AuthPost} {
		c := client(s)
		c.Auth, c.Resource, c.Audience = auth, "https://api.example", "api"
		tok, err := obtain(t, s, c)
		if scope, ok := s.Valid(tok.Access); err != nil || !ok || scope != "read write" || tok.Life != 10*time.Minute || tok.Refresh != "" {
			t.Errorf("auth %q: %v", auth, err)
		}
		form := s.Requests()[len(s.Requests())-1]
		if form.Get("resource") != c.Resource || form.Get("audience") != c.Audience || form.Has("client_secret") != (auth == secrettype.AuthPost) {
			t.Errorf("auth %q: %v", auth, form)
		}
	}
	c := client(s)
	c.RefreshToken, c.Scope = s.Grant("read write"), "read"
	tok, err := obtain(t, s, c)
	if scope, ok := s.Valid(tok.Access); err != nil || !ok || scope != "read" || tok.Refresh == "" || tok.Refresh == c.RefreshToken {
		t.Error(tok.Refresh, err)
	}
	public := oauthtest.New(false)
	defer public.Close()
	public.Public, public.Silent = true, true
	c = client(public)
	c.ClientSecret, c.RefreshToken = "", public.Grant("read write")
	tok, err = obtain(t, public, c)
	if _, ok := public.Valid(tok.Access); err != nil || !ok || tok.Life != 0 {
		t.Error("a public client without a lifetime:", err)
	}
}

// TestRefused shows the errors of requests that the server refuses.
func TestRefused(t *testing.T) {
	s := oauthtest.New(false)
	defer s.Close()
	s.Rotate = true
	used := s.Grant("read write")
	c := client(s)
	c.RefreshToken = used
	if _, err := obtain(t, s, c); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(c *secrettype.OAuthClient){
		"invalid_grant":  func(c *secrettype.OAuthClient) { c.RefreshToken = used }, // rotated
		"invalid_client": func(c *secrettype.OAuthClient) { c.ClientSecret = "hunter2" },
		"invalid_scope":  func(c *secrettype.OAuthClient) { c.RefreshToken, c.Scope = s.Grant("read"), "admin" },
	} {
		c := client(s)
		change(&c)
		_, err := obtain(t, s, c)
		if refused := (*Refused)(nil); !errors.As(err, &refused) || refused.Code != want || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	s.Fail(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"hunter2"}`))
	})
	_, err := obtain(t, s, client(s))
	if refused := (*Refused)(nil); !errors.As(err, &refused) || refused.Code != "" {
		t.Error("an error code that is not defined:", err)
	}
}

// TestResponses shows the errors of responses that are neither a token nor a refusal, that a redirect
// is not followed, and that a server which does not respond is given up when the context ends.
func TestResponses(t *testing.T) {
	s := oauthtest.New(false)
	defer s.Close()
	respond := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	const kind = "application/json"
	for name, h := range map[string]http.HandlerFunc{
		"failed": respond(500, kind, `{"error":"server_error hunter2"}`), "busy": respond(429, kind, `{"error":"invalid_grant"}`), "a page": respond(200, "text/html", `{"access_token":"hunter2","token_type":"bearer"}`),
		"not found": respond(404, "text/html", "hunter2"), "a page that refuses": respond(400, "text/html", `{"error":"invalid_grant"}`), "cut off": respond(200, kind, `{"access_token":"hunter2"`), "no token": respond(200, kind, `{"token_type":"bearer"}`),
		"a token with a line feed": respond(200, kind, `{"access_token":"hunter2\nX: y","token_type":"bearer"}`), "of another type": respond(200, kind, `{"access_token":"hunter2","token_type":"mac"}`), "of no type": respond(200, kind, `{"access_token":"hunter2"}`),
		"without a lifetime": respond(200, kind, `{"access_token":"hunter2","token_type":"bearer","expires_in":0}`), "ended": respond(200, kind, `{"access_token":"hunter2","token_type":"bearer","expires_in":-5}`), "long": respond(200, kind, `{"access_token":"`+strings.Repeat("x", maxResponse)+`","token_type":"bearer"}`),
		"elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, s.URL+"/token?again=1", http.StatusTemporaryRedirect)
		},
		"interrupted": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"access_token":"hunter2",`))
		},
	} {
		s.Fail(h)
		before := len(s.Requests())
		if tok, err := obtain(t, s, client(s)); !errors.Is(err, ErrResponse) || tok.Access != "" {
			t.Errorf("%s: %v", name, err)
		}
		if n := len(s.Requests()) - before; n != 1 {
			t.Errorf("%s: %d requests", name, n)
		}
	}
	s.Fail(respond(200, kind, `{"access_token":"a","token_type":"Bearer","expires_in":"1e30"}`))
	if tok, err := obtain(t, s, client(s)); err != nil || tok.Life != maxLife {
		t.Error("a lifetime in a string:", tok.Life, err)
	}
	gone := make(chan struct{})
	s.Fail(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	})
	if _, err := obtain(t, s, client(s)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error("a server that does not respond:", err)
	}
	<-gone
}
