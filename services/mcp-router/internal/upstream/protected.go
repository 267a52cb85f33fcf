package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Protected holds the metadata of a server that requires access tokens (RFC 9728, section 2), as
// far as a login needs them.
type Protected struct {
	Resource string   `json:"resource"`              // identifier for which tokens are requested (RFC 8707)
	Issuers  []string `json:"authorization_servers"` // at least one
	Scopes   []string `json:"scopes_supported"`      // those of the challenge if it names any
}

// wellKnown begins the paths of metadata (RFC 9728, section 3.1).
const wellKnown = "/.well-known/oauth-protected-resource"

// Discover sends a request without a token to a server, and returns the metadata that the
// challenge of its response (401) names, or those at the well-known locations. Metadata of
// another origin than the server's are not read. The error is an *Error.
func Discover(ctx context.Context, address, version string, sse bool) (*Protected, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, &Error{contract.CodeInvalidInput, "url: it is malformed", err}
	}
	c := &http.Client{Transport: newTransport(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer c.CloseIdleConnections()
	method, body := http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"binnacle","version":"`+version+`"}}}`
	if sse {
		method, body = http.MethodGet, ""
	}
	resp, _, err := fetch(ctx, c, method, address, body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusUnauthorized {
		return nil, &Error{contract.CodeUpstreamRefused, fmt.Sprintf("the server requires no access token: it responded with status %d to a request without one", resp.StatusCode), nil}
	}
	places := []string{wellKnown + strings.TrimSuffix(at.Path, "/"), wellKnown}
	stated, scopes := challenge(resp.Header)
	if stated != "" {
		u, err := at.Parse(stated)
		if err != nil || u.Scheme != at.Scheme || u.Host != at.Host {
			return nil, &Error{contract.CodeUpstreamRefused, "the server's metadata are at another origin than the server, and are not read", err}
		}
		places = []string{u.RequestURI()}
	}
	for _, place := range places {
		resp, raw, err := fetch(ctx, c, http.MethodGet, at.Scheme+"://"+at.Host+place, "")
		if err != nil {
			return nil, err
		}
		p := new(Protected)
		if resp.StatusCode != http.StatusOK || json.Unmarshal(raw, p) != nil {
			continue
		}
		if len(scopes) > 0 {
			p.Scopes = scopes
		}
		return p, p.check(at)
	}
	return nil, &Error{contract.CodeUpstreamRefused, "the server requires an access token, and has no metadata that name its authorization server: store a token and use --header", nil}
}

// check returns an error if the metadata are not those of the server at an address, or name no
// authorization server. The resource may be the address, or one that contains it.
func (p *Protected) check(at *url.URL) error {
	r, err := url.Parse(p.Resource)
	if err != nil || r.Scheme != at.Scheme || r.Host != at.Host || r.Fragment != "" || !strings.HasPrefix(strings.TrimSuffix(at.Path, "/")+"/", strings.TrimSuffix(r.Path, "/")+"/") {
		return &Error{contract.CodeUpstreamRefused, "the server's metadata are those of another resource", err}
	}
	if len(p.Issuers) == 0 {
		return &Error{contract.CodeUpstreamRefused, "the server's metadata name no authorization server", nil}
	}
	return nil
}

// challenge returns the URL of the metadata and the scopes in the challenge of a response.
func challenge(h http.Header) (metadata string, scopes []string) {
	all, err := oauthex.ParseWWWAuthenticate(h.Values("WWW-Authenticate"))
	if err != nil {
		return "", nil
	}
	for _, c := range all {
		if c.Scheme == "bearer" {
			return c.Params["resource_metadata"], strings.Fields(c.Params["scope"])
		}
	}
	return "", nil
}

// fetch sends a request, and returns the response with the beginning of its body, which was
// closed.
func fetch(ctx context.Context, c *http.Client, method, address, body string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return nil, nil, &Error{contract.CodeInvalidInput, "url: it is malformed", err}
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, &Error{contract.CodeUpstreamUnreachable, fmt.Sprintf("the server could not be reached: %.512s", err), err}
	}
	defer resp.Body.Close()
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") { // it may not end
		return resp, nil, nil
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, nil, &Error{contract.CodeUpstreamCut, "the server's response was interrupted", err}
	}
	return resp, raw, nil
}
