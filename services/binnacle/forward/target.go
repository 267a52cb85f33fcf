package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Options are the options of a target.
type Options struct {
	CA            string // file with the certificates of authorities that are trusted; those of the system if empty
	Cert, Key     string // files with the client's certificate and its key, if the target requires one
	Authorization string // file with the value of the header Authorization, which is read for each request
	Host          string // name of this machine in syslog messages
	Egress        string // folder of the sockets of egress-brokers, through which the target is reached; if empty it is reached directly
}

// New returns the target of a URL: https://…, http://… of this machine, SCHEME://HOST:PORT with the
// scheme relp+tls, relp+tcp, syslog+tls or syslog+tcp, or file:PATH. It reads the certificate files
// of o, and opens no connection. The caller must close the target.
func New(target string, o *Options) (Target, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", target, err)
	}
	conf, err := o.tls(u.Hostname())
	if err != nil {
		return nil, err
	}
	if o.Authorization != "" && u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("only targets with the scheme https have an authorization")
	}
	switch u.Scheme {
	case "file":
		path := u.Opaque + u.Path
		if o.Egress != "" {
			return nil, errors.New("a file is not reached through the egress-broker; omit --egress")
		}
		if path == "" || u.Host != "" {
			return nil, fmt.Errorf("target %q: want file:PATH", target)
		}
		return &file{path: path}, nil
	case "http", "https":
		if u.Scheme == "http" && !local(u.Hostname()) {
			return nil, fmt.Errorf("target %q: http is not encrypted, and only for this machine; use https", target)
		}
		if u.User != nil {
			return nil, errors.New("the target's URL has a password; put it into the file of the authorization instead")
		}
		tr := &http.Transport{TLSClientConfig: conf, Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: httpTimeout}
		if o.Egress != "" {
			tr.Proxy, tr.DialContext = nil, func(ctx context.Context, _, to string) (net.Conn, error) { return dial(ctx, o.Egress, to) }
		}
		return &post{url: target, authorization: o.Authorization, client: &http.Client{Transport: tr, Timeout: httpTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
	case "relp+tls", "relp+tcp", "syslog+tls", "syslog+tcp":
		if u.Port() == "" || u.Path != "" {
			return nil, fmt.Errorf("target %q: want %s://HOST:PORT", target, u.Scheme)
		}
		protocol, over, _ := strings.Cut(u.Scheme, "+")
		if over == "tcp" {
			conf = nil
		}
		to := connection{address: u.Host, tls: conf, egress: o.Egress}
		if protocol == "relp" {
			return &relp{connection: to, host: o.Host}, nil
		}
		return &syslog{connection: to, host: o.Host}, nil
	}
	return nil, fmt.Errorf("target %q: want https://…, relp+tls://HOST:PORT, relp+tcp://HOST:PORT, syslog+tls://HOST:PORT, syslog+tcp://HOST:PORT or file:PATH", target)
}

// local reports whether host is localhost or a loopback address.
func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (o *Options) tls(host string) (*tls.Config, error) {
	conf := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		b, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("%s has no certificate in PEM form", o.CA)
		}
	}
	if o.Cert != "" || o.Key != "" {
		c, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("the client's certificate and key: %w", err)
		}
		conf.Certificates = []tls.Certificate{c}
	}
	return conf, nil
}

// file appends lines of JSON to a file.
type file struct{ path string }

// Deliver implements Target. The lines are synced when it returns nil. It opens the file
// for each batch, so the file can be renamed at any time.
func (t *file) Deliver(_ context.Context, batch []Record) error {
	f, err := os.OpenFile(t.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var b bytes.Buffer
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if last := make([]byte, 1); size > 0 {
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			b.WriteByte('\n') // after a line that a crash cut off
		}
	}
	for _, r := range batch {
		b.Write(r.Line)
		b.WriteByte('\n')
	}
	if _, err := f.Write(b.Bytes()); err != nil {
		return err
	}
	return f.Sync()
}

// Close implements Target.
func (t *file) Close() error { return nil }

// httpTimeout is how long a request may take.
const httpTimeout = 30 * time.Second

// post sends lines of JSON in the bodies of POST requests.
type post struct {
	url, authorization string
	client             *http.Client
}

// Deliver implements Target. A response 2xx accepts the batch; 408, 429 and 5xx, and no
// response, are errors after which it can be sent again. Any other response is an error
// that wraps ErrRefused; redirects are not followed.
func (t *post) Deliver(ctx context.Context, batch []Record) error {
	var b bytes.Buffer
	for _, r := range batch {
		b.Write(r.Line)
		b.WriteByte('\n')
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, &b)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	if t.authorization != "" {
		v, err := os.ReadFile(t.authorization)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", strings.TrimSpace(string(v)))
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	switch s := resp.StatusCode; {
	case s/100 == 2:
		return nil
	case s == http.StatusRequestTimeout || s == http.StatusTooManyRequests || s >= 500:
		return fmt.Errorf("the target responded with %s", resp.Status)
	default:
		return fmt.Errorf("%w: it responded with %s", ErrRefused, resp.Status)
	}
}

// Close implements Target.
func (t *post) Close() error { t.client.CloseIdleConnections(); return nil }
