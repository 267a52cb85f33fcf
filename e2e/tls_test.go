package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// TestTLS shows that the gateway and a separate NATS server use TLS with certificates from
// files, reload them without a restart and reject plain text, and that the command line and
// the services use TLS.
func TestTLS(t *testing.T) {
	for name, topology := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := topology(t, harness.Options{Noop: true, TLS: true})
			works := func(when string) {
				t.Helper()
				if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-tls", "{}"); err != nil || r.Status != 200 {
					t.Fatal(when, r, err)
				}
				if out, err := m.CLI("call", "noop"); err != nil {
					t.Fatal(when, out, err)
				}
			}
			works("first")
			refusesPlain(t, m.Addr)
			names := func(addr string, starttls bool) string {
				t.Helper()
				name, err := certificateOf(t, m, addr, "", starttls)
				if err != nil { // for example because the authority's file has been replaced, but the server still uses its old certificate
					return err.Error()
				}
				return name
			}
			nats := strings.TrimPrefix(m.NATS, "tls://")
			if got := names(m.Addr, false); got != "first" {
				t.Fatal(got)
			}
			refusesPlainNATS(t, nats)
			m.Recertify("second")
			for end := time.Now().Add(15 * time.Second); names(m.Addr, false) != "second" || nats != "" && names(nats, true) != "second"; time.Sleep(200 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the new certificate is not used")
				}
			}
			works("with the second certificate")
			if nats == "" {
				return
			}
			// A service cannot connect without the certificate authority or without TLS.
			seed, err := os.ReadFile(filepath.Join(m.Dir, "keys/gateway.nkey"))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range []bus.Dialer{{URL: m.NATS}, {URL: "nats://" + nats}} {
				c, err := bus.Connect(d, []byte(strings.TrimSpace(string(seed))), "gateway", false)
				if err != nil {
					continue
				}
				time.Sleep(500 * time.Millisecond)
				if c.NC.IsConnected() {
					t.Errorf("%s without the authority's certificate", d.URL)
				}
				c.Close()
			}
			// A restarted service connects to the server with the new certificate.
			m.Kill("judge")
			m.Restart("judge")
			m.WaitReady()
			works("after a restart")
		})
	}
}

