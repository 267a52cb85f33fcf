package mcpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
)

// Times and limits of subscriptions to resources.
const (
	renewAfter       = mcpdoc.Lease * 2 / 3
	renewAgain       = 10 * time.Second // after a call that failed
	renewEnded       = time.Second      // after the mcp-router has ended the subscription
	maxSubscriptions = 64               // of a session, or of a request for subscriptions
)

// subscriptions are the subscriptions to resources of the sessions of a server. The zero
// value is empty.
type subscriptions struct {
	mu  sync.Mutex
	all map[*mcp.ServerSession]map[string]context.CancelFunc // by URI
}

// add adds a subscription, which the function end ends. It first ends an earlier
// subscription to the same URI. It returns an error if the session has too many
// subscriptions.
func (s *subscriptions) add(ss *mcp.ServerSession, uri string, end context.CancelFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.all[ss]
	if len(of) >= maxSubscriptions && of[uri] == nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("too many subscriptions: a session may have %d; unsubscribe from other resources", maxSubscriptions)}
	}
	if of == nil {
		of = map[string]context.CancelFunc{}
		if s.all == nil {
			s.all = map[*mcp.ServerSession]map[string]context.CancelFunc{}
		}
		s.all[ss] = of
	}
	if earlier := of[uri]; earlier != nil {
		earlier()
	}
	of[uri] = end
	return nil
}

// remove ends a subscription, if there is one.
func (s *subscriptions) remove(ss *mcp.ServerSession, uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := s.all[ss][uri]; end != nil {
		end()
	}
	delete(s.all[ss], uri)
	if len(s.all[ss]) == 0 {
		delete(s.all, ss)
	}
}

// extraKey is the context key of the RequestExtra of a request for subscriptions.
type extraKey struct{}

// subscribe handles resources/subscribe, and each URI of subscriptions/listen. It returns
// once the server of the resource, or the mesh for its own resources, has accepted the
// subscription.
func (e *edge) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	extra := req.Extra
	if x, ok := ctx.Value(extraKey{}).(*mcp.RequestExtra); ok {
		extra = x
	}
	uri := req.Params.URI
	o := e.catalog()
	if isOwn(uri) && o.own {
		life, err := subscription(ctx, e, req.Session, uri)
		if err == nil {
			if err = (ownEdge{e}).followOwn(life, extra, req.Session, uri); err != nil {
				e.subs.remove(req.Session, uri)
			}
		}
		return err
	}
	server := o.serverOf(uri)
	if server == "" {
		return notFound(req.Session, uri)
	}
	kind := mcpdoc.SubscriptionKind(server)
	if t, _ := e.Tools.Lookup(kind); t == nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "MCP server " + server + " does not support subscriptions"}
	}
	p := proposal{kind: kind, tool: kind, extra: extra, session: req.Session}
	b, err := json.Marshal(map[string]string{"uri": uri})
	if err == nil {
		p.args, err = canon.Transform(nil, b)
	}
	if err != nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "uri: " + err.Error()}
	}
	life, err := subscription(ctx, e, req.Session, uri)
	if err != nil {
		return err
	}
	f, err := e.lease(ctx, p)
	if err != nil {
		e.subs.remove(req.Session, uri)
		return wireError(err)
	}
	go (&following{uri: uri, frames: f, lease: func(ctx context.Context) (Frames, error) { return e.lease(ctx, p) }, notify: func() { updated(e, p.session, uri) }}).run(life)
	return nil
}

// subscription adds a subscription of a session, and returns a context that ends with it. A
// subscription without an MCP session ends with the request, whose context is ctx.
func subscription(ctx context.Context, e *edge, session *mcp.ServerSession, uri string) (context.Context, error) {
	if e.life != nil {
		ctx = e.life
	}
	life, end := context.WithCancel(ctx)
	if err := e.subs.add(session, uri, end); err != nil {
		end()
		return nil, err
	}
	return life, nil
}

// unsubscribe handles resources/unsubscribe, and the end of a request for subscriptions.
func (e *edge) unsubscribe(_ context.Context, req *mcp.UnsubscribeRequest) error {
	e.subs.remove(req.Session, req.Params.URI)
	return nil
}

