package mcpdoc

import (
	"encoding/json"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestOf checks that Of returns the offer of a document of the mcp-router, and nil for a
// document of another executor or without a valid offer.
func TestOf(t *testing.T) {
	schema, err := (&Offer{Server: "s", Name: "n", Tool: map[string]json.RawMessage{"title": json.RawMessage(`"T"`)}}).Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc := &contract.Tool{Executor: Executor, OutputSchema: schema}
	if o := Of(doc); o == nil || o.Server != "s" || o.Name != "n" || string(o.Tool["title"]) != `"T"` {
		t.Errorf("%+v", o)
	}
	other := *doc
	other.Executor = "session-runner"
	for _, d := range []*contract.Tool{nil, &other, {Executor: Executor}, {Executor: Executor, OutputSchema: contract.Raw(`{"x-mcp":{}}`)}} {
		if o := Of(d); o != nil {
			t.Errorf("%+v has the offer %+v", d, o)
		}
	}
}

// TestRound checks when a call needs no body, and the declared capabilities.
func TestRound(t *testing.T) {
	if !(&Round{}).Empty() {
		t.Error("a call without members needs a body")
	}
	for _, r := range []Round{{Capabilities: json.RawMessage(`{}`)}, {InputResponses: json.RawMessage(`{}`)}, {LogLevel: "info"}, {Progress: true}, {RequestState: "s"}} {
		if r.Empty() {
			t.Errorf("%+v needs no body", r)
		}
	}
	r := Round{Capabilities: json.RawMessage(`{"roots":{}}`)}
	if !r.Can("roots") || r.Can("sampling") || (&Round{}).Can("roots") {
		t.Error("Can")
	}
}

// TestNamed checks the name in the mesh of a server's tool.
func TestNamed(t *testing.T) {
	if Named("s", false, "t") != "s.t" || Named("s", true, "t") != "t" {
		t.Error("Named")
	}
}
