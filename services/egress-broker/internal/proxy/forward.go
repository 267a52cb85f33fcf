package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// serve handles every request of the client, in tunnels and outside of them.
// Once the proxy is closed, it responds with status 503.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer p.leave()
	t := connOf(r.Context()).tunnel
	if t == nil && r.Method == http.MethodConnect {
		p.connect(w, r)
		return
	}
	p.forward(w, r, t)
}

// forward decides one request, and sends it to its server if the rules allow it.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, t *tunnel) {
	rec, why := target(r, t)
	f, full := p.begin(r.Context(), rec)
	defer f.end()
	f.release(w, r)
	var found netrule.Rule
	if why == "" {
		why = full
	}
	if why == "" {
		found, why = p.rules.Request(rec.Mode, rec.Host, rec.Port, rec.Method, rec.Path)
	}
	if why != "" {
		f.refuse(w, why)
		return
	}
	e := &exchange{p: p, f: f, w: w, host: rec.Host, port: rec.Port, mode: rec.Mode, rule: found, query: r.URL.RawQuery}
	e.upgrade = r.ProtoMajor == 1 && websocket(r.Method, r.Header["Upgrade"], r.Header["Connection"])
	if found.Credential != nil {
		if err := e.authorize(rec.Path); err != nil {
			f.refuse(w, CredentialFailed)
			return
		}
	}
	f.announce()
	defer func() {
		if v := recover(); v != nil { // httputil aborts the response if it cannot be completed
			f.blame(ClientFailed)
			panic(v)
		}
	}()
	e.send(r)
}

// target returns the record of a request with its host, port, mode, method, path and
// query, and a reason if they are invalid.
func target(r *http.Request, t *tunnel) (Flow, netrule.Reason) {
	rec := Flow{Method: r.Method, Path: r.URL.EscapedPath(), Mode: netrule.HTTP}
	if rec.Path == "" {
		rec.Path = "/"
	}
	if r.URL.RawQuery != "" {
		sum := sha256.Sum256([]byte(r.URL.RawQuery))
		rec.Query = hex.EncodeToString(sum[:])
	}
	if t != nil {
		rec.Host, rec.Port, rec.Mode = t.host, t.port, t.mode
		if r.URL.Host != "" || r.URL.Opaque != "" || !strings.HasPrefix(rec.Path, "/") {
			return rec, RequestInvalid
		}
		for _, h := range append(r.Header["Host"], r.Host) { // HTTP/2 may have a Host field beside :authority
			if why := sameAuthority(h, defaultPort(t.mode), t.host, t.port); why != "" {
				return rec, why
			}
		}
		return rec, ""
	}
	if r.URL.Scheme != "http" || r.URL.Opaque != "" || r.URL.User != nil {
		return rec, RequestInvalid
	}
	var err error
	if rec.Host, _, rec.Port, err = netrule.ParseAuthority(r.URL.Host, 80); err != nil {
		return rec, HostInvalid
	}
	return rec, ""
}

func defaultPort(m string) int {
	if m == netrule.HTTP {
		return 80
	}
	return 443
}

// exchange is one request that was allowed, and its response.
type exchange struct {
	p       *Proxy
	f       *flow
	w       http.ResponseWriter
	host    string
	port    int
	mode    string
	rule    netrule.Rule
	query   string // raw
	upgrade bool
	header  string // name of the credential's header field; empty if the request has none
	value   string
	by      *http.Transport // connections with the certificate of the credential; nil if it is none
}

// authorize gets the secret of the rule and makes it the credential of the request. From then
// on, the secret is removed from the responses of the call, unless it is too short for that
// (see hide).
func (e *exchange) authorize(path string) error {
	if e.p.cfg.Credential == nil {
		return errors.New("no credentials")
	}
	secret, err := e.p.cfg.Credential(e.f.ctx, e.rule, e.host, e.f.rec.Method, path)
	if err != nil {
		return err
	}
	if e.rule.Credential.Certificate() {
		if e.by, err = e.p.certified.transport(e.p.transport, e.rule.Credential.Secret, secret); err != nil {
			return err
		}
		e.used()
		return nil // the server never has the private key, so it cannot return it
	}
	e.header, e.value = e.rule.Credential.Header, e.rule.Credential.Value(secret)
	if strings.ContainsFunc(e.value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return errors.New("the secret has a character that a header field cannot have")
	}
	e.p.hideCredential(e.rule.Credential.Secret, secret, e.value)
	e.used()
	return nil
}

// used makes the flow name the credential.
func (e *exchange) used() { e.f.set(func(rec *Flow) { rec.Credential = e.rule.Credential.Secret }) }

// transport returns the transport for the request. Plain HTTP with a credential has a
// transport of its own, so that it uses only connections that dialConfigured has opened, and
// so has each certificate.
func (e *exchange) transport() *http.Transport {
	if e.by != nil {
		return e.by
	}
	if e.header != "" && e.mode == netrule.HTTP {
		return e.p.configured
	}
	return e.p.transport
}

func (e *exchange) send(r *http.Request) {
	r = r.WithContext(e.f.ctx)
	if !e.upgrade {
		r.Header.Del("Upgrade") // the proxy cannot check requests in another protocol
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &requestBody{r.Body, e.f, func() http.Header { return r.Trailer }}
	}
	(&httputil.ReverseProxy{
		Rewrite:        e.rewrite,
		Transport:      carrier{e.transport()},
		ModifyResponse: e.response,
		ErrorHandler:   e.f.refuseError,
		ErrorLog:       log.New(io.Discard, "", 0),
		FlushInterval:  -1,
		BufferPool:     buffers,
	}).ServeHTTP(e.w, r)
}

