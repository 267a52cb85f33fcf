// Package accesslog writes the log lines of requests, and of tool calls over MCP.
package accesslog

import (
	"context"
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"
)

// Facts holds the values of a log line besides method, route, status and duration.
// Unknown values are empty.
type Facts struct {
	Tenant string // tenant of the authenticated caller
	Actor  string // actor of the authenticated caller
	Call   string // id of the call that the request proposed or continued
	Error  string // code of the error that the request ended with

	Certificate string // SHA-256 of the client's verified certificate (DER), in hex
	Subject     string // subject of this certificate (RFC 2253)
}

// StatusClientLeft is the logged status of a request whose client disconnected before a
// response was sent. HTTP defines no such status; nginx logs 499.
const StatusClientLeft = 499

// probes holds the routes that monitoring polls. Their log lines have level debug,
// unless the status is above 499.
var probes = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}

// Middleware writes a log line for each request when the request, or the stream in its
// response, has ended. The level is warn for a status above 499, debug for the routes in
// probes, and info otherwise. The status is StatusClientLeft if the request ended with
// an error and without a response. route returns the declared route of a request, which
// contains no ids; facts returns the other values for a request that ended with the
// given error. Middleware converts errors into responses itself, so that their status is
// known.
func Middleware(logger func() *slog.Logger, route func(echo.Context) string, facts func(echo.Context, error) Facts) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			began, log := time.Now(), logger()
			err := next(c)
			if err != nil {
				c.Error(err)
			}
			at, status := route(c), c.Response().Status
			if err != nil && !c.Response().Committed {
				status = StatusClientLeft
			}
			if level := levelOf(at, status); log.Enabled(context.Background(), level) {
				f := facts(c, err)
				Line(log, level, c.Request().Method, at, status, time.Since(began), &f)
			}
			return nil
		}
	}
}

// Line writes the log line of a request, or of one call within a request.
func Line(log *slog.Logger, level slog.Level, method, route string, status int, took time.Duration, f *Facts) {
	attrs := make([]slog.Attr, 0, 10)
	attrs = append(attrs, slog.String("method", method), slog.String("route", route), slog.Int("status", status),
		slog.Float64("ms", float64(took.Microseconds())/1000))
	for _, x := range [...]slog.Attr{slog.String("tenant", f.Tenant), slog.String("actor", f.Actor), slog.String("call", f.Call), slog.String("error", f.Error), slog.String("certificate", f.Certificate), slog.String("subject", f.Subject)} {
		if x.Value.String() != "" {
			attrs = append(attrs, x)
		}
	}
	log.LogAttrs(context.Background(), level, "request", attrs...)
}

// levelOf returns the level of a request's log line.
func levelOf(route string, status int) slog.Level {
	switch {
	case status > 499:
		return slog.LevelWarn
	case probes[route]:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
