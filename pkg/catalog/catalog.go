// Package catalog provides the view of the tools of a mesh. The view is folded from the
// events that register and retire an executor's tools, and from the approvals of changed
// tools.
package catalog

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
)

// Filters select the events from which the catalog is folded.
var Filters = append(bus.Filters("", contract.EventToolRegistered, contract.EventToolRetired), bus.Filters("policy", contract.EventToolApproved)...)

// Catalog is the view of the tools, by kind of call. It is safe for concurrent use. The
// zero value is empty.
type Catalog struct {
	mu       sync.RWMutex
	tools    map[string]entry  // by kind
	first    map[string]string // by kind: the digest that was registered first
	approved map[string]string // by kind: the approved digest
	digest   string            // digest of the lines, computed when it is needed; empty after a change
}

type entry struct {
	tool   contract.Tool
	digest string
}

// Apply applies one event to the view, and ignores events with other names than those of
// Filters. It also ignores an approval by a service other than policy, a registration or
// retirement by a service other than the tool's executor, and one of a kind that another
// executor has registered and not retired. A malformed registration or retirement has no
// effect, because any service can store one. The error is that of a malformed approval by
// policy.
func (c *Catalog) Apply(e *contract.Event) error {
	switch e.Name {
	case contract.EventToolApproved:
		return c.approve(e)
	case contract.EventToolRegistered, contract.EventToolRetired:
	default:
		return nil
	}
	var t contract.Tool
	if err := contract.Decode(e.Data, &t); err != nil {
		slog.Error("malformed tool document", "event", e.ID, "service", e.Service(), "err", err)
		return nil
	}
	if t.Executor != e.Service() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.tools[t.Kind]; ok && old.tool.Executor != t.Executor {
		return nil
	}
	if c.tools == nil {
		c.tools, c.first = map[string]entry{}, map[string]string{}
	}
	if e.Name == contract.EventToolRetired {
		delete(c.tools, t.Kind)
	} else {
		c.tools[t.Kind] = entry{t, contract.Digest(&t)}
		if c.first[t.Kind] == "" {
			c.first[t.Kind] = c.tools[t.Kind].digest
		}
	}
	c.digest = ""
	return nil
}

// approve applies an approval of a tool document. It ignores an approval by a service
// other than policy.
func (c *Catalog) approve(e *contract.Event) error {
	if e.Service() != "policy" {
		return nil
	}
	var a contract.ToolApproved
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.approved == nil {
		c.approved = map[string]string{}
	}
	c.approved[a.Kind] = a.Digest
	c.digest = ""
	return nil
}

// Approved returns the digest of the tool document under which the kind may be called:
// the approved digest and true if policy approved one, otherwise the digest that was
// registered first and false. The digest is "" if there is neither.
func (c *Catalog) Approved(kind string) (digest string, explicit bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if d := c.approved[kind]; d != "" {
		return d, true
	}
	return c.first[kind], false
}

// Drifted reports whether digest, which is the digest of the tool document t, differs
// from the one that Approved returns for its kind. Policy's own kinds never drift,
// because a changed document is approved by calling one of them.
func (c *Catalog) Drifted(t *contract.Tool, digest string) bool {
	d, _ := c.Approved(t.Kind)
	return t.Executor != "policy" && d != digest
}

// Lookup returns the tool of a kind and the digest of its document, or nil and "none".
// The caller must not change the tool.
func (c *Catalog) Lookup(kind string) (t *contract.Tool, digest string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.tools[kind]
	if !ok {
		return nil, "none"
	}
	return &e.tool, e.digest
}

// Digest returns the digest of Dump. It identifies the registered tools with their first
// and approved digests.
func (c *Catalog) Digest() string {
	c.mu.RLock()
	d := c.digest
	c.mu.RUnlock()
	if d != "" {
		return d
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.digest == "" {
		c.digest = sign.Digest(c.lines())
	}
	return c.digest
}

// Tools returns the registered tools, sorted by kind. The caller owns the slice, but
// must not change what its elements refer to.
func (c *Catalog) Tools() []contract.Tool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []contract.Tool
	for _, e := range c.tools {
		out = append(out, e.tool)
	}
	slices.SortFunc(out, func(a, b contract.Tool) int { return strings.Compare(a.Kind, b.Kind) })
	return out
}

// Dump returns the canonical form of the registered tools: one JSON line per tool, with
// its digest and its first and approved digests, sorted by kind.
func (c *Catalog) Dump() []byte {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.lines()
}

// lines returns the dump. The caller holds c.mu.
func (c *Catalog) lines() []byte {
	kinds := make([]string, 0, len(c.tools))
	for k := range c.tools {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	var b []byte
	for _, k := range kinds {
		e := c.tools[k]
		w := canon.Object(b)
		if d := c.approved[k]; d != "" {
			w.Str("approved", d)
		}
		w.Str("digest", e.digest)
		w.Str("first", c.first[k])
		w.Raw("tool", contract.Bytes(&e.tool))
		b = append(w.End(), '\n')
	}
	return b
}

// Register records tools as the complete list of an executor's tools. It appends an
// event for each new, changed and removed tool, and none for an unchanged one, so it may
// be repeated. While the ledger is unavailable, Register tries again until ctx ends; it
// then returns the error of ctx. After another error, some of the events may be stored.
func Register(ctx context.Context, m *emit.Emitter, service string, tools []contract.Tool) error {
	return eventlog.Retry(ctx, func() error { return registerAll(ctx, m, service, tools) })
}

// registerAll makes one attempt at Register.
func registerAll(ctx context.Context, m *emit.Emitter, service string, tools []contract.Tool) error {
	offered := map[string]bool{}
	for i := range tools {
		t := &tools[i]
		offered[Key(t.Kind)] = true
		if err := register(ctx, m, service, t, contract.EventToolRegistered); err != nil {
			return err
		}
	}
	var have Catalog
	var events []eventlog.Entry
	for _, name := range []string{contract.EventToolRegistered, contract.EventToolRetired} {
		for en, err := range m.Log.Scan(ctx, bus.Filter{Tenant: m.Tenant, Service: service, Event: name}.String(), 1) {
			if err != nil {
				return err
			}
			events = append(events, en)
		}
	}
	slices.SortFunc(events, func(a, b eventlog.Entry) int { return int(a.Seq) - int(b.Seq) })
	for _, en := range events {
		if e, err := eventlog.Open(en, bus.Filter{Tenant: m.Tenant, Service: service}.String()); err == nil {
			if err := have.Apply(e); err != nil {
				return err
			}
		}
	}
	for _, t := range have.Tools() {
		if !offered[Key(t.Kind)] {
			if err := register(ctx, m, service, &t, contract.EventToolRetired); err != nil {
				return err
			}
		}
	}
	return nil
}

// register appends an event of this name for a tool, unless the last event of the tool
// has the same name and document.
func register(ctx context.Context, m *emit.Emitter, service string, t *contract.Tool, name string) error {
	key, body := Key(t.Kind), contract.Bytes(t)
	_, err := handle.Do(ctx, m.Log, bus.AggregateFilter(m.Tenant, service, key), func(h []*contract.Event) (*contract.Event, error) {
		if n := len(h); n > 0 && h[n-1].Name == name && string(h[n-1].Data) == string(body) {
			return nil, nil
		}
		return m.New(name, key, body, nil), nil
	})
	return err
}

// Key returns the aggregate key of the registration of a kind's tool.
func Key(kind string) string { return "tool-" + strings.ReplaceAll(kind, ".", "-") }
