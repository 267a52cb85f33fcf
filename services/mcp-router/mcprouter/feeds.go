package mcprouter

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/server"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// Limits of subscriptions.
const (
	maxFeeds     = 256                    // per instance
	maxListeners = 1024                   // per instance
	quiet        = 100 * time.Millisecond // minimum time between two frames of a subscription
)

// feeds holds the subscriptions of an instance to resources of servers. A client that
// subscribes makes a call, which adds a listener for the time mcpdoc.Lease; the
// gateway calls again before this time ends. So policy decides each renewal, another
// instance can continue the subscription after a restart, and a subscription expires
// when its gateway has ended.
type feeds struct {
	mu        sync.Mutex
	all       map[feedKey]*feed
	listeners int
}

// feedKey identifies a subscription to a resource of a server.
type feedKey struct {
	tenant, server, session, uri string // session is "" if the sessions with the server are shared
	settings                     string // CallID of the settings of the server
	process                      string // sessionKey of the process if the server is a command
}

// feed is a subscription to a resource.
type feed struct {
	key   feedKey
	s     *Service
	ready chan struct{} // closed after stop or err was set
	stop  func()
	err   error
	// attestation is that of the sandbox of a command, or nil.
	attestation *contract.Attestation

	mu        sync.Mutex
	listeners map[string]*listener // by call
	last      time.Time            // when the last frames were sent
	waiting   bool                 // frames will be sent
}

// listener receives the changes of a resource.
type listener struct {
	tenant, origin, call string
	n                    int64 // number of the last frame
}

// subscribe executes a call that subscribes to a resource.
func (c *call) subscribe(ctx context.Context) execute.Result {
	var args struct{ URI string }
	if err := json.Unmarshal(c.w.Args, &args); err != nil || args.URI == "" {
		return execute.Fail(contract.CodeInvalidInput, "uri: want the URI of a resource of MCP server %s", c.cfg.Name)
	}
	k := feedKey{tenant: c.w.Event.Tenant, server: c.cfg.Name, uri: args.URI, settings: c.cfg.CallID}
	if c.cfg.Sessions == server.PerSession {
		k.session = c.w.Event.Session
	}
	if c.cfg.Transport == server.Stdio {
		k.process = sessionKey(c.w, c.cfg)
	}
	expires := time.Now().Add(mcpdoc.Lease)
	f, err := c.listen(ctx, k)
	if err != nil {
		return failed(ctx, c.cfg, err)
	}
	r := output(map[string]string{"expires": expires.UTC().Format(time.RFC3339)})
	r.EffectType, r.Attestation = "mcp.request", f.attestation
	return r
}

// listen adds the call to the listeners of a feed, which it begins if there is none.
func (c *call) listen(ctx context.Context, k feedKey) (*feed, error) {
	fs := &c.s.feeds
	l := &listener{tenant: c.w.Event.Tenant, origin: c.w.Event.Origin, call: c.w.Call.ID}
	fs.mu.Lock()
	f := fs.all[k]
	if fs.listeners >= maxListeners || f == nil && len(fs.all) >= maxFeeds {
		fs.mu.Unlock()
		return nil, &upstream.Error{Code: contract.CodeUnavailable, Message: "too many subscriptions are active: end others and call again"}
	}
	begin := f == nil
	if begin {
		f = &feed{key: k, s: c.s, ready: make(chan struct{}), listeners: map[string]*listener{}}
		fs.all[k] = f
	}
	fs.listeners++
	f.mu.Lock()
	f.listeners[l.call] = l
	f.mu.Unlock()
	fs.mu.Unlock()
	if begin {
		f.begin(ctx, c)
	}
	select {
	case <-f.ready:
	case <-ctx.Done():
		f.leave(l.call)
		return nil, ctx.Err()
	}
	if f.err != nil {
		f.leave(l.call)
		return nil, f.err
	}
	time.AfterFunc(mcpdoc.Lease, func() { f.leave(l.call) })
	return f, nil
}

