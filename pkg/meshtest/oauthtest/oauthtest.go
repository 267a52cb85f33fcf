// Package oauthtest is a fixture of an authorization server for tests. It implements the token
// endpoint of RFC 6749 for the grants client_credentials, refresh_token and authorization_code
// with PKCE, with client authentication, rotation of refresh tokens and the detection of their
// reuse, and metadata and registration of clients. It refuses what it was not written for.
package oauthtest

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// The client of the server, which authenticates in the field Authorization or in the body.
const (
	ClientID     = "mesh client"
	ClientSecret = "client:secret/of tests"
)

// Server is a running authorization server. Its fields may be set before the first request.
type Server struct {
	*httptest.Server
	Life    time.Duration  // of access tokens; 0 = an hour
	Silent  bool           // responses have no expires_in
	Rotate  bool           // a refresh replaces the refresh token, and a second use of the former one ends the grant
	Public  bool           // the client has no secret
	ID      string         // of the client; "" = ClientID
	Members map[string]any // of the metadata, in addition to the server's own or in place of them

	mu       sync.Mutex
	requests []url.Values
	fail     http.HandlerFunc      // handles the next requests in place of the token endpoint, if not nil
	access   map[string]string     // scope by access token
	grants   map[string]*granted   // by refresh token, the current one and the former ones
	codes    map[string]url.Values // authorization requests by code
}

// granted is the authorization of a person.
type granted struct {
	current string
	ended   bool
	scope   string
}

// New starts a server on a loopback address. tls reports whether it has TLS with the certificate of
// httptest. The caller must close it.
func New(tls bool) *Server {
	s := &Server{access: map[string]string{}, grants: map[string]*granted{}, codes: map[string]url.Values{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", s.token)
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", s.metadata)
	mux.HandleFunc("POST /register", s.register)
	s.Server = httptest.NewUnstartedServer(mux)
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	return s
}

// TokenEndpoint returns the URL of the token endpoint.
func (s *Server) TokenEndpoint() string { return s.URL + "/token" }

// Fail makes h handle the requests to the token endpoint; nil ends that.
func (s *Server) Fail(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = h
}

// Requests returns the forms of the requests to the token endpoint so far.
func (s *Server) Requests() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Valid reports whether the server has issued an access token, and its scope.
func (s *Server) Valid(token string) (scope string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	scope, ok = s.access[token]
	return scope, ok
}

// Grant returns a refresh token, as the grants authorization_code (RFC 6749) and device_code (RFC
// 8628) give it to the client of a person who has agreed.
func (s *Server) Grant(scope string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant(&granted{scope: scope})
}

func (s *Server) grant(g *granted) string {
	g.current = "refresh-" + rand.Text()
	s.grants[g.current] = g
	return g.current
}

// refuse writes an error response (RFC 6749, section 5.2). Its description contains the request, as
// that of a careless server may.
func refuse(w http.ResponseWriter, r *http.Request, status int, code string) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="tokens"`)
	}
	write(w, status, map[string]any{"error": code, "error_description": "the request was " + r.PostForm.Encode()})
}

func write(w http.ResponseWriter, status int, doc map[string]any) {
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc)
}

// authenticated reports whether a request is one of the client (section 2.3.1), which must not
// use both ways at once.
func (s *Server) authenticated(r *http.Request) bool {
	id, secret, basic := r.BasicAuth()
	if basic {
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
		if r.PostForm.Has("client_secret") {
			return false
		}
	} else {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	if s.Public {
		return id == cmp.Or(s.ID, ClientID) && secret == ""
	}
	return id == ClientID && secret == ClientSecret
}

func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.ParseForm() != nil {
		refuse(w, r, http.StatusBadRequest, "invalid_request")
		return
	}
	s.mu.Lock()
	s.requests = append(s.requests, r.PostForm)
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		fail(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range r.PostForm {
		if len(v) != 1 { // section 3.2
			refuse(w, r, http.StatusBadRequest, "invalid_request")
			return
		}
	}
	if !s.authenticated(r) {
		refuse(w, r, http.StatusUnauthorized, "invalid_client")
		return
	}
	switch r.PostForm.Get("grant_type") {
	case "client_credentials":
		s.clientCredentials(w, r)
	case "refresh_token":
		s.refresh(w, r)
	case "authorization_code":
		s.redeem(w, r)
	default:
		refuse(w, r, http.StatusBadRequest, "unsupported_grant_type")
	}
}

// issue writes a successful response (section 5.1), with a refresh token unless it is "".
func (s *Server) issue(w http.ResponseWriter, scope, refresh string) {
	token := "access-" + rand.Text()
	s.access[token] = scope
	life := s.Life
	if life == 0 {
		life = time.Hour
	}
	doc := map[string]any{"access_token": token, "token_type": "bearer", "expires_in": int64(life / time.Second), "scope": scope}
	if s.Silent {
		delete(doc, "expires_in")
	}
	if refresh != "" {
		doc["refresh_token"] = refresh
	}
	write(w, http.StatusOK, doc)
}

func (s *Server) clientCredentials(w http.ResponseWriter, r *http.Request) {
	if s.Public { // section 4.4: the client must be confidential
		refuse(w, r, http.StatusBadRequest, "unauthorized_client")
		return
	}
	s.issue(w, r.PostForm.Get("scope"), "")
}

// refresh implements section 6, and with Rotate the rotation of OAuth 2.1, section 4.3.1.
func (s *Server) refresh(w http.ResponseWriter, r *http.Request) {
	used := r.PostForm.Get("refresh_token")
	g := s.grants[used]
	if g == nil || g.ended {
		refuse(w, r, http.StatusBadRequest, "invalid_grant")
		return
	}
	if g.current != used { // a former token, of which there may be a copy
		g.ended = true
		refuse(w, r, http.StatusBadRequest, "invalid_grant")
		return
	}
	scope := g.scope
	if want := r.PostForm.Get("scope"); want != "" {
		for _, one := range strings.Fields(want) {
			if !slices.Contains(strings.Fields(g.scope), one) {
				refuse(w, r, http.StatusBadRequest, "invalid_scope")
				return
			}
		}
		scope = want
	}
	next := ""
	if s.Rotate {
		next = s.grant(g)
	}
	s.issue(w, scope, next)
}
