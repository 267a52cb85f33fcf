package gateway

import (
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/accesslog"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// accessFacts returns the tenant, the actor, the call and the error code that the access
// log records for a request that ended with err.
func accessFacts(c echo.Context, err error) accesslog.Facts {
	f := accesslog.Facts{Call: c.Response().Header().Get(calls.IDHeader)}
	if who, ok := c.Get(auth.CallerKey).(*auth.Caller); ok {
		f.Tenant, f.Actor = who.Tenant, who.Actor
	}
	_, f.Error = apierr.StatusAndCode(err)
	return f
}

// logToolCall writes an access log line for one tool call over MCP. The line for the
// HTTP request does not suffice: the request may be a long-lived stream, and its route
// is /mcp whatever MCP method it carries.
func (s *Service) logToolCall(who *auth.Caller, call string, began time.Time, err error) {
	status, code := apierr.StatusAndCode(err)
	accesslog.Line(s.env.Log, slog.LevelInfo, "tools/call", "/mcp", status, time.Since(began), &accesslog.Facts{Tenant: who.Tenant, Actor: who.Actor, Call: call, Error: code})
}
