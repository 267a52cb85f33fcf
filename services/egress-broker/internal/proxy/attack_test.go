package proxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/address"
)

// TestMalformedRequests sends requests that two programs may read in different ways, each
// followed by a request that must not reach the server.
func TestMalformedRequests(t *testing.T) {
	var reached, smuggled atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		if r.URL.Path == "/smuggled" {
			smuggled.Add(1)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer s.Close()
	n := port(t, s.URL)
	host := fmt.Sprintf("api.example.org:%d", n)
	const more = "GET http://HOST/smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n"
	requests := map[string]string{
		"length and chunks":          "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks and length":          "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		"two equal lengths":          "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
		"two lengths":                "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"list of lengths":            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1, 1\r\n\r\na",
		"signed length":              "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: +1\r\n\r\na",
		"two codings":                "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"another coding":             "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"coding list":                "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"chunks in HTTP/1.0":         "POST http://HOST/ HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"folded field":               "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX-A: b\r\n c: d\r\n\r\n",
		"blank before colon":         "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length : 1\r\n\r\na",
		"blank before name":          "GET http://HOST/ HTTP/1.1\r\n Host: HOST\r\n\r\n",
		"bare LF after request line": "GET http://HOST/ HTTP/1.1\nHost: HOST\r\n\r\n",
		"bare LF at the end":         "GET http://HOST/ HTTP/1.1\r\nHost: HOST\n\n",
		"bare CR in a field":         "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX-A: b\rX-B: c\r\n\r\n",
		"NUL in a field":             "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX-A: b\x00c\r\n\r\n",
		"NUL in the target":          "GET http://HOST/a\x00b HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"no Host":                    "GET http://HOST/ HTTP/1.1\r\nX: y\r\n\r\n",
		"two Hosts":                  "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n",
		"other Host":                 "GET http://HOST/ HTTP/1.1\r\nHost: other.example.org\r\n\r\n",
		"other Host of CONNECT":      "CONNECT HOST HTTP/1.1\r\nHost: other.example.org:443\r\n\r\n",
		"path as target":             "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"https as target":            "GET https://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"user in target":             "GET http://HOST@other.example.org/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"fragment in target":         "GET http://HOST/#a HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"two blanks":                 "GET  http://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"HTTP/0.9":                   "GET http://HOST/\r\n\r\n",
		"HTTP/1.2":                   "GET http://HOST/ HTTP/1.2\r\nHost: HOST\r\n\r\n",
		"HTTP/2 preface":             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"empty line first":           "\r\nGET http://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"body of an upgrade":         "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nUpgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 5\r\n\r\nabcde",
		"long head":                  "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: " + strings.Repeat("a", 70<<10) + "\r\n\r\n",
	}
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	count := 0
	for name, text := range requests {
		conn := r.raw(t)
		go func() { _, _ = io.WriteString(conn, strings.ReplaceAll(text+more, "HOST", host)) }()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != 400 || !res.Close {
			t.Errorf("%s: %v %v", name, res, err)
		}
		count++
		if f := r.last(t, count); !f.Denied || f.Status != 400 || f.Reason != RequestInvalid && f.Reason != AuthorityMismatch && f.Reason != HostInvalid {
			t.Errorf("%s: %+v", name, f)
		}
		_ = conn.Close()
	}
	if got := reached.Load(); got != 0 {
		t.Fatalf("%d requests reached the server", got)
	}
	defer func() {
		if got := smuggled.Load(); got != 0 {
			t.Errorf("%d requests after a malformed one reached the server", got)
		}
	}()
	// What follows a valid head may be malformed too. The request then fails.
	for name, body := range map[string]string{
		"size with an extension": "3;a=b\r\nabc\r\n0\r\n\r\n", "size with bare LF": "3\nabc\r\n0\r\n\r\n", "no end of a chunk": "3\r\nabcd\r\n0\r\n\r\n", "bare LF after a chunk": "3\r\nabc\n0\r\n\r\n",
		"signed size": "+3\r\nabc\r\n0\r\n\r\n", "size 0x": "0x3\r\nabc\r\n0\r\n\r\n", "large size": "fffffffffffffffff\r\nabc", "no size": "\r\nabc\r\n0\r\n\r\n", "length as trailer": "0\r\nContent-Length: 3\r\n\r\n", "bare LF in trailers": "0\r\nA: b\n\r\n",
	} {
		conn := r.raw(t)
		_, _ = io.WriteString(conn, strings.ReplaceAll("POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n"+body+more, "HOST", host))
		b, _ := io.ReadAll(conn)
		if strings.Count(string(b), "HTTP/1.1 ") > 1 || strings.Contains(string(b), " 200 ") {
			t.Errorf("%s: %q", name, b)
		}
		count++
		if f := r.last(t, count); f.Reason != RequestInvalid || f.Method != "POST" {
			t.Errorf("%s: %+v", name, f)
		}
		_ = conn.Close()
	}
}

// TestMalformedAfterRequest checks that a malformed request after another one ends the
// connection without a response, and that its record has no status.
func TestMalformedAfterRequest(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	conn := r.raw(t)
	host := fmt.Sprintf("api.example.org:%d", n)
	_, _ = io.WriteString(conn, strings.ReplaceAll("GET http://HOST/a HTTP/1.1\r\nHost: HOST\r\n\r\nGET http://HOST/b HTTP/1.1\nHost: HOST\r\n\r\n", "HOST", host))
	all, err := io.ReadAll(conn)
	if got := strings.Count(string(all), "HTTP/1.1 "); err != nil || got > 1 {
		t.Errorf("%d responses: %q %v", got, all, err)
	}
	for _, f := range r.flows(t, 2) {
		if f.ID == 0 && (f.Status != 0 || f.Reason != RequestInvalid) {
			t.Errorf("%+v", f)
		}
	}
}

// TestPipelinedRequests requires that each of three requests that a client sends
// together is decided separately.
func TestPipelinedRequests(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP, Paths: []string{"/a"}}}})
	conn := r.raw(t)
	host := fmt.Sprintf("api.example.org:%d", n)
	_, _ = io.WriteString(conn, strings.ReplaceAll("POST http://HOST/a HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: y\r\n\r\nPOST http://HOST/a HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\n\r\nabcGET http://HOST/b HTTP/1.1\r\nHost: HOST\r\n\r\n", "HOST", host))
	br := bufio.NewReader(conn)
	for i, want := range []int{200, 200, 403} {
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != want {
			t.Fatalf("response %d: %v %v", i, res, err)
		}
		if b, _ := io.ReadAll(res.Body); want == 200 && !strings.HasSuffix(string(b), "abc") {
			t.Fatalf("response %d: %q", i, b)
		}
	}
}

