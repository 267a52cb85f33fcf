package mcpapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// Overlays are the overlays in force; auth.Authority implements it.
type Overlays interface {
	// Policies returns a number that grows with each change of the overlays.
	Policies() uint64
	// Overlays returns the contents of the overlays of a tenant.
	Overlays(tenant string) []contract.Content
}

// overlayCache holds the overlays of tenants in decoded form. The zero value is empty.
type overlayCache struct {
	mu  sync.Mutex
	all map[string]*decoded // by tenant
}

// decoded holds the overlays of a tenant at a number that Overlays.Policies returned.
type decoded struct {
	policies uint64
	overlays []*guard.Overlay
}

// overlaysOf returns the overlays of a tenant. The error is 503 if one cannot be read.
func (s *API) overlaysOf(ctx context.Context, tenant string) ([]*guard.Overlay, error) {
	if s.Overlays == nil {
		return nil, nil
	}
	now := s.Overlays.Policies()
	s.overlays.mu.Lock()
	d := s.overlays.all[tenant]
	s.overlays.mu.Unlock()
	if d != nil && d.policies == now {
		return d.overlays, nil
	}
	d = &decoded{policies: now}
	for _, c := range s.Overlays.Overlays(tenant) {
		b, err := s.Blobs.In(tenant).Open(ctx, &c)
		if err != nil {
			return nil, apierr.Unavailable("an overlay cannot be read now: " + err.Error())
		}
		o := &guard.Overlay{}
		if err := contract.Decode(b, o); err != nil {
			return nil, fmt.Errorf("overlay %s: %w", c.Commitment, err)
		}
		d.overlays = append(d.overlays, o)
	}
	s.overlays.mu.Lock()
	defer s.overlays.mu.Unlock()
	if s.overlays.all == nil {
		s.overlays.all = map[string]*decoded{}
	}
	s.overlays.all[tenant] = d
	return d.overlays, nil
}

// visible returns a function that reports whether the overlays permit a caller to call a kind;
// lists omit the elements of other kinds. It is nil if no overlay applies to the caller. Policy
// decides on each call by all layers, so a list may contain elements that a bundle denies.
func (e *edge) visible(ctx context.Context, extra *mcp.RequestExtra, session *mcp.ServerSession) (func(kind string) bool, error) {
	who, err := callerOf(extra)
	if err != nil {
		return nil, err
	}
	overlays, err := e.overlaysOf(ctx, who.Tenant)
	if err != nil || len(overlays) == 0 {
		return nil, err
	}
	f := &guard.Facts{Tenant: who.Tenant, Actor: who.Actor, Now: contract.Time(e.now())}
	if slices.ContainsFunc(overlays, func(o *guard.Overlay) bool { return o.Scope == "session" }) {
		if err := inSession(ctx, e, f, who, extra, session); err != nil {
			return nil, err
		}
	}
	overlays = slices.DeleteFunc(slices.Clone(overlays), func(o *guard.Overlay) bool { return !o.Applies(f) })
	if len(overlays) == 0 {
		return nil, nil
	}
	return func(kind string) bool {
		t, _ := e.Tools.Lookup(kind)
		g := *f
		g.Kind = kind
		return !slices.ContainsFunc(overlays, func(o *guard.Overlay) bool { return o.Answer(&g, t).Verdict == contract.Deny })
	}, nil
}

// inSession adds to f the session in which a call of the request would be made.
func inSession(ctx context.Context, e *edge, f *guard.Facts, who *auth.Caller, extra *mcp.RequestExtra, session *mcp.ServerSession) error {
	in, err := e.Sessions.Of(ctx, who, headersIn(extra.Header, session))
	if err != nil {
		return err
	}
	f.Session, f.SessionName = in.ID, in.Name
	return nil
}

// filter returns the elements of a list whose kinds are visible. It returns the list itself if
// visible is nil.
func filter[T any](list []T, visible func(kind string) bool, kind func(T) string) []T {
	if visible == nil {
		return list
	}
	out := make([]T, 0, len(list))
	for _, x := range list {
		if visible(kind(x)) {
			out = append(out, x)
		}
	}
	return out
}

// Kinds of the calls of listed elements.
func toolKind(t *mcp.Tool) string     { return mcpdoc.ToolPrefix + t.Name }
func promptKind(p *mcp.Prompt) string { return mcpdoc.PromptPrefix + p.Name }

func (o *offers) resourceKind(r *mcp.Resource) string { return mcpdoc.ResourcePrefix + o.byURI[r.URI] }

func (o *offers) templateKind(t *mcp.ResourceTemplate) string {
	for _, p := range o.patterns {
		if p.template == t.URITemplate {
			return mcpdoc.ResourcePrefix + p.server
		}
	}
	return strings.TrimSuffix(mcpdoc.ResourcePrefix, ".")
}
