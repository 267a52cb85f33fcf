package oauthtest

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
)

// metadata writes the metadata of the server (RFC 8414).
func (s *Server) metadata(w http.ResponseWriter, _ *http.Request) {
	doc := map[string]any{"issuer": s.URL, "authorization_endpoint": s.URL + "/authorize?prompt=login", "token_endpoint": s.TokenEndpoint(), "registration_endpoint": s.URL + "/register",
		"code_challenge_methods_supported": []string{"S256"}, "authorization_response_iss_parameter_supported": true}
	if s.Public {
		doc["token_endpoint_auth_methods_supported"] = []string{"none"}
	}
	maps.Copy(doc, s.Members)
	write(w, http.StatusOK, doc)
}

// register returns the client of the server for the registration of a native client (RFC 7591).
func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var doc struct {
		Redirects []string `json:"redirect_uris"`
		Type      string   `json:"application_type"`
		Auth      string   `json:"token_endpoint_auth_method"`
	}
	if json.NewDecoder(r.Body).Decode(&doc) != nil || len(doc.Redirects) != 1 || doc.Type != "native" || (doc.Auth == "none") != s.Public {
		write(w, http.StatusBadRequest, map[string]any{"error": "invalid_client_metadata", "error_description": "hunter2"})
		return
	}
	out := map[string]any{"client_id": ClientID}
	if !s.Public {
		out["client_secret"] = ClientSecret
	}
	write(w, http.StatusCreated, out)
}

// Authorize agrees, as a person in a browser does, to the authorization request with a URL, and
// returns the parameters of the redirect.
func (s *Server) Authorize(address string) url.Values {
	u, err := url.Parse(address)
	if err != nil {
		return nil
	}
	q := u.Query()
	if q.Get("response_type") != "code" || q.Get("client_id") != cmp.Or(s.ID, ClientID) || q.Get("code_challenge_method") != "S256" || q.Get("prompt") == "" {
		return url.Values{"error": {"invalid_request"}, "iss": {s.URL}}
	}
	code := "code-" + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codes[code] = q
	return url.Values{"code": {code}, "iss": {s.URL}, "state": {q.Get("state")}}
}

// redeem implements RFC 6749, section 4.1.3, RFC 7636, section 4.6, and RFC 8707, section 2.2.
func (s *Server) redeem(w http.ResponseWriter, r *http.Request) {
	q := s.codes[r.PostForm.Get("code")]
	delete(s.codes, r.PostForm.Get("code"))
	sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
	if q == nil || base64.RawURLEncoding.EncodeToString(sum[:]) != q.Get("code_challenge") || r.PostForm.Get("redirect_uri") != q.Get("redirect_uri") {
		refuse(w, r, http.StatusBadRequest, "invalid_grant")
		return
	}
	if r.PostForm.Get("resource") != q.Get("resource") {
		refuse(w, r, http.StatusBadRequest, "invalid_target")
		return
	}
	s.issue(w, q.Get("scope"), s.grant(&granted{scope: q.Get("scope")}))
}
