// Package certs creates certificates for tests.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"testing"
	"time"
)

// Authority is a certificate authority.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns a new authority and writes its certificate to file, as PEM.
func NewAuthority(t testing.TB, file string) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t), cert: template("an authority of the test")}
	a.cert.IsCA, a.cert.BasicConstraintsValid = true, true
	put(t, file, &pem.Block{Type: "CERTIFICATE", Bytes: create(t, a.cert, a.cert, a.key, a.key)})
	return a
}

// Write writes a new key to the file key and a certificate to the file cert, both as
// PEM. The certificate has the common name name, is signed by the authority, and is
// valid for 127.0.0.1, localhost and hosts.
func (a *Authority) Write(t testing.TB, cert, key, name string, hosts ...string) {
	t.Helper()
	k, c := newKey(t), template(name)
	c.DNSNames = append(c.DNSNames, hosts...)
	pair(t, cert, key, create(t, c, a.cert, k, a.key), k)
}

// Client returns a new key and certificate for a client, signed by the authority, with the common
// name name and the URI uri as its alternative name, if uri is not empty.
func (a *Authority) Client(t testing.TB, name, uri string) tls.Certificate {
	t.Helper()
	c := template(name)
	c.IPAddresses, c.DNSNames, c.ExtKeyUsage = nil, nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		c.URIs = []*url.URL{u}
	}
	return a.issue(t, c)
}

// Server returns a new key and certificate that is valid for servers only, signed by the
// authority, with the common name name.
func (a *Authority) Server(t testing.TB, name string) tls.Certificate {
	t.Helper()
	c := template(name)
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.issue(t, c)
}

func (a *Authority) issue(t testing.TB, c *x509.Certificate) tls.Certificate {
	t.Helper()
	k := newKey(t)
	c.KeyUsage = x509.KeyUsageDigitalSignature
	der := create(t, c, a.cert, k, a.key)
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k, Leaf: leaf}
}

// Write writes a new key to the file key and a self-signed certificate to the file cert,
// both as PEM. The certificate has the common name name, is valid for 127.0.0.1 and
// localhost, and is its own authority.
func Write(t testing.TB, cert, key, name string) {
	t.Helper()
	k, c := newKey(t), template(name)
	c.IsCA, c.BasicConstraintsValid = true, true
	pair(t, cert, key, create(t, c, c, k, k), k)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
}

func create(t testing.TB, c, parent *x509.Certificate, k, signer *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &k.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func pair(t testing.TB, cert, key string, der []byte, k *ecdsa.PrivateKey) {
	t.Helper()
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	put(t, cert, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	put(t, key, &pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// put writes a PEM file under a temporary name and renames it, so that a server never
// reads an incomplete file.
func put(t testing.TB, path string, b *pem.Block) {
	t.Helper()
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(b), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
