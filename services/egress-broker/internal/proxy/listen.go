package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
)

// tunnel is a CONNECT tunnel whose content is HTTP that the proxy reads.
type tunnel struct {
	host string
	port int
	mode string // netrule.HTTP or netrule.Terminate
}

// clientListener accepts the connections of the client.
type clientListener struct {
	net.Listener
	p *Proxy
}

func (l *clientListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.p.conns.Add(1) > int64(l.p.cfg.Limits.Flows)*2 {
			l.p.conns.Add(-1)
			_ = c.Close()
			l.p.deny(Flow{Reason: FlowsExceeded})
			continue
		}
		counted := &countedConn{Conn: c, p: l.p}
		counted.stop = context.AfterFunc(l.p.ctx, func() { _ = c.Close() })
		return &clientConn{Conn: counted, p: l.p, check: checkOuter}, nil
	}
}

// countedConn is a connection of the client that counts as open until it is closed. It is
// closed at the end of the call at the latest.
type countedConn struct {
	net.Conn
	p    *Proxy
	stop func() bool
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.stop(); c.p.conns.Add(-1) })
	return c.Conn.Close()
}

// tunnelListener is a listener that returns the connections inside tunnels.
type tunnelListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newTunnelListener() *tunnelListener {
	return &tunnelListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *tunnelListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *tunnelListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *tunnelListener) Addr() net.Addr { return &net.UnixAddr{Name: "tunnel", Net: "unix"} }

// add passes a connection to the server. It closes the connection if l is closed.
func (l *tunnelListener) add(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		_ = c.Close()
	}
}

type connKey struct{}

// connContext stores the *clientConn of a server's connection in its context. HTTP/2 runs
// on a *tls.Conn, which has a *clientConn below it.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

func connOf(ctx context.Context) *clientConn { return ctx.Value(connKey{}).(*clientConn) }
