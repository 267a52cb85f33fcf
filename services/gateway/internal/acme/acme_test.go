package acme

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/challtestsrv"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
	"github.com/binnacle-mesh/binnacle/pkg/tlsfiles"
)

const domain = "mesh.example.com"

// authority is Pebble, the test server of Let's Encrypt, in the process of the test. It validates
// challenges on the port of the test, at the address that a DNS server of the test returns.
type authority struct {
	directory string         // URL
	file      string         // PEM file of the authority that signed the certificate of the directory's server
	roots     *x509.CertPool // that sign the certificates which the authority issues
}

// newAuthority starts Pebble, which sends challenges of both types to port.
func newAuthority(t *testing.T, port int) *authority {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1") // else each validation begins after up to 15 seconds
	dns := freePort(t)
	quiet := log.New(io.Discard, "", 0)
	names, err := challtestsrv.New(challtestsrv.Config{DNSAddrs: []string{dns}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	names.SetDefaultDNSIPv4("127.0.0.1")
	names.SetDefaultDNSIPv6("")
	go names.Run()
	t.Cleanup(names.Shutdown)
	store := db.NewMemoryStore()
	issuing := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 90 * 86400}})
	front := wfe.New(quiet, store, va.New(quiet, port, port, false, dns, store), issuing, []string{"pebble.letsencrypt.org"}, false, false, 1, 1)
	a := &authority{file: filepath.Join(t.TempDir(), "ca"), roots: x509.NewCertPool()}
	a.roots.AppendCertsFromPEM(issuing.GetRootCert(0).PEM())
	cert, key := filepath.Join(t.TempDir(), "c"), filepath.Join(t.TempDir(), "k")
	certs.NewAuthority(t, a.file).Write(t, cert, key, "directory")
	files, err := tlsfiles.Open(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", files.Config())
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: front.Handler(), ErrorLog: quiet}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	a.directory = "https://" + l.Addr().String() + wfe.DirectoryPath
	return a
}

// freePort returns an address of the loopback interface whose port is free for TCP and UDP.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// egress is an HTTP proxy that permits tunnels to one host only, as the egress-broker does.
type egress struct {
	to string // host:port

	mu     sync.Mutex
	hosts  []string // of the requests
	closed bool     // connections fail
}

func (e *egress) dial(context.Context) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.New("the egress-broker is not there")
	}
	own, far := net.Pipe()
	go e.serve(far)
	return own, nil
}

func (e *egress) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	e.mu.Lock()
	e.hosts = append(e.hosts, r.Method+" "+r.Host)
	e.mu.Unlock()
	if r.Method != http.MethodConnect || r.Host != e.to || r.Header.Get("Proxy-Authorization") != "" {
		_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\n\r\n")
		return
	}
	far, err := net.Dial("tcp", e.to)
	if err != nil {
		return
	}
	defer far.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(far, in); far.Close() }()
	_, _ = io.Copy(c, far)
}

// gateway is a server as the gateway is one.
type gateway struct {
	t       *testing.T
	a       *authority
	egress  *egress
	addr    string
	manager *Manager
	ended   chan error
	stop    context.CancelFunc
}

// listenOn returns a listener of the loopback address.
func listenOn(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve starts a gateway on l. If the challenge is HTTP, l is the listener for challenges. clients
// may be nil.
func serve(t *testing.T, a *authority, l net.Listener, challenge, storage string, clients *tlsfiles.Clients) *gateway {
	t.Helper()
	u, err := url.Parse(a.directory)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, a: a, egress: &egress{to: u.Host}, ended: make(chan error, 1)}
	g.manager, err = New(Config{Domains: []string{domain}, Email: "ops@example.com", Directory: a.directory, CA: a.file, Storage: storage, Challenge: challenge, Dial: g.egress.dial, Log: slog.Default()}, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	conf := g.manager.Config()
	if clients != nil {
		conf = clients.Config(conf)
	}
	secure := l
	quiet := log.New(io.Discard, "", 0)
	if challenge == HTTP {
		plain := &http.Server{Handler: g.manager.Handler(), ErrorLog: quiet}
		go func() { _ = plain.Serve(l) }()
		t.Cleanup(func() { plain.Close() })
		secure = listenOn(t, "127.0.0.1:0")
	}
	g.addr = secure.Addr().String()
	srv := &http.Server{ErrorLog: quiet, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })}
	go func() { _ = srv.Serve(tls.NewListener(secure, g.manager.Challenges(conf))) }()
	ctx, stop := context.WithCancel(context.Background())
	g.stop = sync.OnceFunc(func() {
		stop()
		g.manager.Close()
		srv.Close()
	})
	go func() { g.ended <- g.manager.Run(ctx) }()
	t.Cleanup(g.stop)
	return g
}

