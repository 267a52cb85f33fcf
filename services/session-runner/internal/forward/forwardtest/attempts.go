package forwardtest

import (
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"testing"
)

// Pack is an environment of a pack that names another proxy and certificate authority.
var Pack = []string{"COLOR=red", "HTTP_PROXY=http://192.0.2.1:1", "no_proxy=*", "SSL_CERT_FILE=/tmp/other"}

// Attempts are the operations of the program testdata/client in a sandbox, and their expected
// results.
type Attempts struct {
	lines, want []string
}

// All returns the attempts of a sandbox with the environment Pack and the proxy p: to fetch pages
// through the proxy, to read the environment, to read and change the file ca, which must contain
// its certificate authority, and to connect to other addresses, among them listeners of the host.
func All(t testing.TB, p *Proxy, ca string) *Attempts {
	t.Helper()
	a := &Attempts{}
	for _, u := range []string{"http://example.com/x?y=1", "https://example.com/secure"} {
		want := u
		if strings.HasPrefix(u, "https") {
			want = "/secure" // the server after CONNECT receives the path only
		}
		a.add("get "+u, p.Name+" "+want)
	}
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"} {
		a.add("env "+v, `"http://127.0.0.1:3128"`)
	}
	for _, v := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"} {
		a.add("env "+v, fmt.Sprintf("%q", ca))
	}
	a.add("env NO_PROXY", `""`)
	a.add("env no_proxy", `""`)
	a.add("env COLOR", `"red"`)
	a.add("read "+ca, fmt.Sprintf("%q", p.CA))
	for _, try := range []string{"write", "remove", "chmod"} {
		a.add(try+" "+ca, "failed")
	}
	a.add("write /run/other", "failed")
	a.escapes(t)
	a.add("dial tcp 127.0.0.1:3128", "connected")
	a.add("read "+ca, fmt.Sprintf("%q", p.CA))
	return a
}

// None returns the attempts of a sandbox with the environment Pack and without a proxy.
func None(t testing.TB, ca string) *Attempts {
	t.Helper()
	a := &Attempts{}
	a.add("env HTTP_PROXY", `"http://192.0.2.1:1"`)
	a.add("read "+ca, "failed")
	a.add("dial tcp 127.0.0.1:3128", "failed")
	a.escapes(t)
	return a
}

// escapes adds connections that ignore the proxy: to an address of the internet, and to
// listeners of the host on a port and on an abstract unix socket.
func (a *Attempts) escapes(t testing.TB) {
	t.Helper()
	for _, l := range [][2]string{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", "@egress-" + rand.Text()}} {
		listener, err := net.Listen(l[0], l[1])
		if err != nil && l[1] == "[::1]:0" { // a host without IPv6
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		a.add("dial "+l[0]+" "+listener.Addr().String(), "failed")
	}
	a.add("dial tcp 1.1.1.1:80", "failed")
	a.add("dial udp 1.1.1.1:53", "failed")
}

func (a *Attempts) add(line, want string) {
	a.lines, a.want = append(a.lines, line), append(a.want, want)
}

// Input returns the standard input of the client.
func (a *Attempts) Input() []byte { return []byte(strings.Join(a.lines, "\n")) }

// Check compares the client's output with the expected results.
func (a *Attempts) Check(t testing.TB, output []byte) {
	t.Helper()
	got := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n")
	if len(got) != len(a.want) {
		t.Fatalf("%d results of %d attempts: %s", len(got), len(a.want), output)
	}
	for i, want := range a.want {
		if want == "failed" && strings.HasPrefix(got[i], "failed: ") || got[i] == want {
			continue
		}
		t.Errorf("%s: %s, want %s", a.lines[i], got[i], want)
	}
}
