package proxy

import (
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/redact"
)

// hideCredential adds a secret to p.hidden. If value, the header field with the secret, is for
// Basic authentication (RFC 7617), it adds also the password in it.
func (p *Proxy) hideCredential(name, secret, value string) {
	if basic, ok := cutPrefixFold(value, "basic "); ok {
		if b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(basic)); err == nil {
			_, password, _ := strings.Cut(string(b), ":")
			p.hide(name, password)
		}
	}
	p.hide(name, secret)
}

// requestBody counts the bytes of a request's body and trailers.
type requestBody struct {
	io.ReadCloser
	f        *flow
	trailers func() http.Header // valid at the end of the body
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		if err := b.f.take(&b.f.out, n); err != nil {
			return 0, err
		}
	}
	if t := b.trailers(); errors.Is(err, io.EOF) && len(t) > 0 {
		if err := b.f.take(&b.f.out, headSize(t)); err != nil {
			return 0, err
		}
	}
	return n, err
}

// response changes a response before it is sent to the client.
func (e *exchange) response(res *http.Response) error {
	e.f.set(func(rec *Flow) { rec.Status = res.StatusCode })
	res.Header.Del("Alt-Svc") // names servers that the client cannot reach
	if e.p.secrets {
		if err := e.redact(res); err != nil {
			return err
		}
	}
	if err := e.f.take(&e.f.in, headSize(res.Header, res.Proto+" "+res.Status)); err != nil {
		return err
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		rw, ok := res.Body.(io.ReadWriteCloser)
		if !ok {
			return &failure{UpstreamFailed, errors.New("the response has no connection")}
		}
		res.Body = &upgraded{ReadWriteCloser: rw, f: e.f, scan: scan{p: e.p}}
		return nil
	}
	if e.upgrade {
		res.Header.Set("Connection", "close") // framing does not parse the requests that follow
	}
	res.Body = &responseBody{ReadCloser: res.Body, e: e, res: res, scan: scan{p: e.p}}
	return nil
}

// scan removes the secrets of the call from a stream. For each piece of the stream these are
// the secrets that requests of the call have carried until then, also requests on other
// connections.
type scan struct {
	p      *Proxy
	hidden *hidden
	stream *redact.Stream
}

// next adds b, the next piece of the stream, and returns the bytes that may be passed on
// now. If end is true, it returns all that remain.
func (s *scan) next(b []byte, end bool) []byte {
	var out []byte
	if h := s.p.hidden.Load(); h != s.hidden {
		if s.stream != nil {
			out = s.stream.End()
		}
		s.hidden, s.stream = h, h.redactor.Stream()
	}
	if s.stream == nil {
		return b
	}
	out = append(out, s.stream.Next(b)...)
	if end {
		out = append(out, s.stream.End()...)
	}
	return out
}

func (s *scan) found() bool { return s.stream != nil && s.stream.Found() }

// redact removes the secrets from the header fields, and decompresses the body, because
// secrets are found in plain text only. It returns an error for a body in an encoding
// other than gzip and identity.
func (e *exchange) redact(res *http.Response) error {
	if h := e.p.hidden.Load(); h != nil {
		h.clean(res.Header)
	}
	if res.StatusCode == http.StatusSwitchingProtocols || e.f.rec.Method == http.MethodHead || res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified {
		return nil
	}
	switch encoding := strings.ToLower(strings.Join(res.Header.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		res.Body = &gzipBody{body: res.Body}
		res.Header.Del("Content-Encoding")
	default:
		return &failure{EncodingUnknown, errors.New("content encoding " + encoding)}
	}
	res.Header.Del("Content-Length") // the mark that replaces a secret has another length
	res.ContentLength = -1
	return nil
}

// clean removes the secrets from header or trailer fields. It removes a field whose name
// contains one.
func (h *hidden) clean(fields http.Header) {
	for name, values := range fields {
		for _, v := range h.values {
			if strings.Contains(strings.ToLower(name), strings.ToLower(v)) {
				delete(fields, name)
			}
		}
		if h.redactor.String(name) != name {
			delete(fields, name)
		}
		for i, v := range values {
			values[i] = h.redactor.String(v)
		}
	}
}

// gzipBody decompresses a body. The first Read reads the header of the format.
type gzipBody struct {
	body io.ReadCloser
	r    *gzip.Reader
}

func (b *gzipBody) Read(p []byte) (int, error) {
	if b.r == nil {
		r, err := gzip.NewReader(b.body)
		if err != nil {
			return 0, err
		}
		b.r = r
	}
	return b.r.Read(p)
}

func (b *gzipBody) Close() error { return b.body.Close() }

// responseBody counts the bytes of a response's body and trailers, and removes the
// secrets.
type responseBody struct {
	io.ReadCloser
	e    *exchange
	res  *http.Response
	scan scan
	rest []byte // bytes that may be passed on
	err  error  // of the body, after rest
}

func (b *responseBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		n, err := b.ReadCloser.Read(p)
		if n > 0 {
			if err := b.e.f.take(&b.e.f.in, n); err != nil {
				return 0, err
			}
		}
		if err != nil {
			err = b.end(err)
		}
		if !b.e.p.secrets {
			return n, err
		}
		b.rest, b.err = b.scan.next(p[:n], err != nil), err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// end handles the end of the body, and returns its error.
func (b *responseBody) end(err error) error {
	if !errors.Is(err, io.EOF) {
		b.e.fault()
		return err
	}
	if h := b.e.p.hidden.Load(); h != nil {
		h.clean(b.res.Trailer)
	}
	if len(b.res.Trailer) > 0 {
		if err := b.e.f.take(&b.e.f.in, headSize(b.res.Trailer)); err != nil {
			return err
		}
	}
	return err
}

// fault sets the reason of a flow whose response was not completed, unless it has one.
func (e *exchange) fault() {
	if e.f.ctx.Err() != nil {
		e.f.blame(ClientFailed)
		return
	}
	e.f.blame(UpstreamFailed)
}

// upgraded is the connection to the server after an upgrade. A secret in it ends the flow: it
// cannot be replaced, because frames state their lengths.
type upgraded struct {
	io.ReadWriteCloser
	f    *flow
	scan scan
	rest []byte
	err  error
}

func (u *upgraded) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		if u.err != nil {
			return 0, u.err
		}
		n, err := u.ReadWriteCloser.Read(p)
		if n > 0 {
			if err := u.f.take(&u.f.in, n); err != nil {
				return 0, err
			}
		}
		u.rest, u.err = u.scan.next(p[:n], err != nil), err
		if u.scan.found() {
			u.f.fail(CredentialEchoed)
			u.rest, u.err = nil, &failure{CredentialEchoed, errors.New("the connection returned the secret")}
		}
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

func (u *upgraded) Write(p []byte) (int, error) {
	if err := u.f.take(&u.f.out, len(p)); err != nil {
		return 0, err
	}
	return u.ReadWriteCloser.Write(p)
}