// get sends a request to the gateway and returns the response's text and the serial number of the
// certificate, which must be valid for the domain.
func (g *gateway) get(with ...tls.Certificate) (text, serial string, err error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: g.a.roots, ServerName: domain, Certificates: with}}}
	r, err := client.Get("https://" + g.addr)
	if err != nil {
		return "", "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), r.TLS.PeerCertificates[0].SerialNumber.String(), err
}

// await waits until the gateway serves a request with a certificate of the authority, and returns
// its serial number.
func (g *gateway) await(with ...tls.Certificate) string {
	g.t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		text, serial, err := g.get(with...)
		if err == nil && text == "served" {
			return serial
		}
		select {
		case err := <-g.ended:
			g.t.Fatal("the manager ended:", err)
		default:
		}
		if time.Now().After(until) {
			g.t.Fatal("no certificate:", text, err)
		}
	}
}

// TestObtain checks, for each type of challenge, that a gateway obtains a certificate from Pebble
// through the proxy alone; that another gateway with the same storage, and one that is started
// again, uses the same one; and that its key is readable by its owner alone.
func TestObtain(t *testing.T) {
	for _, challenge := range []string{TLSALPN, HTTP} {
		t.Run(challenge, func(t *testing.T) {
			l := listenOn(t, "127.0.0.1:0")
			a := newAuthority(t, l.Addr().(*net.TCPAddr).Port)
			storage := filepath.Join(t.TempDir(), "acme")
			first := serve(t, a, l, challenge, storage, nil)
			serial := first.await()
			if challenge == HTTP {
				r, err := http.Get("http://" + l.Addr().String() + "/api/v1/keys")
				if err != nil || r.StatusCode != http.StatusNotFound {
					t.Error("the port of challenges serves other requests:", r, err)
				}
				r.Body.Close()
			}
			second := serve(t, a, listenOn(t, "127.0.0.1:0"), challenge, storage, nil)
			if got := second.await(); got != serial {
				t.Error("a second gateway has certificate", got, "instead of", serial)
			}
			first.egress.mu.Lock()
			for _, host := range first.egress.hosts {
				if host != "CONNECT "+first.egress.to {
					t.Error("a request to", host)
				}
			}
			if len(first.egress.hosts) == 0 {
				t.Error("no request through the proxy")
			}
			first.egress.mu.Unlock()
			keys := 0
			err := filepath.WalkDir(storage, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				info, err := d.Info()
				if strings.HasSuffix(path, ".key") {
					keys++
				}
				if err == nil && info.Mode().Perm()&0o077 != 0 {
					t.Errorf("%s has mode %o", path, info.Mode())
				}
				return err
			})
			if err != nil || keys == 0 {
				t.Error(keys, "keys in the storage:", err)
			}
		})
	}
}

// TestChallengesWithoutClients checks that a gateway which requires certificates of clients obtains
// its own by a TLS handshake, and that such a handshake serves no request.
func TestChallengesWithoutClients(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clients")
	robot := certs.NewAuthority(t, file).Client(t, "robot", "")
	clients, err := tlsfiles.OpenClients(file, tlsfiles.ClientsRequire)
	if err != nil {
		t.Fatal(err)
	}
	l := listenOn(t, "127.0.0.1:0")
	a := newAuthority(t, l.Addr().(*net.TCPAddr).Port)
	g := serve(t, a, l, TLSALPN, filepath.Join(t.TempDir(), "acme"), clients)
	g.await(robot)
	if text, _, err := g.get(); err == nil {
		t.Error("a client without a certificate received", text)
	}
	for _, protos := range [][]string{{challengeProto}, {challengeProto, "http/1.1"}, {"http/1.1", challengeProto}} {
		c, err := tls.Dial("tcp", g.addr, &tls.Config{InsecureSkipVerify: true, ServerName: domain, NextProtos: protos}) //nolint:gosec // the test is about the server
		if err != nil {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+domain+"\r\n\r\n")
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("protocols %v: a client without a certificate received %q", protos, b)
		}
		c.Close()
	}
}

