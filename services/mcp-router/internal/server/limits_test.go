package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// TestLimits checks values at and beyond the limits of several settings.
func TestLimits(t *testing.T) {
	header := func(prefix string) func(*events.ServerAdded) {
		return func(s *events.ServerAdded) {
			s.Headers = []events.Header{{Name: "X", Prefix: prefix, Secret: "mcp.x"}}
		}
	}
	for name, c := range map[string]struct {
		change func(*events.ServerAdded)
		want   bool
	}{
		"class E0": {func(s *events.ServerAdded) { s.Class = "E0" }, true}, "class E4": {func(s *events.ServerAdded) { s.Class = "E4" }, true}, "class E": {func(s *events.ServerAdded) { s.Class = "E" }, false},
		"class E33": {func(s *events.ServerAdded) { s.Class = "E33" }, false}, "class D9": {func(s *events.ServerAdded) { s.Class = "D9" }, false}, "class F0": {func(s *events.ServerAdded) { s.Class = "F0" }, false},
		"one call": {func(s *events.ServerAdded) { s.Concurrency = 1 }, true}, "most calls": {func(s *events.ServerAdded) { s.Concurrency = maxConcurrency }, true}, "fewer calls": {func(s *events.ServerAdded) { s.Concurrency = -1 }, false},
		"shortest": {func(s *events.ServerAdded) { s.TimeoutMS = 1 }, true}, "longest": {func(s *events.ServerAdded) { s.TimeoutMS = maxTimeoutMS }, true}, "longer": {func(s *events.ServerAdded) { s.TimeoutMS = maxTimeoutMS + 1 }, false},
		"prefix": {header(" ~Bearer "), true}, "longest prefix": {header(strings.Repeat("x", 64)), true}, "longer prefix": {header(strings.Repeat("x", 65)), false}, "prefix with a delete": {header("\x7f"), false}, "prefix with a tab": {header("\t"), false},
		"http": {func(s *events.ServerAdded) { s.Url = "http://a.test" }, true}, "no host": {func(s *events.ServerAdded) { s.Url = "http://" }, false}, "malformed": {func(s *events.ServerAdded) { s.Url = "http://a b" }, false}, "another scheme": {func(s *events.ServerAdded) { s.Url = "ftp://a.test" }, false},
		"a fragment": {func(s *events.ServerAdded) { s.Url = "http://a.test#x" }, false},
	} {
		s := events.ServerAdded{Name: "calc", Url: "https://mcp.example/mcp"}
		c.change(&s)
		if err := Check(&s); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLargestDocument checks the size of a document at which a tool is left out, and that
// tools are left out if their schema is missing or is not a JSON object.
func TestLargestDocument(t *testing.T) {
	s := events.ServerAdded{Name: "calc", Url: "https://mcp.example/mcp"}
	if err := Check(&s); err != nil {
		t.Fatal(err)
	}
	documents := func(description string) ([]contract.Tool, []Problem) {
		return Documents(&s, &Listing{Tools: []json.RawMessage{json.RawMessage(`{"name":"x","description":"` + description + `","inputSchema":{"type":"object"}}`)}})
	}
	docs, problems := documents("")
	if len(docs) != 1 || len(problems) != 0 {
		t.Fatal(docs, problems)
	}
	left := maxDocument - len(contract.Bytes(&docs[0]))
	for more, want := range map[int]int{0: 1, 1: 0} {
		if docs, problems := documents(strings.Repeat("x", left+more)); len(docs) != want || len(problems) != 1-want {
			t.Errorf("%d bytes more than the most: %d documents, %v", more, len(docs), problems)
		}
	}
	for _, schema := range []string{`null`, `7`, `"{"`} {
		docs, problems := Documents(&s, &Listing{Tools: []json.RawMessage{json.RawMessage(`{"name":"x","inputSchema":` + schema + `}`)}})
		if len(docs) != 0 || len(problems) != 1 {
			t.Errorf("schema %s: %d documents, %v", schema, len(docs), problems)
		}
	}
	if docs, problems := Documents(&s, &Listing{Tools: []json.RawMessage{json.RawMessage(`{"name":"x"}`)}}); len(docs) != 0 || len(problems) != 1 {
		t.Errorf("without a schema: %d documents, %v", len(docs), problems)
	}
}
