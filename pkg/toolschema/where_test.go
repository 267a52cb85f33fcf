package toolschema

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestWhere checks that Where returns the JSON pointer and the keyword of a violation.
func TestWhere(t *testing.T) {
	tool := &contract.Tool{InputSchema: contract.Raw(`{"properties":{"a/b":{"type":"object","properties":{"n":{"type":"integer","maximum":3}}},"text":{"type":"string"}},"required":["text"],"type":"object"}`)}
	var c Checker
	for args, want := range map[string][2]string{
		`{"text":"x"}`:                    {"", ""},
		`{"text":1}`:                      {"/text", "type"},
		`{}`:                              {"/text", "required"},
		`{"text":"x","other":1}`:          {"/other", "additionalProperties"},
		`{"a/b":{"n":4},"text":"x"}`:      {"/a~1b/n", "maximum"},
		`{"a/b":{"n":1,"z":1},"text":""}`: {"/a~1b/z", "additionalProperties"},
	} {
		if at, keyword := c.Where(tool, []byte(args)); at != want[0] || keyword != want[1] {
			t.Errorf("%s: %q %q, want %q", args, at, keyword, want)
		}
	}
}
