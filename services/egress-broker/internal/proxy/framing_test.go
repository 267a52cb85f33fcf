package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// framed passes data to framing in pieces of n bytes. It returns the accepted bytes, the number
// of heads, the last state, and whether framing refused the rest.
func framed(data []byte, n int) (accepted []byte, heads int, last state, refused bool) {
	f := &framing{maxHead: 4 << 10, check: func(*head) netrule.Reason { heads++; return "" }}
	var in []byte
	for len(data) > 0 {
		k := min(n, len(data))
		in, data = append(in, data[:k]...), data[k:]
		for len(in) > 0 {
			k, err := f.accept(in)
			if err != nil {
				return accepted, heads, f.state, true
			}
			if k == 0 {
				break
			}
			accepted, in = append(accepted, in[:k]...), in[k:]
		}
	}
	return accepted, heads, f.state, false
}

// FuzzFraming compares framing with net/http: unless one of them rejects a request or a tunnel
// begins, net/http reads as many requests from the accepted bytes as framing, and the whole of
// each body that is complete. The sizes of the pieces make no difference.
func FuzzFraming(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.0\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\x81\x00", "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\nxyz", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		accepted, heads, last, refused := framed(data, len(data)+1)
		if n = n%64 + 1; n > 0 {
			again, headsAgain, _, refusedAgain := framed(data, n)
			if !bytes.Equal(accepted, again) || refused != refusedAgain || heads != headsAgain {
				t.Fatalf("%q accepted at once, %q in pieces of %d", accepted, again, n)
			}
		}
		if last == inTunnel {
			return
		}
		br := bufio.NewReader(bytes.NewReader(accepted))
		read := 0
		for {
			if _, err := br.Peek(1); err != nil {
				break
			}
			req, err := http.ReadRequest(br)
			if err != nil {
				return // net/http is stricter in places, for example with versions and targets
			}
			read++
			if _, err := io.Copy(io.Discard, req.Body); err != nil && read == heads && last != inHead {
				break // the last body is incomplete
			} else if err != nil {
				t.Fatalf("%q: body: %v", accepted, err)
			}
		}
		if !refused && read != heads {
			t.Fatalf("%q: net/http reads %d requests, framing %d", accepted, read, heads)
		}
	})
}
