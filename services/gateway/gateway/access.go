package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/accesslog"
)

// routeOf is a request's route as declared, or otherLabel where none matched.
func routeOf(c echo.Context) string {
	if c.Get(routeKey) == nil {
		return otherLabel
	}
	return c.Path()
}

// accessFacts are what the access log says of a request.
func accessFacts(c echo.Context, err error) accesslog.Facts {
	f := accesslog.Facts{Call: c.Response().Header().Get(callIDHeader)}
	if who, ok := c.Get(callerKey).(*caller); ok {
		f.Actor = who.actor
	}
	_, f.Error = statusAndCode(err)
	return f
}

// logToolCall logs a call that came over MCP: a request of that protocol may be a
// stream, and its route is the same whatever it requests.
func logToolCall(log *slog.Logger, who *caller, call string, began time.Time, err error) {
	status, code := statusAndCode(err)
	accesslog.Line(log, slog.LevelInfo, "tools/call", "/mcp", status, time.Since(began), &accesslog.Facts{Actor: who.actor, Call: call, Error: code})
}

// statusAndCode is the status and the code of the error that a request ended with; 200 and
// no code for none.
func statusAndCode(err error) (status int, code string) {
	var e *apiError
	var esc *escalation
	var he *echo.HTTPError
	switch {
	case err == nil:
		return http.StatusOK, ""
	case errors.As(err, &e):
	case errors.As(err, &esc):
		e = esc.error()
	case errors.As(err, &he) && he.Code == http.StatusNotFound:
		return he.Code, "not_found"
	case errors.As(err, &he):
		return he.Code, "http_error"
	case errors.Is(err, context.Canceled):
		return accesslog.StatusClientLeft, "cancelled"
	default:
		return http.StatusInternalServerError, "internal"
	}
	return e.Status, e.Code
}
