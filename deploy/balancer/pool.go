package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	every   = 500 * time.Millisecond // pause between rounds of probes
	patient = time.Second            // timeout of name resolution, of a dial, and, in a probe, of the exchange that follows the dial
	drain   = 10 * time.Second       // time that open connections have to end at shutdown
)

// pool holds the known gateways and which of them are ready: those that were ready at
// their last probe and to which no connection has failed since. It is safe for
// concurrent use.
type pool struct {
	resolve func(context.Context) ([]string, error)
	secure  atomic.Bool // probes try TLS before plain text

	mu    sync.Mutex
	all   []string
	alive map[string]bool
	next  int
}

func newPool(resolve func(context.Context) ([]string, error)) *pool {
	return &pool{resolve: resolve, alive: map[string]bool{}}
}

// watch resolves the gateways' name and probes the addresses in rounds, with a pause of
// every between them, until ctx is done.
func (p *pool) watch(ctx context.Context) {
	for {
		p.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// round resolves and probes the gateways once. If the name cannot be resolved, it probes
// the known addresses. All gateways are probed concurrently, and a change of state is
// logged.
func (p *pool) round(ctx context.Context) {
	try, cancel := context.WithTimeout(ctx, patient)
	addrs, err := p.resolve(try)
	cancel()
	if err != nil { // name resolution failed; the known addresses may still work
		p.mu.Lock()
		addrs = p.all
		p.mu.Unlock()
	}
	slices.Sort(addrs)
	alive := make([]bool, len(addrs))
	var wg sync.WaitGroup
	for i, a := range addrs {
		wg.Go(func() { alive[i] = p.probe(a) })
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.alive
	p.all, p.alive = addrs, map[string]bool{}
	for i, a := range addrs {
		p.alive[a] = alive[i]
		if was[a] != alive[i] {
			slog.Info("gateway", "addr", a, "ready", alive[i])
		}
	}
}

// probe reports whether a gateway is ready, that is, whether it responds with a status
// other than 503, the status of a gateway that is draining. It uses the protocol that
// p.secure selects, plain text or TLS. If it receives no HTTP response, or 400 to plain
// text, it changes p.secure and tries once more.
func (p *pool) probe(addr string) bool {
	for range 2 {
		secure := p.secure.Load()
		line := exchange(addr, secure)
		if strings.HasPrefix(line, "HTTP/1.") && (secure || !strings.Contains(line, " 400 ")) { // a TLS server responds 400 to plain text
			return !strings.Contains(line, " 503 ")
		}
		p.secure.CompareAndSwap(secure, !secure)
	}
	return false
}

// exchange requests /healthz of a gateway and returns the status line of the response,
// or "" if it cannot connect or receives none in time. It does not verify the
// certificate, since a probe sends nothing secret and clients verify the certificate
// themselves.
func exchange(addr string, secure bool) string {
	c, err := net.DialTimeout("tcp", addr, patient)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patient))
	if secure {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // see above
	}
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n"); err != nil {
		return ""
	}
	line, err := bufio.NewReaderSize(c, 64).ReadString('\n')
	if err != nil {
		return ""
	}
	return line
}

// any reports whether a gateway was ready at its last probe and no connection to it has
// failed since.
func (p *pool) any() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.all, func(a string) bool { return p.alive[a] })
}

// order lists the gateways to try for one connection: the ready ones in round-robin
// order, then those that are not ready.
func (p *pool) order() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	var good, rest []string
	for i := range p.all {
		a := p.all[(p.next+i)%len(p.all)]
		if p.alive[a] {
			good = append(good, a)
		} else {
			rest = append(rest, a)
		}
	}
	return append(good, rest...)
}

// failed marks a gateway to which a connection failed as not ready until a probe finds
// it ready again. It ignores an address that is not known any more.
func (p *pool) failed(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.alive[addr]; known {
		p.alive[addr] = false
	}
}

// dial connects to the first gateway that accepts the connection. It marks each gateway
// to which the connection failed as not ready. If no gateway accepts the connection, it
// returns the error of the last attempt; if no gateway is known, it returns an error.
func (p *pool) dial() (net.Conn, error) {
	err := errors.New("no gateway is known")
	for _, a := range p.order() {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", a, patient); err == nil {
			return c, nil
		}
		p.failed(a)
	}
	return nil, err
}

// serve forwards connections until ctx is done, then waits up to drain for open ones and
// returns nil.
func serve(ctx context.Context, l net.Listener, p *pool) error {
	context.AfterFunc(ctx, func() { l.Close() })
	var wg sync.WaitGroup
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			break
		}
		if err != nil { // for example too many open files; open connections are not affected
			slog.Warn("accept", "err", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		wg.Go(func() { pass(c, p) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(drain):
	}
	return nil
}

// pass connects a client to a gateway of the pool, and copies between them until both
// directions end, or one fails. It closes both connections. If no gateway accepts a
// connection, it closes that of the client.
func pass(client net.Conn, p *pool) {
	defer client.Close()
	server, err := p.dial()
	if err != nil {
		slog.Warn("connection closed", "err", err)
		return
	}
	defer server.Close()
	var wg sync.WaitGroup
	for _, way := range [][2]net.Conn{{server, client}, {client, server}} {
		wg.Go(func() {
			to, from := way[0], way[1]
			if _, err := io.Copy(to, from); err != nil { // one direction failed, so both connections are closed
				to.Close()
				from.Close()
				return
			}
			_ = to.(interface{ CloseWrite() error }).CloseWrite()
		})
	}
	wg.Wait()
}
