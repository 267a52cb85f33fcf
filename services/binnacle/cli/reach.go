package cli

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"strings"
)

// How a command reaches the mesh: its address and its certificate.

// base is the mesh's URL without a path. An address without a scheme is plain
// HTTP.
func (c *env) base() string {
	if strings.Contains(*c.addr, "://") {
		return strings.TrimSuffix(*c.addr, "/")
	}
	return "http://" + *c.addr
}

// transport trusts the authority named by BINNACLE_CA, a PEM file, or the
// system's.
func transport() (*http.Transport, error) {
	t := &http.Transport{}
	file := os.Getenv("BINNACLE_CA")
	if file == "" {
		return t, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fail(exitUsage, "BINNACLE_CA: %v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fail(exitUsage, "BINNACLE_CA: %s holds no certificate", file)
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	return t, nil
}
