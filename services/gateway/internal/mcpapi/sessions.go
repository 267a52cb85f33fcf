package mcpapi

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// Limits of MCP sessions.
const (
	mcpPerCaller = 32
	mcpInAll     = 2048
	mcpIdle      = 30 * time.Minute // time without a request after which an MCP session ends
	mcpSweep     = time.Second      // interval at which ended MCP sessions are removed
)

// mcpSession is one MCP session, and the caller and credential that it was opened with.
type mcpSession struct {
	id     string
	tenant string
	actor  string
	over   string // virtual server that it was opened with, or ""
	raw    string // bearer token or virtual key; the MCP session ends when this credential becomes invalid
	srv    *mcp.Server
	end    context.CancelFunc // ends the context of the session and its subscriptions
	old    *legacy            // connection of an old transport, or nil

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

// mcpSessions is the table of MCP sessions. The zero value is empty. It is safe for
// concurrent use. MCP sessions are closed without holding mu, because closing waits for
// requests.
type mcpSessions struct {
	mu   sync.Mutex
	byID map[string]*mcpSession
	room fair.Room // number of the MCP sessions in byID, by tenant
}

// mcpKey is the context key under which a request's mcpSession is stored.
type mcpKey struct{}

// current returns the MCP session stored in a request's context, or nil if there is
// none.
func current(ctx context.Context) *mcpSession {
	x, _ := ctx.Value(mcpKey{}).(*mcpSession)
	return x
}

// enter returns the MCP session with the given id, or a new one if id is empty, and counts a
// request in it. The function server makes the server of a new MCP session. The error is 404 if
// the MCP session does not exist, or belongs to another credential or another virtual server. The
// gateway has at most mcpInAll MCP sessions, which fair.Room divides among the tenants. If the
// caller already has mcpPerCaller of them, or its tenant may not have one more, the caller's MCP
// session that has been idle longest is closed first. If the caller has no idle one and fewer than
// mcpPerCaller, and another tenant has more MCP sessions than the caller's, idle ones of the
// tenant that has most are closed instead. The error is 429 if there is none to close.
func (t *mcpSessions) enter(id string, who *auth.Caller, raw, virtual string, server func(life context.Context, id, tenant, virtual string) *mcp.Server) (*mcpSession, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id != "" {
		x := t.byID[id]
		if x == nil || x.raw != raw || x.over != virtual {
			return nil, apierr.NotFound("MCP session not found; initialize a new one")
		}
		x.busy++
		return x, nil
	}
	if t.byID == nil {
		t.byID = map[string]*mcpSession{}
	}
	ofCaller := func(x *mcpSession) bool { return x.tenant == who.Tenant && x.actor == who.Actor }
	own := 0
	for _, x := range t.byID {
		if ofCaller(x) {
			own++
		}
	}
	for own >= mcpPerCaller || !t.room.Take(who.Tenant, 1, mcpInAll) {
		x := t.idle(ofCaller)
		if most := t.largest(); x == nil && own < mcpPerCaller && t.room.Of(most) > t.room.Of(who.Tenant) {
			x = t.idle(func(x *mcpSession) bool { return x.tenant == most })
		}
		if x == nil {
			return nil, &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeMcpSessionsExceeded, RetryAfter: "5",
				Message: "too many MCP sessions are open; end one with DELETE /mcp"}
		}
		if ofCaller(x) {
			own--
		}
		t.remove(x)
		go x.close()
	}
	x := &mcpSession{id: rand.Text(), tenant: who.Tenant, actor: who.Actor, over: virtual, raw: raw, busy: 1}
	var life context.Context
	life, x.end = context.WithCancel(context.Background())
	x.srv = server(life, x.id, x.tenant, virtual)
	t.byID[x.id] = x
	return x, nil
}

// connect sets the connection of an MCP session with an old transport.
func (t *mcpSessions) connect(x *mcpSession, l *legacy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.old = l
}

// connection returns what connect has set, or nil.
func (t *mcpSessions) connection(x *mcpSession) *legacy {
	t.mu.Lock()
	defer t.mu.Unlock()
	return x.old
}

// servers returns the servers of the MCP sessions.
func (t *mcpSessions) servers() []*mcp.Server {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*mcp.Server, 0, len(t.byID))
	for _, x := range t.byID {
		out = append(out, x.srv)
	}
	return out
}

// idle returns the MCP session that has been idle longest of those for which is returns
// true, or nil if there is none. The caller holds mu.
func (t *mcpSessions) idle(is func(*mcpSession) bool) (oldest *mcpSession) {
	for _, x := range t.byID {
		if x.busy == 0 && is(x) && (oldest == nil || x.used.Before(oldest.used)) {
			oldest = x
		}
	}
	return oldest
}

// largest returns a tenant that has the most MCP sessions. The caller holds mu.
func (t *mcpSessions) largest() (tenant string) {
	for _, x := range t.byID {
		if t.room.Of(x.tenant) > t.room.Of(tenant) {
			tenant = x.tenant
		}
	}
	return tenant
}

// remove removes an MCP session from the table. The caller holds mu.
func (t *mcpSessions) remove(x *mcpSession) {
	delete(t.byID, x.id)
	x.end()
	t.room.Give(x.tenant, 1)
}

// leave counts the end of a request. It removes the MCP session if no request is in
// progress and the MCP session was not established or has ended.
func (t *mcpSessions) leave(x *mcpSession, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.used = now
	if x.busy--; x.busy == 0 && !x.live() && t.byID[x.id] == x {
		t.remove(x)
	}
}

// sweep removes and closes the MCP sessions that have ended, that had no request for
// more than mcpIdle, or for whose credential ended returns true.
func (t *mcpSessions) sweep(now time.Time, ended func(raw string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byID {
		idle := x.busy == 0 && now.Sub(x.used) > mcpIdle
		if idle || ended(x.raw) || x.busy == 0 && !x.live() {
			t.remove(x)
			go x.close()
		}
	}
}

// Run periodically removes MCP sessions that are idle, have ended or whose credential is
// no longer valid, and notifies clients of changes of the catalog, until ctx is done.
func (s *API) Run(ctx context.Context) {
	go s.notifyChanges(ctx)
	t := time.NewTicker(mcpSweep)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			s.mcps.sweep(now, func(raw string) bool { _, err := s.Gate.Verify(ctx, raw); return err != nil })
		}
	}
}
