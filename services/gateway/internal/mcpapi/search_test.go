package mcpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestLongQuery shows that the time of a search does not grow with the size of a request: a query
// of megabytes is refused, and the words of a long description are found.
func TestLongQuery(t *testing.T) {
	var long strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&long, "w%d ", i)
	}
	x := newIndex([]*mcp.Tool{{Name: "a", Description: "one " + long.String()}, {Name: "b", Description: "two"}})
	if got := x.find("w199999 two"); len(got) != 2 {
		t.Errorf("found %d tools", len(got))
	}
	res := x.answer([]byte(`{"query":"two `+long.String()+`"}`), nil)
	if text := res.Content[0].(*mcp.TextContent).Text; !res.IsError || !strings.Contains(text, "arguments.query: want at most") {
		t.Errorf("%.200s", text)
	}
	if res := x.answer([]byte(`{"query":"two `+strings.Repeat("x", maxQuery-4)+`"}`), nil); res.IsError {
		t.Errorf("the longest query: %+v", res)
	}
}
