package proxy

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// certificateFor returns a certificate for the client name, with its key, in PEM.
func certificateFor(t *testing.T, name string) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	doc := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, doc, doc, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
}

// TestCertificates requires that a request is sent with the certificate that its rule names and with no
// other one, over HTTP/1.1 and HTTP/2, also after other requests to the host have opened connections;
// that a secret which is no certificate, and one that is refused, fail with reasons; and that no record
// contains a part of a key.
func TestCertificates(t *testing.T) {
	values := map[string]string{"first": certificateFor(t, "first"), "second": certificateFor(t, "second"), "broken": "not a certificate"}
	for _, h2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := "none"
			if c := r.TLS.PeerCertificates; len(c) > 0 {
				name = c[0].Subject.CommonName
			}
			_, _ = fmt.Fprint(w, r.Proto, " ", name)
		}))
		s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
		s.EnableHTTP2 = h2
		s.StartTLS()
		defer s.Close()
		strict := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("a request with an unknown certificate was accepted")
		}))
		strict.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
		strict.StartTLS()
		defer strict.Close()
		n := port(t, s.URL)
		cfg := Config{Addresses: loopback, Roots: x509.NewCertPool(), Credential: func(_ context.Context, r netrule.Rule, _, _, _ string) (string, error) {
			if v := values[r.Credential.Secret]; v != "" {
				return v, nil
			}
			return "", errors.New("no such secret")
		}}
		cfg.Roots.AddCert(s.Certificate())
		for _, name := range []string{"first", "second", "broken", "missing"} {
			cfg.Rules = append(cfg.Rules, netrule.Rule{Host: "example.com", Port: int64(n), Mode: netrule.Terminate, Paths: []string{"/" + name}, Credential: &netrule.Credential{Format: contract.FormatCertificate, Secret: name}})
		}
		cfg.Rules = append(cfg.Rules, netrule.Rule{Host: "example.com", Port: int64(n), Mode: netrule.Terminate, Paths: []string{"/none"}},
			netrule.Rule{Host: "example.com", Port: int64(port(t, strict.URL)), Mode: netrule.Terminate, Credential: &netrule.Credential{Format: contract.FormatCertificate, Secret: "first"}})
		r := start(t, cfg)
		c := r.client(t)
		base, want := fmt.Sprintf("https://example.com:%d/", n), map[bool]string{false: "HTTP/1.1 ", true: "HTTP/2.0 "}[h2]
		for range 2 { // the second time over connections that are open
			for _, name := range []string{"none", "first", "second", "none"} {
				if res, body := get(t, c, base+name); res.StatusCode != 200 || body != want+name {
					t.Errorf("%s: %s %q", name, res.Status, body)
				}
			}
		}
		if f := r.last(t, 2); f.Credential != "first" {
			t.Errorf("the flow: %+v", f)
		}
		for _, name := range []string{"broken", "missing"} {
			if res, _ := get(t, c, base+name); res.StatusCode != 503 {
				t.Errorf("%s: %s", name, res.Status)
			}
		}
		if res, _ := get(t, c, fmt.Sprintf("https://example.com:%d/", port(t, strict.URL))); res.StatusCode != 502 {
			t.Errorf("a certificate that the server refuses: %s", res.Status)
		}
		all := fmt.Sprintf("%+v", r.flows(t, 11))
		for _, line := range strings.Split(values["first"]+values["second"], "\n") {
			if len(line) > 20 && strings.Contains(all, line) {
				t.Error("a record contains a part of a certificate or of its key")
			}
		}
	}
}
