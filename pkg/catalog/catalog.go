// Package catalog provides the view of the tools of a mesh. The view is folded from the
// events that register and retire an executor's tools, and from the approvals of changed
// tools. Tools are registered for all tenants; a tenant may approve changed tools for
// itself.
package catalog

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Filters select the events from which the catalog is built.
var Filters = append(bus.Filters("", contract.EventToolRegistered, contract.EventToolRetired), bus.Filters(services.Policy, contract.EventToolApproved)...)

// Catalog is the view of the tools, by kind of call. The tools, and the approvals of the
// cell, are the same for every tenant; In returns them with the approvals of one tenant.
// It is safe for concurrent use. The zero value is empty.
type Catalog struct {
	mu       sync.RWMutex
	tools    map[string]entry    // by kind
	first    map[string]string   // by kind: digest of the tool document that was registered first
	approved map[string]string   // by kind: digest of the tool document that was approved for the cell
	own      map[string]*overlay // by tenant
	changes  uint64              // number of events that were applied
	digest   string              // digest of the lines, computed when it is needed; empty after a change
}

type entry struct {
	tool   contract.Tool
	digest string
}

// overlay holds the approvals of one tenant other than the cell's.
type overlay struct {
	approved map[string]string // by kind: digest of the approved tool document
	base     string            // result of Catalog.Digest for which digest was computed
	digest   string            // result of Tools.Digest; empty until it is computed after an approval
}

// Apply applies one event to the view, and ignores events with other names than those of
// Filters. cell is the tenant of the mesh's own events when e was stored. A registration
// or retirement in another tenant has no effect, and neither has one by a service other
// than the tool's executor, or one of a kind that another executor has registered and not
// retired. An approval in the cell's tenant is one for all tenants, and an approval in
// another tenant is one for that tenant; an approval by a service other than policy has
// no effect. A malformed registration or retirement has no effect, because any service
// can store one. The error is that of a malformed approval by policy.
func (c *Catalog) Apply(cell string, e *contract.Event) error {
	switch e.Name {
	case contract.EventToolApproved:
		return c.approve(cell, e)
	case contract.EventToolRegistered, contract.EventToolRetired:
	default:
		return nil
	}
	if e.Tenant != cell {
		slog.Warn("a tool document in another tenant than the cell's is ignored", "event", e.ID, "tenant", e.Tenant)
		return nil
	}
	doc, err := decoded(e.Data)
	if err != nil {
		slog.Error("malformed tool document", "event", e.ID, "service", e.Service(), "err", err)
		return nil
	}
	t := &doc.tool
	if t.Executor != e.Service() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	if old, ok := c.tools[t.Kind]; ok && old.tool.Executor != t.Executor {
		return nil
	}
	if c.tools == nil {
		c.tools, c.first = map[string]entry{}, map[string]string{}
	}
	if e.Name == contract.EventToolRetired {
		delete(c.tools, t.Kind)
	} else {
		c.tools[t.Kind] = doc
		if c.first[t.Kind] == "" {
			c.first[t.Kind] = doc.digest
		}
	}
	c.digest = ""
	return nil
}

// approve applies an approval of a tool document. It ignores an approval by a service
// other than policy.
func (c *Catalog) approve(cell string, e *contract.Event) error {
	if e.Service() != services.Policy {
		return nil
	}
	var a contract.ToolApproved
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	if e.Tenant != cell {
		o := c.own[e.Tenant]
		if o == nil {
			if c.own == nil {
				c.own = map[string]*overlay{}
			}
			o = &overlay{approved: map[string]string{}}
			c.own[e.Tenant] = o
		}
		o.approved[a.Kind], o.digest = a.Digest, ""
		return nil
	}
	if c.approved == nil {
		c.approved = map[string]string{}
	}
	c.approved[a.Kind] = a.Digest
	c.digest = ""
	return nil
}

// Generation returns a number that grows with each event that is applied. While it is
// the same, every catalog of a tenant is the same.
func (c *Catalog) Generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.changes
}

