package proxy

import (
	"crypto/tls"
	"errors"
	"net/http"
	"sync"
)

// certified holds the transports of the secrets of a call that are certificates, by name. Each
// authenticates its connections with its certificate, so that a request uses a connection with a
// certificate only if its rule names that certificate. The zero value is empty. It is safe for
// concurrent use.
type certified struct {
	mu sync.Mutex
	by map[string]*http.Transport
}

// transport returns the transport of a secret, whose value is a chain of certificates with the private
// key of the first, in PEM. The transport is otherwise like plain. An error contains no part of the value.
func (c *certified) transport(plain *http.Transport, name, value string) (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.by[name]; t != nil {
		return t, nil
	}
	pair, err := tls.X509KeyPair([]byte(value), []byte(value))
	if err != nil {
		return nil, errors.New("the secret is not a chain of certificates with the private key of the first: store it with type certificate")
	}
	t := plain.Clone()
	t.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	if c.by == nil {
		c.by = map[string]*http.Transport{}
	}
	c.by[name] = t
	return t, nil
}

// close closes the connections that no request uses.
func (c *certified) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.by {
		t.CloseIdleConnections()
	}
}
