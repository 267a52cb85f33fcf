package gateway

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// lines is a writer of log lines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// first returns the first line of a request that has ended, for which it waits.
func (l *lines) first(t *testing.T) map[string]any {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		for line := range strings.Lines(l.buf.String()) {
			var doc map[string]any
			if json.Unmarshal([]byte(line), &doc) == nil && doc["msg"] == "request" {
				l.mu.Unlock()
				return doc
			}
		}
		l.mu.Unlock()
		if time.Now().After(until) {
			t.Fatal("no line")
		}
	}
}

// TestCertificatesOfClients checks that the gateway serves only clients with a certificate of the
// configured authority, also its open routes, and that the access log names the certificate. It
// checks that a certificate authenticates no caller.
func TestCertificatesOfClients(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	authority := certs.NewAuthority(t, path("clients"))
	certs.Write(t, path("cert"), path("key"), "gateway")
	robot := authority.Client(t, "robot", "")
	s, _, _ := edge(t, body.Limits{})
	out := &lines{}
	s.env.Log = slog.New(slog.NewJSONHandler(out, nil))
	s.Addr, s.TLS = "127.0.0.1:0", config.GatewayTLS{Cert: path("cert"), Key: path("key"), ClientCA: path("clients"), ClientCertificates: "require"}
	l, bound, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s.routes(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	pem, err := os.ReadFile(path("cert"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	get := func(route string, with ...tls.Certificate) (int, error) {
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: with}}}
		r, err := client.Get("https://" + bound + route)
		if err != nil {
			return 0, err
		}
		r.Body.Close()
		return r.StatusCode, nil
	}
	if status, err := get("/healthz"); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %d, %v", status, err)
	}
	if status, err := get("/healthz", robot); status != http.StatusOK {
		t.Errorf("with a certificate: %d, %v", status, err)
	}
	if status, err := get("/api/v1/keys", robot); status != http.StatusUnauthorized {
		t.Errorf("with a certificate and no token: %d, %v", status, err)
	}
	digest := sha256.Sum256(robot.Leaf.Raw)
	if line := out.first(t); line["certificate"] != hex.EncodeToString(digest[:]) || line["subject"] != "CN=robot" || line["route"] != "/api/v1/keys" {
		t.Error(line)
	}
}

// TestListenErrors checks that contradictory settings of TLS are errors that name the settings.
func TestListenErrors(t *testing.T) {
	dir := t.TempDir()
	certs.Write(t, filepath.Join(dir, "cert"), filepath.Join(dir, "key"), "gateway")
	files := config.GatewayTLS{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	obtained := config.ACME{Domains: []string{"mesh.example.com"}, Directory: "https://127.0.0.1:1/dir", Challenge: "tls-alpn-01"}
	clients := config.GatewayTLS{ClientCA: filepath.Join(dir, "cert"), ClientCertificates: "require"}
	for _, x := range []struct {
		want string
		tls  config.GatewayTLS
		acme config.ACME
	}{
		{"certificates of clients need a certificate of the gateway", clients, config.ACME{}},
		{"set either gateway.tls.cert or gateway.acme.domains", files, obtained},
		{"gateway.acme.storage is not set", config.GatewayTLS{}, obtained},
		{"needs a PEM file", config.GatewayTLS{Cert: files.Cert, Key: files.Key, ClientCertificates: "request"}, config.ACME{}},
	} {
		s, _, _ := edge(t, body.Limits{})
		s.Addr, s.TLS, s.ACME = "127.0.0.1:0", x.tls, x.acme
		if _, _, err := s.listen(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %s", err, x.want)
		}
	}
}
