package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/accesslog"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// accessFacts returns the tenant, the actor, the call, the client's certificate and the error
// code that the access log records for a request that ended with err.
func accessFacts(c echo.Context, err error) accesslog.Facts {
	f := accesslog.Facts{Call: c.Response().Header().Get(calls.IDHeader)}
	if t := c.Request().TLS; t != nil && len(t.PeerCertificates) > 0 {
		digest := sha256.Sum256(t.PeerCertificates[0].Raw)
		f.Certificate, f.Subject = hex.EncodeToString(digest[:]), t.PeerCertificates[0].Subject.String()
	}
	if who, ok := c.Get(auth.CallerKey).(*auth.Caller); ok {
		f.Tenant, f.Actor = who.Tenant, who.Actor
	}
	_, f.Error = apierr.StatusAndCode(err)
	return f
}

// logToolCall writes an access log line for one call over MCP, of a tool, resource, prompt
// or completion. The line for the HTTP request does not suffice: the request may be a
// long-lived stream, and its route is /mcp whatever MCP method it carries.
func (s *Service) logToolCall(who *auth.Caller, call string, began time.Time, err error) {
	status, code := apierr.StatusAndCode(err)
	accesslog.Line(s.env.Log, slog.LevelInfo, "tools/call", "/mcp", status, time.Since(began), &accesslog.Facts{Tenant: who.Tenant, Actor: who.Actor, Call: call, Error: code})
}
