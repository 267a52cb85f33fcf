package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
)

func tool(executor, kind, description string) contract.Tool {
	return contract.Tool{Kind: kind, Executor: executor, Description: description, Class: "E0", Tool: kind, Version: "1",
		InputSchema: []byte(`{"type":"object"}`), OutputSchema: []byte(`{"type":"object"}`)}
}

// cell is the cell's tenant in the tests.
const cell = "t"

func event(service, name string, data []byte) *contract.Event {
	return &contract.Event{Tenant: cell, Source: service + "/" + service + "-1", Name: name, Data: data}
}

func apply(t *testing.T, c *Catalog, service, name string, tools ...contract.Tool) {
	t.Helper()
	for i := range tools {
		if err := c.Apply(cell, event(service, name, contract.Bytes(&tools[i]))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOwners checks that a service can register only tools that name it as their
// executor, that it can neither register nor retire a kind that another executor has
// registered, that malformed events of services other than policy have no effect, and
// that a malformed approval by policy is an error. An event with a name that is not in
// Filters has no effect.
func TestOwners(t *testing.T) {
	var c Catalog
	mine := tool("session-runner", "tool.echo", "first")
	apply(t, &c, "session-runner", contract.EventToolRegistered, mine)
	apply(t, &c, "judge", contract.EventToolRegistered, tool("session-runner", "tool.other", "another's name"), tool("judge", "tool.echo", "another's kind"))
	apply(t, &c, "judge", contract.EventToolRetired, tool("judge", "tool.echo", "another's kind"))
	if got := c.Tools(); len(got) != 1 || got[0].Description != "first" {
		t.Errorf("%+v", got)
	}
	if got, digest := c.Lookup("tool.other"); got != nil || digest != "none" {
		t.Errorf("%+v %s", got, digest)
	}
	for _, name := range []string{contract.EventToolRegistered, contract.EventToolRetired, contract.EventToolApproved} {
		if err := c.Apply(cell, event("judge", name, []byte(`{"kind":1}`))); err != nil || len(c.Tools()) != 1 {
			t.Errorf("malformed %s of another service: %v, %d tools", name, err, len(c.Tools()))
		}
	}
	if err := c.Apply(cell, event("policy", contract.EventToolApproved, []byte(`{"kind":1}`))); err == nil {
		t.Error("a malformed approval of policy is no error")
	}
	if err := c.Apply(cell, event("policy", contract.EventAllowed, []byte(`not read`))); err != nil {
		t.Error(err)
	}
}

// TestDrift checks that a document other than the first registered one counts as drift
// until policy approves it, that the approval of another service has no effect, and that
// an approval remains in force after retirement. A registration and an approval each
// change the digest of the catalog.
func TestDrift(t *testing.T) {
	var c Catalog
	one, two := tool("session-runner", "tool.echo", "one"), tool("session-runner", "tool.echo", "two")
	apply(t, &c, "session-runner", contract.EventToolRegistered, one)
	first := c.Digest()
	if c.In(cell).Drifted(&one, contract.Digest(&one)) {
		t.Error("the first document counts as drift")
	}
	apply(t, &c, "session-runner", contract.EventToolRegistered, two)
	changed := c.Digest()
	if !c.In(cell).Drifted(&two, contract.Digest(&two)) || changed == first || strings.Contains(string(c.Dump()), "approved") {
		t.Errorf("a changed document does not count as drift: %s", c.Dump())
	}
	approval := contract.Bytes(&contract.ToolApproved{Kind: one.Kind, Digest: contract.Digest(&two)})
	if err := c.Apply(cell, event("gateway", contract.EventToolApproved, approval)); err != nil || !c.In(cell).Drifted(&two, contract.Digest(&two)) {
		t.Error("the gateway approves a tool:", err)
	}
	if err := c.Apply(cell, event("policy", contract.EventToolApproved, approval)); err != nil || c.In(cell).Drifted(&two, contract.Digest(&two)) || c.Digest() == changed {
		t.Error("an approved document counts as drift:", err)
	}
	if d, explicit := c.In(cell).Approved(one.Kind); d != contract.Digest(&two) || !explicit || !strings.HasPrefix(string(c.Dump()), `{"approved":"`+d+`",`) {
		t.Errorf("%s %v %s", d, explicit, c.Dump())
	}
	apply(t, &c, "session-runner", contract.EventToolRetired, two)
	if len(c.Tools()) != 0 || len(c.Dump()) != 0 {
		t.Error("a retired tool is listed")
	}
	apply(t, &c, "session-runner", contract.EventToolRegistered, one) // the approval remains in force after retirement
	if !c.In(cell).Drifted(&one, contract.Digest(&one)) {
		t.Error("after a retirement the first document may be called again")
	}
}

// TestTenants checks that a tool document in another tenant than the cell's has no
// effect, that an approval of a tenant changes the catalog of that tenant only and takes
// precedence over the cell's, and that the digest of a tenant's catalog and the dump
// depend on the approvals and not on their order.
func TestTenants(t *testing.T) {
	one, two, three := tool("session-runner", "tool.echo", "one"), tool("session-runner", "tool.echo", "two"), tool("session-runner", "tool.echo", "three")
	other := tool("session-runner", "tool.other", "one")
	in := func(c *Catalog, tenant, service, name string, doc []byte) {
		t.Helper()
		e := event(service, name, doc)
		e.Tenant = tenant
		if err := c.Apply(cell, e); err != nil {
			t.Fatal(err)
		}
	}
	approve := func(c *Catalog, tenant string, d *contract.Tool) {
		t.Helper()
		in(c, tenant, "policy", contract.EventToolApproved, contract.Bytes(&contract.ToolApproved{Kind: d.Kind, Digest: contract.Digest(d)}))
	}
	var c Catalog
	in(&c, "u", "session-runner", contract.EventToolRegistered, contract.Bytes(&one))
	if len(c.Tools()) != 0 {
		t.Error("a registration in another tenant than the cell's has an effect")
	}
	apply(t, &c, "session-runner", contract.EventToolRegistered, one, two, other)
	in(&c, "u", "session-runner", contract.EventToolRetired, contract.Bytes(&two))
	if len(c.Tools()) != 2 {
		t.Error("a retirement in another tenant than the cell's has an effect")
	}
	base, before := c.Digest(), c.In("v").Digest()
	approve(&c, "u", &two)
	if c.In("u").Drifted(&two, contract.Digest(&two)) || !c.In("v").Drifted(&two, contract.Digest(&two)) || !c.In(cell).Drifted(&two, contract.Digest(&two)) {
		t.Error("the approval in u does not apply to u alone")
	}
	u := c.In("u").Digest()
	if before != base || c.In("v").Digest() != base || u == base {
		t.Errorf("digests: %s, v %s, u %s", base, before, u)
	}
	approve(&c, cell, &three)
	if d, explicit := c.In("v").Approved(one.Kind); d != contract.Digest(&three) || !explicit {
		t.Error("v does not have the cell's approval:", d, explicit)
	}
	if d, explicit := c.In("u").Approved(one.Kind); d != contract.Digest(&two) || !explicit {
		t.Error("u does not have its own approval:", d, explicit)
	}
	if c.In("v").Digest() != c.Digest() || c.Digest() == base || c.In("u").Digest() == u {
		t.Error("the approval of the cell does not change the digests")
	}
	if d := string(c.Dump()); !strings.HasSuffix(d, "}\n"+`{"approved":"`+contract.Digest(&two)+`","kind":"tool.echo","tenant":"u"}`+"\n") {
		t.Error(d)
	}
	approve(&c, "u", &other)
	approve(&c, "a", &other)
	var again Catalog
	approve(&again, "a", &other)
	approve(&again, "u", &other)
	approve(&again, cell, &three)
	approve(&again, "u", &two)
	apply(t, &again, "session-runner", contract.EventToolRegistered, other, one, two)
	if !bytes.Equal(c.Dump(), again.Dump()) || c.In("u").Digest() != again.In("u").Digest() {
		t.Errorf("the dump depends on the order of the approvals:\n%s%s", c.Dump(), again.Dump())
	}
}

// TestOpened checks that a View treats the tenant of the first published key as the cell's
// until the cell is opened, that the tools of that tenant remain in the View after that,
// and that from then on only registrations in contract.CellTenant have an effect. A
// cell_opened that no root key signed has no effect.
func TestOpened(t *testing.T) {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	v := View{Keys: func(kid, _, use string, _ uint64) ([]byte, error) {
		if kid != root.KID || use != contract.UseRoot {
			return nil, errors.New("no root key")
		}
		return root.Public(), nil
	}}
	a, b, x := tool("session-runner", "tool.a", "one"), tool("session-runner", "tool.b", "one"), tool("session-runner", "tool.x", "one")
	do := func(tenant, service, name string, doc []byte) {
		t.Helper()
		e := event(service, name, doc)
		if e.Tenant = tenant; v.Apply(e) != nil {
			t.Fatal(name)
		}
	}
	kinds := func() string {
		var out []string
		for _, t := range v.Tools() {
			out = append(out, t.Kind)
		}
		return strings.Join(out, " ")
	}
	do(cell, "session-runner", contract.EventToolRegistered, contract.Bytes(&x)) // before the first key
	if v.Tenant() != "" {
		t.Error("a tenant before the first key:", v.Tenant())
	}
	do(cell, "provision", contract.EventKeyPublished, nil)
	if v.Tenant() != cell {
		t.Error("the tenant of the mesh's own events before the opening:", v.Tenant())
	}
	do(cell, "session-runner", contract.EventToolRegistered, contract.Bytes(&a))
	do("u", "session-runner", contract.EventToolRegistered, contract.Bytes(&x))
	opened := &contract.CellOpened{Cell: contract.CellTenant, Log: cell, SignerKID: root.KID, Tenant: cell}
	do(cell, "provision", contract.EventCellOpened, contract.Bytes(opened))
	do(contract.CellTenant, "session-runner", contract.EventToolRegistered, contract.Bytes(&x))
	if kinds() != "tool.a" {
		t.Error("wrong kinds before the cell is opened:", kinds())
	}
	opened.Sig = root.Sign(sign.DomainCell, contract.Bytes(opened))
	do(cell, "provision", contract.EventCellOpened, contract.Bytes(opened))
	do(cell, "session-runner", contract.EventToolRegistered, contract.Bytes(&x))
	do(contract.CellTenant, "session-runner", contract.EventToolRegistered, contract.Bytes(&b))
	if kinds() != "tool.a tool.b" || v.Tenant() != contract.CellTenant {
		t.Error("wrong kinds after the cell was opened:", kinds(), v.Tenant())
	}
	do(contract.CellTenant, "session-runner", contract.EventToolRetired, contract.Bytes(&a))
	if kinds() != "tool.b" {
		t.Error("wrong kinds after a retirement:", kinds())
	}
}

// TestDump checks that the dump is one line per kind, sorted by kind, in whatever order
// the tools were registered.
func TestDump(t *testing.T) {
	var a, b Catalog
	x, y := tool("judge", "judge.x", ""), tool("session-runner", "tool.y", "")
	apply(t, &a, "judge", contract.EventToolRegistered, x)
	apply(t, &a, "session-runner", contract.EventToolRegistered, y)
	apply(t, &b, "session-runner", contract.EventToolRegistered, y)
	apply(t, &b, "judge", contract.EventToolRegistered, x)
	if !bytes.Equal(a.Dump(), b.Dump()) || a.Digest() != b.Digest() {
		t.Error("the order of registration shows")
	}
	lines := strings.Split(strings.TrimSpace(string(a.Dump())), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "judge.x") || !strings.Contains(lines[1], "tool.y") {
		t.Errorf("%q", lines)
	}
}

// TestRegister checks that registration appends events for new, changed and retired
// tools, and none when it is repeated without changes: it then reads the ledger twice, however
// many tools there are.
func TestRegister(t *testing.T) {
	log := &logtest.Counter{Log: &memlog.Log{}}
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "session-runner/session-runner-1", Now: time.Now}
	at := func(context.Context) (handle.Cell, error) { return handle.Cell{Tenant: "t"}, nil }
	names := func() (out []string) {
		for en, err := range log.Scan(context.Background(), ">", 1) {
			if err != nil {
				t.Fatal(err)
			}
			e, err := eventlog.Open(en, eventlog.Every)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e.Name+" "+e.Key)
		}
		return out
	}
	a, b := tool("session-runner", "tool.a", "one"), tool("session-runner", "tool.b", "one")
	changed := tool("session-runner", "tool.a", "two")
	for i, step := range []struct {
		tools []contract.Tool
		adds  []string
	}{
		{[]contract.Tool{a, b}, []string{"tool_registered tool-tool-a", "tool_registered tool-tool-b"}},
		{[]contract.Tool{a, b}, nil},
		{[]contract.Tool{changed, b}, []string{"tool_registered tool-tool-a"}},
		{[]contract.Tool{b}, []string{"tool_retired tool-tool-a"}},
		{[]contract.Tool{b}, nil},
		{[]contract.Tool{a, b}, []string{"tool_registered tool-tool-a"}},
		{[]contract.Tool{b}, []string{"tool_retired tool-tool-a"}},
	} {
		before, reads := len(names()), log.Reads.Load()
		if err := Register(t.Context(), m, at, "session-runner", step.tools); err != nil {
			t.Fatal(err)
		}
		if n := log.Reads.Load() - reads; len(step.adds) == 0 && n != 2 {
			t.Errorf("step %d reads the ledger %d times without changes", i, n)
		}
		if got := names()[before:]; strings.Join(got, ",") != strings.Join(step.adds, ",") {
			t.Errorf("step %d records %q, want %q", i, got, step.adds)
		}
	}
}

// TestRegisterOpened checks that the registry of the original tenant is continued after
// cell_opened: an unchanged tool is not registered again, and a removed one is retired in
// the cell's tenant.
func TestRegisterOpened(t *testing.T) {
	log := &memlog.Log{}
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "session-runner/session-runner-1", Now: time.Now}
	a, b := tool("session-runner", "tool.a", "one"), tool("session-runner", "tool.b", "one")
	now := handle.Cell{Tenant: "t"}
	at := func(context.Context) (handle.Cell, error) { return now, nil }
	if err := Register(t.Context(), m, at, "session-runner", []contract.Tool{a, b}); err != nil {
		t.Fatal(err)
	}
	now = handle.Cell{Tenant: contract.CellTenant, Original: "t", Opened: 3}
	for range 2 {
		if err := Register(t.Context(), m, at, "session-runner", []contract.Tool{a}); err != nil {
			t.Fatal(err)
		}
	}
	if log.Size() != 3 {
		t.Errorf("%d events", log.Size())
	}
	if _, err := log.Last(t.Context(), bus.Filter{Tenant: contract.CellTenant, Service: "session-runner", Event: contract.EventToolRetired, Key: Key("tool.b")}.String()); err != nil {
		t.Error(err)
	}
}

