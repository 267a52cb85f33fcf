package secrettype

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
)

// OAuth is the type of a client of an authorization server (RFC 6749), as a JSON object; see
// OAuthClient. A call that may use such a secret receives an access token, never the object.
const OAuth = "oauth"

// Ways in which a client authenticates at the token endpoint (RFC 6749, section 2.3.1).
const (
	AuthBasic = "basic" // the client secret in the field Authorization; the default
	AuthPost  = "post"  // the client secret in the body, for servers that do not support the other
)

// OAuthClient is the value of a secret of type OAuth. With a refresh token, access tokens are
// obtained by the grant refresh_token, and otherwise by client_credentials.
type OAuthClient struct {
	Auth          string `json:"auth,omitempty"` // AuthBasic or AuthPost; "" = AuthBasic
	ClientID      string `json:"client_id"`
	ClientSecret  string `json:"client_secret,omitempty"` // "" = the client is public
	Issuer        string `json:"issuer,omitempty"`        // of the authorization server at which a person has logged in; "" = the value was stored without a login
	RefreshToken  string `json:"refresh_token,omitempty"`
	Resource      string `json:"resource,omitempty"` // URI of the service for which tokens are requested (RFC 8707)
	Audience      string `json:"audience,omitempty"` // the same for servers that name it so
	Scope         string `json:"scope,omitempty"`    // scopes, separated by spaces
	TokenEndpoint string `json:"token_endpoint"`     // http or https URL without credentials and fragment
}

// GrantRefresh is the grant with which a refresh token is exchanged for an access token.
const GrantRefresh = "refresh_token"

// Grant returns the grant type by which access tokens are obtained.
func (c *OAuthClient) Grant() string {
	if c.RefreshToken != "" {
		return GrantRefresh
	}
	return "client_credentials"
}

// Endpoint returns the parsed TokenEndpoint of a client that ParseOAuth returned.
func (c *OAuthClient) Endpoint() *url.URL {
	u, err := url.Parse(c.TokenEndpoint)
	if err != nil {
		return new(url.URL)
	}
	return u
}

// Value returns the value of a secret with this client.
func (c *OAuthClient) Value() ([]byte, error) { return json.Marshal(c) }

// ParseURL parses a URL of an authorization server. The error contains no part of it.
func ParseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return nil, errors.New("is no URL with https:// or http://, or one with credentials or a fragment")
	}
	return u, nil
}

// ParseOAuth parses the value of a secret of type OAuth. The error contains no part of it.
func ParseOAuth(v []byte) (c OAuthClient, err error) {
	required := []string{"client_id", "token_endpoint"}
	if err := object(v, required, []string{"audience", "auth", "client_secret", "issuer", "refresh_token", "resource", "scope"}); err != nil {
		return c, err
	}
	if json.Unmarshal(v, &c) != nil { // a name that differs in its case only
		return c, errors.New("has a member that cannot be read")
	}
	_, bad := ParseURL(c.TokenEndpoint)
	switch {
	case bad != nil:
		return c, fmt.Errorf("has a token_endpoint that %w", bad)
	case c.Auth != "" && c.Auth != AuthBasic && c.Auth != AuthPost:
		return c, errors.New("has an auth other than " + AuthBasic + " and " + AuthPost)
	case c.RefreshToken == "" && c.ClientSecret == "":
		return c, errors.New("needs a client_secret, for the grant client_credentials, or a refresh_token")
	}
	return c, nil
}

// Authorized is the value that is stored, in place of an OAuthClient, to finish a login: the
// vault-broker redeems the code and stores the client with its refresh token.
type Authorized struct {
	Authorization string `json:"authorization"`           // id of the call that began the login
	ClientSecret  string `json:"client_secret,omitempty"` // of a client that was not registered dynamically
	Code          string `json:"code"`                    // authorization code (RFC 6749, section 4.1.2)
	Issuer        string `json:"iss,omitempty"`           // parameter of the authorization response (RFC 9207)
}

// ParseAuthorized parses the value of an Authorized. ok is false if v has not its form, and
// is then to be parsed by ParseOAuth.
func ParseAuthorized(v []byte) (a Authorized, ok bool) {
	ok = object(v, []string{"authorization", "code"}, []string{"client_secret", "iss"}) == nil && json.Unmarshal(v, &a) == nil
	return a, ok
}
