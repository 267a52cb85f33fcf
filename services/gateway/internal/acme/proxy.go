package acme

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"
)

// proxy is an HTTP proxy on a loopback address that forwards each tunnel to another proxy, whose
// connections a function opens. It exists because the client of certmagic takes the URL of a proxy
// and no function. It requires a password, which only this process knows.
type proxy struct {
	dial     func(context.Context) (net.Conn, error)
	log      *slog.Logger
	user     *url.Userinfo
	listener net.Listener
	server   *http.Server
	idle     time.Duration // time after which a tunnel without data is closed
}

const (
	openTime = 20 * time.Second // maximum time until a tunnel is open
	idleTime = 15 * time.Second // because the client of certmagic keeps connections, and the egress-broker records a flow at its end
)

func newProxy(dial func(context.Context) (net.Conn, error), log *slog.Logger) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{dial: dial, log: log, user: url.UserPassword("acme", rand.Text()), listener: l, idle: idleTime}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: openTime}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

func (p *proxy) close() { _ = p.server.Close() }

// url returns the URL of the proxy, for http.Transport.Proxy.
func (p *proxy) url(*http.Request) (*url.URL, error) {
	return &url.URL{Scheme: "http", Host: p.listener.Addr().String(), User: p.user}, nil
}

// permitted reports whether a request has the password of the proxy.
func (p *proxy) permitted(r *http.Request) bool {
	name, password, ok := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth()
	want, _ := p.user.Password()
	return ok && name == p.user.Username() && subtle.ConstantTimeCompare([]byte(password), []byte(want)) == 1
}

// ServeHTTP opens a tunnel for a request CONNECT, and copies bytes until one side closes it or
// it is idle. It rejects every other request.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !p.permitted(r):
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	case r.Method != http.MethodConnect:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), openTime)
	defer cancel()
	far, err := p.dial(ctx)
	if err != nil {
		p.log.Warn("the certificate authority cannot be reached", "err", err)
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	defer near.Close()
	// The response to CONNECT is that of the other proxy.
	if _, err := io.WriteString(far, "CONNECT "+r.Host+" HTTP/1.1\r\nHost: "+r.Host+"\r\n\r\n"); err != nil {
		return
	}
	end := time.AfterFunc(p.idle, func() { _ = far.Close() })
	defer end.Stop()
	go func() {
		_, _ = io.Copy(busyWriter{far, end, p.idle}, buffered)
		_ = far.Close()
	}()
	_, _ = io.Copy(busyWriter{near, end, p.idle}, far)
}

// busyWriter is a writer whose writes postpone the end of a tunnel.
type busyWriter struct {
	to   io.Writer
	end  *time.Timer
	idle time.Duration
}

// Write implements io.Writer.
func (w busyWriter) Write(b []byte) (int, error) {
	w.end.Reset(w.idle)
	return w.to.Write(b)
}
