package attack

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// site is a server of the test that records the paths at which it is reached.
type site struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func newSite(t *testing.T, host string, tls bool) *site {
	l, err := net.Listen("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	s.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.paths = append(s.paths, r.URL.Path)
		s.mu.Unlock()
		if r.URL.Path == "/open/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		if r.Header.Get("Upgrade") == "websocket" {
			greet(w)
			return
		}
		fmt.Fprint(w, "page "+r.Proto)
	})}}
	if tls {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// greet accepts the upgrade of a connection to WebSocket, and sends a frame with the text "frame of the site".
func greet(w http.ResponseWriter) {
	c, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprint(buf, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x11frame of the site")
	_ = buf.Flush()
	_, _ = buf.Read(make([]byte, 1)) // until the client closes the connection
}

// newLines starts a server that sends a line to each connection, and returns its port.
func newLines(t *testing.T, host string) (port string) {
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "220 plain\r\n")
			_ = c.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// reached returns the paths at which the site was reached.
func (s *site) reached() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.paths...)
}

// TestEgressEscapes shows in the tiers process and container, on one process and on one process per
// service, that a program reaches what its rules permit, also by WebSocket, HTTP/2 and plain TCP, and
// nothing else: not by other spellings of an address, not a special address that a rule names, not by a
// name that resolves to one, at once or later (DNS rebinding), not by a redirect, not by requests that
// servers read in different ways, not with another server name (SNI) than that of its tunnel, not past
// the proxy, and not through a socket or descriptor of another call. TestComposeConfigured makes those
// attempts that need no DNS server on compose.
func TestEgressEscapes(t *testing.T) {
	for name, start := range harness.Topologies {
		for tier, socket := range map[string]string{"process": "", "container": "/run/containerd/containerd.sock"} {
			t.Run(name+" "+tier, func(t *testing.T) { egressEscapes(t, start, tier, socket) })
		}
	}
}

// egressEscapes makes the checks of TestEgressEscapes in a tier.
func egressEscapes(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh, tier, socket string) {
	open := newSite(t, "127.0.0.2:0", false)
	_, port, _ := net.SplitHostPort(open.Listener.Addr().String())
	inner := newSite(t, "127.0.0.1:"+port, false) // at the address to which a name is rebound later
	secure := newSite(t, "127.0.0.3:0", true)
	_, securePort, _ := net.SplitHostPort(secure.Listener.Addr().String())
	good, bad, link := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")
	names := harness.NewNames(t, map[string][][]netip.Addr{
		"rebound.example": {{good}, {bad}}, "both.example": {{good, bad}}, "link.example": {{link}}, "six.example": {{netip.MustParseAddr("::1")}},
		"pass.example": {{netip.MustParseAddr("127.0.0.3")}}, "tls.example": {{netip.MustParseAddr("127.0.0.3")}}, "example.com": {{netip.MustParseAddr("127.0.0.3")}},
	})
	w := &harness.WaysOut{Host: "127.0.0.2", Port: port, Tunnels: []harness.Tunnel{{To: "pass.example:" + securePort, Name: "pass.example", OK: true}, {To: "pass.example:" + securePort, Name: "evil.example"}, {To: "tls.example:" + securePort, Name: "evil.example"}}}
	more := fmt.Sprintf("- {host: pass.example, port: %s, mode: passthrough}\n- {host: tls.example, port: %s, mode: terminate}\n", securePort, securePort)
	for _, n := range []string{"rebound", "both", "link", "six"} {
		more += fmt.Sprintf("- {host: %s.example, port: %s, mode: http}\n", n, port)
	}
	at := func(n string) string { return harness.Get(n+".example:"+port, "/open/a") }
	blocked := []harness.Raw{{Text: at("both"), Want: "address_blocked"}, {Text: at("link"), Want: "address_blocked"}, {Text: at("six"), Want: "address_blocked"}}
	plain := newLines(t, "127.0.0.2")
	more += fmt.Sprintf("- {host: 127.0.0.2, port: %s, mode: tcp}\n- {host: example.com, port: %s, mode: terminate, paths: [/open/**]}\n", plain, securePort)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	w.H2 = []harness.Raw{{Text: "https://pass.example:" + securePort + "/open/a", Want: "HTTP/2.0 200 page HTTP/2.0"}, {Text: "https://example.com:" + securePort + "/open/a", Want: "HTTP/2.0 200 page HTTP/2.0"},
		{Text: "https://example.com:" + securePort + "/closed", Want: "path_denied"}}
	socketOf := func(path string) string {
		return strings.Replace(harness.Get("127.0.0.2:"+port, path), "Connection: close", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", 1)
	}
	others := []harness.Raw{{Text: socketOf("/open/a"), Want: "frame of the site"}, {Text: socketOf("/closed"), Want: "path_denied"},
		{Text: "CONNECT 127.0.0.2:" + plain + " HTTP/1.1\r\nHost: 127.0.0.2:" + plain + "\r\n\r\n", Want: "220 plain"}, {Text: "CONNECT 127.0.0.2:7 HTTP/1.1\r\nHost: 127.0.0.2:7\r\n\r\n", Want: "_denied"}}
	o := harness.Options{Packs: t.TempDir(), Wrap: names.Wrap, Containerd: socket, Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.2/32,127.0.0.3/32", "SSL_CERT_FILE=" + authority}}
	w.Pack(t, o.Packs, more, tier)
	m := start(t, o)
	permitAll(t, m)
	w.Dials = []string{"unix " + m.Dir + "/egress"}
	// In one call, the second request uses the connection of the first one, to the address
	// that was checked. The next call resolves the name again.
	w.Raw = append(append(blocked, others...), harness.Raw{Text: at("rebound"), Want: "page"}, harness.Raw{Text: at("rebound"), Want: "page"})
	w.Try(t, m, tier)
	if n := names.Queries("rebound.example"); n != 1 {
		t.Errorf("a name was resolved %d times for one connection", n)
	}
	w.Raw = append(blocked, harness.Raw{Text: at("rebound"), Want: "address_blocked"})
	w.Try(t, m, tier)
	for _, path := range open.reached() {
		if !strings.HasPrefix(path, "/open/a") {
			t.Errorf("the site was reached at %s", path)
		}
	}
	if p := inner.reached(); len(p) > 0 {
		t.Errorf("an address that may not be dialled was reached at %v", p)
	}
	out, err := m.CLI("events", "list", "--session", "s-wayout-"+tier, "--json")
	for _, reason := range []string{"sni_mismatch", "address_blocked", "authority_mismatch", "request_invalid", "path_ambiguous"} {
		if err != nil || !strings.Contains(out, `"reason":"`+reason+`"`) {
			t.Errorf("no denial with reason %s on the ledger: %v", reason, err)
		}
	}
	if out, err := m.CLI("replay"); err != nil || !strings.HasSuffix(strings.TrimSpace(out), "equal") {
		t.Error(out, err)
	}
}

// permitAll activates ceilings that limit no egress.
func permitAll(t *testing.T, m *harness.Mesh) {
	t.Helper()
	p0 := filepath.Join(t.TempDir(), "p0.json")
	if err := os.WriteFile(p0, []byte(`{"egress":[{"host":"*"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"trust", "sign", p0}, {"policy", "activate", filepath.Join(m.Dir, "keys/p0.json")}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
}
