// Package dial opens connections through the proxy of a call, for protocols other than
// HTTP. The egress rule of the host must have the mode tcp or passthrough.
package dial

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// connectTime is the timeout for connecting, and then for the proxy's response to CONNECT.
const connectTime = 30 * time.Second

// Context opens a connection to addr (HOST:PORT) by the method CONNECT of the proxy that
// HTTP_PROXY names, or directly if it names none. If the proxy refuses the tunnel, the error is
// a *pack.Error with the proxy's reason or, without a reason, the status of its response.
func Context(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTime}
	proxy, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil || proxy.Host == "" {
		return d.DialContext(ctx, network, addr)
	}
	c, err := d.DialContext(ctx, "tcp", proxy.Host)
	if err != nil {
		return nil, err
	}
	if err := connect(c, addr); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// connect requests a tunnel to addr on a connection to the proxy.
func connect(c net.Conn, addr string) error {
	if err := c.SetDeadline(time.Now().Add(connectTime)); err != nil {
		return err
	}
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if err := r.Write(c); err != nil {
		return err
	}
	// In some protocols, the server sends the first message. The reader must not consume bytes
	// of that message, so it reads single bytes.
	resp, err := http.ReadResponse(bufio.NewReaderSize(oneByte{c}, 16), r)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Request = &http.Request{URL: &url.URL{Host: addr}}
		if e := pack.Refusal(resp); e != nil {
			return e
		}
		return pack.Fail(pack.HandlerFailed, "%s cannot be reached: the proxy responded with status %d", addr, resp.StatusCode)
	}
	return c.SetDeadline(time.Time{})
}

// oneByte is a connection of which each read returns at most one byte.
type oneByte struct{ net.Conn }

func (o oneByte) Read(p []byte) (int, error) {
	if len(p) > 1 {
		p = p[:1]
	}
	return o.Conn.Read(p)
}
