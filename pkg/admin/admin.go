// Package admin serves a process's metrics, health, configuration and log level over
// HTTP, for the host's operator and for Prometheus.
//
//	GET /metrics     metrics in Prometheus's formats, see package metrics
//	GET /healthz     200 while the process runs
//	GET /readyz      200 or 503; a peer on this host also receives the state of each part, such as a view
//	GET /config      the effective configuration with the origin of each value; no secrets
//	GET /log/level   {"level": "info"}
//	PUT /log/level   sets the level; the body has the same form
//
// The first three paths need no credentials and are open to any peer: they name services,
// instances and parts, and contain no content of calls. The other paths are restricted to
// peers on the same host. To keep web pages from using them through the operator's
// browser, a request for them is rejected if it has an Origin header, or if its Host
// header is neither localhost nor a loopback address. The listener's default address is a
// loopback address. The listener has no TLS: restrict network access to it where it
// listens on another address.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
)

// Server holds the data that the listener serves. Its fields must be set before its
// first use. The path of a field that is nil returns 404.
type Server struct {
	Metrics http.Handler
	Ready   func(context.Context) (ready bool, doc any)
	Config  func() any
	Level   *logs.Level
}

// Off is the value of /admin/listen for a process without an admin listener.
const Off = "off"

// readyWithin is the timeout for collecting the state of the parts for /readyz.
const readyWithin = 3 * time.Second

// Start listens on addr (host:port) and serves in a goroutine until ctx ends. It returns
// the bound address, or "" if addr is Off. An error means that the address cannot be
// bound.
func (s *Server) Start(ctx context.Context, addr string) (string, error) {
	if addr == Off {
		return "", nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("admin listener: %w; name another address with BINNACLE_ADMIN or /admin/listen, or off", err)
	}
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() { _ = srv.Serve(l) }() // Serve returns when Close is called
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	return l.Addr().String(), nil
}

// Handler returns the HTTP handler of the listener.
func (s *Server) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	if s.Metrics != nil {
		m.Handle("GET /metrics", s.Metrics)
	}
	if s.Ready != nil {
		m.HandleFunc("GET /readyz", s.ready)
	}
	if s.Config != nil {
		m.Handle("GET /config", local(func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.Config()) }))
	}
	if s.Level != nil {
		m.Handle("GET /log/level", local(func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, levelDoc{s.Level.Name()}) }))
		m.Handle("PUT /log/level", local(s.setLevel))
	}
	return m
}

// ready handles GET /readyz. The status is 200 if the process is ready, and 503 if it is
// not. The body lists the state of each part of each instance; a peer that is not on
// this host receives only whether the process is ready.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
	defer cancel()
	ok, doc := s.Ready(ctx)
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	if !loopback(r.RemoteAddr) {
		doc = map[string]bool{"ready": ok}
	}
	answer(w, status, doc)
}

// levelDoc is the JSON document of /log/level.
type levelDoc struct {
	Level string `json:"level"`
}

// setLevel handles PUT /log/level. It responds with the new level, or with status 400
// if the body or the level is invalid; the level is then unchanged.
func (s *Server) setLevel(w http.ResponseWriter, r *http.Request) {
	var doc levelDoc
	raw := http.MaxBytesReader(w, r.Body, 1<<10)
	err := decode(raw, &doc)
	if err == nil && doc.Level == "" {
		err = errors.New("/level: want debug, info, warn or error")
	}
	if err == nil {
		err = s.Level.SetName(doc.Level)
	}
	if err != nil {
		answer(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	answer(w, http.StatusOK, levelDoc{s.Level.Name()})
}

// decode decodes the first JSON value of r, an object, into doc. Unknown members are
// errors, see strictjson.Decode; data after the value is ignored.
func decode(r interface{ Read([]byte) (int, error) }, doc any) error {
	var raw json.RawMessage
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return errors.New("want a JSON object")
	}
	return strictjson.Decode(raw, doc)
}

// local restricts a handler to requests from this host, and rejects those with which a
// web page could read the response or change the level. The peer must have a loopback
// address, the Host header must be localhost or a loopback address, which stops DNS
// rebinding, and there must be no Origin header. Other requests get status 403.
func local(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.RemoteAddr) || !(strings.EqualFold(hostOf(r.Host), "localhost") || loopback(r.Host)) || r.Header.Get("Origin") != "" {
			answer(w, http.StatusForbidden, map[string]string{"error": "only for this host: send the request from it, to its loopback address"})
			return
		}
		next(w, r)
	})
}

// hostOf returns an address without its port and brackets.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return strings.Trim(addr, "[]")
}

// loopback reports whether the host of addr is a loopback IP address. Host names are
// not resolved.
func loopback(addr string) bool {
	ip := net.ParseIP(hostOf(addr))
	return ip != nil && ip.IsLoopback()
}

// answer writes a JSON response that clients and proxies must not cache.
func answer(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc) // the status is sent already, so an error cannot be reported
}
