package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// connect serves a CONNECT request.
func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	rec := Flow{Method: http.MethodConnect}
	host, _, port, err := netrule.ParseAuthority(r.RequestURI, 0)
	if err != nil {
		p.refuseTunnel(w, rec, HostInvalid)
		return
	}
	rec.Host, rec.Port = host, port
	found, why := p.rules.Tunnel(host, port)
	if why != "" {
		p.refuseTunnel(w, rec, why)
		return
	}
	rec.Mode = found.Mode
	if found.Mode == netrule.Passthrough || found.Mode == netrule.TCP {
		p.connectRaw(w, r, rec)
		return
	}
	c, err := accept(w)
	if err != nil {
		return
	}
	t := &tunnel{host, port, found.Mode}
	if t.mode == netrule.Terminate {
		if c, err = p.terminate(r.Context(), c, t); err != nil {
			rec.Reason = TLSInvalid
			if f, ok := errors.AsType[*failure](err); ok {
				rec.Reason = f.reason
			}
			p.deny(rec)
			return
		}
	} else {
		c = &clientConn{Conn: c, p: p, tunnel: t, check: checkInner(t)}
	}
	p.tunnels.add(c)
}

func (p *Proxy) refuseTunnel(w http.ResponseWriter, rec Flow, why netrule.Reason) {
	rec.Reason, rec.Status = why, statusOf(why)
	writeRefusal(w, why, rec)
	p.deny(rec)
}

// accept sends the response to a CONNECT request, and returns the connection.
func accept(w http.ResponseWriter) (net.Conn, error) {
	c, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	if n := buf.Reader.Buffered(); n > 0 {
		early, _ := buf.Reader.Peek(n) // it has n bytes
		c = &prefixed{c, io.MultiReader(bytes.NewReader(bytes.Clone(early)), c)}
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// prefixed is a connection of which some bytes have been read.
type prefixed struct {
	net.Conn
	r io.Reader // the bytes that have been read, then those of Conn
}

func (c *prefixed) Read(b []byte) (int, error) { return c.r.Read(b) }

// terminate completes the TLS handshake with the client, and returns the connection for
// HTTP/2 or HTTP/1, as negotiated. It closes c if it fails.
func (p *Proxy) terminate(ctx context.Context, c net.Conn, t *tunnel) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Limits.Connect)
	defer cancel()
	below := &clientConn{Conn: c, p: p, tunnel: t}
	s := tls.Server(below, &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if err := checkName(h.ServerName, t.host); err != nil {
				return nil, err
			}
			return p.ca.leaf(t.host)
		},
	})
	if err := s.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	if s.ConnectionState().NegotiatedProtocol == "h2" {
		return s, nil
	}
	return &clientConn{Conn: s, p: p, tunnel: t, check: checkInner(t)}, nil
}

// checkName returns an error unless the server name of a ClientHello is the host. A
// ClientHello for an address has no server name (RFC 6066, section 3).
func checkName(name, host string) error {
	canonical, addr, err := netrule.ParseHost(host)
	if err == nil && addr.IsValid() && name == "" {
		return nil
	}
	if name, _, err = netrule.ParseHost(name); err != nil || name != canonical {
		return &failure{SNIMismatch, errors.New("the server name differs from the host of the tunnel")}
	}
	return nil
}

// connectRaw serves a CONNECT request for a tunnel whose content the proxy does not read,
// apart from the first message of TLS in mode Passthrough.
func (p *Proxy) connectRaw(w http.ResponseWriter, r *http.Request, rec Flow) {
	f, why := p.begin(r.Context(), rec)
	defer f.end()
	if why != "" {
		f.refuse(w, why)
		return
	}
	f.announce()
	up, err := p.dial(f.ctx, "tcp", authorityOf(rec.Host, rec.Port))
	if err != nil {
		f.refuseError(w, r, err)
		return
	}
	defer func() { _ = up.Close() }()
	f.set(func(rec *Flow) { rec.Address, rec.Status = connAddr(up), http.StatusOK })
	c, err := accept(w)
	if err != nil {
		f.blame(ClientFailed)
		return
	}
	defer func() { _ = c.Close() }()
	f.mu.Lock()
	f.unlock = func() { _ = c.Close(); _ = up.Close() }
	f.mu.Unlock()
	stop := context.AfterFunc(f.ctx, f.unlock) // the end of the call ends the context
	defer stop()
	if rec.Mode == netrule.Passthrough {
		if err := p.passHello(f, c, up); err != nil {
			f.blame(reasonOf(err))
			return
		}
	}
	splice(f, c, up)
}

