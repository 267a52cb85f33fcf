package provider

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// Egress counts the bytes that requests send: request line, header fields and
// body, encoded as in HTTP/1.1, when the transport reads them. A body
// that the transport sends again, after a connection broke, counts again. What
// TLS and HTTP/2 put around it or save does not count, nor do DNS and
// handshakes. Nothing is sent after End. The zero value counts from 0; its
// methods may be called concurrently.
type Egress struct {
	// Afford is called with the size of a request before it is sent, and before
	// it is sent again; false keeps it from being sent. nil allows everything.
	Afford func(n int64) bool

	mu    sync.Mutex
	sent  int64
	ended bool
}

var (
	// errAfford is the failure of a request that Afford refused.
	errAfford = errors.New("the request is larger than what may still be sent for its call")
	errEnded  = errors.New("the attempt is over")
)

// End stops the sending and returns how many bytes were sent. A transport that
// still reads a body gets an error from then on.
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

// carry makes body the request's, so that what is sent of it counts. It returns
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

// counted is a body that counts itself, and the head before its first byte.
type counted struct {
	e    *Egress
	head int64
	rest *bytes.Reader
}

// Read implements io.Reader. The bytes of the head count with the first that are
// read; after End nothing is read.
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

// Close implements io.Closer. There is nothing to close: the body is in memory and
// may be read again.
func (*counted) Close() error { return nil }

// headSize is the size of a request up to its body, as net/http writes it for
// HTTP/1.1.
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
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer": // net/http writes its own
			continue
		}
		for _, v := range values {
			n += len(name) + len(": \r\n") + len(v)
		}
	}
	return int64(n)
}
