// Package mcpapi serves tools over MCP and over the HTTP API at /mcp/v1.
package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/resources"
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
	Overlays Overlays // by which lists are filtered; nil for none
	Own      *resources.Reader

	// ApprovalPage is the URL of the page for approvers, in which {call} stands for the id of a
	// call. It is empty if there is none.
	ApprovalPage string

	// Open subscribes to the frames of a call that the service named by from sends.
	Open func(call, from string) Frames
	// Blobs stores the answers that a client sends with a call, and reads recorded contents.
	Blobs *blob.Store

	// Durable waits until all that this process has read or stored is durable.
	Durable func(context.Context) error

	// Logged is called after each wait for a call of a tool, resource, prompt or completion
	// over MCP, with the error of the wait.
	Logged func(who *auth.Caller, call string, began time.Time, err error)

	mcps   mcpSessions
	modern modernServers
	offers sync.Map // by offersKey: *offers

	overlays overlayCache
}

// Frames is the stream of the frames of one call, in order; transient.Stream implements
// it.
type Frames interface {
	// Wake returns a channel that receives a value when Try can return a frame.
	Wake() <-chan struct{}
	// Try returns the next frame and reports whether there was one. An error ends the
	// stream.
	Try() (f transient.Frame, ok bool, err error)
	Close()
}

// Message is a message of the Model Context Protocol (JSON-RPC 2.0). The protocol's own
// schema describes it; clients of MCP use that schema instead of the OpenAPI document.
type Message map[string]json.RawMessage

// sessionless is the first protocol version without sessions.
const sessionless = "2026-07-28"

// modern reports whether a request is of a protocol version without sessions. The
// requests of these versions must have a header that no request of an older one has.
func modern(r *http.Request) bool {
	return r.Header.Get("Mcp-Protocol-Version") >= sessionless || r.Header.Get("Mcp-Method") != ""
}

// Handler returns the handler of MCP, of the protocol versions with sessions (up to 2025-11-25) and of
// those without (since 2026-07-28). The headers of a request determine to which of the two it belongs;
// see modern. Requests of old transports are served, too (see old). The same functions list and call
// tools for both. The requests of a session are handled concurrently.
func (s *API) Handler() echo.HandlerFunc {
	stateful := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server { return current(r.Context()).srv },
		&mcp.StreamableHTTPOptions{MaxRequestBodyBytes: body.Max + 1, EventStore: &replays{}})
	stateless := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server { return r.Context().Value(modernKey{}).(*mcp.Server) },
		&mcp.StreamableHTTPOptions{MaxRequestBodyBytes: body.Max + 1, Stateless: true, PropagateRequestCancellation: true})
	// The caller was verified before the body was read. The SDK requires a verifier of
	// its own, and binds its sessions to the UserID that the verifier returns, which is
	// the digest of the credential.
	verifier := func(ctx context.Context, raw string, _ *http.Request) (*sdkauth.TokenInfo, error) {
		who, err := s.Gate.Verify(ctx, raw)
		if err != nil {
			return nil, errors.Join(sdkauth.ErrInvalidToken, err)
		}
		return tokenInfo(who, raw), nil
	}
	checked := sdkauth.RequireBearerToken(verifier, &sdkauth.RequireBearerTokenOptions{AllowMissingExpiration: true}) // a virtual key may have no expiry
	old, young := checked(stateful), checked(stateless)
	return func(c echo.Context) error {
		who, err := s.Gate.Caller(c, "")
		if err != nil {
			return err
		}
		r := c.Request()
		raw, ok := auth.Credential(r.Header)
		if !ok { // the credential is the cookie of a browser, and no MCP client is one
			return auth.TokenMissing()
		}
		virtual, err := s.virtualOf(r, who.Tenant)
		if err != nil {
			return err
		}
		if isWebSocket(r) || isSSE(r) {
			return s.old(c, who, raw, virtual)
		}
		if modern(r) {
			if served, err := s.serveTask(c, who); served {
				return err
			}
			if served, err := s.servePlain(c, who, virtual); served {
				return err
			}
			ctx, done := s.watch(r, who)
			defer done()
			r = r.WithContext(context.WithValue(ctx, modernKey{}, s.modern.of(offersKey{who.Tenant, virtual}, s)))
			r.Header.Set("Authorization", "Bearer "+raw)
			young.ServeHTTP(c.Response(), r)
			return nil
		}
		x, err := s.mcps.enter(r.Header.Get("Mcp-Session-Id"), who, raw, virtual, s.mcpServer)
		if err != nil {
			return err
		}
		defer func() { s.mcps.leave(x, time.Now()) }()
		ctx, done := s.watch(r, who)
		defer done()
		r = r.WithContext(context.WithValue(ctx, mcpKey{}, x))
		r.Header.Set("Authorization", "Bearer "+raw)
		old.ServeHTTP(&withRetry{ResponseWriter: c.Response()}, r)
		return nil
	}
}

// modernKey is the context key of the server of a request without a session.
type modernKey struct{}

// modernServers holds a server for each tenant and virtual server, for requests without a
// session. The zero value is empty.
type modernServers struct {
	mu  sync.Mutex
	all map[offersKey]*modernServer
}

// modernServer is the server of the requests without a session of a tenant and a virtual
// server.
type modernServer struct {
	*edge
	mu     sync.Mutex
	offers *offers // offers whose tools are registered
	headed []string
}

// of returns the server of a tenant and a virtual server; the name of the virtual server is "" for
// requests without one. It creates the server at the first call with key.
func (m *modernServers) of(key offersKey, api *API) *mcp.Server {
	m.mu.Lock()
	if m.all == nil {
		m.all = map[offersKey]*modernServer{}
	}
	x := m.all[key]
	if x == nil {
		x = &modernServer{edge: &edge{API: api, tenant: key.tenant, virtualName: key.virtual}}
		x.serve("")
		m.all[key] = x
	}
	m.mu.Unlock()
	x.sync()
	return x.srv
}

// sync registers the tools of the catalog whose schemas name headers (x-mcp-header), so
// that the SDK compares the headers of requests with the arguments.
func (x *modernServer) sync() {
	now := x.catalog()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.offers == now {
		return
	}
	x.srv.RemoveTools(x.headed...)
	x.offers, x.headed = now, nil
	for _, t := range now.headed {
		if err := registerHeaders(x.srv, t, x.callTool); err != nil {
			slog.Warn("headers of a tool are not checked", "tool", t.Name, "err", err)
			continue
		}
		x.headed = append(x.headed, t.Name)
	}
}

// registerHeaders registers a tool. The error is that with which the SDK panics if the
// schema names headers which the protocol does not permit.
func registerHeaders(srv *mcp.Server, t *mcp.Tool, h mcp.ToolHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	srv.AddTool(&mcp.Tool{Name: t.Name, InputSchema: t.InputSchema}, h)
	return nil
}

// list returns the servers.
func (m *modernServers) list() []*mcp.Server {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*mcp.Server
	for _, x := range m.all {
		out = append(out, x.srv)
	}
	return out
}

// watch returns the context of a request: that of auth.Gate.WatchReads for a GET, which
// opens a stream of notifications, and otherwise that of auth.Gate.Watch.
func (s *API) watch(r *http.Request, who *auth.Caller) (context.Context, context.CancelFunc) {
	if r.Method == http.MethodGet {
		return s.Gate.WatchReads(r.Context(), who, false)
	}
	return s.Gate.Watch(r.Context(), who, false)
}
