package catalog

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

func tool(executor, kind, description string) contract.Tool {
	return contract.Tool{Kind: kind, Executor: executor, Description: description, Class: "E0", Tool: kind, Version: "1",
		InputSchema: []byte(`{"type":"object"}`), OutputSchema: []byte(`{"type":"object"}`)}
}

func event(service, name string, data []byte) *contract.Event {
	return &contract.Event{Source: service + "/" + service + "-1", Name: name, Data: data}
}

func apply(t *testing.T, c *Catalog, service, name string, tools ...contract.Tool) {
	t.Helper()
	for i := range tools {
		if err := c.Apply(event(service, name, contract.Bytes(&tools[i]))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOwners checks that a service can register only tools that name it as their
// executor, that it can neither register nor retire a kind that another executor has
// registered, that malformed events of services other than policy have no effect, and
// that a malformed approval by policy is an error.
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
		if err := c.Apply(event("judge", name, []byte(`{"kind":1}`))); err != nil || len(c.Tools()) != 1 {
			t.Errorf("malformed %s of another service: %v, %d tools", name, err, len(c.Tools()))
		}
	}
	if err := c.Apply(event("policy", contract.EventToolApproved, []byte(`{"kind":1}`))); err == nil {
		t.Error("a malformed approval of policy is no error")
	}
	if err := c.Apply(event("policy", contract.EventAllowed, []byte(`not read`))); err != nil {
		t.Error(err)
	}
}

// TestDrift checks that the first registered document may be called until policy
// approves another, that the approval of another service has no effect, and that an
// approval remains in force after retirement. A registration and an approval each change
// the digest of the catalog.
func TestDrift(t *testing.T) {
	var c Catalog
	one, two := tool("session-runner", "tool.echo", "one"), tool("session-runner", "tool.echo", "two")
	apply(t, &c, "session-runner", contract.EventToolRegistered, one)
	first := c.Digest()
	if c.Drifted(&one, contract.Digest(&one)) {
		t.Error("the first document counts as drift")
	}
	apply(t, &c, "session-runner", contract.EventToolRegistered, two)
	changed := c.Digest()
	if !c.Drifted(&two, contract.Digest(&two)) || changed == first || strings.Contains(string(c.Dump()), "approved") {
		t.Errorf("a changed document does not count as drift: %s", c.Dump())
	}
	approval := contract.Bytes(&contract.ToolApproved{Kind: one.Kind, Digest: contract.Digest(&two)})
	if err := c.Apply(event("gateway", contract.EventToolApproved, approval)); err != nil || !c.Drifted(&two, contract.Digest(&two)) {
		t.Error("the gateway approves a tool:", err)
	}
	if err := c.Apply(event("policy", contract.EventToolApproved, approval)); err != nil || c.Drifted(&two, contract.Digest(&two)) || c.Digest() == changed {
		t.Error("an approved document counts as drift:", err)
	}
	if d, explicit := c.Approved(one.Kind); d != contract.Digest(&two) || !explicit || !strings.HasPrefix(string(c.Dump()), `{"approved":"`+d+`",`) {
		t.Errorf("%s %v %s", d, explicit, c.Dump())
	}
	apply(t, &c, "session-runner", contract.EventToolRetired, two)
	if len(c.Tools()) != 0 || len(c.Dump()) != 0 {
		t.Error("a retired tool is listed")
	}
	apply(t, &c, "session-runner", contract.EventToolRegistered, one) // the approval remains in force after retirement
	if !c.Drifted(&one, contract.Digest(&one)) {
		t.Error("after a retirement the first document may be called again")
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
// tools, and none when it is repeated without changes.
func TestRegister(t *testing.T) {
	log := &memlog.Log{}
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "session-runner/session-runner-1", Now: time.Now}
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
		before := len(names())
		if err := Register(t.Context(), m, "session-runner", step.tools); err != nil {
			t.Fatal(err)
		}
		if got := names()[before:]; strings.Join(got, ",") != strings.Join(step.adds, ",") {
			t.Errorf("step %d records %q, want %q", i, got, step.adds)
		}
	}
}
