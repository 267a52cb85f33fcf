package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// reading returns how framing reads some bytes: the heads, and then either its state and the
// number of bytes that it has not accepted yet, or the reason for which it refuses the rest
// and the number of bytes that it has accepted.
func reading(data string, n, maxHead int, check func(*head) netrule.Reason) string {
	f := &framing{maxHead: maxHead}
	heads := ""
	f.check = func(h *head) netrule.Reason {
		heads += fmt.Sprintf("%s,%s,%s,%v,%v ", h.method, h.target, h.version, h.host, h.upgrade)
		return check(h)
	}
	in, total := "", 0
	for len(data) > 0 {
		k := min(n, len(data))
		in, data = in+data[:k], data[k:]
		for in != "" {
			k, err := f.accept([]byte(in))
			if err != nil {
				var why *failure
				errors.As(err, &why)
				return fmt.Sprintf("%s%s after %d", heads, why.reason, total)
			}
			if k == 0 {
				break
			}
			in, total = in[k:], total+k
		}
	}
	return fmt.Sprintf("%sstate %d, %d left", heads, f.state, len(in))
}

// TestFraming checks how messages are read, wherever reads end.
func TestFraming(t *testing.T) {
	const get, post = "GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\n"
	const getRead, postRead = "GET,/,HTTP/1.1,[a],false ", "POST,/,HTTP/1.1,[a],false "
	state := func(s state, left int) string { return fmt.Sprintf("state %d, %d left", s, left) }
	bad := func(n int) string { return fmt.Sprintf("request_invalid after %d", n) }
	chunked := post + "Transfer-Encoding: Chunked\r\n\r\n"
	c := len(chunked)
	for _, x := range []struct{ data, want string }{
		// Heads.
		{get + "\r\n", getRead + state(inHead, 0)},
		{get + "\r\n" + get + "\r\n", getRead + getRead + state(inHead, 0)},
		{"GET / HTTP/1.0\r\n\r\n", "GET,/,HTTP/1.0,[],false " + state(inHead, 0)},
		{"GET / HTTP/1.1\r\n\r\n", bad(0)},
		{"GET / HTTP/1.2\r\nHost: a\r\n\r\n", bad(0)},
		{"GET / HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n", bad(0)},
		{"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", bad(0)},
		{"GET /\r\nHost: a\r\n\r\n", bad(0)},
		{"GET  HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)},
		{"GET\r\nHost: a\r\n\r\n", bad(0)},
		{" / HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)},
		{"G{T / HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)},
		{"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", bad(0)},
		{"GET /~! HTTP/1.1\r\nHost: a\r\n\r\n", "GET,/~!,HTTP/1.1,[a],false " + state(inHead, 0)},
		{"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)}, {"GET /\t HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)},
		{"GET /# HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)}, {"GET /\\ HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)},
		{"GET / HTTP/1.1\nHost: a\r\n\r\n", bad(0)}, {"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", bad(0)}, {get + "\n", bad(0)},
		{get + "A: \tb \xc3\xa4\r\n\r\n", getRead + state(inHead, 0)},
		{get + "A: b\x00\r\n\r\n", bad(0)}, {get + "A: b\x1f\r\n\r\n", bad(0)}, {get + "A: b\x7f\r\n\r\n", bad(0)},
		{get + " A: b\r\n\r\n", bad(0)}, {get + "A : b\r\n\r\n", bad(0)}, {get + ": b\r\n\r\n", bad(0)}, {get + "A\r\n\r\n", bad(0)},
		// Bodies of known length.
		{post + "Content-Length: 3\r\n\r\nab", postRead + state(inBody, 0)},
		{post + "Content-Length: 3\r\n\r\nabc" + get + "\r\n", postRead + getRead + state(inHead, 0)},
		{post + "Content-Length: 0\r\n\r\n" + get + "\r\n", postRead + getRead + state(inHead, 0)},
		{post + "Content-Length: 2305843009213693951\r\n\r\na", postRead + state(inBody, 0)},
		{post + "Content-Length: 2305843009213693952\r\n\r\na", postRead + bad(0)},
		{post + "Content-Length: \r\n\r\n", postRead + bad(0)}, {post + "Content-Length: +1\r\n\r\n", postRead + bad(0)}, {post + "Content-Length: 0x1\r\n\r\n", postRead + bad(0)},
		{post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", postRead + bad(0)},
		{post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na", postRead + bad(0)},
		{post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", postRead + bad(0)},
		// Chunks.
		{post + "Transfer-Encoding: xchunked\r\n\r\n", postRead + bad(0)},
		{post + "Transfer-Encoding: chun\u212aed\r\n\r\n", postRead + bad(0)},
		{"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "POST,/,HTTP/1.0,[a],false " + bad(0)},
		{chunked, postRead + state(inSize, 0)},
		{chunked + "3\r\nab", postRead + state(inChunk, 0)},
		{chunked + "3\r\nabc", postRead + state(inEnd, 0)},
		{chunked + "3\r\nabc\r", postRead + state(inEnd, 1)},
		{chunked + "3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n" + get + "\r\n", postRead + getRead + state(inHead, 0)},
		{chunked + "3\r\nabcd\r\n", postRead + bad(c+6)}, {chunked + "3\r\nabc\n\n", postRead + bad(c+6)},
		{chunked + "3\nabc", postRead + bad(c)}, {chunked + "\r\n", postRead + bad(c)}, {chunked + "\n", postRead + bad(c)}, {chunked + "3;a=b\r\nabc", postRead + bad(c)}, {chunked + " 3\r\nabc", postRead + bad(c)}, {chunked + "g\r\n", postRead + bad(c)}, {chunked + "-1\r\n", postRead + bad(c)},
		{chunked + "000000000000003\r\nabc", postRead + state(inEnd, 0)},
		{chunked + "0000000000000003\r\nabc", postRead + bad(c)},
		{chunked + "fffffffffffffff\r\nabc", postRead + state(inChunk, 0)},
		{chunked + "00000000000000", postRead + state(inSize, 14)},
		{chunked + "00000000000000000", postRead + bad(c)},
		// Trailers.
		{chunked + "0\r\nA: b\r\nC: d\r\n\r\n", postRead + state(inHead, 0)},
		{chunked + "0\r\nA: b\r\n", postRead + state(inTrailer, 0)},
		{chunked + "0\r\nA: b\n\r\n", postRead + bad(c+3)}, {chunked + "0\r\n\n", postRead + bad(c+3)}, {chunked + "0\r\nA b\r\n\r\n", postRead + bad(c+3)}, {chunked + "0\r\nhOST: b\r\n\r\n", postRead + bad(c+3)}, {chunked + "0\r\nContent-Length: 1\r\n\r\n", postRead + bad(c+3)},
		// Tunnels.
		{"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n\n\x00", "CONNECT,a:1,HTTP/1.1,[a:1],false " + state(inTunnel, 0)},
		{"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 0\r\n\r\n\n", "CONNECT,a:1,HTTP/1.1,[a:1],false " + state(inTunnel, 0)},
		{"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 1\r\n\r\n\n", "CONNECT,a:1,HTTP/1.1,[a:1],false " + bad(0)},
		{"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nTransfer-Encoding: chunked\r\n\r\n\n", "CONNECT,a:1,HTTP/1.1,[a:1],false " + bad(0)},
		{get + "Upgrade: WebSocket\r\nConnection: keep-alive , Upgrade\r\n\r\n\n", "GET,/,HTTP/1.1,[a],true " + state(inTunnel, 0)},
		{get + "Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\n\n", "GET,/,HTTP/1.1,[a],true " + bad(0)},
		{get + "Upgrade: WebSocket\r\nConnection: x, Upgrade\r\n\r\n", "GET,/,HTTP/1.1,[a],true " + state(inTunnel, 0)}, {get + "Upgrade: websoc\u212aet\r\nConnection: upgrade\r\n\r\n", getRead + state(inHead, 0)},
		{get + "Upgrade: websocket\r\n\r\n", getRead + state(inHead, 0)}, {get + "Upgrade: h2c\r\nConnection: upgrade\r\n\r\n", getRead + state(inHead, 0)},
		{get + "Upgrade: websocket\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", getRead + state(inHead, 0)},
		{post + "Upgrade: websocket\r\nConnection: upgrade\r\n\r\n", postRead + state(inHead, 0)},
	} {
		for _, n := range []int{len(x.data), 1, 3} {
			if got := reading(x.data, n, 4096, func(*head) netrule.Reason { return "" }); got != x.want {
				t.Errorf("%q in pieces of %d: %s, want %s", x.data, n, got, x.want)
			}
		}
	}
	if got := reading(get+"\r\n", 99, 4096, func(*head) netrule.Reason { return AuthorityMismatch }); got != getRead+"authority_mismatch after 0" {
		t.Errorf("a target that is not allowed: %s", got)
	}
}

// TestHeadBound checks that the head of a request that arrives in parts, and all trailers of a
// body, have at most maxHead bytes.
func TestHeadBound(t *testing.T) {
	const maxHead = 100
	allow := func(*head) netrule.Reason { return "" }
	start := "GET / HTTP/1.1\r\nHost: a\r\nA: "
	for size, refused := range map[int]bool{maxHead - 1: false, maxHead: false, maxHead + 1: true} {
		got := reading(start+strings.Repeat("x", size-len(start)), 1, maxHead, allow)
		if strings.HasPrefix(got, string(RequestInvalid)) != refused {
			t.Errorf("%d bytes of a head: %s", size, got)
		}
	}
	body := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
	for _, x := range []struct {
		trailers string
		refused  bool
	}{
		{"A: " + strings.Repeat("x", maxHead-7) + "\r\n\r\n", false},
		{"A: " + strings.Repeat("x", maxHead-6) + "\r\n\r\n", true},
		{"A: x\r\nB: " + strings.Repeat("x", maxHead-13) + "\r\n\r\n", false},
		{"A: x\r\nB: " + strings.Repeat("x", maxHead-12) + "\r\n\r\n", true},
		{"A: " + strings.Repeat("x", maxHead-3), false},
		{"A: " + strings.Repeat("x", maxHead-2), true},
	} {
		for _, n := range []int{1, 1000} {
			if got := reading(body+x.trailers, n, maxHead, allow); strings.Contains(got, string(RequestInvalid)) != x.refused {
				t.Errorf("%d bytes of trailers in pieces of %d: %s", len(x.trailers), n, got)
			}
		}
	}
}

// TestToken checks the characters of tokens (RFC 9110, section 5.6.2).
func TestToken(t *testing.T) {
	const allowed = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for c := range 256 {
		if got, want := token("a"+string([]byte{byte(c)})), strings.IndexByte(allowed, byte(c)) >= 0; got != want {
			t.Errorf("%q: %v", byte(c), got)
		}
	}
	if token("") {
		t.Error("no characters are a token")
	}
}

// TestClean checks that fields whose name contains a secret, in upper or lower case, are
// removed, and that the secrets in values are replaced.
func TestClean(t *testing.T) {
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	p.hideCredential("name", "a-secret-value", "Basic dXNlcjphLXBhc3N3b3Jk") // user:a-password
	h := p.hidden.Load()
	fields := http.Header{"X-A-Secret-Value": {"1"}, "X-A-Password-2": {"1"}, "X-Other": {"is a-secret-value", "a-password", "none"}}
	h.clean(fields)
	if len(fields) != 1 || strings.Contains(fmt.Sprint(fields), "a-secret-value") || strings.Contains(fmt.Sprint(fields), "a-password") || fields["X-Other"][2] != "none" {
		t.Errorf("%v", fields)
	}
}