// TestStartBeforeTheProxy checks that a gateway which starts before the egress-broker obtains its
// certificate as soon as the broker is there.
func TestStartBeforeTheProxy(t *testing.T) {
	l := listenOn(t, "127.0.0.1:0")
	a := newAuthority(t, l.Addr().(*net.TCPAddr).Port)
	u, _ := url.Parse(a.directory)
	e := &egress{to: u.Host, closed: true}
	m, err := New(Config{Domains: []string{domain}, Directory: a.directory, CA: a.file, Storage: t.TempDir(), Challenge: TLSALPN, Dial: e.dial, Log: slog.Default()}, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	g := &gateway{t: t, a: a, addr: l.Addr().String(), ended: ended}
	srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })}
	go func() { _ = srv.Serve(tls.NewListener(l, m.Challenges(m.Config()))) }()
	t.Cleanup(func() { stop(); m.Close(); srv.Close() })
	if _, _, err := g.get(); err == nil {
		t.Error("a handshake without a certificate succeeded")
	}
	e.mu.Lock()
	e.closed = false
	e.mu.Unlock()
	g.await()
}

// TestProxyOfTheProcess checks that the proxy on the loopback address permits tunnels only, and only
// with its password.
func TestProxyOfTheProcess(t *testing.T) {
	p, err := newProxy(func(context.Context) (net.Conn, error) { return nil, errors.New("no broker") }, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	with, _ := p.url(nil)
	without := *with
	without.User = nil
	wrong := *with
	wrong.User = url.UserPassword("acme", "guess")
	for _, x := range []struct {
		proxy *url.URL
		to    string
		want  string
	}{{with, "http://a.example", "405"}, {with, "https://a.example", "Bad Gateway"}, {&without, "http://a.example", "407"}, {&without, "https://a.example", "Proxy Authentication Required"}, {&wrong, "https://a.example", "Proxy Authentication Required"}} {
		client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(x.proxy), DisableKeepAlives: true}}
		r, err := client.Get(x.to)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = r.Status
			r.Body.Close()
		}
		if !strings.Contains(got, x.want) {
			t.Errorf("%s by %s: %s, want %s", x.to, x.proxy, got, x.want)
		}
	}
}

// TestIdleTunnel checks that the proxy closes a tunnel without data.
func TestIdleTunnel(t *testing.T) {
	far := make(chan net.Conn, 1)
	p, err := newProxy(func(context.Context) (net.Conn, error) {
		own, other := net.Pipe()
		far <- other
		return own, nil
	}, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.idle = 50 * time.Millisecond
	u, _ := p.url(nil)
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodConnect, "http://a.example:443", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	r.SetBasicAuth(u.User.Username(), password)
	r.Header["Proxy-Authorization"] = r.Header["Authorization"]
	if err := r.Write(c); err != nil {
		t.Fatal(err)
	}
	other := <-far
	in := bufio.NewReader(other)
	if _, err := http.ReadRequest(in); err != nil {
		t.Fatal(err)
	}
	_ = other.SetDeadline(time.Now().Add(10 * time.Second))
	if b, err := io.ReadAll(in); err != nil || len(b) > 0 {
		t.Error("the tunnel was not closed:", b, err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Error("the connection to the proxy was not closed:", b, err)
	}
}

func TestWrongConfig(t *testing.T) {
	good := Config{Domains: []string{domain}, Directory: "https://ca.example/dir", Storage: "acme", Challenge: HTTP}
	for want, change := range map[string]func(*Config){
		"a domain is empty": func(c *Config) { c.Domains = []string{domain, ""} }, "gateway.acme.storage": func(c *Config) { c.Storage = "" },
		"want tls-alpn-01": func(c *Config) { c.Challenge = "dns-01" }, "not an https URL": func(c *Config) { c.Directory = "http://ca.example" }, "no such file": func(c *Config) { c.CA = "/none" },
	} {
		c := good
		change(&c)
		if _, err := New(c, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