// TestFamily checks that a kind of a family that is not registered has the tool of the
// family, with its digest and approval, and that a registered one has its own.
func TestFamily(t *testing.T) {
	var c Catalog
	family, own := tool("llm-router", "client.mcp", "family"), tool("llm-router", "client.mcp.a.own", "own")
	apply(t, &c, "llm-router", contract.EventToolRegistered, family, own)
	for kind, want := range map[string]contract.Tool{"client.mcp.a.b": family, "client.mcp.a.own": own} {
		got, digest := c.Lookup(kind)
		if got == nil || got.Description != want.Description {
			t.Fatalf("%s: %+v", kind, got)
		}
		if approved, explicit := c.In(cell).Approved(kind); approved != digest || explicit || c.In(cell).Drifted(got, digest) {
			t.Errorf("%s: approved %s, registered %s", kind, approved, digest)
		}
	}
	if got, digest := c.Lookup("client.mcpx.a"); got != nil || digest != "none" {
		t.Errorf("%+v %s", got, digest)
	}
}

// TestRemember checks that, after Remember, catalogs share the decoded documents, that the cache
// is bounded, and that a malformed document is not cached.
func TestRemember(t *testing.T) {
	Remember(2)
	defer Remember(0)
	one := tool("judge", "judge.one", "one")
	a, err := decoded(contract.Bytes(&one))
	if err != nil || a.tool.Kind != one.Kind || a.digest != contract.Digest(&one) {
		t.Fatal(a, err)
	}
	b, err := decoded(contract.Bytes(&one))
	if err != nil || &a.tool.InputSchema[0] != &b.tool.InputSchema[0] || b.digest != a.digest {
		t.Error("the document is decoded again", err)
	}
	for i := range 9 {
		other := tool("judge", fmt.Sprint("judge.", i), "other")
		if _, err := decoded(contract.Bytes(&other)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := decoded([]byte("{")); err == nil {
		t.Error("a malformed document is decoded")
	}
	if n := len(known.recent) + len(known.older); n > 4 {
		t.Errorf("%d documents in the cache", n)
	}
}
