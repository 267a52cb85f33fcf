package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// maxBody is the maximum number of bytes of a response that is not a stream, and of an
// event of a stream.
const maxBody = 8 << 20

// newTransport returns the transport of one server. It does not connect to link-local
// addresses, at which cloud providers serve credentials of a machine, nor to multicast and
// unspecified ones, and it uses no proxy.
func newTransport() http.RoundTripper {
	d := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if ip := a.Addr().Unmap(); ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
			return fmt.Errorf("address %s is link-local, multicast or unspecified, and no MCP server may have such an address", ip)
		}
		return nil
	}}
	return &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10}
}

// errUnauthorized is the cause of the error of a request that the server rejected with status 401.
var errUnauthorized = errors.New("status 401")

// errStream is the cause in place of errUnauthorized if the request was for a stream of a session, so that
// the server may execute a request that was sent before.
var errStream = fmt.Errorf("%w for a stream", errUnauthorized)

// Rejected reports whether err is that of a request whose credential the server rejected, before it has
// executed the request.
func Rejected(err error) bool { return errors.Is(err, errUnauthorized) && !errors.Is(err, errStream) }

// withHeaders adds headers to each request. It limits the size of responses that are not
// streams, and counts the notifications in streams.
type withHeaders struct {
	base    http.RoundTripper
	headers *atomic.Pointer[http.Header]
	sent    *atomic.Int64 // number of notifications in streams
	server  string        // name of the server
}

// RoundTrip implements http.RoundTripper. A response with status 401 is an error that wraps an
// *Error.
func (t *withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for k, v := range *t.headers.Load() {
		r.Header[k] = v
	}
	res, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusUnauthorized {
		_ = res.Body.Close()
		cause := errUnauthorized
		if r.Method == http.MethodGet && r.Header.Get("Mcp-Session-Id")+r.Header.Get("Last-Event-Id") != "" {
			cause = errStream
		}
		return nil, &Error{contract.CodeUpstreamRefused, "the server rejected the credential of the request (status 401): log in with `binnacle mcp login " + t.server + "`, or store another secret for its header", cause}
	}
	if res.StatusCode/100 != 2 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body = &limited{res.Body, maxBody}
	} else {
		res.Body = &counted{ReadCloser: res.Body, n: t.sent}
	}
	return res, nil
}

// notifications are the names of the methods of notifications that belong to a request.
var notifications = [][]byte{[]byte("notifications/progress"), []byte("notifications/message")}

// counted counts the notifications in a stream. The SDK passes notifications to their
// handlers concurrently with the response that follows them in the stream, so the number
// determines when all of them have been handled.
type counted struct {
	io.ReadCloser
	n    *atomic.Int64
	tail []byte // end of the bytes that were read, which may be the beginning of a name
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if n > 0 {
		b := append(c.tail, p[:n]...)
		for _, name := range notifications {
			c.n.Add(int64(bytes.Count(b, name)))
		}
		// So that no name is counted twice, the rest begins after the last name that was
		// counted, and is shorter than the longest name.
		rest := b[max(0, len(b)-len(notifications[0])+1):]
		for _, name := range notifications {
			if i := bytes.LastIndex(b, name); i >= 0 && i+len(name) > len(b)-len(rest) {
				rest = b[i+len(name):]
			}
		}
		c.tail = append([]byte(nil), rest...)
	}
	return n, err
}

// output is the standard output of a command. It keeps the error with which the output ended.
type output struct {
	counted
	x *session
}

// Read implements io.Reader.
func (o *output) Read(p []byte) (int, error) {
	n, err := o.counted.Read(p)
	if err != nil {
		o.x.broken.CompareAndSwap(nil, &err)
	}
	return n, err
}

// limited is a body whose Read fails with errTooLarge after more than left bytes.
type limited struct {
	io.ReadCloser
	left int
}

var errTooLarge = errors.New("the response has more than 8 MiB")

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if l.left -= n; l.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