// begin subscribes at the server, and sets stop or, if the subscription fails,
// err.
func (f *feed) begin(ctx context.Context, c *call) {
	defer close(f.ready)
	if c.cfg.Transport != server.Stdio { // a command may have to be started first
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.cfg.TimeoutMS)*time.Millisecond)
		defer cancel()
	}
	ctx = withWork(ctx, c.w, c.w.Secrets)
	var in upstream.Subscription
	f.err = renewed(ctx, c.w, c.cfg, c.w.Secrets, upstream.Rejected, func(secrets map[string]string) (err error) {
		in, err = c.s.pool(c.cfg).Subscribe(ctx, f.key.process, headers(c.cfg, secrets), f, f.key.uri)
		return err
	})
	if f.err != nil {
		return
	}
	f.stop, f.attestation = sync.OnceFunc(in.Stop), attestation(in.Session)
	go func() {
		<-in.Ended
		f.end()
	}()
}

// leave removes a listener. The feed ends with its last one.
func (f *feed) leave(call string) {
	fs := &f.s.feeds
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listeners[call] == nil {
		return
	}
	delete(f.listeners, call)
	fs.listeners--
	if len(f.listeners) == 0 {
		f.remove()
	}
}

// remove ends the feed. The caller holds both locks.
func (f *feed) remove() {
	if f.s.feeds.all[f.key] == f {
		delete(f.s.feeds.all, f.key)
	}
	if f.stop != nil {
		f.stop()
	}
}

// end ends the feed, and notifies its listeners, so that they can subscribe again.
func (f *feed) end() {
	fs := &f.s.feeds
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.send(mcpdoc.Ended)
	fs.listeners -= len(f.listeners)
	f.listeners = map[string]*listener{}
	f.remove()
}

// Notify implements upstream.Caller. It ignores all notifications but those of
// changes. Several changes within the time quiet cause one frame for each listener.
func (f *feed) Notify(method string, _ any) {
	if method != mcpdoc.Updated {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting {
		return
	}
	f.waiting = true
	time.AfterFunc(max(0, quiet-time.Since(f.last)), f.updated)
}

// updated notifies the listeners of a change, if the server still has the settings with
// which the feed began. Otherwise it ends the feed.
func (f *feed) updated() {
	if cfg := f.s.view.server(f.key.server); cfg == nil || cfg.CallID != f.key.settings {
		f.end()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting, f.last = false, time.Now()
	f.send(mcpdoc.Updated)
}

// send sends a frame to the listeners. The caller holds f.mu.
func (f *feed) send(method string) {
	params, err := json.Marshal(&mcp.ResourceUpdatedNotificationParams{URI: f.key.uri})
	if err != nil {
		return
	}
	b, err := json.Marshal(mcpdoc.Frame{Method: method, Params: params})
	if err != nil {
		return
	}
	for _, l := range f.listeners {
		l.n++
		if err := f.s.post(l.tenant, l.origin, l.call, l.n, b); err != nil {
			f.s.env.Log.Warn("change of a resource not sent", "server", f.key.server, "err", err)
		}
	}
}

// errNoCall is returned to a server for its requests in the session of a subscription.
var errNoCall = errors.New("no call runs in this session")

// Elicit implements upstream.Caller.
func (*feed) Elicit(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	return nil, errNoCall
}

// Sample implements upstream.Caller.
func (*feed) Sample(context.Context, *mcp.CreateMessageWithToolsParams) (*mcp.CreateMessageWithToolsResult, error) {
	return nil, errNoCall
}

// Roots implements upstream.Caller.
func (*feed) Roots(context.Context) (*mcp.ListRootsResult, error) { return nil, errNoCall }

// endFeeds ends the feeds of all servers.
func (s *Service) endFeeds() {
	s.feeds.mu.Lock()
	var all []*feed
	for _, f := range s.feeds.all {
		all = append(all, f)
	}
	s.feeds.mu.Unlock()
	for _, f := range all {
		f.end()
	}
}