// lease proposes a call that subscribes for mcpdoc.Lease, and returns its frames once it
// has succeeded.
func (e *edge) lease(ctx context.Context, p proposal) (Frames, error) {
	who, err := callerOf(p.extra)
	if err != nil {
		return nil, err
	}
	leave, err := e.Gate.Meter(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	r, _, err := e.request(ctx, who, p)
	if err != nil {
		return nil, err
	}
	f := e.Open(r.ID, mcpdoc.Executor)
	if _, _, err := e.Calls.Await(ctx, r, false); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// following passes the changes of a resource to the client that subscribed.
type following struct {
	uri    string
	lease  func(context.Context) (Frames, error) // see edge.lease
	notify func()                                // notifies the client of a change
	frames Frames                                // of the current lease
	last   Frames                                // of the lease before it, which may still receive changes from before the renewal; nil for none
	missed bool                                  // whether changes may have been missed since the lease ended
}

// settle is the time after a renewal for which the frames of the lease before are read. A
// change that the mcp-router has sent before the renewal arrives within it.
const settle = 5 * time.Second

// run passes changes to the client until ctx ends or a call is denied (see denied). It renews
// the subscription with another call before the current lease expires, and tries again after
// any other error of a call. If changes may have been missed, because the lease has ended or
// frames were lost, it notifies the client after the renewal.
func (f *following) run(ctx context.Context) {
	defer func() { f.frames.Close() }()
	defer f.drop()
	renew, settled := time.NewTimer(renewAfter), time.NewTimer(settle)
	defer renew.Stop()
	defer settled.Stop()
	expires := time.Now().Add(mcpdoc.Lease)
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.frames.Wake():
			if f.take(f.frames) && !f.missed { // once, so that further frames do not postpone the renewal
				f.missed = true
				renew.Reset(renewEnded)
			}
		case <-wake(f.last):
			f.take(f.last) // its end is not of interest
		case <-settled.C:
			f.drop()
		case <-renew.C:
			at := time.Now()
			again, err := f.lease(ctx)
			switch {
			case err == nil:
				f.missed = f.missed || at.After(expires)
				expires = at.Add(mcpdoc.Lease)
				f.replace(again)
				settled.Reset(settle)
				renew.Reset(renewAfter)
			case ctx.Err() != nil:
				return
			case denied(err):
				f.take(f.frames)
				slog.Warn("subscription to a resource ended", "uri", f.uri, "err", err)
				return
			default:
				renew.Reset(renewAgain)
			}
		}
	}
}

// replace continues with the frames of the next lease.
func (f *following) replace(next Frames) {
	f.drop()
	f.last, f.frames = f.frames, next
	if f.missed {
		f.missed = false
		f.notify()
	}
}

// drop passes on the changes that have arrived in the frames of the previous lease, and closes
// these frames.
func (f *following) drop() {
	if f.last != nil {
		f.take(f.last)
		f.last.Close()
		f.last = nil
	}
}

// wake returns the channel of the frames' Wake, or nil if there are no frames.
func wake(f Frames) <-chan struct{} {
	if f == nil {
		return nil
	}
	return f.Wake()
}

// denied reports whether err has the status 401, 403 or 404, so that the call is not
// made again.
func denied(err error) bool {
	e := refusal(err)
	return e != nil && (e.Status == http.StatusForbidden || e.Status == http.StatusUnauthorized || e.Status == http.StatusNotFound)
}

// take passes the changes that have arrived in frames to the client, as one notification. It
// reports whether the subscription must be renewed now, because it has ended or frames
// were lost.
func (f *following) take(frames Frames) (renew bool) {
	updated := false
	for {
		x, ok, err := frames.Try()
		if err != nil {
			renew = true
			break
		}
		if !ok {
			break
		}
		var frame mcpdoc.Frame
		if json.Unmarshal(x.Data, &frame) != nil {
			continue
		}
		updated, renew = updated || frame.Method == mcpdoc.Updated, renew || frame.Method == mcpdoc.Ended
	}
	if updated {
		f.notify()
	}
	return renew
}

// subscriber is the member of the metadata of a notification with the session that it is
// for. toSubscriber removes it.
const subscriber = "binnacle/subscriber"

// toSubscriber is middleware that sends a notification of a changed resource only to the
// session that it is for. The SDK sends it to every session that has subscribed to the
// resource; each of them has a decision of its own.
func toSubscriber(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if p, ok := req.GetParams().(*mcp.ResourceUpdatedNotificationParams); ok && p.Meta[subscriber] != nil {
			if p.Meta[subscriber] != req.GetSession() {
				return nil, nil
			}
			p.Meta = maps.Clone(p.Meta)
			delete(p.Meta, subscriber)
		}
		return next(ctx, method, req)
	}
}
