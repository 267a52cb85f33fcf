package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/address"
)

const secret = "s3cr3t/of+the-broker"

var loopback = address.Policy{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}

// running is a proxy that serves on loopback until the test ends.
type running struct {
	*Proxy
	network, addr string
	stop          func() // ends the call and waits until Serve has returned
	mu            sync.Mutex
	recs          []Flow
}

// start serves a proxy on loopback. It resolves every name to 127.0.0.1, unless
// cfg.Resolve is set.
func start(t testing.TB, cfg Config) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, cfg, l)
}

// startOn is like start, but serves the proxy on l.
func startOn(t testing.TB, cfg Config, l net.Listener) *running {
	t.Helper()
	r := &running{network: l.Addr().Network()}
	if cfg.Resolve == nil {
		cfg.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
	}
	cfg.Record = func(f Flow) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.recs = append(r.recs, f)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	r.Proxy, r.addr = p, l.Addr().String()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// client returns a client that uses the proxy and trusts its authority.
func (r *running) client(t testing.TB) *http.Client {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(r.CA()) {
		t.Fatal("no certificate")
	}
	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}), TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// flows waits until at least n flows have been recorded, and returns all that have been.
func (r *running) flows(t testing.TB, n int) []Flow {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		r.mu.Lock()
		recs := slices.Clone(r.recs)
		r.mu.Unlock()
		if len(recs) >= n {
			return recs
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d flows recorded, want %d: %+v", len(recs), n, recs)
		}
		time.Sleep(time.Millisecond)
	}
}

// last waits for the n-th flow and returns it.
func (r *running) last(t testing.TB, n int) Flow { t.Helper(); return r.flows(t, n)[n-1] }

func port(t testing.TB, serverURL string) int {
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	return int(netip.MustParseAddrPort(u.Host).Port())
}

func do(t testing.TB, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return res, string(b)
}

func get(t testing.TB, c *http.Client, u string) (*http.Response, string) {
	t.Helper()
	return do(t, c, request(t, "GET", u, nil))
}

func request(t testing.TB, method, u string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, u, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// echo responds with the request line, the fields and the body of a request.
func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Proto", r.Proto)
	_, _ = fmt.Fprintf(w, "%s %s %s\n", r.Method, r.Host, r.RequestURI)
	_ = r.Header.Write(w)
	_, _ = w.Write(b)
}

// secure starts a test server with TLS for api.example.org, and returns its authority.
func secure(t testing.TB, h http.Handler, http2 bool) (*httptest.Server, *x509.CertPool) {
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.leaf("api.example.org")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return s, roots
}

func TestPlainHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP, Methods: []string{"GET", "POST"}, Paths: []string{"/v1/**"}}}})
	c := r.client(t)
	res, body := do(t, c, request(t, "POST", fmt.Sprintf("http://api.example.org:%d/v1/a%%20b?q=1;2", n), strings.NewReader("a\nb\n\n\r\n\r\nthe body")))
	if res.StatusCode != 200 || !strings.HasPrefix(body, fmt.Sprintf("POST api.example.org:%d /v1/a%%20b?q=1;2\n", n)) || !strings.HasSuffix(body, "\r\na\nb\n\n\r\n\r\nthe body") {
		t.Fatalf("%s %q", res.Status, body)
	}
	f := r.last(t, 1)
	if f.Host != "api.example.org" || f.Port != n || f.Method != "POST" || f.Path != "/v1/a%20b" || len(f.Query) != 64 || f.Mode != netrule.HTTP ||
		f.Address != netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(n)) || f.Status != 200 || f.Reason != "" || f.Denied || f.BytesOut < 60 || f.BytesIn < int64(len(body)) || f.Duration <= 0 {
		t.Fatalf("%+v", f)
	}
	for i, d := range []struct {
		method, url string
		status      int
		reason      netrule.Reason
	}{
		{"GET", fmt.Sprintf("http://other.example.org:%d/v1/x", n), 403, netrule.HostDenied},
		{"GET", "http://api.example.org/v1/x", 403, netrule.PortDenied},
		{"DELETE", fmt.Sprintf("http://api.example.org:%d/v1/x", n), 403, netrule.MethodDenied},
		{"GET", fmt.Sprintf("http://api.example.org:%d/v2", n), 403, netrule.PathDenied},
		{"GET", fmt.Sprintf("http://api.example.org:%d/v1/%%2e%%2e/v2", n), 403, netrule.PathAmbiguous},
		{"GET", fmt.Sprintf("http://127.1:%d/v1/x", n), 400, HostInvalid},
		{"GET", fmt.Sprintf("http://2130706433:%d/v1/x", n), 400, HostInvalid},
	} {
		res, body := do(t, c, request(t, d.method, d.url, nil))
		if f := r.last(t, 2+i); res.StatusCode != d.status || f.Reason != d.reason || !f.Denied || f.BytesOut != 0 || f.Address.IsValid() {
			t.Fatalf("%s %s: %s %q, %+v", d.method, d.url, res.Status, body, f)
		}
		if status := res.Header.Get("Proxy-Status"); d.status == 403 && !strings.Contains(status, string(d.reason)) {
			t.Fatalf("%s %s: Proxy-Status %q", d.method, d.url, status)
		}
	}
	if got := r.Totals(); got.Flows != 8 || got.Denied != 7 || got.BytesOut != f.BytesOut || got.BytesIn != f.BytesIn {
		t.Fatalf("%+v", got)
	}
}

