// Package accesslog logs a line for each request.
package accesslog

import (
	"context"
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"
)

// Facts are what a line says of a request beside its route, status and duration.
// What is not known is empty.
type Facts struct {
	Actor string // who called, once verified
	Call  string // the call that it proposed, or took up
	Error string // code of the error it ended with
}

// StatusClientLeft is the status of a request whose client left before a response:
// nginx's, since HTTP has none.
const StatusClientLeft = 499

// probes are the routes that machines poll: their lines are for debugging.
var probes = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}

// Middleware logs a line for each request when it has ended, a stream's when the
// stream has: at level info, at warn for a status above 499, at debug for probes.
// route is a request's route, which holds no ids. Errors become responses here, so
// that their status is known.
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

// Line logs a request, or a part of one that is a call by itself.
func Line(log *slog.Logger, level slog.Level, method, route string, status int, took time.Duration, f *Facts) {
	attrs := make([]slog.Attr, 0, 7)
	attrs = append(attrs, slog.String("method", method), slog.String("route", route), slog.Int("status", status),
		slog.Float64("ms", float64(took.Microseconds())/1000))
	for _, x := range [...]slog.Attr{slog.String("actor", f.Actor), slog.String("call", f.Call), slog.String("error", f.Error)} {
		if x.Value.String() != "" {
			attrs = append(attrs, x)
		}
	}
	log.LogAttrs(context.Background(), level, "request", attrs...)
}

// levelOf is the level of a request's line.
func levelOf(route string, status int) slog.Level {
	switch {
	case status > 499:
		return slog.LevelWarn
	case probes[route]:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
