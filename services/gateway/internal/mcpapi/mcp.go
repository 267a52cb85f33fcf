// Package mcpapi serves tools over MCP and over the HTTP API at /mcp/v1.
package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
)

// API serves MCP and the HTTP API at /mcp/v1. Its exported fields are set before its
// first use.
type API struct {
	Version  string // release of the gateway
	Gate     *auth.Gate
	Calls    *calls.API
	Sessions *sessions.Resolver
	Labels   *labels.Reader
	Tools    *catalog.Catalog

	// Logged is called after each tool call over MCP that was passed to Calls.Await,
	// with the error of Await.
	Logged func(who *auth.Caller, call string, began time.Time, err error)

	mcps mcpSessions
}

// Message is a message of the Model Context Protocol (JSON-RPC 2.0). The protocol's own
// schema describes it; clients of MCP use that schema instead of the OpenAPI document.
type Message map[string]json.RawMessage

// Handler returns the handler of MCP with sessions (protocol versions up to 2025-11-25).
// Protocol version 2026-07-28 has no sessions and needs a second, stateless handler,
// selected by the request's protocol version. The functions that process a tool call do
// not depend on the handler that received it.
func (s *API) Handler() echo.HandlerFunc {
	h := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server { return current(r.Context()).srv },
		&mcp.StreamableHTTPOptions{MaxRequestBodyBytes: body.Max + 1})
	// The caller was verified before the body was read. The SDK requires a verifier of
	// its own, and binds its sessions to the UserID that the verifier returns, which is
	// the digest of the credential.
	verifier := func(ctx context.Context, raw string, _ *http.Request) (*sdkauth.TokenInfo, error) {
		who, err := s.Gate.Verify(ctx, raw)
		if err != nil {
			return nil, errors.Join(sdkauth.ErrInvalidToken, err)
		}
		return &sdkauth.TokenInfo{Expiration: who.Until, UserID: auth.DigestOf(raw), Extra: map[string]any{auth.CallerKey: who}}, nil
	}
	checked := sdkauth.RequireBearerToken(verifier, &sdkauth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h) // a virtual key may have no expiry
	return func(c echo.Context) error {
		who, err := s.Gate.Caller(c, "")
		if err != nil {
			return err
		}
		r := c.Request()
		raw, _ := auth.Credential(r.Header)
		x, err := s.mcps.enter(r.Header.Get("Mcp-Session-Id"), who, raw, s.mcpServer)
		if err != nil {
			return err
		}
		defer func() { s.mcps.leave(x, time.Now()) }()
		ctx, done := s.watch(r, who)
		defer done()
		r = r.WithContext(context.WithValue(ctx, mcpKey{}, x))
		r.Header.Set("Authorization", "Bearer "+raw)
		checked.ServeHTTP(c.Response(), r)
		return nil
	}
}

// watch returns the context of a request: that of auth.Gate.WatchReads for a GET, which
// opens a stream of notifications, and otherwise that of auth.Gate.Watch.
func (s *API) watch(r *http.Request, who *auth.Caller) (context.Context, context.CancelFunc) {
	if r.Method == http.MethodGet {
		return s.Gate.WatchReads(r.Context(), who, false)
	}
	return s.Gate.Watch(r.Context(), who, false)
}

// mcpServer returns the server of one MCP session of a tenant. The server lists the packs
// that are approved for the tenant when mcpServer is called, except packs that MCP does
// not permit (see list). It passes every tools/call to mcpCall, because policy decides by
// the catalog at the time of that call, and the catalog may have changed since the MCP
// session opened. An attempt to call a tool that is not listed is proposed too, so that
// the attempt and its denial are on the ledger.
func (s *API) mcpServer(id, tenant string) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "binnacle", Version: s.Version}, &mcp.ServerOptions{GetSessionID: func() string { return id }})
	for _, t := range packs.Approved(s.Tools.In(tenant)) {
		if err := s.list(srv, &t); err != nil {
			slog.Warn("tool not listed over MCP", "kind", t.Kind, "err", err)
		}
	}
	srv.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if call, ok := req.(*mcp.CallToolRequest); ok && method == "tools/call" {
				return s.mcpCall(ctx, call)
			}
			return next(ctx, method, req)
		}
	})
	return srv
}