// TestTerminate sends requests through TLS that the proxy terminates, with HTTP/1 and
// HTTP/2 on both sides, and one for a path that the rule denies.
func TestTerminate(t *testing.T) {
	for _, h2Server := range []bool{false, true} {
		s, roots := secure(t, http.HandlerFunc(echo), h2Server)
		n := port(t, s.URL)
		for _, h2Client := range []bool{false, true} {
			t.Run(fmt.Sprintf("server h2 %v, client h2 %v", h2Server, h2Client), func(t *testing.T) {
				r := start(t, Config{Addresses: loopback, Roots: roots, Rules: []netrule.Rule{{Host: "*.example.org", Port: int64(n), Mode: netrule.Terminate, Paths: []string{"/v1/*"}}}})
				c := r.client(t)
				c.Transport.(*http.Transport).ForceAttemptHTTP2 = h2Client
				for i := range 3 {
					res, body := do(t, c, request(t, "PUT", fmt.Sprintf("https://api.example.org:%d/v1/x?y", n), strings.NewReader("abc")))
					if res.StatusCode != 200 || (res.ProtoMajor == 2) != h2Client || res.Header.Get("X-Proto") != map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2Server] ||
						!strings.HasPrefix(body, fmt.Sprintf("PUT api.example.org:%d /v1/x?y\n", n)) || !strings.HasSuffix(body, "abc") {
						t.Fatalf("%s %s %q", res.Proto, res.Status, body)
					}
					if f := r.last(t, i+1); f.Mode != netrule.Terminate || f.Path != "/v1/x" || f.Status != 200 || f.Reason != "" {
						t.Fatalf("%+v", f)
					}
				}
				res, _ := get(t, c, fmt.Sprintf("https://api.example.org:%d/v2/x", n))
				if f := r.last(t, 4); res.StatusCode != 403 || f.Reason != netrule.PathDenied {
					t.Fatalf("%s %+v", res.Status, f)
				}
			})
		}
	}
}

// TestServerCertificate requires that the proxy verifies the certificate of the server.
func TestServerCertificate(t *testing.T) {
	s, roots := secure(t, http.HandlerFunc(echo), true)
	n := port(t, s.URL)
	rules := []netrule.Rule{{Host: "*.example.org", Port: int64(n), Mode: netrule.Terminate}}
	for name, cfg := range map[string]Config{"unknown authority": {Rules: rules, Addresses: loopback}, "other name": {Rules: rules, Addresses: loopback, Roots: roots}} {
		r := start(t, cfg)
		res, _ := get(t, r.client(t), fmt.Sprintf("https://www.example.org:%d/", n))
		if f := r.last(t, 1); res.StatusCode != 502 || f.Reason != CertificateInvalid || f.BytesOut != 0 {
			t.Fatalf("%s: %s %+v", name, res.Status, f)
		}
	}
}