// Digest returns the digest of the lines of Dump about the registered tools. It changes
// with the registered tools and with the approvals for the cell, but not with the
// approvals of a tenant.
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
// must not change the values to which its elements refer.
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

// Dump returns the canonical form of the view. It has one JSON line per registered tool,
// sorted by kind, with the digest of its document, the digest of the kind's first
// document and, if policy approved a document of the kind for the cell, its digest. A
// line for each approval of a tenant follows, sorted by tenant and kind.
func (c *Catalog) Dump() []byte {
	c.mu.RLock()
	defer c.mu.RUnlock()
	b := c.lines()
	for _, tenant := range slices.Sorted(maps.Keys(c.own)) {
		b = c.own[tenant].lines(b, tenant)
	}
	return b
}

// lines returns the lines of Dump about the registered tools. The caller holds c.mu.
func (c *Catalog) lines() []byte {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(c.tools)) {
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

// lines appends a line for each approval, sorted by kind, with the tenant unless it is
// empty. The caller holds Catalog.mu.
func (o *overlay) lines(b []byte, tenant string) []byte {
	for _, kind := range slices.Sorted(maps.Keys(o.approved)) {
		w := canon.Object(b)
		w.Str("approved", o.approved[kind])
		w.Str("kind", kind)
		if tenant != "" {
			w.Str("tenant", tenant)
		}
		b = append(w.End(), '\n')
	}
	return b
}

// Tools is the catalog of one tenant: the tools of the cell, with the approvals of the
// tenant. It reflects every event that is applied to the Catalog. It is safe for
// concurrent use.
type Tools struct {
	*Catalog
	tenant string
}

// In returns the catalog of a tenant.
func (c *Catalog) In(tenant string) Tools { return Tools{c, tenant} }

// Approved returns the digest of the tool document that counts as approved for the kind:
// the one that policy approved for the tenant or, if there is none, for the cell, and
// true; otherwise the digest that was registered first and false. The digest is "" if
// there is none of these. For a kind without a registration of its own, it is that of its
// clientkind.Family, if the kind has one.
func (t Tools) Approved(kind string) (digest string, explicit bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if family := clientkind.Family(kind); family != "" && t.first[kind] == "" {
		kind = family
	}
	if o := t.own[t.tenant]; o != nil && o.approved[kind] != "" {
		return o.approved[kind], true
	}
	if d := t.approved[kind]; d != "" {
		return d, true
	}
	return t.first[kind], false
}

// Drifted reports whether digest, which is the digest of the tool document d, differs
// from the one that Approved returns for its kind. Policy's own kinds never drift,
// because a changed document is approved by calling one of them.
func (t Tools) Drifted(d *contract.Tool, digest string) bool {
	approved, _ := t.Approved(d.Kind)
	return d.Executor != services.Policy && approved != digest
}

// Digest returns a digest of the registered tools with their first and approved digests,
// which also identifies the approvals of the tenant. It is that of Catalog.Digest if the
// tenant has none.
func (t Tools) Digest() string {
	base := t.Catalog.Digest()
	t.mu.RLock()
	o := t.own[t.tenant]
	digest := base
	if o != nil {
		if digest = o.digest; o.base != base {
			digest = ""
		}
	}
	t.mu.RUnlock()
	if digest != "" {
		return digest
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o.base, o.digest = base, sign.Digest(o.lines([]byte(base), ""))
	return o.digest
}

// Lookup returns the tool of a kind and the digest of its document, or nil and "none". A kind
// that is not registered has the tool of its clientkind.Family. The caller must not change the
// returned tool.
func (c *Catalog) Lookup(kind string) (t *contract.Tool, digest string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.tools[kind]
	if !ok {
		e, ok = c.tools[clientkind.Family(kind)]
	}
	if !ok {
		return nil, "none"
	}
	return &e.tool, e.digest
}

// Register records tools as the complete list of an executor's tools, in the cell that at
// returns. It appends an event for each new, changed and removed tool, and none for an
// unchanged one, so it may be repeated. While the ledger is unavailable, Register tries
// again until ctx ends; it then returns the error of ctx. It returns any other error at
// once. After an error, some of the events may be stored.
func Register(ctx context.Context, m *emit.Emitter, at func(context.Context) (handle.Cell, error), service string, tools []contract.Tool) error {
	return eventlog.Retry(ctx, func() error { return registerAll(ctx, m, at, service, tools) })
}

// registerAll registers tools like Register, without retries. It reads the events of the
// executor's tools together, so that a start of a service whose tools are registered already
// makes few requests.
func registerAll(ctx context.Context, m *emit.Emitter, at func(context.Context) (handle.Cell, error), service string, tools []contract.Tool) error {
	have, err := registered(ctx, m.Log, at, service)
	if err != nil {
		return err
	}
	for i := range tools {
		t := &tools[i]
		old, ok := have[Key(t.Kind)]
		delete(have, Key(t.Kind))
		if ok && bytes.Equal(contract.Bytes(&old), contract.Bytes(t)) {
			continue
		}
		if err := register(ctx, m, at, service, t, contract.EventToolRegistered); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		t := have[key]
		if err := register(ctx, m, at, service, &t, contract.EventToolRetired); err != nil {
			return err
		}
	}
	return nil
}

// registered returns the registered tools of an executor, by Key.
func registered(ctx context.Context, log eventlog.Log, at func(context.Context) (handle.Cell, error), service string) (map[string]contract.Tool, error) {
	cell, err := at(ctx)
	if err != nil {
		return nil, err
	}
	var events []handle.Stored
	for _, name := range []string{contract.EventToolRegistered, contract.EventToolRetired} {
		named, err := cell.History(ctx, log, bus.Filter{Service: service, Event: name})
		if err != nil {
			return nil, err
		}
		events = append(events, named...)
	}
	slices.SortFunc(events, func(a, b handle.Stored) int { return cmp.Compare(a.Seq, b.Seq) })
	var all Catalog
	for _, e := range events {
		if err := all.Apply(e.Tenant, e.Event); err != nil { // the event was stored in the tenant that was the cell's at that time; see History
			return nil, err
		}
	}
	have := map[string]contract.Tool{}
	for _, t := range all.Tools() {
		have[Key(t.Kind)] = t
	}
	return have, nil
}

// Offer registers one tool of an executor, in the cell that at returns, and leaves the
// executor's other tools as they are. It appends no event if the tool is registered with
// this document. Its error is that of handle.DoCell.
func Offer(ctx context.Context, m *emit.Emitter, at func(context.Context) (handle.Cell, error), service string, t *contract.Tool) error {
	return register(ctx, m, at, service, t, contract.EventToolRegistered)
}

// Withdraw retires one tool of an executor, in the cell that at returns. t is
// the registered document. It appends no event if the tool is retired with
// this document already. Its error is that of handle.DoCell.
func Withdraw(ctx context.Context, m *emit.Emitter, at func(context.Context) (handle.Cell, error), service string, t *contract.Tool) error {
	return register(ctx, m, at, service, t, contract.EventToolRetired)
}

// register appends an event of this name for a tool, unless the last event of the tool
// has the same name and document.
func register(ctx context.Context, m *emit.Emitter, at func(context.Context) (handle.Cell, error), service string, t *contract.Tool, name string) error {
	key, body := Key(t.Kind), contract.Bytes(t)
	_, err := handle.DoCell(ctx, m.Log, at, service, key, func(h []*contract.Event) (*contract.Event, error) {
		if n := len(h); n > 0 && h[n-1].Name == name && string(h[n-1].Data) == string(body) {
			return nil, nil
		}
		return m.New(name, key, body, nil), nil // DoCell sets the tenant
	})
	return err
}

// Key returns the aggregate key of the events that register and retire the tool of a
// kind.
func Key(kind string) string { return "tool-" + strings.ReplaceAll(kind, ".", "-") }