// nameServer starts a DNS server on loopback, and returns a resolver that queries it.
// answers returns the addresses for the n-th query of a type.
func nameServer(t *testing.T, answers func(n int64, q dnsmessage.Type) []netip.Addr) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.Close() })
	var queries [256]atomic.Int64
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Authoritative, m.RecursionAvailable, m.Additionals = true, true, true, nil
			for _, a := range answers(queries[q.Type].Add(1), q.Type) {
				h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
				if a.Is4() {
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
				} else {
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
				}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

// TestRebinding requires that a request is refused, and no blocked address dialled, if
// the name server returns a blocked address: after a permitted one, as in DNS rebinding,
// together with one, or alone. A request for a name without addresses fails.
func TestRebinding(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	n := port(t, s.URL)
	good, bad := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	policy := address.Policy{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	rules := []netrule.Rule{{Host: "evil.example.org", Port: int64(n), Mode: netrule.HTTP}}
	url := fmt.Sprintf("http://evil.example.org:%d/", n)
	var dialled []string
	config := func(answers func(int64, dnsmessage.Type) []netip.Addr) Config {
		ns := nameServer(t, answers)
		dialled = nil
		return Config{Addresses: policy, Rules: rules,
			Resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
				return ns.LookupNetIP(ctx, "ip", host+".")
			},
			Dial: func(ctx context.Context, network, a string) (net.Conn, error) {
				dialled = append(dialled, a)
				return (&net.Dialer{}).DialContext(ctx, network, a)
			}}
	}
	r := start(t, config(func(n int64, q dnsmessage.Type) []netip.Addr {
		if q != dnsmessage.TypeA {
			return nil
		}
		if n == 1 {
			return []netip.Addr{good}
		}
		return []netip.Addr{bad}
	}))
	c := r.client(t)
	if res, body := get(t, c, url); res.StatusCode != 200 {
		t.Fatalf("%s %q", res.Status, body)
	}
	r.transport.CloseIdleConnections()
	if res, _ := get(t, c, url); res.StatusCode != 403 || r.last(t, 2).Reason != netrule.AddressBlocked || len(dialled) != 1 {
		t.Fatalf("%s %+v, dialled %v", res.Status, r.last(t, 2), dialled)
	}
	for name, answers := range map[string][]netip.Addr{"both": {good, bad}, "mapped": {netip.MustParseAddr("::ffff:127.0.0.2")}, "link-local": {netip.MustParseAddr("169.254.169.254")},
		"private": {netip.MustParseAddr("10.0.0.1")}, "unique local": {netip.MustParseAddr("fd00::1")}, "NAT64": {netip.MustParseAddr("64:ff9b::a9fe:a9fe")}, "loopback": {netip.IPv6Loopback()}} {
		r := start(t, config(func(_ int64, q dnsmessage.Type) []netip.Addr {
			if (q == dnsmessage.TypeA) == answers[0].Is4() {
				return answers
			}
			return nil
		}))
		if res, _ := get(t, r.client(t), url); res.StatusCode != 403 || r.last(t, 1).Reason != netrule.AddressBlocked || len(dialled) != 0 {
			t.Fatalf("%s: %s %+v, dialled %v", name, res.Status, r.last(t, 1), dialled)
		}
	}
	r = start(t, config(func(int64, dnsmessage.Type) []netip.Addr { return nil }))
	if res, _ := get(t, r.client(t), url); res.StatusCode != 502 || r.last(t, 1).Reason != ResolveFailed {
		t.Fatalf("%s %+v", res.Status, r.last(t, 1))
	}
}

// TestRedirect requires that the request that follows a redirect to a link-local address
// is denied, whether or not a rule names the address.
func TestRedirect(t *testing.T) {
	const target = "http://169.254.169.254/latest/meta-data"
	s := httptest.NewServer(http.RedirectHandler(target, http.StatusFound))
	defer s.Close()
	n := port(t, s.URL)
	first := netrule.Rule{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}
	for _, d := range []struct {
		rules  []netrule.Rule
		reason netrule.Reason
	}{{[]netrule.Rule{first}, netrule.HostDenied}, {[]netrule.Rule{first, {Host: "169.254.169.254", Mode: netrule.HTTP}}, netrule.AddressBlocked}} {
		r := start(t, Config{Addresses: address.Policy{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16")}}, Rules: d.rules})
		c := r.client(t)
		c.CheckRedirect = nil // follow
		res, _ := get(t, c, fmt.Sprintf("http://api.example.org:%d/", n))
		recs := r.flows(t, 2)
		if res.StatusCode != 403 || recs[0].Status != 302 || recs[1].Reason != d.reason || recs[1].Host != "169.254.169.254" || recs[1].Address.IsValid() {
			t.Fatalf("%s %+v", res.Status, recs)
		}
	}
}

// TestUpgradeToAnotherProtocol requires that a client cannot open a tunnel to a server by
// an upgrade to HTTP/2 without TLS.
func TestUpgradeToAnotherProtocol(t *testing.T) {
	var upgrade atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upgrade.Store(r.Header.Get("Upgrade") + r.Header.Get("Connection"))
	}))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	req := request(t, "GET", fmt.Sprintf("http://api.example.org:%d/", n), nil)
	req.Header.Set("Upgrade", "h2c")
	req.Header.Set("Connection", "Upgrade, HTTP2-Settings")
	req.Header.Set("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA")
	if res, _ := do(t, r.client(t), req); res.StatusCode != 200 || upgrade.Load() != "" {
		t.Fatalf("%s, the server got %q", res.Status, upgrade.Load())
	}
}

// TestSlowClients requires that a client that sends a head, a handshake or a body slowly
// loses its connection.
func TestSlowClients(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer s.Close()
	n := port(t, s.URL)
	host := fmt.Sprintf("api.example.org:%d", n)
	limits := Limits{Connect: 200 * time.Millisecond, Idle: 300 * time.Millisecond}
	r := start(t, Config{Addresses: loopback, Limits: limits, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}, {Host: "tls.example.org", Port: int64(n), Mode: netrule.Terminate}}})
	ended := func(conn net.Conn) { // the proxy closes the connection before the deadline of the test
		t.Helper()
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		} else if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			t.Fatal(err)
		}
	}
	slow := r.raw(t)
	go func() {
		for _, c := range []byte("GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + "\r\n\r\n") {
			if _, err := slow.Write([]byte{c}); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	ended(slow)
	tunnel := tunnelTo(t, r, fmt.Sprintf("tls.example.org:%d", n))
	_, _ = tunnel.Write([]byte{22, 3, 1, 1})
	ended(tunnel)
	if f := r.last(t, 1); f.Reason != TLSInvalid {
		t.Fatalf("%+v", f)
	}
	body := r.raw(t)
	_, _ = io.WriteString(body, "POST http://"+host+"/ HTTP/1.1\r\nHost: "+host+"\r\nContent-Length: 10\r\n\r\nabc")
	ended(body)
	if f := r.last(t, 2); f.Reason != TimedOut || f.BytesOut < 3 {
		t.Fatalf("%+v", f)
	}
}

// frame returns an unmasked WebSocket frame with a text.
func frame(text string) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{0x81, 126}, uint16(len(text))), text...)
}
