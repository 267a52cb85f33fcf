package mcpdoc

import (
	"reflect"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestVirtualOf checks that VirtualOf returns the virtual server in a document of the
// mcp-router, and nil for a document of another executor or without one.
func TestVirtualOf(t *testing.T) {
	want := &Virtual{Tools: []string{"a.*"}, Resources: []string{"a"}, Search: true}
	schema, err := want.Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc := &contract.Tool{Executor: Executor, OutputSchema: schema}
	if got := VirtualOf(doc); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	other := *doc
	other.Executor = "session-runner"
	for _, d := range []*contract.Tool{nil, &other, {Executor: Executor}, {Executor: Executor, OutputSchema: contract.Raw(`{"x-mcp-virtual":7}`)}, {Executor: Executor, OutputSchema: contract.Raw(`{"x-mcp":{"server":"s"}}`)}} {
		if v := VirtualOf(d); v != nil {
			t.Errorf("%+v has the virtual server %+v", d, v)
		}
	}
}

// TestMatches checks names and beginnings of names.
func TestMatches(t *testing.T) {
	for name, want := range map[string]bool{"a.b": true, "a.": true, "a": false, "c": true, "c.d": false} {
		if Matches([]string{"a.*", "c"}, name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
