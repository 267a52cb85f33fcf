package oauth

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// ErrUnsuitable is wrapped by the error of an authorization server whose metadata are missing
// or exclude the grant authorization_code with PKCE. A repetition fails in the same way.
var ErrUnsuitable = errors.New("the authorization server cannot be used")

// Metadata are the metadata of an authorization server (RFC 8414, section 2, and OpenID Connect
// Discovery 1.0, section 3).
type Metadata struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Registration  string   `json:"registration_endpoint"`
	Scopes        []string `json:"scopes_supported"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	Grants        []string `json:"grant_types_supported"`
	TokenAuth     []string `json:"token_endpoint_auth_methods_supported"`
	Documents     bool     `json:"client_id_metadata_document_supported"`          // draft-ietf-oauth-client-id-metadata-document
	Iss           bool     `json:"authorization_response_iss_parameter_supported"` // RFC 9207
}

// places returns the URLs at which the metadata of an issuer may be, in the order in which they
// are tried (RFC 8414, section 3.1, and OpenID Connect Discovery 1.0, section 4.1).
func places(issuer *url.URL) (out []string) {
	path := strings.TrimSuffix(issuer.Path, "/")
	at := func(path string) {
		out = append(out, (&url.URL{Scheme: issuer.Scheme, Host: issuer.Host, Path: path}).String())
	}
	at("/.well-known/oauth-authorization-server" + path)
	at("/.well-known/openid-configuration" + path)
	if path != "" {
		at(path + "/.well-known/openid-configuration")
	}
	return out
}

// Discover reads the metadata of the server with an issuer identifier, and returns them if the
// grant authorization_code with PKCE can be used. Redirects are not followed. The error wraps
// ErrUnsuitable or ErrResponse, or is that of via.
func Discover(ctx context.Context, via http.RoundTripper, issuer string) (*Metadata, error) {
	u, err := secrettype.ParseURL(issuer)
	if err != nil {
		return nil, fmt.Errorf("%w: the issuer %w", ErrUnsuitable, err)
	}
	for _, place := range places(u) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: the issuer is no URL", ErrUnsuitable)
		}
		req.Header.Set("Accept", "application/json")
		resp, body, err := send(via, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 400 && resp.StatusCode < 500 {
			continue
		}
		m := new(Metadata)
		if resp.StatusCode != http.StatusOK || !isJSON(resp) || json.Unmarshal(body, m) != nil {
			return nil, fmt.Errorf("%w: the response with its metadata has status %d or is no JSON object", ErrResponse, resp.StatusCode)
		}
		return m, m.check(issuer)
	}
	return nil, fmt.Errorf("%w: it has no metadata under the issuer identifier", ErrUnsuitable)
}

// check returns an error if the metadata are not those of the issuer, or if the server does not
// support what a login needs.
func (m *Metadata) check(issuer string) error {
	unfit := func(reason string) error { return fmt.Errorf("%w: %s", ErrUnsuitable, reason) }
	if m.Issuer != issuer { // RFC 8414, section 3.3
		return unfit("its metadata are those of another issuer")
	}
	of, _ := url.Parse(issuer)
	for _, e := range []struct {
		name, url string
		optional  bool
	}{{"authorization_endpoint", m.Authorization, false}, {"token_endpoint", m.Token, false}, {"registration_endpoint", m.Registration, true}} {
		if e.url == "" && e.optional {
			continue
		}
		u, err := secrettype.ParseURL(e.url)
		if err != nil || u.Scheme != "https" && of.Scheme == "https" {
			return unfit("its " + e.name + " is no URL with the scheme of the issuer")
		}
	}
	switch {
	case !slices.Contains(m.Challenges, "S256"):
		return unfit("it does not support the code challenge method S256")
	case len(m.Grants) > 0 && !slices.Contains(m.Grants, GrantCode):
		return unfit("it does not support the grant " + GrantCode)
	}
	return nil
}

// SecretAuth returns how a client with a secret authenticates at the token endpoint.
func (m *Metadata) SecretAuth() string {
	if len(m.TokenAuth) > 0 && !slices.Contains(m.TokenAuth, "client_secret_basic") && slices.Contains(m.TokenAuth, "client_secret_post") {
		return secrettype.AuthPost
	}
	return secrettype.AuthBasic // the default (RFC 8414, section 2)
}

// Register registers a client with a redirection URI at the server (RFC 7591, section 3), and
// returns it without a refresh token. The errors are those of Obtain.
func (m *Metadata) Register(ctx context.Context, via http.RoundTripper, redirect string) (c secrettype.OAuthClient, err error) {
	c = secrettype.OAuthClient{Auth: m.SecretAuth(), TokenEndpoint: m.Token, Issuer: m.Issuer}
	method := "client_secret_" + c.Auth
	if slices.Contains(m.TokenAuth, "none") {
		method, c.Auth = "none", ""
	}
	doc, err := json.Marshal(struct {
		Name      string   `json:"client_name"`
		Type      string   `json:"application_type"` // OpenID Connect Dynamic Client Registration 1.0
		Redirects []string `json:"redirect_uris"`
		Grants    []string `json:"grant_types"`
		Responses []string `json:"response_types"`
		Auth      string   `json:"token_endpoint_auth_method"`
	}{"Binnacle", "native", []string{redirect}, []string{GrantCode, "refresh_token"}, []string{"code"}, method})
	if err != nil {
		return c, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.Registration, bytes.NewReader(doc))
	if err != nil {
		return c, fmt.Errorf("%w: its registration_endpoint is no URL", ErrUnsuitable)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, body, err := send(via, req)
	defer clear(body)
	if err != nil {
		return c, err
	}
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK {
		return c, failure(resp, body)
	}
	var got struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
	}
	if !isJSON(resp) || json.Unmarshal(body, &got) != nil || got.ID == "" || method != "none" && got.Secret == "" {
		return c, fmt.Errorf("%w: the response to the registration has no client_id, or no client_secret", ErrResponse)
	}
	if c.ClientID = got.ID; method != "none" {
		c.ClientSecret = got.Secret
	}
	return c, nil
}

// offline is the scope with which servers that implement OpenID Connect issue a refresh token.
const offline = "offline_access"

// Scope returns the scopes of an authorization request in one string: scopes, and the one for a
// refresh token if the server names it.
func (m *Metadata) Scope(scopes []string) string {
	if slices.Contains(m.Scopes, offline) && !slices.Contains(scopes, offline) {
		scopes = append(slices.Clone(scopes), offline)
	}
	return strings.Join(scopes, " ")
}

// Verifier returns a new code verifier (RFC 7636, section 4.1).
func Verifier() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// URL returns the URL of an authorization request for a client (RFC 6749, section 4.1.1, RFC 7636
// and RFC 8707), to which the caller adds the parameter state.
func (m *Metadata) URL(c *secrettype.OAuthClient, redirect, scope, verifier string) string {
	u, err := secrettype.ParseURL(m.Authorization)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(verifier))
	q := u.Query()
	for name, v := range map[string]string{"response_type": "code", "client_id": c.ClientID, "redirect_uri": redirect, "scope": scope, "resource": c.Resource,
		"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "code_challenge_method": "S256"} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if slices.Contains(strings.Fields(scope), offline) {
		q.Set("prompt", "consent") // OpenID Connect Core 1.0, section 11
	}
	u.RawQuery = q.Encode()
	return u.String()
}
