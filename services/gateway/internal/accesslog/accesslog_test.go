package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// TestMiddleware checks that a request is logged as one line at the level of its route
// and status, or not at all if that level is disabled. It also checks that the line
// contains no values from the path, query, headers or error text.
func TestMiddleware(t *testing.T) {
	for _, x := range []struct {
		name, method, path string
		level              slog.Level
		want               map[string]any // nil: no line is expected
	}{
		{"call", "POST", "/calls/secret-id?q=secret", slog.LevelInfo, map[string]any{"level": "INFO", "method": "POST", "route": "/calls/:id", "status": 200.0, "tenant": "acme", "actor": "alice", "call": "c-1"}},
		{"refused", "GET", "/refused", slog.LevelInfo, map[string]any{"level": "INFO", "method": "GET", "route": "/refused", "status": 403.0, "error": "denied"}},
		{"broken", "GET", "/broken", slog.LevelWarn, map[string]any{"level": "WARN", "method": "GET", "route": "/broken", "status": 500.0, "error": "internal"}},
		{"no route", "GET", "/secret-path", slog.LevelInfo, map[string]any{"level": "INFO", "method": "GET", "route": "other", "status": 404.0, "error": "internal"}},
		{"client left", "GET", "/left", slog.LevelInfo, map[string]any{"level": "INFO", "method": "GET", "route": "/left", "status": 499.0, "error": "internal"}},
		{"quiet", "POST", "/calls/1", slog.LevelWarn, nil},
		{"probe", "GET", "/healthz", slog.LevelInfo, nil},
		{"probe, debugging", "GET", "/healthz", slog.LevelDebug, map[string]any{"level": "DEBUG", "method": "GET", "route": "/healthz", "status": 200.0}},
	} {
		t.Run(x.name, func(t *testing.T) {
			var out bytes.Buffer
			e := echo.New()
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				if !errors.Is(err, context.Canceled) {
					e.DefaultHTTPErrorHandler(err, c)
				}
			}
			log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: x.level}))
			e.Use(Middleware(func() *slog.Logger { return log }, func(c echo.Context) string {
				if c.Get("route") == nil {
					return "other"
				}
				return c.Path()
			}, func(c echo.Context, err error) Facts {
				actor, _ := c.Get("actor").(string)
				var he *echo.HTTPError
				switch {
				case errors.As(err, &he) && he.Code == http.StatusForbidden:
					return Facts{Error: "denied"}
				case err != nil:
					return Facts{Error: "internal"}
				}
				if actor == "" {
					return Facts{}
				}
				return Facts{Tenant: "acme", Actor: actor, Call: c.Response().Header().Get("Call")}
			}))
			for route, f := range map[string]echo.HandlerFunc{
				"/calls/:id": func(c echo.Context) error {
					c.Set("actor", "alice")
					c.Response().Header().Set("Call", "c-1")
					return c.NoContent(http.StatusOK)
				},
				"/refused": func(echo.Context) error { return echo.ErrForbidden },
				"/left":    func(echo.Context) error { return context.Canceled },
				"/broken":  func(echo.Context) error { return errors.New("secret") },
				"/healthz": func(c echo.Context) error { return c.NoContent(http.StatusOK) },
			} {
				e.Any(route, func(c echo.Context) error { c.Set("route", true); return f(c) })
			}
			req := httptest.NewRequest(x.method, x.path, nil)
			req.Header.Set("Authorization", "Bearer secret")
			e.ServeHTTP(httptest.NewRecorder(), req)
			if x.want == nil {
				if out.Len() > 0 {
					t.Errorf("logged %s", out.String())
				}
				return
			}
			var line map[string]any
			if err := json.Unmarshal(out.Bytes(), &line); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if ms, ok := line["ms"].(float64); !ok || ms < 0 || ms > 60000 {
				t.Errorf("ms is %v", line["ms"])
			}
			for _, extra := range []string{"time", "msg", "ms"} {
				delete(line, extra)
			}
			for k, v := range x.want {
				if line[k] != v {
					t.Errorf("%s is %v, want %v", k, line[k], v)
				}
			}
			if len(line) != len(x.want) || strings.Contains(out.String(), "secret") {
				t.Errorf("logged %s", out.String())
			}
		})
	}
}

func BenchmarkLine(b *testing.B) {
	log := slog.New(slog.NewJSONHandler(discard{}, nil)).With("service", "gateway", "instance", "gw1")
	f := Facts{Actor: "alice", Call: "c-CLQYR4ZRSDO6RLDSJC7L75ESFZ"}
	b.ReportAllocs()
	for b.Loop() {
		Line(log, slog.LevelInfo, "POST", "/api/v1/calls", 200, 1234567, &f)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
