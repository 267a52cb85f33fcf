package admin

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/logs"
)

func server(t *testing.T) *Server {
	t.Helper()
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	return &Server{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "figures 1\n") }),
		Ready:   func(context.Context) (bool, any) { return false, map[string]string{"part": "replaying"} },
		Config:  func() any { return map[string]string{"file": "f"} },
		Level:   logs.Start(t.Context(), io.Discard, logs.JSON, slog.LevelInfo),
	}
}

// TestPeers checks responses to peers on this and on another host, to several Host and Origin
// headers, and to valid and invalid log levels.
func TestPeers(t *testing.T) {
	s := server(t)
	h := s.Handler()
	for _, x := range []struct {
		peer, host, origin, method, path, body string
		status                                 int
		want                                   string
	}{
		{"127.0.0.1:5", "127.0.0.1:9464", "", "GET", "/metrics", "", 200, "figures 1"},
		{"10.0.0.9:5", "policy:9464", "", "GET", "/metrics", "", 200, "figures 1"},
		{"10.0.0.9:5", "policy:9464", "", "GET", "/healthz", "", 200, "alive"},
		{"[::1]:5", "[::1]:9464", "", "GET", "/readyz", "", 503, "replaying"},
		{"10.0.0.9:5", "policy:9464", "", "GET", "/readyz", "", 503, `{"ready":false}`},
		{"127.0.0.1:5", "localhost:9464", "", "GET", "/config", "", 200, `"file":"f"`},
		{"10.0.0.9:5", "127.0.0.1:9464", "", "GET", "/config", "", 403, "this host"},
		{"127.0.0.1:5", "evil.example:9464", "", "GET", "/config", "", 403, "this host"},
		{"127.0.0.1:5", "127.0.0.1:9464", "https://evil.example", "PUT", "/log/level", `{"level":"debug"}`, 403, "this host"},
		{"10.0.0.9:5", "policy:9464", "", "PUT", "/log/level", `{"level":"debug"}`, 403, "this host"},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "GET", "/log/level", "", 200, `"info"`},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "PUT", "/log/level", `{"level":"loud"}`, 400, "debug, info, warn, error"},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "PUT", "/log/level", `{"lvl":"debug"}`, 400, "/lvl: unknown member"},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "PUT", "/log/level", `{}`, 400, "/level"},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "PUT", "/log/level", `debug`, 400, "JSON object"},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "PUT", "/log/level", `{"level":"debug"}`, 200, `"debug"`},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "POST", "/log/level", `{"level":"warn"}`, 405, ""},
		{"127.0.0.1:5", "127.0.0.1:9464", "", "GET", "/nothing", "", 404, ""},
	} {
		r := httptest.NewRequest(x.method, x.path, strings.NewReader(x.body))
		r.RemoteAddr, r.Host = x.peer, x.host
		if x.origin != "" {
			r.Header.Set("Origin", x.origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != x.status || !strings.Contains(w.Body.String(), x.want) {
			t.Errorf("%s %s of %s at %s: %d %s", x.method, x.path, x.peer, x.host, w.Code, w.Body)
		}
	}
	if s.Level.Name() != "debug" {
		t.Errorf("the level is %s", s.Level.Name())
	}
}

// TestStart shows that the listener is bound and serves, that it can be off, and that
// the error for an address in use names the setting to change.
func TestStart(t *testing.T) {
	s := server(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	addr, err := s.Start(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Get("http://" + addr + "/healthz")
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	r.Body.Close()
	if _, err := s.Start(ctx, addr); err == nil || !strings.Contains(err.Error(), "BINNACLE_ADMIN") {
		t.Error(err)
	}
	if off, err := s.Start(ctx, Off); off != "" || err != nil {
		t.Error(off, err)
	}
}