// passHello reads the client's first TLS message, checks its server name and sends it to
// the server.
func (p *Proxy) passHello(f *flow, c, up net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(p.cfg.Limits.Connect))
	name, read, err := readHello(c)
	_ = c.SetReadDeadline(time.Time{})
	if err != nil {
		return &failure{TLSInvalid, err}
	}
	if err := checkName(name, f.rec.Host); err != nil {
		f.deny(SNIMismatch)
		return err
	}
	if err := f.take(&f.out, len(read)); err != nil {
		return err
	}
	_, err = up.Write(read)
	return err
}

var errRead = errors.New("the message has been read")

// readHello returns the server name of a ClientHello, and all bytes that were read.
// crypto/tls parses the message. Nothing is sent.
func readHello(c net.Conn) (name string, read []byte, err error) {
	rec := &recorder{Conn: c}
	got := false
	err = tls.Server(rec, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, got = h.ServerName, true
		return nil, errRead
	}}).Handshake()
	if !got {
		return "", nil, err
	}
	return name, rec.read.Bytes(), nil
}

// recorder records the bytes that are read, and sends nothing.
type recorder struct {
	net.Conn
	read bytes.Buffer
}

func (c *recorder) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Write(b[:n])
	return n, err
}

func (c *recorder) Write(b []byte) (int, error) { return len(b), nil }

// splice copies between the client and the server until both directions have ended. A side that has
// closed the connection in order has not failed because the other one then sends the alert by which it
// ends TLS.
func splice(f *flow, c, up net.Conn) {
	left := false // the client has closed its direction
	done := make(chan struct{})
	go func() {
		defer close(done)
		left = pipe(f, &f.out, up, c, ClientFailed, UpstreamFailed, func(err error, _ int) bool { return closedInOrder(err) })
	}()
	pipe(f, &f.in, c, up, UpstreamFailed, ClientFailed, func(_ error, n int) bool {
		select {
		case <-done: // soon, because the client has closed the connection
			return left && n+rest(up) <= maxAlert
		case <-time.After(lastWrite):
			return false
		}
	})
	<-done
}

// maxAlert is the maximum number of bytes of the alert by which a side ends TLS, and more than that
// of the usual ciphers.
const maxAlert = 64

// rest reads what the server sends until it closes its direction, at most maxAlert bytes more than
// that or for lastWrite, and returns the number of bytes.
func rest(up net.Conn) int {
	_ = up.SetReadDeadline(time.Now().Add(lastWrite))
	n, err := io.ReadFull(up, make([]byte, maxAlert+1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return maxAlert + 1 // it may send more
	}
	return n
}

// pipe copies from one connection to the other. At the end of from, it closes the writing side of to,
// and returns true. An error ends the flow with the reason of the side that failed, unless over returns
// true for the error of a write of n bytes.
func pipe(f *flow, counter *atomic.Int64, to, from net.Conn, reading, writing netrule.Reason, over func(err error, n int) bool) (ended bool) {
	buf := buffers.Get()
	defer buffers.Put(buf)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if f.take(counter, n) != nil {
				return false
			}
			if _, err := to.Write(buf[:n]); err != nil {
				if !over(err, n) {
					f.fail(f.blame(writing))
				}
				return false
			}
		}
		if errors.Is(err, io.EOF) || closedInOrder(err) {
			closeWrite(to)
			return true
		}
		if err != nil {
			f.fail(f.blame(reading))
			return false
		}
	}
}

// closedInOrder reports whether err, the error of a TCP connection, means that the other side had
// closed its direction before it reset the connection. Linux then returns EPIPE, and ECONNRESET
// (once) if the other side had not.
func closedInOrder(err error) bool { return errors.Is(err, syscall.EPIPE) }

// closeWrite closes the writing side of c, or all of c if it has no method
// CloseWrite.
func closeWrite(c net.Conn) {
	for {
		switch x := c.(type) {
		case interface{ CloseWrite() error }:
			_ = x.CloseWrite()
			return
		case *prefixed:
			c = x.Conn
		case *clientConn:
			c = x.Conn
		case *countedConn:
			c = x.Conn
		default:
			_ = c.Close()
			return
		}
	}
}
