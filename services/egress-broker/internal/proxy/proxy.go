// Package proxy carries the network flows of one call. It is a forward proxy for HTTP,
// HTTPS and TCP that allows what the rules of the call permit, dials only addresses that
// it has checked, adds credentials, removes them from responses, and records each flow.
package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/address"
)

// Config is the configuration of a Proxy. Its functions are called concurrently.
type Config struct {
	Rules     []netrule.Rule
	Addresses address.Policy
	Limits    Limits
	// Credential returns the secret that r names, for a request to host. It is called once
	// for each request that a rule with a credential allows. If Credential is nil, such
	// requests are refused.
	Credential func(ctx context.Context, r netrule.Rule, host, method, path string) (secret string, err error)
	// Begin receives each flow when it was allowed, before anything is sent. It may be nil.
	Begin func(Flow)
	// Record receives each flow when it has ended, and each denial. It may be nil.
	Record func(Flow)
	// Resolve returns the addresses of a name. The default is the system's resolver
	// without its search domains.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Dial opens a connection to an address and port. The default is net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Roots are the authorities that may sign certificates of servers. The default is
	// the system's.
	Roots *x509.CertPool
}

// Limits are the limits of one call. A value of 0 means the default.
type Limits struct {
	Bytes   int64         // maximum number of bytes of all flows, both directions together; default: no limit
	Flows   int           // maximum number of concurrent flows; the client may have twice as many connections; default 64
	Head    int           // maximum size of the head of a request or response in bytes; default 64 KiB
	Connect time.Duration // maximum time for the head of a request, for a TLS handshake, for resolving a name, and for each connection attempt; default 10 s
	Idle    time.Duration // maximum time without a byte in either direction of a flow; default 1 minute
	Total   time.Duration // maximum duration of a flow; default: no limit
}

// Proxy is the proxy of one call. Make one with New, then call Serve once.
type Proxy struct {
	cfg        Config
	rules      *netrule.Set
	ca         *authority
	server     *http.Server
	transport  *http.Transport
	configured *http.Transport // for plain HTTP with a credential; it dials configured networks only
	certified  certified       // for HTTPS with a certificate
	tunnels    *tunnelListener

	ctx    context.Context // ends with the call
	cancel context.CancelFunc

	left      atomic.Int64 // bytes that are left of the allowance; not used without a limit
	exhausted atomic.Bool
	secrets   bool                   // a rule has a credential
	hidden    atomic.Pointer[hidden] // the secrets of requests that were sent; nil if there are none
	flows     atomic.Int64           // open flows
	allowed   atomic.Int64           // flows that were allowed
	conns     atomic.Int64           // open connections of the client

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // counts the requests that serve is handling
	totals  Totals
}

// Totals are the figures of the flows of a call that have ended. Flows includes Denied.
type Totals struct {
	Flows, Denied     int64
	BytesOut, BytesIn int64
}

// New returns a proxy with a certificate authority of its own, or an error if
// the rules are invalid.
func New(cfg Config) (*Proxy, error) {
	set, err := netrule.Compile(cfg.Rules)
	if err != nil {
		return nil, err
	}
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	l := &cfg.Limits
	setDefault(&l.Flows, 64)
	setDefault(&l.Head, 64<<10)
	setDefault(&l.Connect, 10*time.Second)
	setDefault(&l.Idle, time.Minute)
	if cfg.Resolve == nil {
		cfg.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host+".") // the dot excludes search domains
		}
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	p := &Proxy{cfg: cfg, rules: set, ca: ca, tunnels: newTunnelListener()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.left.Store(l.Bytes)
	p.secrets = slices.ContainsFunc(cfg.Rules, func(r netrule.Rule) bool { return r.Credential != nil })
	p.transport = &http.Transport{
		DialContext:            p.dial,
		TLSClientConfig:        &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    l.Connect,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    l.Flows,
		IdleConnTimeout:        l.Idle,
		MaxResponseHeaderBytes: int64(l.Head),
	}
	p.configured = p.transport.Clone()
	p.configured.DialContext = p.dialConfigured
	p.server = &http.Server{
		Handler:                      http.HandlerFunc(p.serve),
		DisableGeneralOptionsHandler: true,
		TLSConfig:                    &tls.Config{NextProtos: []string{"h2", "http/1.1"}}, // makes the server accept HTTP/2
		ReadHeaderTimeout:            l.Connect,
		IdleTimeout:                  l.Idle,
		MaxHeaderBytes:               l.Head,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: l.Flows},
		ErrorLog:                     log.New(io.Discard, "", 0),
		BaseContext:                  func(net.Listener) context.Context { return p.ctx },
		ConnContext:                  connContext,
	}
	return p, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// CA returns the certificate that the clients of the proxy must trust, in PEM. Its key
// is in the memory of p only.
func (p *Proxy) CA() []byte { return p.ca.pem }

// Totals returns the figures of the flows that have ended.
func (p *Proxy) Totals() Totals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.totals
}

// Serve accepts connections from l until ctx ends, then closes l and all connections. It
// returns when all flows have ended and been recorded: nil, or the error of l if that is
// why it ended.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, p.close)
	defer stop()
	go func() { _ = p.server.Serve(p.tunnels) }()
	err := p.server.Serve(&clientListener{l, p})
	p.close()
	p.running.Wait()
	p.transport.CloseIdleConnections()
	p.configured.CloseIdleConnections()
	p.certified.close()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// close ends all flows and makes Serve return.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	_ = p.server.Close()
}

// enter registers a request that serve handles, until leave is called. Once p is closed,
// enter registers nothing and returns false.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Add(1)
	return true
}

func (p *Proxy) leave() { p.running.Done() }

// hidden is the set of secrets that are removed from responses.
type hidden struct {
	values   []string
	redactor *redact.Redactor
}

// hide adds a secret to the set, unless it is shorter than redact.MinLen.
func (p *Proxy) hide(name, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hidden.Load()
	if h == nil {
		h = &hidden{}
	}
	if r := h.redactor.With(name, value); r != h.redactor {
		h = &hidden{append(append([]string(nil), h.values...), value), r}
		p.hidden.Store(h)
	}
}
