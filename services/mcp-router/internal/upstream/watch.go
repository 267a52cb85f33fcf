package upstream

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
)

// watches are the subscriptions to resources in the session with a command. The zero value is empty.
type watches struct {
	mu  sync.Mutex
	all map[*watch]bool
}

// watch is a subscription of a Caller.
type watch struct {
	uri string
	c   Caller
}

// none reports whether there are no subscriptions.
func (w *watches) none() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all) == 0
}

// set adds a subscription, or removes it.
func (w *watches) set(x *watch, add bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !add {
		delete(w.all, x)
		return
	}
	if w.all == nil {
		w.all = map[*watch]bool{}
	}
	w.all[x] = true
}

// updated passes a notification to those who subscribed to the resource, or to one that contains it.
func (w *watches) updated(p *mcp.ResourceUpdatedNotificationParams) {
	var to []Caller
	w.mu.Lock()
	for x := range w.all {
		if p.URI == x.uri || strings.HasPrefix(p.URI, strings.TrimSuffix(x.uri, "/")+"/") {
			to = append(to, x.c)
		}
	}
	w.mu.Unlock() // a Caller may end its subscription
	for _, c := range to {
		c.Notify(mcpdoc.Updated, p)
	}
}

// watch subscribes to changes of a resource in a session with the key, which requests use, too: the state
// of a command is in its process. The process does not end as unused while the subscription lasts. The
// server is not notified of the end of the subscription: a later one in the same session could
// overtake the notification, and changes without a subscription are dropped.
func (s *Server) watch(ctx context.Context, key string, headers http.Header, c Caller, uri string) (Subscription, error) {
	var in Session
	w := &watch{uri, c}
	err := s.Do(ctx, key, headers, c, func(ctx context.Context, u Session) error {
		in = u
		in.s.watches.set(w, true)
		err := u.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
		if err != nil {
			in.s.watches.set(w, false)
		}
		return err
	})
	if err != nil {
		return Subscription{}, err
	}
	return Subscription{in, func() {
		in.s.watches.set(w, false)
		time.AfterFunc(idleFor+time.Second, s.trim)
	}, in.s.over}, nil
}