// TestPassthrough requires that TLS with the server name of the tunnel passes unchanged,
// with HTTP/2 and HTTP/1, and that a tunnel with another server name, with none, or
// without TLS fails.
func TestPassthrough(t *testing.T) {
	s, roots := secure(t, http.HandlerFunc(echo), true)
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.Passthrough}}})
	c := r.client(t)
	c.Transport.(*http.Transport).TLSClientConfig.RootCAs = roots
	if res, body := get(t, c, fmt.Sprintf("https://api.example.org:%d/any", n)); res.StatusCode != 200 || res.ProtoMajor != 2 {
		t.Fatalf("%s %q", res.Status, body)
	}
	c.CloseIdleConnections()
	if f := r.last(t, 1); f.Reason != "" { // the server's alert, which ends TLS, is not sent to a client that has closed the connection
		t.Fatalf("%+v", f)
	}
	plain := tls.Client(tunnelTo(t, r, fmt.Sprintf("api.example.org:%d", n)), &tls.Config{ServerName: "api.example.org", RootCAs: roots})
	_, _ = fmt.Fprintf(plain, "GET / HTTP/1.1\r\nHost: api.example.org\r\nConnection: close\r\n\r\n")
	if b, err := io.ReadAll(plain); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200 ") {
		t.Fatalf("%q %v", b, err)
	}
	_ = plain.Close() // sends an alert, which the server, having closed its end, refuses
	if f := r.last(t, 2); f.Method != "CONNECT" || f.Mode != netrule.Passthrough || f.BytesIn < 1000 || f.BytesOut < 300 || f.Reason != "" || f.Path != "" {
		t.Fatalf("%+v", f)
	}
	for i, name := range []string{"other.example.org", ""} {
		conn := tunnelTo(t, r, fmt.Sprintf("api.example.org:%d", n))
		err := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		if f := r.last(t, i+3); err == nil || f.Reason != SNIMismatch || !f.Denied || f.BytesOut != 0 {
			t.Fatalf("server name %q: %v, %+v", name, err, f)
		}
	}
	conn := tunnelTo(t, r, fmt.Sprintf("api.example.org:%d", n))
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
	if f := r.last(t, 5); f.Reason != TLSInvalid || f.BytesOut != 0 {
		t.Fatalf("%+v", f)
	}
}

// TestServerCloses requires that a tunnel has ended without a failure if the server closes it first, also
// if the client then sends more, and that a server which resets the connection has failed.
func TestServerCloses(t *testing.T) {
	for reset, want := range map[bool]netrule.Reason{false: "", true: UpstreamFailed} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.ReadFull(c, make([]byte, 5))
				_, _ = io.WriteString(c, "bye")
				if reset {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				_ = c.Close()
			}
		}()
		n := l.Addr().(*net.TCPAddr).Port
		r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "db.example.org", Port: int64(n), Mode: netrule.TCP}}})
		for i := range 50 { // the server's reset is read by either direction
			conn := tunnelTo(t, r, fmt.Sprintf("db.example.org:%d", n))
			_, _ = io.WriteString(conn, "hello")
			b, err := io.ReadAll(conn)
			for range 1 + i%3 {
				_, _ = io.WriteString(conn, "more")
			}
			_ = conn.Close()
			f := r.last(t, i+1)
			if f.Reason != want || !reset && (err != nil || string(b) != "bye") {
				t.Fatalf("reset %v, flow %d: %q %v, %+v", reset, i, b, err, f)
			}
		}
	}
}

// TestTerminatedServerName requires that the server name and the Host field of requests
// in a tunnel are those of the tunnel.
func TestTerminatedServerName(t *testing.T) {
	s, roots := secure(t, http.HandlerFunc(echo), true)
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Roots: roots, Rules: []netrule.Rule{{Host: "*.example.org", Port: int64(n), Mode: netrule.Terminate}}})
	conn := tunnelTo(t, r, fmt.Sprintf("api.example.org:%d", n))
	if err := tls.Client(conn, &tls.Config{ServerName: "www.example.org", InsecureSkipVerify: true}).Handshake(); err == nil {
		t.Fatal("another server name was accepted")
	}
	if f := r.last(t, 1); f.Reason != SNIMismatch {
		t.Fatalf("%+v", f)
	}
	for i, proto := range []bool{false, true} { // a client that reuses connections by address may send another host
		c := r.client(t)
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = proto
		req := request(t, "GET", fmt.Sprintf("https://api.example.org:%d/", n), nil)
		req.Host = "www.example.org"
		res, _ := do(t, c, req)
		if f := r.last(t, 2+i); res.StatusCode != 400 || f.Reason != AuthorityMismatch {
			t.Fatalf("h2 %v: %s %+v", proto, res.Status, f)
		}
	}
}

// tunnelTo opens a CONNECT tunnel.
func tunnelTo(t testing.TB, r *running, hostPort string) net.Conn {
	t.Helper()
	conn := r.raw(t)
	_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", hostPort)
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b...) {
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatalf("CONNECT %s: %q %v", hostPort, head, err)
		}
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		t.Fatalf("CONNECT %s: %q", hostPort, head)
	}
	return conn
}

