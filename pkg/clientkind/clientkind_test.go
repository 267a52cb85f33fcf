package clientkind_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// TestTools shows that the schemas of every tool compile, that no two tools
// have the same kind, and that the kinds Shell, FileEdit and Other and the
// family of an MCP server's tools each have a tool.
func TestTools(t *testing.T) {
	var c toolschema.Checker
	seen := map[string]bool{}
	for _, x := range clientkind.Tools("llm-router") {
		if err := c.Valid(&x); err != nil {
			t.Errorf("%s: %v", x.Kind, err)
		}
		if seen[x.Kind] {
			t.Error("twice:", x.Kind)
		}
		seen[x.Kind] = true
	}
	for _, kind := range []string{clientkind.Shell, clientkind.FileEdit, clientkind.Other, clientkind.Family(clientkind.MCP("a", "b"))} {
		if !seen[kind] {
			t.Error("missing:", kind)
		}
	}
}

// TestMCP shows which kind a tool of an MCP server has, and that only such kinds have a
// family.
func TestMCP(t *testing.T) {
	for _, c := range []struct{ server, tool, want string }{
		{"github", "create_issue", "client.mcp.github.create_issue"},
		{"git.hub", "a b", "client.mcp.git_hub.a_b"},
		{"", "", "client.mcp._._"},
		{"azAZ09_-", "`{@[/:", "client.mcp.azAZ09_-.______"}, // both ends of each range, and their neighbours
	} {
		if got := clientkind.MCP(c.server, c.tool); got != c.want || clientkind.Family(got) != "client.mcp" {
			t.Errorf("%q %q: %s, family %q", c.server, c.tool, got, clientkind.Family(got))
		}
	}
	for _, kind := range []string{clientkind.Shell, "client.mcp", "client.mcpx.a", "tool.x"} {
		if f := clientkind.Family(kind); f != "" {
			t.Errorf("%s has the family %s", kind, f)
		}
	}
}
