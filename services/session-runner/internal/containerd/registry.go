package containerd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Registries are the registries from which images may be pulled.
type Registries struct {
	hosts   map[string]string // scheme by host and port
	secrets map[string]string // name of the secret with the login, by host and port
	rules   []contract.EgressRule
	ca      string // PEM file of the authorities that sign the registries' certificates; "" means those of the system
}

// ParseRegistries reads a list of registries, each HOST, HOST:PORT or http://HOST:PORT. HTTP
// without TLS is permitted for loopback addresses only. more are further hosts, each HOST or
// HOST:PORT, to which the registries redirect or from which they require tokens. ca is a PEM file of
// the authorities that sign their certificates; "" means those of the system.
func ParseRegistries(list, more []string, ca string) (*Registries, error) {
	out := &Registries{hosts: map[string]string{}, ca: ca}
	for _, item := range list {
		host, plain := strings.CutPrefix(item, "http://")
		name := host
		if h, _, err := net.SplitHostPort(host); err == nil {
			name = h
		}
		switch ip := net.ParseIP(strings.Trim(name, "[]")); {
		case host == "" || strings.ContainsAny(host, "/@?# "):
			return nil, fmt.Errorf("session-runner.registries: %q is not HOST, HOST:PORT or http://HOST:PORT", item)
		case plain && name != "localhost" && (ip == nil || !ip.IsLoopback()):
			return nil, fmt.Errorf("session-runner.registries: %q: plain HTTP is for loopback addresses only: leave http:// out", item)
		}
		out.hosts[host] = "https"
		if plain {
			out.hosts[host] = "http"
		}
	}
	for _, host := range slices.Sorted(maps.Keys(out.hosts)) {
		if err := out.permit(host, out.hosts[host]); err != nil {
			return nil, fmt.Errorf("session-runner.registries: %w", err)
		}
	}
	for _, host := range more {
		if err := out.permit(host, "https"); err != nil {
			return nil, fmt.Errorf("session-runner.registry_hosts: %w", err)
		}
	}
	return out, nil
}

// RegistrySecrets is the pattern of the names of secrets with logins at registries.
const RegistrySecrets = "registry.*"

// Secrets sets the logins: each item of the list is HOST=NAME or HOST:PORT=NAME, a registry and the
// name of the secret with its login, which matches RegistrySecrets.
func (g *Registries) Secrets(list []string) error {
	g.secrets = map[string]string{}
	for _, item := range list {
		host, name, _ := strings.Cut(item, "=")
		switch {
		case g.hosts[host] == "":
			return fmt.Errorf("session-runner.registry_secrets: %q: %s is not one of session-runner.registries", item, host)
		case !secretRE.MatchString(name):
			return fmt.Errorf("session-runner.registry_secrets: %q: the name of the secret must begin with registry. and have at most 64 characters of [A-Za-z0-9._-]", item)
		case g.secrets[host] != "":
			return fmt.Errorf("session-runner.registry_secrets: %s has two secrets", host)
		}
		g.secrets[host] = name
	}
	return nil
}

// Secret returns the name of the secret with the login at the registry of a reference, or "" if the
// configuration names none.
func (g *Registries) Secret(ref string) string {
	host, _, _ := strings.Cut(ref, "/")
	return g.secrets[host]
}

// Grants returns what the executor of pulls may receive: the secrets with logins, for the registries
// that have one, or nothing.
func (g *Registries) Grants() []contract.SecretGrant {
	if len(g.secrets) == 0 {
		return nil
	}
	grant := contract.SecretGrant{Name: RegistrySecrets}
	for _, authority := range slices.Sorted(maps.Keys(g.secrets)) {
		if host, _, _, err := netrule.ParseAuthority(authority, 443); err == nil && !slices.Contains(grant.Hosts, host) {
			grant.Hosts = append(grant.Hosts, host)
		}
	}
	return []contract.SecretGrant{grant}
}

// permit adds the rule for requests to a host, unless there is one.
func (g *Registries) permit(authority, scheme string) error {
	r, fallback := contract.EgressRule{Mode: netrule.Passthrough}, 443
	if scheme == "http" {
		r.Mode, fallback = netrule.HTTP, 80
	}
	host, _, port, err := netrule.ParseAuthority(authority, fallback)
	if err != nil {
		return fmt.Errorf("%q is not HOST or HOST:PORT in a canonical spelling", authority)
	}
	r.Host, r.Port = host, int64(port)
	if !slices.ContainsFunc(g.rules, func(x contract.EgressRule) bool { return x.Host == r.Host && x.Port == r.Port && x.Mode == r.Mode }) {
		g.rules = append(g.rules, r)
	}
	return nil
}

