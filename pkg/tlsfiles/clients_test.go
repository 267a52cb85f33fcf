package tlsfiles

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
)

// greeter serves TLS connections, and sends the common name of the client's certificate on each.
func greeter(t *testing.T, conf *tls.Config) (addr string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func(c *tls.Conn) {
				defer c.Close()
				if c.Handshake() != nil {
					return
				}
				name := "none"
				if peers := c.ConnectionState().PeerCertificates; len(peers) > 0 {
					name = peers[0].Subject.CommonName
				}
				_, _ = io.WriteString(c, name)
			}(c.(*tls.Conn))
		}
	}()
	return l.Addr().String()
}

// greeting connects with the certificates and returns what the server sends, or the error. The
// client sends its certificate although the server may not list its authority.
func greeting(addr string, cache tls.ClientSessionCache, with ...tls.Certificate) (string, error) {
	conf := &tls.Config{InsecureSkipVerify: true, ClientSessionCache: cache} //nolint:gosec // the test is about the certificates of clients
	if len(with) > 0 {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &with[0], nil }
	}
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", addr, conf)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

// TestClients checks which connections each mode accepts, and that a server on which a certificate
// is not valid ends the handshake with a TLS alert.
func TestClients(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	authority := certs.NewAuthority(t, ca)
	known := authority.Client(t, "robot", "")
	foreign := certs.NewAuthority(t, filepath.Join(dir, "other")).Client(t, "robot", "")
	authority.Write(t, filepath.Join(dir, "c"), filepath.Join(dir, "k"), "server")
	server, err := Open(filepath.Join(dir, "c"), filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode, without, with string // what the server sends without and with a certificate of the authority; "" is a failure
	}{{ClientsRequest, "none", "robot"}, {ClientsRequire, "", "robot"}} {
		clients, err := OpenClients(ca, c.mode)
		if err != nil {
			t.Fatal(err)
		}
		addr := greeter(t, clients.Config(server.Config()))
		for _, x := range []struct {
			what, want string
			with       []tls.Certificate
		}{{"no certificate", c.without, nil}, {"a certificate of the authority", c.with, []tls.Certificate{known}}, {"a certificate of another authority", "", []tls.Certificate{foreign}}} {
			got, err := greeting(addr, nil, x.with...)
			if got != x.want {
				t.Errorf("%s, %s: %q, %v", c.mode, x.what, got, err)
			}
			if x.want == "" && (err == nil || !strings.HasPrefix(err.Error(), "remote error: tls: ")) {
				t.Errorf("%s, %s: %v is no alert of the server", c.mode, x.what, err)
			}
		}
	}
}

// TestServersAreNoClients checks that a certificate that is valid for servers only does not
// authenticate a client.
func TestServersAreNoClients(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	authority := certs.NewAuthority(t, ca)
	authority.Write(t, filepath.Join(dir, "c"), filepath.Join(dir, "k"), "server")
	server, err := Open(filepath.Join(dir, "c"), filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := OpenClients(ca, ClientsRequire)
	if err != nil {
		t.Fatal(err)
	}
	only := authority.Server(t, "server")
	if got, err := greeting(greeter(t, clients.Config(server.Config())), nil, only); err == nil {
		t.Errorf("a certificate for servers: %q", got)
	}
}

// TestReloadClients checks that new connections are verified by the current authorities of the
// file, also those that would resume a session, and that an unusable file changes nothing.
func TestReloadClients(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	old := certs.NewAuthority(t, ca).Client(t, "old", "")
	certs.Write(t, filepath.Join(dir, "c"), filepath.Join(dir, "k"), "server")
	server, err := Open(filepath.Join(dir, "c"), filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := OpenClients(ca, ClientsRequire)
	if err != nil {
		t.Fatal(err)
	}
	addr, cache := greeter(t, clients.Config(server.Config())), tls.NewLRUClientSessionCache(8)
	if got, err := greeting(addr, cache, old); got != "old" {
		t.Fatal(got, err)
	}
	if err := os.WriteFile(ca, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(pollEvery + 100*time.Millisecond)
	if got, err := greeting(addr, cache, old); got != "old" {
		t.Fatal("with an unusable file:", got, err)
	}
	fresh := certs.NewAuthority(t, ca).Client(t, "fresh", "")
	time.Sleep(pollEvery + 100*time.Millisecond)
	if got, err := greeting(addr, cache, old); err == nil {
		t.Error("after the authority was replaced, its certificate is accepted:", got)
	}
	if got, err := greeting(addr, nil, fresh); got != "fresh" {
		t.Error("a certificate of the new authority:", got, err)
	}
}

func TestOpenClients(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{{text, ClientsRequire, "is a PEM file"}, {filepath.Join(dir, "none"), ClientsRequest, "name a PEM file"}, {"", ClientsRequire, "needs a PEM file"}, {text, "some", "want off"}} {
		if _, err := OpenClients(c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%v: %v", c, err)
		}
	}
	for _, mode := range []string{"", ClientsOff} {
		if c, err := OpenClients("", mode); c != nil || err != nil {
			t.Error(mode, c, err)
		}
	}
}
