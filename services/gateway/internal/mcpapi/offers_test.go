package mcpapi

import (
	"slices"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestServerOf checks which server a URI belongs to: the one that lists it, or else the
// one whose matching template is most specific.
func TestServerOf(t *testing.T) {
	o := &offers{byURI: map[string]string{"note://motd": "a"}}
	o.patterns = append(o.patterns, patternOf("note://{id}", "b"), patternOf("note://by-id/{id}", "c"), patternOf("file:///{+path}", "d"))
	slices.SortStableFunc(o.patterns, func(a, b pattern) int { return b.literal - a.literal })
	for uri, want := range map[string]string{"note://motd": "a", "note://7": "b", "note://by-id/7": "c", "note://x/y": "", "file:///a/b.txt": "d", "note://{id}": "b", "": ""} {
		if got := o.serverOf(uri); got != want {
			t.Errorf("%s belongs to %q, want %q", uri, got, want)
		}
	}
}

// TestPage checks the pages of a list, and that an unknown cursor is refused.
func TestPage(t *testing.T) {
	all := make([]*mcp.Tool, pageSize+1)
	for i := range all {
		all[i] = &mcp.Tool{Name: string(rune('a'+i%26)) + string(rune(0x4e00+i))}
	}
	key := func(t *mcp.Tool) string { return t.Name }
	first, next, err := page(all, "", key)
	if err != nil || len(first) != pageSize || next != all[pageSize-1].Name {
		t.Fatal(len(first), next, err)
	}
	if rest, next, err := page(all, next, key); err != nil || len(rest) != 1 || next != "" {
		t.Error(len(rest), next, err)
	}
	if _, _, err := page(all, "nowhere", key); err == nil {
		t.Error("an unknown cursor is not refused")
	}
}
