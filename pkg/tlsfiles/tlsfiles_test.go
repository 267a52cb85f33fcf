package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
)

// TestReload checks that new connections receive the current certificate of the files,
// that unusable files change nothing, and that Open rejects a certificate without a key.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	certs.Write(t, cert, key, "first")
	f, err := Open(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", f.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = c.(*tls.Conn).Handshake(); c.Close() }()
		}
	}()
	name := func() string {
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the test only reads the name in the certificate
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := name(); got != "first" {
		t.Fatal(got)
	}
	if err := os.WriteFile(key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(pollEvery + 100*time.Millisecond)
	if got := name(); got != "first" {
		t.Fatal("with half of the new files:", got)
	}
	certs.Write(t, cert, key, "second")
	time.Sleep(pollEvery + 100*time.Millisecond)
	if got := name(); got != "second" {
		t.Fatal("after both were replaced:", got)
	}
	if _, err := Open(cert, ""); err == nil {
		t.Error("a certificate without a key")
	}
}

// TestWrongFiles checks that an error names the file and the requirement that the file
// does not meet.
func TestWrongFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	certs.Write(t, cert, key, "good")
	certs.Write(t, filepath.Join(dir, "other"), filepath.Join(dir, "other.key"), "other")
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][4]string{
		{filepath.Join(dir, "none"), key, "none", "name a PEM file"}, {cert, filepath.Join(dir, "none"), "none", "name a PEM file"}, {cert, dir, dir, "name a PEM file"},
		{filepath.Join(dir, "text"), key, "text", "both are PEM files"}, {cert, filepath.Join(dir, "text"), "text", "both are PEM files"},
		{cert, filepath.Join(dir, "other.key"), "other.key", "the key is that of"},
	} {
		if _, err := Open(c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) || !strings.Contains(err.Error(), c[3]) {
			t.Errorf("%s and %s: %v", c[0], c[1], err)
		}
	}
}

func TestWarn(t *testing.T) {
	var out bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(old)
	for addr, warned := range map[string]bool{"127.0.0.1:80": false, "[::1]:80": false, "localhost:80": false, "0.0.0.0:80": true, ":80": true, "192.0.2.1:80": true, "[::]:80": true} {
		out.Reset()
		if Warn("gateway", addr); strings.Contains(out.String(), "WITHOUT TLS") != warned {
			t.Errorf("%s: %s", addr, out.String())
		}
	}
}
