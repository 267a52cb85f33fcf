package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// nodeClient sends two requests with Node's http module, which uses no proxy by itself:
// one with an absolute URI, one through CONNECT.
const nodeClient = `
const http = require('http'), tls = require('tls')
const proxy = new URL(process.env.http_proxy), [plain, secure] = process.argv.slice(1)
const body = res => new Promise(done => { let b = ''; res.on('data', d => b += d); res.on('end', () => done(res.statusCode + ' ' + b)) })
const u = new URL(plain), s = new URL(secure)
http.get({host: proxy.hostname, port: proxy.port, path: plain, headers: {host: u.host}}, async res => {
  console.log(await body(res))
  http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: s.host, headers: {host: s.host}}).on('connect', (_, socket) => {
    const t = tls.connect({socket, servername: s.hostname}, () =>
      http.get({createConnection: () => t, path: s.pathname, headers: {host: s.host}}, async res => { console.log(await body(res)); process.exit(0) }))
  }).end()
})`

const pythonClient = `
import sys, urllib.request
for u in sys.argv[1:]:
    with urllib.request.urlopen(u) as r:
        print(r.status, r.read().decode())`

// TestClients runs programs that get the addresses of the proxy and the certificate of
// its authority only from their environment or arguments.
func TestClients(t *testing.T) {
	s, roots := secure(t, http.HandlerFunc(echo), true)
	plain := httptest.NewServer(http.HandlerFunc(echo))
	defer plain.Close()
	p := port(t, plain.URL)
	r := start(t, Config{Addresses: loopback, Roots: roots, Rules: []netrule.Rule{
		{Host: "api.example.org", Port: int64(port(t, s.URL)), Mode: netrule.Terminate, Paths: []string{"/ok"}, Credential: &netrule.Credential{Secret: "token", Header: "X-Token"}},
		{Host: "api.example.org", Port: int64(p), Mode: netrule.HTTP, Paths: []string{"/ok"}}},
		Credential: func(context.Context, netrule.Rule, string, string, string) (string, error) { return secret, nil }})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, r.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	urls := []string{fmt.Sprintf("http://api.example.org:%d/ok", p), fmt.Sprintf("https://api.example.org:%d/ok", port(t, s.URL))}
	proxyURL := "http://" + r.addr
	env := append(os.Environ(), "http_proxy="+proxyURL, "https_proxy="+proxyURL, "HTTPS_PROXY="+proxyURL, "no_proxy=", "SSL_CERT_FILE="+ca, "CURL_CA_BUNDLE="+ca, "NODE_EXTRA_CA_CERTS="+ca)
	count := 0
	for _, c := range []struct {
		name string
		argv []string
		h2   bool
	}{
		{"curl", append([]string{"curl", "-sS", "-i", "--http1.1"}, urls...), false},
		{"curl with HTTP/2", append([]string{"curl", "-sS", "-i", "--http2"}, urls...), true},
		{"curl through tunnels", append([]string{"curl", "-sS", "-i", "--proxytunnel"}, urls...), true},
		{"python", append([]string{"python3", "-c", pythonClient}, urls...), false},
		{"node", append([]string{"node", "-e", nodeClient}, urls...), false},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		cancel()
		text := string(out)
		if err != nil || strings.Count(text, "200 ") < 2 || strings.Count(text, "/ok") != 2 || !strings.Contains(text, "X-Token: [secret:token]") || strings.Contains(text, "s3cr3t") || c.h2 != strings.Contains(text, "HTTP/2 200") {
			t.Fatalf("%s: %v\n%s", c.name, err, text)
		}
		for range 2 {
			if f := r.last(t, count+1); f.Status != 200 || f.Reason != "" || f.Path != "/ok" {
				t.Fatalf("%s: %+v", c.name, f)
			}
			count++
		}
	}
	out, err := exec.Command("curl", "-sS", "-x", proxyURL, "--cacert", ca, "-o", "/dev/null", "-w", "%{http_code} %{http_connect}", "https://other.example.org/").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "000 403") || r.last(t, count+1).Reason != netrule.HostDenied {
		t.Fatalf("%v %s", err, out)
	}
}