func (r *running) raw(t testing.TB) net.Conn {
	t.Helper()
	conn, err := net.Dial(r.network, r.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestTCP connects to a server that sends first, over a Unix socket of the proxy.
// It checks also that an HTTP request to the server is denied, and that the
// socket is removed at the end of the call.
func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello ")
			_, _ = io.Copy(c, c) // until the client closes its direction
			_ = c.Close()
		}
	}()
	n := l.Addr().(*net.TCPAddr).Port
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "egress.sock"))
	if err != nil {
		t.Fatal(err)
	}
	r := startOn(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "db.example.org", Port: int64(n), Mode: netrule.TCP}}}, socket)
	conn := tunnelTo(t, r, fmt.Sprintf("db.example.org:%d", n))
	_, _ = io.WriteString(conn, "world")
	_ = conn.(*net.UnixConn).CloseWrite()
	if b, err := io.ReadAll(conn); err != nil || string(b) != "hello world" {
		t.Fatalf("%q %v", b, err)
	}
	if f := r.last(t, 1); f.BytesOut != 5 || f.BytesIn != 11 || f.Reason != "" || f.Mode != netrule.TCP || f.Status != 200 {
		t.Fatalf("%+v", f)
	}
	c := r.client(t)
	c.Transport.(*http.Transport).Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.test:80"})
	c.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, r.network, r.addr)
	}
	res, _ := get(t, c, fmt.Sprintf("http://db.example.org:%d/", n))
	if f := r.last(t, 2); res.StatusCode != 403 || f.Reason != netrule.ModeDenied {
		t.Fatalf("%s %+v", res.Status, f)
	}
	r.stop()
	if _, err := os.Stat(socket.Addr().String()); err == nil {
		t.Fatal("the socket remains after the call")
	}
}

