// Package acme obtains the gateway's certificate from an authority by ACME (RFC 8555), renews it,
// and answers the authority's challenges. Several gateways with one storage folder obtain one
// certificate, and each of them answers the challenges of the others.
package acme

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// The types of challenges by which an authority verifies that a domain leads to the gateway.
const (
	TLSALPN = "tls-alpn-01" // a TLS handshake on port 443 of the domain (RFC 8737)
	HTTP    = "http-01"     // a request on port 80 of the domain (RFC 8555 §8.3)
)

// challengeProto is the ALPN protocol of the challenge TLSALPN (RFC 8737 §6.2).
const challengeProto = "acme-tls/1"

// Config configures a Manager. Email and CA may be empty.
type Config struct {
	Domains   []string // domain names of the certificates; one certificate each
	Email     string   // contact of the account
	Directory string   // URL of the authority's directory
	CA        string   // PEM file of the authorities that sign the directory's own certificate; empty means the system's
	Storage   string   // folder of the account, the certificates, their keys, and the challenges in progress
	Challenge string   // TLSALPN or HTTP
	// Dial opens a connection to an HTTP proxy through which requests to the authority are sent.
	Dial func(context.Context) (net.Conn, error)
	Log  *slog.Logger
}

// Manager holds the certificates. It is safe for concurrent use.
type Manager struct {
	conf   Config
	magic  *certmagic.Config
	cache  *certmagic.Cache
	issuer *certmagic.ACMEIssuer
	proxy  *proxy
}

// init prevents that a failed attempt with the authority Let's Encrypt is repeated with its
// staging environment, a server that the egress-broker does not permit.
func init() { certmagic.DefaultACME.TestCA = "" }

// check returns an error if the configuration cannot be used.
func (c *Config) check() error {
	switch {
	case slices.Contains(c.Domains, ""):
		return errors.New("acme: a domain is empty")
	case c.Storage == "":
		return errors.New("acme: gateway.acme.storage is not set: name a folder, which several gateways share")
	case c.Challenge != TLSALPN && c.Challenge != HTTP:
		return fmt.Errorf("acme: challenge %q: want %s or %s", c.Challenge, TLSALPN, HTTP)
	}
	if u, err := url.Parse(c.Directory); err != nil || u.Scheme != "https" || u.Host == "" {
		return errors.New("acme: the directory is not an https URL")
	}
	return nil
}

// New returns a manager for a server that is bound to the address bound, or for HTTP challenges, is
// bound to that of the listener for challenges. It obtains nothing before Run. It opens a listener
// on the loopback address, which Close closes.
func New(c Config, bound net.Addr) (*Manager, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	var roots *x509.CertPool
	if c.CA != "" {
		raw, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("acme: %w", err)
		}
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("acme: %s has no certificate of an authority; it is a PEM file", c.CA)
		}
	}
	at, ok := bound.(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("acme: the gateway listens on %s, which has no port", bound)
	}
	p, err := newProxy(c.Dial, c.Log)
	if err != nil {
		return nil, fmt.Errorf("acme: %w", err)
	}
	m := &Manager{conf: c, proxy: p}
	log := zap.New(&logCore{to: c.Log})
	m.cache = certmagic.NewCache(certmagic.CacheOptions{Logger: log, GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.magic, nil }})
	// A client without a server name, or with another one, receives the first certificate, as it
	// would from a server with a certificate from files.
	m.magic = certmagic.New(m.cache, certmagic.Config{Storage: &certmagic.FileStorage{Path: c.Storage}, OCSP: certmagic.OCSPConfig{DisableStapling: true}, Logger: log,
		DefaultServerName: c.Domains[0], FallbackServerName: c.Domains[0]})
	// The solvers of certmagic only open listeners of their own where none exists. They look for
	// one on this host and port.
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = ""
	}
	template := certmagic.ACMEIssuer{CA: c.Directory, Email: c.Email, Agreed: true, TrustedRoots: roots, HTTPProxy: p.url, Logger: log, ListenHost: host,
		DisableHTTPChallenge: c.Challenge != HTTP, DisableTLSALPNChallenge: c.Challenge != TLSALPN, AltHTTPPort: at.Port, AltTLSALPNPort: at.Port}
	m.issuer = certmagic.NewACMEIssuer(m.magic, template)
	m.magic.Issuers = []certmagic.Issuer{m.issuer}
	return m, nil
}

// Config returns the configuration of TLS for a server: TLS 1.2 or newer, HTTP/1.1. Until a
// certificate has been obtained, handshakes fail.
func (m *Manager) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: m.magic.GetCertificate}
}

// Challenges returns a copy of the configuration of a server that also answers the handshakes of
// the challenge TLSALPN. The authority has no certificate of a client, so these handshakes request
// none. net/http closes such a connection after the handshake, because it does not know the
// protocol.
func (m *Manager) Challenges(server *tls.Config) *tls.Config {
	if m.conf.Challenge != TLSALPN {
		return server
	}
	other := server.GetConfigForClient
	out := server.Clone()
	challenge := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{challengeProto}, GetCertificate: m.magic.GetCertificate, SessionTicketsDisabled: true}
	out.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		switch {
		case len(h.SupportedProtos) == 1 && h.SupportedProtos[0] == challengeProto:
			return challenge, nil
		case other != nil:
			return other(h)
		}
		return nil, nil
	}
	return out
}

// Handler returns the handler of requests on port 80 of the domains. It answers challenges, and
// responds with 404 to every other request.
func (m *Manager) Handler() http.Handler {
	return m.issuer.HTTPChallengeHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this port answers challenges of a certificate authority only; use https", http.StatusNotFound)
	}))
}

// Maximum time for which the first attempt waits until the proxy can be reached, and the time
// between two tries. After a failed attempt, the next one follows after a minute or more.
const (
	proxyWait  = 30 * time.Second
	proxyAgain = 500 * time.Millisecond
)

// Run obtains the certificates that the storage lacks, and renews them before they expire, until ctx
// is done. Failed attempts are logged and repeated. It returns an error only if the storage cannot
// be used.
func (m *Manager) Run(ctx context.Context) error {
	m.awaitProxy(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err := m.magic.ManageAsync(ctx, m.conf.Domains); err != nil {
		return fmt.Errorf("acme: %w", err)
	}
	<-ctx.Done()
	return nil
}

// awaitProxy waits until the proxy accepts a connection, but at most for proxyWait.
func (m *Manager) awaitProxy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	for {
		c, err := m.conf.Dial(ctx)
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-ctx.Done():
			m.conf.Log.Warn("the certificate authority cannot be reached yet", "err", err)
			return
		case <-time.After(proxyAgain):
		}
	}
}

// Close ends the renewal of certificates, and releases the locks that the manager holds in the
// storage.
func (m *Manager) Close() {
	m.cache.Stop()
	m.proxy.close()
}
