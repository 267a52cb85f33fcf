package cli

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
)

// TestClientCertificate checks that requests present the certificate of the target, that they
// present the one that the files have at the time of a connection, and which combinations of files
// are errors.
func TestClientCertificate(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	authority := certs.NewAuthority(t, path("clients"))
	text, err := os.ReadFile(path("clients"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	srv.TLS.ClientCAs.AppendCertsFromPEM(text)
	srv.StartTLS()
	defer srv.Close()
	if err := os.WriteFile(path("ca"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	authority.Write(t, path("cert"), path("key"), "robot")
	send := func(cert, key string) string {
		c := &env{target: &target{addr: srv.URL, token: "x", ca: path("ca"), cert: cert, key: key}}
		r, err := c.request(t.Context(), http.MethodGet, "/", nil, nil)
		if err != nil {
			return "error: " + err.Error()
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := send(path("cert"), path("key")); got != "robot" {
		t.Error(got)
	}
	for _, x := range [][3]string{{"", "", "certificate required"}, {path("cert"), "", "name both"}, {"", path("key"), "name both"}, {path("none"), path("key"), "no such file"}} {
		if got := send(x[0], x[1]); !strings.HasPrefix(got, "error: ") || !strings.Contains(got, x[2]) {
			t.Errorf("%v: %s", x, got)
		}
	}
	transport, err := (&env{target: &target{ca: path("ca"), cert: path("cert"), key: path("key")}}).transport()
	if err != nil {
		t.Fatal(err)
	}
	authority.Write(t, path("cert"), path("key"), "renewed")
	r, err := (&http.Client{Transport: transport}).Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, _ := io.ReadAll(r.Body); string(b) != "renewed" {
		t.Errorf("after the files were replaced: %s", b)
	}
}

// TestTargetOfContext checks that the certificate of a context takes precedence over that of the
// variables.
func TestTargetOfContext(t *testing.T) {
	alone(t)
	t.Setenv("BINNACLE_CLIENT_CERT", "c")
	t.Setenv("BINNACLE_CLIENT_KEY", "k")
	if got := findMesh(&env{}); got.cert != "c" || got.key != "k" {
		t.Error(got.cert, got.key)
	}
	for _, line := range []string{"context set one --addr one:1 --client-cert own --client-key ownkey", "context use one"} {
		root := newRoot(&env{out: io.Discard, errOut: io.Discard})
		root.SetArgs(strings.Fields(line))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
	}
	if got := findMesh(&env{context: "one"}); got.cert != "own" || got.key != "ownkey" {
		t.Error(got.cert, got.key)
	}
}
