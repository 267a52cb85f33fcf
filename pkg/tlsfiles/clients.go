package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
)

// How a server treats the certificates of its clients.
const (
	ClientsOff     = "off"     // the server does not request a certificate
	ClientsRequest = "request" // a client may present a certificate, which must then be valid
	ClientsRequire = "require" // a connection without a valid certificate fails in the handshake
)

// clientAuth has the setting of crypto/tls for the modes other than ClientsOff.
var clientAuth = map[string]tls.ClientAuthType{ClientsRequest: tls.VerifyClientCertIfGiven, ClientsRequire: tls.RequireAndVerifyClientCert}

// Clients verifies the certificates of clients by a PEM file of authorities, which is read again
// when it changes. It is safe for concurrent use.
type Clients struct {
	path string
	auth tls.ClientAuthType

	mu    sync.Mutex
	watch watch
	pool  *x509.CertPool
}

// OpenClients reads the file of authorities and returns an error if it cannot be used. mode is
// one of the constants ClientsOff, ClientsRequest and ClientsRequire. For ClientsOff, or an empty
// mode, OpenClients reads nothing and returns nil.
func OpenClients(path, mode string) (*Clients, error) {
	if mode == "" || mode == ClientsOff {
		return nil, nil
	}
	auth, ok := clientAuth[mode]
	if !ok {
		return nil, fmt.Errorf("tls: certificates of clients: mode %q: want off, request or require", mode)
	}
	if path == "" {
		return nil, fmt.Errorf("tls: certificates of clients: mode %s needs a PEM file of the authorities that sign them", mode)
	}
	c := &Clients{path: path, auth: auth, watch: watch{paths: []string{path}}}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// load reads the authorities from the file. After OpenClients, the caller holds c.mu.
func (c *Clients) load() error {
	raw, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("tls: %w; name a PEM file that user %d may read", err, os.Getuid())
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return fmt.Errorf("tls: %s has no certificate of an authority; it is a PEM file", c.path)
	}
	c.pool = pool
	return nil
}

// authorities returns the authorities that were last loaded from a usable file. It checks at most
// once per pollEvery whether the file has changed.
func (c *Clients) authorities() *x509.CertPool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch.reload("the authorities of clients' certificates", c.load)
	return c.pool
}

// Config returns a copy of the configuration of a server whose handshakes verify the certificates
// of clients. A handshake uses the authorities in force when it begins; connections that exist are
// not closed when the authorities change. Sessions are not resumed, because a resumed session
// would not be verified by the authorities in force.
func (c *Clients) Config(server *tls.Config) *tls.Config {
	base := server.Clone()
	base.ClientAuth, base.SessionTicketsDisabled = c.auth, true
	out := base.Clone()
	out.ClientCAs = c.authorities()
	out.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		conn := base.Clone()
		conn.ClientCAs = c.authorities()
		return conn, nil
	}
	return out
}