// TestConnectPlain sends plain HTTP through CONNECT, as some clients do.
func TestConnectPlain(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP, Paths: []string{"/a"}}}})
	conn := tunnelTo(t, r, fmt.Sprintf("api.example.org:%d", n))
	br := bufio.NewReader(conn)
	for i, d := range []struct {
		path   string
		status int
	}{{"/a", 200}, {"/b", 403}} {
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: api.example.org:%d\r\n\r\n", d.path, n)
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != d.status {
			t.Fatalf("%s: %v %v", d.path, res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if f := r.last(t, i+1); f.Path != d.path || f.Mode != netrule.HTTP {
			t.Fatalf("%+v", f)
		}
	}
}

// withCredential returns the configuration for one rule that adds a secret.
func withCredential(r netrule.Rule) Config {
	r.Credential = &netrule.Credential{Secret: "token", Header: "X-Auth-Token", Format: "Bearer {}"}
	return Config{Addresses: loopback, Rules: []netrule.Rule{r}, Credential: func(_ context.Context, r netrule.Rule, host, method, path string) (string, error) {
		if r.Credential.Secret != "token" || host != "api.example.org" || path == "/fail" {
			return "", fmt.Errorf("no secret for %s %s", method, path)
		}
		return secret, nil
	}}
}

// TestCredential requires that the server gets the credential, that a client can neither
// set it nor read it in one of the encodings in forms, and that no record contains it.
func TestCredential(t *testing.T) {
	var mu sync.Mutex
	var got http.Header
	forms := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret), fmt.Sprintf("%x", secret), strings.ReplaceAll(secret, "/", `\/`)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = r.Header.Clone()
		mu.Unlock()
		switch r.URL.Path {
		case "/pieces":
			for _, c := range []byte("a " + r.Header.Get("X-Auth-Token") + " z") {
				_, _ = w.Write([]byte{c})
				w.(http.Flusher).Flush()
			}
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, "a "+r.Header.Get("X-Auth-Token")+" z")
			_ = z.Close()
		case "/br":
			w.Header().Set("Content-Encoding", "br")
			_, _ = w.Write([]byte("unreadable"))
		case "/early":
			w.Header().Set("X-Early", r.Header.Get("X-Auth-Token"))
			w.WriteHeader(103)
			w.Header().Del("X-Early")
		case "/fields":
			w.Header().Set("X-Echo", r.Header.Get("X-Auth-Token"))
			w.Header().Set("Location", "/?t="+url.QueryEscape(secret))
			w.Header().Set("Trailer", "X-Trailer")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-Trailer", secret)
		default:
			_, _ = io.WriteString(w, strings.Join(forms, "\n"))
		}
	}))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, withCredential(netrule.Rule{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}))
	c := r.client(t)
	base := fmt.Sprintf("http://api.example.org:%d", n)
	for _, d := range []struct{ path, want string }{{"/all", "[secret:token]"}, {"/pieces", "a Bearer "}, {"/gzip", "a Bearer [secret:token] z"}, {"/fields", "body"}, {"/early", ""}} {
		req := request(t, "GET", base+d.path, nil)
		req.Header.Set("X-Auth-Token", "Bearer mine")
		req.Header["X_Auth_Token"] = []string{"mine"}
		req.Header.Set("Range", "bytes=0-3")
		req.Header.Set("Connection", "X-Auth-Token")
		req.Header.Set("Accept-Encoding", "gzip, br")
		trace := &httptrace.ClientTrace{Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			t.Errorf("%s: status %d with %v was passed on", d.path, status, h)
			return nil
		}}
		res, body := do(t, c, req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
		if res.StatusCode != 200 || !strings.Contains(body, d.want) {
			t.Fatalf("%s: %s %q", d.path, res.Status, body)
		}
		mu.Lock()
		if a := got["X-Auth-Token"]; len(a) != 1 || a[0] != "Bearer "+secret || got["X_auth_token"] != nil || got.Get("Range") != "" || got.Get("Accept-Encoding") != "identity" {
			t.Fatalf("%s: the server got %v", d.path, got)
		}
		mu.Unlock()
		var fields bytes.Buffer
		_ = res.Header.Write(&fields)
		_ = res.Trailer.Write(&fields)
		for _, form := range forms {
			if strings.Contains(body+fields.String(), form) || strings.Contains(body, form[4:]) && d.path != "/all" {
				t.Fatalf("%s: %q is in %q %s", d.path, form, body, &fields)
			}
		}
		if d.path == "/fields" && (res.Header.Get("X-Echo") != "Bearer [secret:token]" || res.Trailer.Get("X-Trailer") != "[secret:token]") {
			t.Fatalf("fields %v, trailers %v", res.Header, res.Trailer)
		}
	}
	if res, _ := get(t, c, base+"/br"); res.StatusCode != 502 || r.last(t, 6).Reason != EncodingUnknown {
		t.Fatalf("%s %+v", res.Status, r.last(t, 6))
	}
	if res, _ := get(t, c, base+"/fail"); res.StatusCode != 503 || r.last(t, 7).Reason != CredentialFailed {
		t.Fatalf("%s %+v", res.Status, r.last(t, 7))
	}
	get(t, c, base+"/"+url.PathEscape(secret))
	if all := fmt.Sprintf("%+v", r.flows(t, 8)); strings.Contains(all, "s3cr3t") {
		t.Fatal(all)
	}
}

// TestCredentialInClear requires that plain HTTP carries a credential to configured
// networks only, also over a connection that a request without one has opened, and that
// requests without a credential are not affected. The path that Config.Begin receives
// does not contain the secret.
func TestCredentialInClear(t *testing.T) {
	var got atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got.Store(r.URL.Path + " " + r.Header.Get("X-Auth-Token"))
	}))
	defer s.Close()
	cfg := withCredential(netrule.Rule{Host: "api.example.org", Mode: netrule.HTTP, Paths: []string{"/secret"}})
	cfg.Rules = append(cfg.Rules, netrule.Rule{Host: "api.example.org", Mode: netrule.HTTP})
	cfg.Resolve = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	}
	cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
	}
	var begun atomic.Value
	cfg.Begin = func(f Flow) { begun.Store(f.Path) }
	r := start(t, cfg)
	c := r.client(t)
	if res, _ := get(t, c, "http://api.example.org/open"); res.StatusCode != 200 || got.Load() != "/open " {
		t.Fatal(res.Status, got.Load())
	}
	if res, _ := get(t, c, "http://api.example.org/secret"); res.StatusCode != 403 || got.Load() != "/open " || r.last(t, 2).Reason != netrule.AddressBlocked {
		t.Fatal(res.Status, got.Load(), r.last(t, 2))
	}
	get(t, c, "http://api.example.org/"+url.PathEscape(secret))
	if path := fmt.Sprint(begun.Load()); !strings.Contains(path, "[secret:token]") {
		t.Fatal("the start of a flow has the path", path)
	}
}
