// Package oauth obtains access tokens from the token endpoint of an authorization server
// (RFC 6749, sections 4.1, 4.4, 5 and 6), and reads the metadata of the server. No error
// contains a credential, or text of the server other than the error codes that RFC 6749,
// RFC 7591 and RFC 8628 define.
package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// Token is the response of a token endpoint.
type Token struct {
	Access  string
	Refresh string        // "" if the server did not return one: the former remains valid
	Life    time.Duration // 0 if the server did not state it
}

// Refused is the error of a request that the server refused with an error response (RFC 6749,
// section 5.2). A repetition of the request fails in the same way.
type Refused struct {
	Code string // error code such as invalid_grant; "" if it is none of the defined ones
}

// Error returns a text with the code.
func (r *Refused) Error() string {
	if r.Code == "" {
		return "the authorization server refused the request"
	}
	return "the authorization server refused the request: " + r.Code
}

// ErrResponse is wrapped by the error of a request whose response is neither a token nor a
// refusal. It may succeed when it is repeated.
var ErrResponse = errors.New("the token endpoint failed")

// GrantCode is the grant type of Redeem.
const GrantCode = "authorization_code"

// codes are the error codes that a server may return: those of RFC 6749, section 5.2, of RFC
// 7591, section 3.2.2, of RFC 8628, section 3.5, and of RFC 8707.
var codes = []string{"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope", "invalid_target", "access_denied", "expired_token",
	"invalid_redirect_uri", "invalid_client_metadata", "invalid_software_statement", "unapproved_software_statement"}

const maxResponse = 64 << 10 // bytes

// Obtain requests an access token for a client, with one request, and does not follow
// redirects. It returns a *Refused, an error that wraps ErrResponse, or the error of via.
func Obtain(ctx context.Context, via http.RoundTripper, c *secrettype.OAuthClient) (Token, error) {
	return request(ctx, via, c, map[string]string{"grant_type": c.Grant(), "refresh_token": c.RefreshToken, "scope": c.Scope, "audience": c.Audience})
}

// Redeem exchanges an authorization code for tokens of a client (RFC 6749, section 4.1.3).
// redirect is the redirection URI of the authorization request, and verifier is the code
// verifier of its code challenge (RFC 7636). The errors are those of Obtain.
func Redeem(ctx context.Context, via http.RoundTripper, c *secrettype.OAuthClient, code, redirect, verifier string) (Token, error) {
	return request(ctx, via, c, map[string]string{"grant_type": GrantCode, "code": code, "redirect_uri": redirect, "code_verifier": verifier})
}

// request sends a request for a token with the members of a form, unless they are empty,
// and those that identify the client and the resource.
func request(ctx context.Context, via http.RoundTripper, c *secrettype.OAuthClient, members map[string]string) (t Token, err error) {
	form := url.Values{}
	if c.Resource != "" {
		form.Set("resource", c.Resource)
	}
	for name, v := range members {
		if v != "" {
			form.Set(name, v)
		}
	}
	basic := c.ClientSecret != "" && c.Auth != secrettype.AuthPost
	if !basic {
		form.Set("client_id", c.ClientID)
	}
	if c.ClientSecret != "" && !basic {
		form.Set("client_secret", c.ClientSecret)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.TokenEndpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return t, errors.New("the token endpoint is no URL") // the error of net/http contains the URL
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if basic {
		req.SetBasicAuth(url.QueryEscape(c.ClientID), url.QueryEscape(c.ClientSecret)) // section 2.3.1
	}
	resp, body, err := send(via, req)
	defer clear(body)
	switch {
	case err != nil:
		return t, err
	case resp.StatusCode == http.StatusOK:
		return tokenOf(resp, body)
	}
	return t, failure(resp, body)
}

// send sends a request, and returns the response with its body, which was read and closed.
func send(via http.RoundTripper, req *http.Request) (*http.Response, []byte, error) {
	resp, err := via.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	switch {
	case err != nil:
		return nil, body, fmt.Errorf("%w: its response was interrupted", ErrResponse)
	case len(body) > maxResponse:
		return nil, body, fmt.Errorf("%w: its response is too long", ErrResponse)
	}
	return resp, body, nil
}

// isJSON reports whether a response has a JSON document.
func isJSON(r *http.Response) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// tokenOf returns the token in a successful response (section 5.1). It accepts a lifetime in a
// JSON string, which some servers send.
func tokenOf(r *http.Response, body []byte) (t Token, err error) {
	var doc struct {
		Access  string      `json:"access_token"`
		Type    string      `json:"token_type"`
		Life    json.Number `json:"expires_in"`
		Refresh string      `json:"refresh_token"`
	}
	if !isJSON(r) || json.Unmarshal(body, &doc) != nil {
		return t, fmt.Errorf("%w: its response is no JSON object", ErrResponse)
	}
	if doc.Access == "" || strings.ContainsFunc(doc.Access, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return t, fmt.Errorf("%w: its response has no access token that a header field may contain", ErrResponse)
	}
	if !strings.EqualFold(doc.Type, "bearer") {
		return t, fmt.Errorf("%w: the token is not of type Bearer", ErrResponse)
	}
	t = Token{Access: doc.Access, Refresh: doc.Refresh}
	if doc.Life != "" {
		seconds, err := doc.Life.Float64()
		if err != nil || seconds < 1 {
			return Token{}, fmt.Errorf("%w: the token has no valid lifetime", ErrResponse)
		}
		t.Life = time.Duration(min(seconds, maxLife.Seconds()) * float64(time.Second))
	}
	return t, nil
}

// maxLife bounds the stated lifetime of a token, so that it can be added to a time.
const maxLife = 10 * 365 * 24 * time.Hour

// failure returns the error of a response whose status is not 200.
func failure(r *http.Response, body []byte) error {
	var doc struct {
		Error string `json:"error"`
	}
	refused := r.StatusCode >= 400 && r.StatusCode < 500 && r.StatusCode != http.StatusRequestTimeout && r.StatusCode != http.StatusTooManyRequests
	if !refused || !isJSON(r) || json.Unmarshal(body, &doc) != nil || doc.Error == "" {
		return fmt.Errorf("%w: status %d", ErrResponse, r.StatusCode)
	}
	if !slices.Contains(codes, doc.Error) {
		doc.Error = ""
	}
	return &Refused{doc.Error}
}
