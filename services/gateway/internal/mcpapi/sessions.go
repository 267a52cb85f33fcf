package mcpapi

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Limits of MCP sessions.
const (
	mcpPerCaller = 32
	mcpInAll     = 512
	mcpIdle      = 30 * time.Minute // without a request, then it ends
	mcpSweep     = time.Second      // how often ends are looked for
)

// mcpSession is one session and what it was opened with.
type mcpSession struct {
	id    string
	actor string
	raw   string // credential; the session ends with it
	srv   *mcp.Server

	busy int       // requests in progress, event streams among them
	used time.Time // when the last request ended
}

func (x *mcpSession) close() {
	for ss := range x.srv.Sessions() {
		_ = ss.Close() // waits for requests in progress
	}
}

func (x *mcpSession) live() bool {
	for range x.srv.Sessions() {
		return true
	}
	return false
}

// mcpSessions is the table of sessions. The zero value is empty. It is safe for
// concurrent use; sessions are closed outside its lock, since that waits for requests.
type mcpSessions struct {
	mu   sync.Mutex
	byID map[string]*mcpSession
}

type mcpKey struct{}

// current is the session a request belongs to.
func current(ctx context.Context) *mcpSession {
	x, _ := ctx.Value(mcpKey{}).(*mcpSession)
	return x
}

// enter returns the session named id, or a new one where id is empty; nil where
// id names none of the credential's. A caller who has mcpPerCaller sessions, or
// meets a full gateway, loses the one that is idle longest; where none is idle,
// enter returns an error.
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
			return nil, &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "mcp_sessions_exceeded", RetryAfter: "5",
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

// leave ends a request. A session that was not established, or was ended, goes.
func (t *mcpSessions) leave(x *mcpSession, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.used = now
	if x.busy--; x.busy == 0 && !x.live() && t.byID[x.id] == x {
		delete(t.byID, x.id)
	}
}

// sweep ends the sessions that ended says so of, and those that are idle.
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

// Run removes idle and ended MCP sessions periodically until ctx is done.
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
