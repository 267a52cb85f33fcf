// Package admin serves a process's figures, its health and the level of its log over
// HTTP, for the host's operator and for Prometheus.
//
//	GET /metrics     figures, see package metrics
//	GET /healthz     200 while the process runs
//	GET /readyz      200 or 503; for peers of this host with the parts of every instance
//	GET /config      the configuration in force and where each value is from; no secrets
//	GET /log/level   {"level": "info"}
//	PUT /log/level   the same document sets it
//
// Without credentials, any peer may read the first three: they name services, instances
// and parts, and hold nothing of a call. The others are for peers of the same host, and
// not for pages of a browser: a request with an Origin, or for another host's name, is
// refused. The listener's default is the loopback address. It carries no TLS; a network
// that should not read it must not reach it.
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

// Server is what the listener serves. Its fields are set before its first use; those
// that are nil are not found.
type Server struct {
	Metrics http.Handler
	Ready   func(context.Context) (ready bool, doc any)
	Config  func() any
	Level   *logs.Level
}

// Off is the address of a process without an admin listener.
const Off = "off"

// readyWithin bounds how long a request for the state of the parts takes.
const readyWithin = 3 * time.Second

// Start listens on an address, host:port, and serves until ctx ends. It returns the
// bound address, "" for Off. An error is that the address cannot be bound.
func (s *Server) Start(ctx context.Context, addr string) (string, error) {
	if addr == Off {
		return "", nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("admin listener: %w; name another address with BINNACLE_ADMIN or /admin/listen, or off", err)
	}
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() { _ = srv.Serve(l) }() // ends with Close
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	return l.Addr().String(), nil
}

// Handler is the HTTP handler of the listener.
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

// levelDoc is the document of /log/level.
type levelDoc struct {
	Level string `json:"level"`
}

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

func decode(r interface{ Read([]byte) (int, error) }, doc any) error {
	var raw json.RawMessage
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return errors.New("want a JSON object")
	}
	return strictjson.Decode(raw, doc)
}

// local lets requests of this host through that no page of a browser made.
func local(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.RemoteAddr) || !(strings.EqualFold(hostOf(r.Host), "localhost") || loopback(r.Host)) || r.Header.Get("Origin") != "" {
			answer(w, http.StatusForbidden, map[string]string{"error": "only for this host: send the request from it, to its loopback address"})
			return
		}
		next(w, r)
	})
}

// hostOf is an address without its port.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return strings.Trim(addr, "[]")
}

func loopback(addr string) bool {
	ip := net.ParseIP(hostOf(addr))
	return ip != nil && ip.IsLoopback()
}

func answer(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc) // the client left
}