// TestListenTLS shows that the NATS listener of `up --nats-listen` uses TLS like a
// separate server, that the error for an unusable key file names the file, and that a
// warning is logged for a listener without TLS unless its address is a loopback address.
func TestListenTLS(t *testing.T) {
	dir := t.TempDir()
	addr := ports.Free(t)
	o := harness.Options{Noop: true, TLS: true, Dir: dir, Flags: []string{"--nats-listen", addr, "--nats-tls-cert", filepath.Join(dir, "tls.crt"), "--nats-tls-key", filepath.Join(dir, "tls.key")}}
	m := harness.One(t, o)
	seed, err := os.ReadFile(filepath.Join(dir, "keys/gateway.nkey"))
	if err != nil {
		t.Fatal(err)
	}
	connects := func(d bus.Dialer) bool {
		t.Helper()
		c, err := bus.Connect(d, []byte(strings.TrimSpace(string(seed))), "gateway", false)
		if err != nil {
			return false
		}
		defer c.Close()
		for range 100 {
			if c.NC.IsConnected() {
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		return false
	}
	serves := func(name string) {
		t.Helper()
		eventually(t, "the certificate "+name, 15*time.Second, func() bool {
			got, err := certificateOf(t, m, addr, "", true)
			return err == nil && got == name
		})
		refusesPlainNATS(t, addr)
		if !connects(bus.Dialer{URL: "tls://" + addr, CA: m.Cert()}) {
			t.Error("a client that verifies the server is refused")
		}
		for _, url := range []string{"tls://", "nats://"} {
			if connects(bus.Dialer{URL: url + addr}) {
				t.Errorf("%s connects without the authority", url)
			}
		}
	}
	serves("first")
	m.Recertify("second")
	serves("second")
	m.StopAll()
	wrong := filepath.Join(dir, "wrong.key")
	if err := os.WriteFile(wrong, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := []string{"up", "--data", dir, "--addr", m.Addr, "--nats-listen", addr, "--nats-tls-cert", m.Cert(), "--nats-tls-key"}
	for _, file := range []string{wrong, filepath.Join(dir, "none.key")} {
		out, err := exec.Command(harness.Bin(t, "binnacle"), append(slices.Clone(up), file)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), file) || !strings.Contains(string(out), "PEM file") {
			t.Errorf("%s: %v %s", file, err, out)
		}
	}
	m = harness.One(t, o) // the mesh has a new certificate, for the name "first"
	serves("first")
	m.StopAll()
	// Without TLS, start the mesh in a network namespace of its own, which no other host
	// can reach.
	for listen, warned := range map[string]bool{"0.0.0.0:4222": true, "127.0.0.1:4222": false} {
		cmd := exec.Command("timeout", "-s", "INT", "60", "unshare", "-n", "sh", "-c", `ip link set lo up && exec "$0" up --data "$1" --addr 127.0.0.1:8080 --nats-listen "$2"`, harness.Bin(t, "binnacle"), dir, listen)
		var out syncBuffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "up in a network of its own", 40*time.Second, func() bool { return strings.Contains(out.String(), "is up in") })
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if got := strings.Contains(out.String(), "WITHOUT TLS BEYOND LOOPBACK") && strings.Contains(out.String(), "listener=nats"); got != warned {
			t.Errorf("--nats-listen %s without TLS: %s", listen, out.String())
		}
	}
}

// syncBuffer is a buffer that can be read while another goroutine writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// certificateOf returns the common name in the certificate that the server at addr
// presents to a client that trusts the mesh's certificate authority. host is the server
// name that the client verifies; "" means the host of addr. If nats is set, the server
// is a NATS server, which must require TLS.
func certificateOf(t *testing.T, m *harness.Mesh, addr, host string, nats bool) (string, error) {
	t.Helper()
	authority, err := os.ReadFile(m.Cert())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		t.Fatal("no authority")
	}
	if host == "" {
		host, _, _ = net.SplitHostPort(addr)
	}
	raw, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	if nats { // a NATS server sends INFO before the TLS handshake
		b := make([]byte, 4096)
		if _, err := raw.Read(b); err != nil || !strings.Contains(string(b), `"tls_required":true`) {
			return "", fmt.Errorf("NATS demands no TLS: %w %.300s", err, b)
		}
	}
	c := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS12})
	if err := c.Handshake(); err != nil {
		return "", err
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// refusesPlain checks that a gateway rejects a request without TLS.
func refusesPlain(t *testing.T, addr string) {
	t.Helper()
	if got := say(t, addr, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); strings.Contains(got, "200") || !strings.Contains(got, "400") {
		t.Errorf("plain HTTP is answered: %s", got)
	}
}

// refusesPlainNATS checks that the NATS server rejects a client without TLS. It does
// nothing if addr is empty.
func refusesPlainNATS(t *testing.T, addr string) {
	t.Helper()
	if addr == "" {
		return
	}
	if got := say(t, addr, "CONNECT {\"verbose\":true,\"pedantic\":false,\"tls_required\":false}\r\nPING\r\n"); strings.Contains(got, "PONG") || strings.Contains(got, "+OK") || strings.Contains(got, "Authorization") || !strings.Contains(got, "INFO") {
		t.Errorf("a NATS client without TLS is answered: %s", got)
	}
}

// say sends a text over TCP, and returns the bytes received until the connection is
// closed or five seconds have passed.
func say(t *testing.T, addr, text string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(c) // the error is ignored, because the server may reset the connection
	return string(b)
}

// TestEmptyToken shows that a token variable or flag that is set but empty causes an error,
// and that neither help texts nor the error for an unknown flag contain the token.
func TestEmptyToken(t *testing.T) {
	m := harness.One(t, harness.Options{Noop: true})
	good := m.Token
	t.Cleanup(func() { m.Token = good })
	m.Token = ""
	for _, args := range [][]string{{"call", "noop"}, {"tools"}, {"call", "noop", "--token", ""}, {"mcp", "serve"}} {
		if out, err := m.CLI(args...); err == nil || !strings.Contains(err.Error(), "empty") {
			t.Errorf("%v with an empty BINNACLE_TOKEN: %s %v", args, out, err)
		}
	}
	m.Token = "secret-token-value"
	for _, args := range [][]string{{"call", "--help"}, {"up", "--help"}, {"token", "--help"}, {"call", "--no-such-flag"}} {
		out, err := m.CLI(args...)
		if err != nil {
			out += err.Error()
		}
		if strings.Contains(out, m.Token) {
			t.Errorf("%v shows the token: %s", args, out)
		}
	}
}
