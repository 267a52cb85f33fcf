package egress

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"
)

// ExportSocket is the extension of the sockets of exports, of which each egress-broker has one.
const ExportSocket = ".export"

// Connect opens a tunnel to the address to, a host and a port, through a connection to a proxy of the
// egress-broker, and returns the tunnel. It closes c if there is none: after an error, when ctx ends,
// or if the proxy does not open the tunnel. In the last case it returns the proxy's response, whose
// body was read.
func Connect(ctx context.Context, c net.Conn, to string) (net.Conn, *http.Response, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	r := bufio.NewReader(c)
	req, err := http.NewRequestWithContext(ctx, http.MethodConnect, "http://"+to, nil)
	var resp *http.Response
	if err == nil {
		err = req.Write(c)
	}
	if err == nil {
		resp, err = http.ReadResponse(r, req)
	}
	if !stop() {
		err = ctx.Err()
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		_ = c.Close()
		return nil, resp, err
	}
	return &tunnel{c, r}, nil, nil
}

// tunnel is a connection whose first bytes may be in a buffer.
type tunnel struct {
	net.Conn
	r *bufio.Reader
}

// SyscallConn implements syscall.Conn, if the connection to the proxy does.
func (t *tunnel) SyscallConn() (syscall.RawConn, error) {
	c, ok := t.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn()
}

// Read implements net.Conn.
func (t *tunnel) Read(b []byte) (int, error) { return t.r.Read(b) }
