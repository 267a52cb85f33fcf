package mcpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// Old clients use one of two transports, at the same URL: HTTP with SSE of the protocol version
// 2024-11-05, whose stream begins with a GET without a session, or WebSocket with the subprotocol
// mcp, each message of which is a JSON-RPC message. Both have one connection in each session, which
// ends with the connection, and protocol versions before sessionless.

const (
	subprotocol = "mcp"
	sessionArg  = "sessionid"      // query parameter of the POST requests of the transport with SSE
	maxPending  = 64               // requests of a connection that have no response
	maxMessage  = 4 << 20          // bytes of a message
	sendWithin  = 30 * time.Second // time to send one message
)

// legacy is the connection of a session. It implements mcp.Transport, for one session, and
// mcp.Connection. The handler of the HTTP request that opened it sends its messages.
type legacy struct {
	id      string
	in      chan jsonrpc.Message
	out     chan outgoing
	done    chan struct{}
	end     func() // closes done
	pending atomic.Int64
}

// outgoing is a message to the client.
type outgoing struct {
	data []byte
	sent chan error
}

func newLegacy(id string) *legacy {
	l := &legacy{id: id, in: make(chan jsonrpc.Message), out: make(chan outgoing), done: make(chan struct{})}
	l.end = sync.OnceFunc(func() { close(l.done) })
	return l
}

// Connect implements mcp.Transport.
func (l *legacy) Connect(context.Context) (mcp.Connection, error) { return l, nil }

// SupportsProtocolVersion reports whether a session may have a protocol version.
func (l *legacy) SupportsProtocolVersion(version string) bool { return version < sessionless }

// SessionID implements mcp.Connection.
func (l *legacy) SessionID() string { return l.id }

// Read implements mcp.Connection.
func (l *legacy) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-l.in:
		return m, nil
	case <-l.done:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection. It returns once the message was sent.
func (l *legacy) Write(ctx context.Context, m jsonrpc.Message) error {
	if _, ok := m.(*jsonrpc.Response); ok {
		l.pending.Add(-1)
	}
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return l.send(ctx, data)
}