// list adds a tool to the list of a server. It returns an error if MCP does not permit
// the tool's document, for example because the type of its input schema is not object.
func (s *API) list(srv *mcp.Server, t *contract.Tool) (err error) {
	defer func() {
		if v := recover(); v != nil { // AddTool panics if a schema is not permitted
			err = fmt.Errorf("%v", v)
		}
	}()
	srv.AddTool(&mcp.Tool{Name: t.Tool, Description: t.Description, InputSchema: json.RawMessage(t.InputSchema), OutputSchema: json.RawMessage(t.OutputSchema)}, s.mcpCall)
	return nil
}

// mcpCall proposes a tool call, waits for its outcome and returns its result. If the
// name or the arguments are invalid, or the call exceeds a quota of its tenant, does not
// succeed or waits for approval, the result has IsError set (see toolError). Invalid
// headers are returned as an error.
func (s *API) mcpCall(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	info := req.Extra.TokenInfo
	if info == nil {
		return nil, errors.New("no verified caller")
	}
	who, ok := info.Extra[auth.CallerKey].(*auth.Caller)
	if !ok {
		return nil, errors.New("no verified caller")
	}
	if req.Extra.Header.Get(sessions.Header) == "" && req.Session.ID() != "" {
		req.Extra.Header.Set(sessions.Header, "s-mcp-"+token64(req.Session.ID()))
	}
	kind := "tool." + req.Params.Name
	if err := body.CheckName("name", kind); err != nil {
		return toolError(contract.CodeInvalidInput, "name: "+err.Error(), nil), nil
	}
	leave, err := s.Gate.Meter(ctx, who)
	if err != nil {
		return failed(err)
	}
	defer leave()
	in, err := s.Sessions.Of(ctx, who, req.Extra.Header)
	if err != nil {
		return nil, err
	}
	raw := req.Params.Arguments
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	args, err := canon.Transform(nil, raw)
	if err != nil {
		return toolError(contract.CodeInvalidInput, "arguments: "+err.Error(), nil), nil
	}
	r, err := s.Calls.Plain(req.Extra.Header, who, in, kind, req.Params.Name, args)
	if err != nil {
		return nil, err
	}
	if err := s.Labels.Inherit(ctx, &r, "", args); err != nil {
		return failed(err)
	}
	began := time.Now()
	out, output, err := s.Calls.Await(ctx, r, false)
	s.Logged(who, r.ID, began, err)
	if err != nil {
		return failed(err)
	}
	return &mcp.CallToolResult{Meta: meta(&out.Recorded.Receipt, in), StructuredContent: json.RawMessage(output),
		Content: []mcp.Content{&mcp.TextContent{Text: string(output)}}}, nil
}

func meta(r *contract.Receipt, in sessions.Session) mcp.Meta {
	return mcp.Meta{"binnacle/receipt_id": r.ID, "binnacle/decision_id": r.DecisionID, "binnacle/verdict": r.Verdict, "binnacle/session_id": in.ID, "binnacle/session": in.Called()}
}

// failed returns the result of a call that failed with err: that of toolError for an
// *apierr.Error or *apierr.Escalation, and otherwise err.
func failed(err error) (*mcp.CallToolResult, error) {
	var e *apierr.Error
	var esc *apierr.Escalation
	switch {
	case errors.As(err, &esc):
		e = esc.APIError()
	case !errors.As(err, &e):
		return nil, err
	}
	return toolError(e.Code, e.Message, e), nil
}

// toolError returns a failed call as MCP specifies it for tools: a result with isError,
// which the model receives and can react to. If e is nil, the result contains no ids of
// the call.
func toolError(code, message string, e *apierr.Error) *mcp.CallToolResult {
	r := &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: code + ": " + message}}}
	if e != nil {
		r.Meta = mcp.Meta{"binnacle/receipt_id": e.ReceiptID, "binnacle/decision_id": e.DecisionID, "binnacle/reason_code": e.ReasonCode}
	}
	return r
}

// token64 converts an MCP session id into a token for use in subjects: it replaces each
// character that a token must not contain with "_", and returns at most 90 bytes.
func token64(id string) string {
	id = strings.Map(func(r rune) rune {
		if r < 128 && contract.Token(string(r)) {
			return r
		}
		return '_'
	}, id)
	return id[:min(len(id), 90)]
}
