// Package web has the packs that read web pages: http.fetch, web.scrape and
// research.deep. They connect through the proxy of the call (HTTP_PROXY), which permits
// the hosts of the decision and checks every redirect.
package web

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Limits of one request.
const (
	maxBody  = 8 << 20
	maxHops  = 10 // redirects that are followed
	deadline = 30 * time.Second
)

// Client returns a client that uses the proxy in HTTP_PROXY, if there is one, for
// every host. The default client of the standard library does not use a proxy for
// loopback addresses. A request follows at most maxHops redirects, and fails after the
// time deadline.
func Client() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if proxy, err := url.Parse(os.Getenv("HTTP_PROXY")); err == nil && proxy.Host != "" {
		transport.Proxy = http.ProxyURL(proxy)
	}
	return &http.Client{Transport: transport, Timeout: deadline, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > maxHops {
			return fmt.Errorf("more than %d redirects", maxHops)
		}
		return nil
	}}
}

// Do sends a request and returns the response, the first limit bytes of its body, and
// whether the body is longer. The response's Body is closed. A refusal of the proxy is
// an error that names its reason (the field Proxy-Status, RFC 9209). Do also returns
// an error if the server does not respond, or if its response ends early.
func Do(c *http.Client, r *http.Request, limit int64) (*http.Response, []byte, bool, error) {
	resp, err := c.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) && u.Timeout() {
			return nil, nil, false, pack.Fail(pack.Timeout, "%s did not respond within %v", r.URL.Host, deadline)
		}
		if errors.As(err, &u) && strings.Contains(u.Err.Error(), "Forbidden") { // the response of the proxy to CONNECT
			return nil, nil, false, pack.Refused(r.URL.Host, "denied")
		}
		return nil, nil, false, pack.Fail(pack.HandlerFailed, "%v", err)
	}
	defer resp.Body.Close()
	if e := pack.Refusal(resp); e != nil {
		return nil, nil, false, e
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, nil, false, pack.Fail(pack.HandlerFailed, "the response of %s ended early: %v", r.URL.Host, err)
	}
	if int64(len(body)) > limit {
		return resp, body[:limit], true, nil
	}
	return resp, body, false, nil
}

// FetchInput is the input of http.fetch.
type FetchInput struct {
	URL     string            `json:"url"`
	Method  string            `json:"method"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// FetchOutput is the output of http.fetch. Body is base64 if Encoding is "base64".
type FetchOutput struct {
	URL       string            `json:"url"` // after redirects
	Status    int               `json:"status"`
	Headers   map[string]string `json:"headers"`
	Body      string            `json:"body"`
	Encoding  string            `json:"encoding"`
	Truncated bool              `json:"truncated"`
}

// Fetch sends one HTTP request. A response with any status is a success.
func Fetch(ctx context.Context, in FetchInput) (FetchOutput, error) {
	method := in.Method
	if method == "" {
		method = http.MethodGet
	}
	if err := checkURL(in.URL); err != nil {
		return FetchOutput{}, err
	}
	r, err := http.NewRequestWithContext(ctx, method, in.URL, strings.NewReader(in.Body))
	if err != nil {
		return FetchOutput{}, pack.Invalid("/url", "%v", err)
	}
	r.Header.Set("User-Agent", "binnacle-http.fetch")
	for k, v := range in.Headers {
		if slices.Contains([]string{"host", "connection", "content-length", "transfer-encoding", "proxy-authorization"}, strings.ToLower(k)) {
			return FetchOutput{}, pack.Invalid("/headers/"+k, "the header %s cannot be set", k)
		}
		r.Header.Set(k, v)
	}
	resp, body, cut, err := Do(Client(), r, maxBody)
	if err != nil {
		return FetchOutput{}, err
	}
	out := FetchOutput{URL: resp.Request.URL.String(), Status: resp.StatusCode, Headers: map[string]string{}, Truncated: cut, Encoding: "utf-8", Body: string(body)}
	for k := range resp.Header {
		out.Headers[strings.ToLower(k)] = resp.Header.Get(k)
	}
	if !utf8.Valid(body) {
		out.Encoding, out.Body = "base64", base64.StdEncoding.EncodeToString(body)
	}
	return out, nil
}

// checkURL returns an error unless s is an absolute HTTP URL without user information.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return pack.Invalid("/url", "%v", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return pack.Invalid("/url", "%q is not an http or https URL", s)
	case u.User != nil:
		return pack.Invalid("/url", "a URL with a user or password is not sent")
	}
	return nil
}
