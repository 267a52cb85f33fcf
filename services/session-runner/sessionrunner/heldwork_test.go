package sessionrunner

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// TestHeldTools checks that the document of each tool for held sandboxes is valid, and
// that its name is unique.
func TestHeldTools(t *testing.T) {
	var checker toolschema.Checker
	seen := map[string]bool{}
	for _, h := range heldTools {
		tool := h.tool(&HeldConfig{Hosts: []string{"example.com"}})
		if err := checker.Valid(&tool); err != nil || seen[tool.Tool] || !isHeld(h.kind) {
			t.Errorf("%s: %v", tool.Tool, err)
		}
		seen[tool.Tool] = true
		var again contract.Tool
		if err := contract.Decode(contract.Bytes(&tool), &again); err != nil {
			t.Errorf("%s: %v", tool.Tool, err)
		}
	}
	if isHeld("tool.fs.other") {
		t.Error("a kind that does not exist is for held sandboxes")
	}
}

// TestPatched checks the edits of fs.patch.
func TestPatched(t *testing.T) {
	for name, c := range map[string]struct {
		edits       []fileEdit
		occurrences int
		want        string
		applied     int
		code        string
	}{
		"all":                      {[]fileEdit{{"a", "b"}}, 0, "b-b-b", 3, ""},
		"first":                    {[]fileEdit{{"a", "b"}}, 1, "b-a-a", 1, ""},
		"one after other":          {[]fileEdit{{"a-a", "x"}, {"x", "y"}}, 0, "y-a", 2, ""},
		"an absent text":           {[]fileEdit{{"a", "b"}, {"z", "y"}}, 0, "", 0, contract.CodeInvalidInput},
		"an empty text":            {[]fileEdit{{"", "y"}}, 0, "", 0, contract.CodeInvalidInput},
		"a literal, not a pattern": {[]fileEdit{{".", "y"}}, 0, "", 0, contract.CodeInvalidInput},
	} {
		got, applied, res := patched("a-a-a", c.edits, c.occurrences)
		if got != c.want || applied != c.applied || res.ErrorCode != c.code {
			t.Errorf("%s: %q %d %+v", name, got, applied, res)
		}
	}
}
