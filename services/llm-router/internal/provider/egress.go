package provider

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// Egress counts the bytes that requests send: request line, header fields and body,
// encoded as in HTTP/1.1. The bytes of a body count when the transport reads them. A
// request that the transport sends again, after a connection broke, counts again. DNS,
// handshakes, and the overhead and compression of TLS and HTTP/2 are not counted. After
// End, no more of a body is read. The zero value is ready to use. Its methods may be
// called concurrently.
type Egress struct {
	// Afford is called with the size of a request before the request is sent, and again
	// before a request with a body is resent. If Afford returns false, the request is
	// not sent. nil permits every request.
	Afford func(n int64) bool

	mu    sync.Mutex
	sent  int64
	ended bool
}

var (
	// errAfford is the error for a request that Afford did not permit.
	errAfford = errors.New("the request is larger than what may still be sent for its call")
	errEnded  = errors.New("the attempt has ended")
)

// End prevents more of a body from being sent, and returns how many bytes were sent. If
// the transport is still reading a body, its next read fails.
func (e *Egress) End() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	return e.sent
}

func (e *Egress) add(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent += n
}

func (e *Egress) afford(n int64) bool { return e.Afford == nil || e.Afford(n) }

// carry sets the body of req so that its bytes are counted as they are read. It returns
// the size of the whole request.
func (e *Egress) carry(req *http.Request, body []byte) int64 {
	req.ContentLength = int64(len(body))
	head := headSize(req)
	next := func() *counted { return &counted{e: e, head: head, rest: bytes.NewReader(body)} }
	req.Body = next()
	req.GetBody = func() (io.ReadCloser, error) {
		if !e.afford(head + int64(len(body))) {
			return nil, errAfford
		}
		return next(), nil
	}
	return head + int64(len(body))
}

// counted is a request body that counts its bytes when they are read, and the bytes of
// the request's head with the first read.
type counted struct {
	e    *Egress
	head int64
	rest *bytes.Reader
}

// Read implements io.Reader. The first read also counts the head. After End it returns
// errEnded.
func (c *counted) Read(p []byte) (int, error) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.e.ended {
		return 0, errEnded
	}
	n, err := c.rest.Read(p)
	c.e.sent += c.head + int64(n)
	c.head = 0
	return n, err
}

// Close implements io.Closer. It does nothing: the body is in memory, and another reader
// may read it again.
func (*counted) Close() error { return nil }

// headSize returns the size of a request without its body, in bytes, as net/http writes
// it for HTTP/1.1 if compression is disabled.
func headSize(req *http.Request) int64 {
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	n := len(req.Method) + len(" ") + len(req.URL.RequestURI()) + len(" HTTP/1.1\r\n") + len("Host: \r\n") + len(host) + len("\r\n")
	if req.ContentLength > 0 {
		n += len("Content-Length: \r\n") + len(strconv.FormatInt(req.ContentLength, 10))
	}
	for name, values := range req.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer": // net/http writes these itself
			continue
		}
		for _, v := range values {
			n += len(name) + len(": \r\n") + len(v)
		}
	}
	return int64(n)
}