// rewrite makes the request for the server.
func (e *exchange) rewrite(r *httputil.ProxyRequest) {
	u := r.Out.URL
	u.Scheme, u.Host, u.RawQuery = "http", authorityOf(e.host, e.port), e.query
	if e.mode == netrule.Terminate {
		u.Scheme = "https"
	}
	r.Out.Host = u.Host
	if e.port == defaultPort(e.mode) {
		r.Out.Host = strings.TrimSuffix(u.Host, fmt.Sprintf(":%d", e.port))
	}
	r.Out.Trailer = r.In.Trailer // http.Server fills it when the body has been read
	r.Out.Header.Del("Host")
	r.Out.Header.Del("Expect") // the server of this proxy has responded to it
	if e.p.secrets {           // a secret in the response must be readable
		r.Out.Header.Set("Accept-Encoding", "identity")
		r.Out.Header.Del("Sec-Websocket-Extensions") // an extension may compress
	}
	if e.p.hidden.Load() != nil { // a secret must not be returned in several parts
		r.Out.Header.Del("Range")
		r.Out.Header.Del("If-Range")
	}
	if e.header != "" {
		for name := range r.Out.Header { // servers that follow CGI read "_" as "-"
			if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), strings.ReplaceAll(e.header, "_", "-")) {
				delete(r.Out.Header, name)
			}
		}
		r.Out.Header.Set(e.header, e.value)
		r.Out.Trailer = nil // a trailer could repeat the field
	}
}

// carrier sends requests, and counts their heads.
type carrier struct{ transport *http.Transport }

func (t carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	f := flowOf(r.Context())
	if err := f.take(&f.out, headSize(r.Header, r.Method+" "+r.URL.RequestURI()+" HTTP/1.1", "Host: "+r.Host)); err != nil {
		return nil, err
	}
	ctx := httptrace.WithClientTrace(bare{r.Context()}, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		f.set(func(rec *Flow) { rec.Address = connAddr(i.Conn) })
	}})
	return t.transport.RoundTrip(r.WithContext(ctx))
}

// bare is a context without values. It hides the trace with which httputil would pass on
// responses with a status of 1xx, whose fields are not searched for secrets.
type bare struct{ context.Context }

func (bare) Value(any) any { return nil }

// headSize returns the size of the lines and header fields in HTTP/1.1.
func headSize(h http.Header, lines ...string) int {
	n := 2
	for _, l := range lines {
		n += len(l) + 2
	}
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}

// refuse marks the flow as denied, and responds to its request, which was not sent.
func (f *flow) refuse(w http.ResponseWriter, why netrule.Reason) {
	f.deny(why)
	f.out.Store(0)
	f.respond(w, why)
}

// refuseError responds to a request that failed before its response began.
func (f *flow) refuseError(w http.ResponseWriter, r *http.Request, err error) {
	why := reasonOf(err)
	if r.Context().Err() != nil {
		why = ClientFailed
		if bad := connOf(r.Context()).bad.Load(); bad != nil {
			why = bad.reason
		}
	}
	switch why = f.blame(why); why {
	case netrule.AddressBlocked, HostInvalid:
		f.set(func(rec *Flow) { rec.Credential = "" }) // it was not sent
		f.refuse(w, why)
		return
	case ResolveFailed, ConnectFailed, CertificateInvalid:
		f.out.Store(0)
	}
	f.respond(w, why)
}

func (f *flow) respond(w http.ResponseWriter, why netrule.Reason) {
	var rec Flow
	f.set(func(r *Flow) { r.Status = statusOf(why); rec = *r })
	writeRefusal(w, why, rec)
}

// statusOf returns the status of the response to a request that was denied or
// that failed.
func statusOf(r netrule.Reason) int {
	switch r {
	case RequestInvalid, HostInvalid, AuthorityMismatch:
		return http.StatusBadRequest
	case BytesExceeded, FlowsExceeded:
		return http.StatusTooManyRequests
	case ResolveFailed, ConnectFailed, CertificateInvalid, UpstreamFailed, EncodingUnknown, CredentialEchoed:
		return http.StatusBadGateway
	case CredentialFailed, Cancelled:
		return http.StatusServiceUnavailable
	case TimedOut:
		return http.StatusGatewayTimeout
	}
	return http.StatusForbidden
}

// writeRefusal writes a response with the reason in the Proxy-Status field (RFC 9209)
// and in the body. The connection is closed afterwards.
func writeRefusal(w http.ResponseWriter, why netrule.Reason, rec Flow) {
	h := w.Header()
	clear(h)
	h.Set("Proxy-Status", fmt.Sprintf("egress-broker; error=%s; details=%q", netrule.RequestDenied, why))
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Connection", "close")
	w.WriteHeader(statusOf(why))
	_, _ = fmt.Fprintf(w, "egress: %s: %s %s\n", why, rec.Method, authorityOf(rec.Host, rec.Port))
}

// bufferPool is a pool of buffers for copies.
type bufferPool struct{ pool sync.Pool }

var buffers = &bufferPool{sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}}

func (p *bufferPool) Get() []byte  { return *p.pool.Get().(*[]byte) }
func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
