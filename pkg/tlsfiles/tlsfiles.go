// Package tlsfiles configures TLS servers with a certificate and key from files, and
// reloads the files without a restart when they change.
package tlsfiles

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// pollEvery is the minimum time between two checks of the files for changes.
const pollEvery = time.Second

// Files is a certificate chain and its private key, each in a PEM file. It is safe for
// concurrent use.
type Files struct {
	cert, key string

	mu    sync.Mutex
	watch watch
	pair  *tls.Certificate
}

// Open reads both files, and returns an error if they cannot be used. It returns nil and
// no error if both names are empty, and an error if only one of them is.
func Open(cert, key string) (*Files, error) {
	if cert == "" && key == "" {
		return nil, nil
	}
	if cert == "" || key == "" {
		return nil, errors.New("tls: name both a certificate and a key")
	}
	f := &Files{cert: cert, key: key, watch: watch{paths: []string{cert, key}}}
	if err := f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// load reads the certificate and key from the files. After Open, the caller holds f.mu.
func (f *Files) load() error {
	for _, path := range []string{f.cert, f.key} {
		if _, err := os.ReadFile(path); err != nil { // read separately, so that the error names the unreadable file
			return fmt.Errorf("tls: %w; name a PEM file that user %d may read", err, os.Getuid())
		}
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("tls: certificate %s with key %s: %w; both are PEM files, and the key is that of the first certificate", f.cert, f.key, err)
	}
	f.pair = &pair
	return nil
}

// Certificate is a function for tls.Config.GetCertificate. It checks at most once per
// pollEvery whether the files have changed, and returns the certificate that was last
// loaded from usable files. The error is always nil.
func (f *Files) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watch.reload("the TLS files", f.load)
	return f.pair, nil
}

// watch finds out whether files have changed. It is not safe for concurrent use.
type watch struct {
	paths  []string
	seen   []os.FileInfo // of the files that were last loaded; empty before the first reload
	looked time.Time
}

// reload calls load if the files have changed, which it checks at most once per pollEvery. If
// the files cannot be read or load returns an error, reload logs a warning that names what, and
// loads the files again after the next pollEvery.
func (w *watch) reload(what string, load func() error) {
	if time.Since(w.looked) < pollEvery {
		return
	}
	w.looked = time.Now()
	now, changed := make([]os.FileInfo, len(w.paths)), len(w.seen) == 0
	for i, path := range w.paths {
		info, err := os.Stat(path)
		if err != nil {
			slog.Warn(what+" cannot be read; what was loaded before remains in use", "err", err)
			return
		}
		now[i] = info
		changed = changed || !os.SameFile(info, w.seen[i]) || !info.ModTime().Equal(w.seen[i].ModTime()) || info.Size() != w.seen[i].Size()
	}
	if !changed {
		return
	}
	if err := load(); err != nil { // the other file may not be written yet
		slog.Warn(what+" cannot be used; what was loaded before remains in use", "err", err)
		return
	}
	w.seen = now
}

// Config returns a TLS configuration for a server: TLS 1.2 or newer, HTTP/1.1.
func (f *Files) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: f.Certificate}
}

// Warn logs a warning if the host in addr, which is served without TLS, is neither
// localhost nor a loopback address. It ignores an addr that is not of the form
// host:port. what names the listener.
func Warn(what, addr string) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "localhost" {
		return
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return
	}
	slog.Warn("WITHOUT TLS BEYOND LOOPBACK: anyone who can read the network traffic can read tokens, prompts and responses; set a certificate and a key, or listen on 127.0.0.1", "listener", what, "addr", addr)
}
