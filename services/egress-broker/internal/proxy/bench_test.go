//go:build bench

package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// TestMain serves a proxy if the variable EGRESS_BENCH is set, and runs the tests otherwise.
func TestMain(m *testing.M) {
	if text := os.Getenv("EGRESS_BENCH"); text != "" {
		if err := serveBench(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// benchConfig is the configuration of a proxy in a process of its own.
type benchConfig struct {
	Rules []netrule.Rule
	Roots []byte // certificates in PEM
}

// serveBench writes the address and the certificate of a proxy to standard output, and
// serves it until standard input ends.
func serveBench(text string) error {
	var c benchConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.Roots)
	p, err := New(Config{Addresses: loopback, Rules: c.Rules, Roots: roots,
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
		Credential: func(context.Context, netrule.Rule, string, string, string) (string, error) { return secret, nil }})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"addr": l.Addr().String(), "ca": p.CA()}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	return p.Serve(ctx, l)
}

// inProcess starts a proxy in a process of its own, and returns a client that uses it.
func inProcess(t *testing.T, c benchConfig) *http.Client {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), "EGRESS_BENCH="+string(text)), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	var at struct {
		Addr string
		CA   []byte
	}
	if err := json.NewDecoder(out).Decode(&at); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(at.CA)
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: at.Addr}), TLSClientConfig: &tls.Config{RootCAs: roots}}}
}

// TestBench measures the median time of a request and the throughput, in interleaved rounds:
// directly to the servers, through nginx as a bare reverse proxy, and through the proxy. Each
// proxy runs in a process of its own, the client and the servers in this one.
func TestBench(t *testing.T) {
	const rounds, requests, size = 5, 2000, 64 << 20
	chunk := make([]byte, 64<<10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			_, _ = io.WriteString(w, `{"id":1,"name":"a small document of JSON"}`)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(size))
		for n := 0; n < size; n += len(chunk) {
			_, _ = w.Write(chunk)
		}
	})
	plain := httptest.NewServer(handler)
	defer plain.Close()
	secured, roots := secure(t, handler, false)
	nPlain, nTLS := port(t, plain.URL), port(t, secured.URL)
	rules := []netrule.Rule{{Host: "plain.example.org", Port: int64(nPlain), Mode: netrule.HTTP}, {Host: "api.example.org", Port: int64(nTLS), Mode: netrule.Terminate}}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secured.TLS.Certificates[0].Certificate[1]})
	bare := inProcess(t, benchConfig{rules, ca})
	injected := inProcess(t, benchConfig{withCredential(rules[1]).Rules, ca})
	nginxPlain, nginxTLS, nginxRoots := nginx(t, nPlain, nTLS)

	direct := func(to string, roots *x509.CertPool) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", to)
		}}}
	}
	targets := []struct {
		name, base string
		c          *http.Client
		p50        []time.Duration
		rate       []float64
	}{
		{name: "HTTP, direct", base: fmt.Sprintf("http://plain.example.org:%d", nPlain), c: direct(fmt.Sprintf("127.0.0.1:%d", nPlain), nil)},
		{name: "HTTP, nginx", base: "http://plain.example.org", c: direct(nginxPlain, nil)},
		{name: "HTTP, broker", base: fmt.Sprintf("http://plain.example.org:%d", nPlain), c: bare},
		{name: "HTTPS, direct", base: fmt.Sprintf("https://api.example.org:%d", nTLS), c: direct(fmt.Sprintf("127.0.0.1:%d", nTLS), roots)},
		{name: "HTTPS, nginx", base: "https://api.example.org", c: direct(nginxTLS, nginxRoots)},
		{name: "HTTPS, broker", base: fmt.Sprintf("https://api.example.org:%d", nTLS), c: bare},
		{name: "HTTPS with a credential, broker", base: fmt.Sprintf("https://api.example.org:%d", nTLS), c: injected},
	}
	for range rounds {
		for i := range targets {
			x := &targets[i]
			var all []time.Duration
			for n := range requests + 100 {
				begin := time.Now()
				if res, _ := get(t, x.c, x.base+"/small"); res.StatusCode != 200 {
					t.Fatalf("%s: %s", x.name, res.Status)
				}
				if n >= 100 {
					all = append(all, time.Since(begin))
				}
			}
			slices.Sort(all)
			x.p50 = append(x.p50, all[len(all)/2])
			begin := time.Now()
			res, err := x.c.Get(x.base + "/large")
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, res.Body); err != nil || n != size {
				t.Fatalf("%s: %d bytes, %v", x.name, n, err)
			}
			_ = res.Body.Close()
			x.rate = append(x.rate, size/1e6/time.Since(begin).Seconds())
		}
	}
	for _, x := range targets {
		slices.Sort(x.p50)
		slices.Sort(x.rate)
		t.Logf("%-34s p50 %v (%v to %v), %.0f MB/s (%.0f to %.0f)", x.name, x.p50[rounds/2].Round(time.Microsecond), x.p50[0].Round(time.Microsecond), x.p50[rounds-1].Round(time.Microsecond), x.rate[rounds/2], x.rate[0], x.rate[rounds-1])
	}
}

// nginx starts a reverse proxy with one worker: plain HTTP, and TLS on both sides.
func nginx(t *testing.T, nPlain, nTLS int) (plainAddr, tlsAddr string, roots *x509.CertPool) {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatal("needs nginx: apt-get install nginx-light")
	}
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.leaf("api.example.org")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	a, b := freePort(t), freePort(t)
	write("nginx.conf", fmt.Appendf(nil, `daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
  access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  keepalive_requests 1000000; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 128k; proxy_max_temp_file_size 0;
  upstream plain { server 127.0.0.1:%[2]d; keepalive 8; keepalive_requests 1000000; }
  upstream tls { server 127.0.0.1:%[3]d; keepalive 8; keepalive_requests 1000000; }
  server { listen 127.0.0.1:%[4]d; location / { proxy_pass http://plain; } }
  server { listen 127.0.0.1:%[5]d ssl; ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem; location / { proxy_pass https://tls; } }
}`, dir, nPlain, nTLS, a, b))
	cmd := exec.Command(program, "-c", filepath.Join(dir, "nginx.conf"), "-e", filepath.Join(dir, "error.log"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
	plainAddr, tlsAddr = fmt.Sprintf("127.0.0.1:%d", a), fmt.Sprintf("127.0.0.1:%d", b)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", tlsAddr)
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			t.Fatalf("nginx: %v\n%s", err, log)
		}
	}
	roots = x509.NewCertPool()
	roots.AddCert(ca.cert)
	return plainAddr, tlsAddr, roots
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