// Rules returns the rules for the requests of Pull. Its caller must not change them.
func (g *Registries) Rules() []contract.EgressRule { return g.rules }

var (
	digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	secretRE = regexp.MustCompile(`^registry\.[A-Za-z0-9._-]{1,55}$`)
	tagRE    = regexp.MustCompile(`:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`) // at the end of a name
)

// Errors of Pull. The last two are for references that it does not accept.
var (
	// ErrLogin is wrapped by the error of Pull if the registry requires a login, or rejects the one
	// that it got.
	ErrLogin     = errors.New("the registry requires a login, or rejects this one")
	ErrReference = errors.New("reference of an image")
	ErrUnpinned  = errors.New("the image is named without a digest: write HOST/NAME@sha256:…")
)

// Check returns the error of Pull for a reference that it does not accept, and nil otherwise.
func (g *Registries) Check(ref string, unpinned bool) error {
	_, digest, err := g.parse(ref)
	if err == nil && digest == "" && !unpinned {
		err = ErrUnpinned
	}
	return err
}

// parse returns the host and the digest of a reference, HOST/NAME@sha256:DIGEST or
// HOST/NAME:TAG. digest is "" if the reference has none. The error wraps ErrReference.
func (g *Registries) parse(ref string) (host, digest string, err error) {
	host, name, ok := strings.Cut(ref, "/")
	name, digest, pinned := strings.Cut(name, "@")
	switch {
	case !ok || name == "":
		return "", "", fmt.Errorf("%w: %q is neither HOST/NAME@sha256:DIGEST nor HOST/NAME:TAG", ErrReference, ref)
	case pinned && !digestRE.MatchString(digest):
		return "", "", fmt.Errorf("%w: %q has no digest after the @: write HOST/NAME@sha256: and 64 digits of lower-case hexadecimal", ErrReference, ref)
	case !pinned && !tagRE.MatchString(name):
		return "", "", fmt.Errorf("%w: %q has neither a digest nor a tag: write HOST/NAME@sha256:DIGEST or, to pull what a tag names, HOST/NAME:TAG", ErrReference, ref)
	case g == nil || g.hosts[host] == "":
		return "", "", fmt.Errorf("%w: %s is not one of the registries: add it to session-runner.registries", ErrReference, host)
	}
	return host, digest, nil
}

// DeniedError is the error of a pull for which the egress-broker did not permit a request.
type DeniedError struct {
	Host   string // host and port of the request
	Reason string // reason of the event flow_denied
}

// Error returns a text with the host, the reason and the setting that permits the request.
func (e *DeniedError) Error() string {
	fix := "add it to session-runner.registry_hosts, and to egress of the ceilings with the mode passthrough"
	if e.Reason == string(netrule.AddressBlocked) {
		fix = "it has an address of special use; if that is intended, add the network to egress-broker.networks"
	}
	return fmt.Sprintf("the egress-broker denied a request to %s (%s): %s", e.Host, e.Reason, fix)
}

// carrier is an http.RoundTripper that sends requests through the proxy of a call, and remembers the
// last denial.
type carrier struct {
	http   *http.Transport
	denied atomic.Pointer[DeniedError]
}

// RoundTrip implements http.RoundTripper.
func (c *carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.http.RoundTrip(r)
	if err != nil || r.URL.Scheme != "http" {
		return resp, err
	}
	if err := c.check(r.URL.Host, resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// check returns a *DeniedError if r is the response of the egress-broker to a request to host that it
// did not permit.
func (c *carrier) check(host string, r *http.Response) error {
	reason := egress.Denial(r)
	if reason == "" {
		return nil
	}
	e := &DeniedError{host, reason}
	c.denied.Store(e)
	return e
}

// carrier returns the transport of requests to the registries. dial opens a connection to the proxy
// of the call; no other connection is opened.
func (g *Registries) carrier(dial func(context.Context) (net.Conn, error)) (*carrier, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if g.ca != "" {
		pem, err := os.ReadFile(g.ca)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("session-runner.registry_ca: no certificate in PEM in the file")
		}
	}
	c := &carrier{}
	c.http = &http.Transport{
		Proxy:       http.ProxyURL(&url.URL{Scheme: "http", Host: services.EgressBroker}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, connect *http.Request, r *http.Response) error {
			return c.check(connect.Host, r)
		},
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, TLSClientConfig: conf,
	}
	return c, nil
}

// client returns a client that follows at most four redirects, none of them from HTTPS to HTTP.
func (c *carrier) client() *http.Client {
	return &http.Client{Transport: c, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) >= 5 || via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
			return fmt.Errorf("redirect to %s://%s refused", r.URL.Scheme, r.URL.Host)
		}
		return nil
	}}
}
