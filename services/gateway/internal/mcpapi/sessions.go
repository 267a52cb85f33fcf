package mcpapi

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Limits of MCP sessions.
const (
	mcpPerCaller = 32
	mcpInAll     = 512
	mcpIdle      = 30 * time.Minute // time without a request after which a session ends
	mcpSweep     = time.Second      // interval at which ended sessions are removed
)

// mcpSession is one MCP session, and the caller and credential that it was opened with.
type mcpSession struct {
	id    string
	actor string
	raw   string // bearer token or virtual key; the session ends when it becomes invalid
	srv   *mcp.Server

	busy int       // number of requests in progress, including event streams
	used time.Time // end of the last request
}

func (x *mcpSession) close() {
	for ss := range x.srv.Sessions() {
		_ = ss.Close() // Close blocks until the requests in progress end
	}
}

// live reports whether the SDK has a session on this server: one that was connected and
// has not ended.
func (x *mcpSession) live() bool {
	for range x.srv.Sessions() {
		return true
	}
	return false
}

// mcpSessions is the table of sessions. The zero value is empty. It is safe for
// concurrent use. Sessions are closed without holding mu, because closing waits for
// requests.
type mcpSessions struct {
	mu   sync.Mutex
	byID map[string]*mcpSession
}

// mcpKey is the context key under which a request's mcpSession is stored.
type mcpKey struct{}

// current returns the MCP session stored in a request's context, or nil if there is
// none.
func current(ctx context.Context) *mcpSession {
	x, _ := ctx.Value(mcpKey{}).(*mcpSession)
	return x
}

// enter returns the session with the given id, or a new one if id is empty, and counts a
// request in it. The error is 404 if the session does not exist or belongs to another
// credential. If the caller already has mcpPerCaller sessions, or the gateway mcpInAll,
// the caller's session that has been idle longest is closed first; the error is 429 if
// the caller has no idle session.
func (t *mcpSessions) enter(id, actor, raw string, server func(id string) *mcp.Server) (*mcpSession, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id != "" {
		x := t.byID[id]
		if x == nil || x.raw != raw {
			return nil, apierr.NotFound("no such MCP session; initialize a new one")
		}
		x.busy++
		return x, nil
	}
	if t.byID == nil {
		t.byID = map[string]*mcpSession{}
	}
	own := 0
	var oldest *mcpSession
	for _, x := range t.byID {
		if x.actor != actor {
			continue
		}
		own++
		if x.busy == 0 && (oldest == nil || x.used.Before(oldest.used)) {
			oldest = x
		}
	}
	if own >= mcpPerCaller || len(t.byID) >= mcpInAll {
		if oldest == nil {
			return nil, &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeMcpSessionsExceeded, RetryAfter: "5",
				Message: "too many MCP sessions are open; end one with DELETE /mcp"}
		}
		delete(t.byID, oldest.id)
		go oldest.close()
	}
	x := &mcpSession{id: rand.Text(), actor: actor, raw: raw, busy: 1}
	x.srv = server(x.id)
	t.byID[x.id] = x
	return x, nil
}

// leave counts the end of a request. It removes the session if no request is in progress
// and the session was not established or has ended.
func (t *mcpSessions) leave(x *mcpSession, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.used = now
	if x.busy--; x.busy == 0 && !x.live() && t.byID[x.id] == x {
		delete(t.byID, x.id)
	}
}

// sweep removes and closes the sessions without a request for more than mcpIdle, those
// that have ended, and those for whose credential ended returns true.
func (t *mcpSessions) sweep(now time.Time, ended func(raw string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, x := range t.byID {
		idle := x.busy == 0 && now.Sub(x.used) > mcpIdle
		if idle || ended(x.raw) || x.busy == 0 && !x.live() {
			delete(t.byID, id)
			go x.close()
		}
	}
}

// Run periodically removes MCP sessions that are idle, have ended or whose credential is
// no longer valid, until ctx is done.
func (s *API) Run(ctx context.Context) {
	t := time.NewTicker(mcpSweep)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			s.mcps.sweep(now, func(raw string) bool { _, err := s.Gate.Verify(raw); return err != nil })
		}
	}
}
