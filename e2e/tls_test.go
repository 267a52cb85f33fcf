package e2e

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
)

// TestTLS: gateway and NATS serve TLS from files, take up new ones without a
// restart, and answer nothing else; the command line and services use it.
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
			if c, err := net.Dial("tcp", m.Addr); err == nil {
				_, _ = c.Write([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
				b := make([]byte, 64)
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
				n, _ := c.Read(b)
				if c.Close(); strings.Contains(string(b[:n]), "200") {
					t.Errorf("plain HTTP is answered: %s", b[:n])
				}
			}
			names := func(addr string, starttls bool) string {
				t.Helper()
				raw, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer raw.Close()
				_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
				if starttls { // NATS sends its INFO first
					b := make([]byte, 4096)
					if _, err := raw.Read(b); err != nil || !strings.Contains(string(b), `"tls_required":true`) {
						t.Fatalf("NATS demands no TLS: %v %.300s", err, b)
					}
				}
				c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the name is what is tested
				if err := c.Handshake(); err != nil {
					t.Fatal(err)
				}
				return c.ConnectionState().PeerCertificates[0].Subject.CommonName
			}
			nats := strings.TrimPrefix(m.NATS, "tls://")
			if got := names(m.Addr, false); got != "first" {
				t.Fatal(got)
			}
			certs.Write(t, m.Cert(), filepath.Join(m.Dir, "tls.key"), "second")
			for end := time.Now().Add(15 * time.Second); names(m.Addr, false) != "second" || nats != "" && names(nats, true) != "second"; time.Sleep(200 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the new certificate is not used")
				}
			}
			works("with the second certificate")
			if nats == "" {
				return
			}
			// A service without the authority does not get in, and in the clear neither.
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
			// A restarted service connects under the new certificate.
			m.Kill("judge")
			m.Restart("judge")
			m.WaitReady()
			works("after a restart")
		})
	}
}

// TestEmptyToken: a token that is set and empty is an error, never another's;
// help shows no token.
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