func (l *legacy) send(ctx context.Context, data []byte) error {
	o := outgoing{data, make(chan error, 1)}
	select {
	case l.out <- o:
		return <-o.sent
	case <-l.done:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements mcp.Connection.
func (l *legacy) Close() error {
	l.end()
	return nil
}

// errMalformed is the error of a message that is not one of JSON-RPC.
var errMalformed = errors.New("the message is no JSON-RPC request, notification or response; batches are not permitted")

// errTooMany is the error of a request if maxPending requests of its connection have no response.
var errTooMany = fmt.Errorf("more than %d requests of the connection have no response", maxPending)

// receive passes a message of the client on. extra is that of requests.
func (l *legacy) receive(ctx context.Context, data []byte, extra *mcp.RequestExtra) error {
	m, err := jsonrpc.DecodeMessage(data)
	if err != nil {
		return errMalformed
	}
	if r, ok := m.(*jsonrpc.Request); ok {
		r.Extra = extra
		if r.IsCall() && l.pending.Add(1) > maxPending {
			l.pending.Add(-1)
			return errTooMany
		}
	}
	select {
	case l.in <- m:
		return nil
	case <-l.done:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve sends the messages of a session with the server of x until the connection or ctx ends.
func (l *legacy) serve(ctx context.Context, x *mcpSession, send func([]byte) error) error {
	ss, err := x.srv.Connect(ctx, l, nil)
	if err != nil {
		return err
	}
	defer func() {
		l.end()
		go func() { _ = ss.Close() }() // waits for the requests in progress
	}()
	for {
		select {
		case o := <-l.out:
			err := send(o.data)
			if o.sent <- err; err != nil {
				return err
			}
		case <-l.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isWebSocket reports whether a request opens a WebSocket.
func isWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// isSSE reports whether a request is one of the transport with SSE: a GET without a session, or a POST
// with one in the query.
func isSSE(r *http.Request) bool {
	if r.Header.Get("Mcp-Session-Id") != "" || modern(r) {
		return false
	}
	return r.Method == http.MethodGet && r.Header.Get("Mcp-Protocol-Version") == "" || r.Method == http.MethodPost && r.URL.Query().Has(sessionArg)
}

// old serves a request of an old transport.
func (s *API) old(c echo.Context, who *auth.Caller, raw, virtual string) error {
	r := c.Request()
	extra := &mcp.RequestExtra{TokenInfo: tokenInfo(who, raw), Header: r.Header}
	if r.Method == http.MethodPost {
		return s.post(c, who, raw, virtual, extra)
	}
	x, err := s.mcps.enter("", who, raw, virtual, s.mcpServer)
	if err != nil {
		return err
	}
	defer func() { s.mcps.leave(x, time.Now()) }()
	l := newLegacy(x.id)
	s.mcps.connect(x, l)
	ctx, done := s.Gate.WatchReads(r.Context(), who, false)
	defer done()
	if isWebSocket(r) {
		return s.socket(ctx, c, x, l, extra)
	}
	return stream(ctx, c, x, l)
}

// tokenInfo returns what the SDK passes to handlers about a verified credential.
func tokenInfo(who *auth.Caller, raw string) *sdkauth.TokenInfo {
	return &sdkauth.TokenInfo{Expiration: who.Until, UserID: auth.DigestOf(raw), Extra: map[string]any{auth.CallerKey: who}}
}

// post receives a message of the transport with SSE.
func (s *API) post(c echo.Context, who *auth.Caller, raw, virtual string, extra *mcp.RequestExtra) error {
	r := c.Request()
	// The empty id would open a session.
	x, err := s.mcps.enter(cmp.Or(r.URL.Query().Get(sessionArg), "none"), who, raw, virtual, s.mcpServer)
	if err != nil {
		return err
	}
	defer func() { s.mcps.leave(x, time.Now()) }()
	l := s.mcps.connection(x)
	if l == nil {
		return apierr.NotFound("MCP session not found; initialize a new one")
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxMessage+1))
	if err == nil && len(data) > maxMessage {
		return apierr.BadRequest("", fmt.Sprintf("the message has more than %d bytes", maxMessage))
	}
	if err == nil {
		err = l.receive(r.Context(), data, extra)
	}
	switch {
	case errors.Is(err, errMalformed):
		return apierr.BadRequest("", err.Error())
	case errors.Is(err, errTooMany):
		return &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeMcpSessionsExceeded, RetryAfter: "1", Message: err.Error()}
	case errors.Is(err, io.EOF):
		return apierr.NotFound("MCP session not found; initialize a new one")
	case err != nil:
		return err
	}
	return c.NoContent(http.StatusAccepted)
}

// stream serves the stream of the transport with SSE.
func stream(ctx context.Context, c echo.Context, x *mcpSession, l *legacy) error {
	w := c.Response()
	event := func(name string, data []byte) error {
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Now().Add(sendWithin)) // not every connection has deadlines
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data); err != nil {
			return err
		}
		return rc.Flush()
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	q := c.Request().URL.Query()
	q.Set(sessionArg, x.id)
	at := url.URL{Path: c.Request().URL.Path, RawQuery: q.Encode()}
	if err := event("endpoint", []byte(at.RequestURI())); err != nil || w.Status != http.StatusOK {
		return nil // the client has left, or the response was withheld (package durable)
	}
	_ = l.serve(ctx, x, func(data []byte) error { return event("message", data) }) // the client has left, or its credential has ended
	return nil
}

// socket serves a WebSocket.
func (s *API) socket(ctx context.Context, c echo.Context, x *mcpSession, l *legacy, extra *mcp.RequestExtra) error {
	conn, err := websocket.Accept(c.Response(), c.Request(), &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		return nil // Accept has responded
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(maxMessage)
	go s.messages(ctx, conn, l, extra)
	err = l.serve(ctx, x, func(data []byte) error {
		if err := s.Durable(ctx); err != nil { // as package durable does for responses
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, sendWithin)
		defer cancel()
		return conn.Write(ctx, websocket.MessageText, data)
	})
	status, reason := websocket.StatusNormalClosure, ""
	if e := refusal(err); e != nil { // the credential has ended
		status, reason = websocket.StatusPolicyViolation, e.Code
	} else if err != nil {
		status = websocket.StatusGoingAway
	}
	_ = conn.Close(status, reason)
	return nil
}

// messages receives the messages of a WebSocket until it ends.
func (s *API) messages(ctx context.Context, conn *websocket.Conn, l *legacy, extra *mcp.RequestExtra) {
	defer l.end()
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return
		}
		if kind != websocket.MessageText {
			_ = conn.Close(websocket.StatusUnsupportedData, "want text")
			return
		}
		switch err := l.receive(ctx, data, extra); {
		case errors.Is(err, errMalformed):
			if l.send(ctx, []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"`+err.Error()+`"}}`)) != nil {
				return
			}
		case err != nil:
			if errors.Is(err, errTooMany) {
				slog.Info("WebSocket of an MCP client closed", "err", err)
				_ = conn.Close(websocket.StatusPolicyViolation, err.Error())
			}
			return
		}
	}
}
