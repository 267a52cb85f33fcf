package toolschema

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestWhere checks that Where returns the JSON pointer and the keyword of a violation,
// and the names or the values of an enum that are similar to a wrong one.
func TestWhere(t *testing.T) {
	tool := &contract.Tool{InputSchema: contract.Raw(`{"properties":{"a/b":{"type":"object","properties":{"n":{"type":"integer","maximum":3},"name":{"type":"string"}}},"list":{"type":"array","items":{"type":"object","properties":{"color":{"enum":["red","green"]}}}},"text":{"type":"string"}},"required":["text"],"type":"object"}`)}
	var c Checker
	for args, want := range map[string][3]string{
		`{"text":"x"}`:                             {"", ""},
		`{"txt":"x"}`:                              {"/txt", "additionalProperties", "text"},
		`{"other":"x"}`:                            {"/text", "required"},
		`{"text":1}`:                               {"/text", "type"},
		`{}`:                                       {"/text", "required"},
		`{"text":"x","other":1}`:                   {"/other", "additionalProperties"},
		`{"text":"x","txt":1}`:                     {"/txt", "additionalProperties", "text"},
		`{"a/b":{"n":4},"text":"x"}`:               {"/a~1b/n", "maximum"},
		`{"a/b":{"nam":"","n":1},"text":""}`:       {"/a~1b/nam", "additionalProperties", "name"},
		`{"text":"","list":[{"colour":"red"}]}`:    {"/list/0/colour", "additionalProperties", "color"},
		`{"text":"","list":[{"color":"gren"}]}`:    {"/list/0/color", "enum", "green"},
		`{"text":"","list":[{"color":1}]}`:         {"/list/0/color", "enum"},
		`{"text":"","list":[{"color":"magenta"}]}`: {"/list/0/color", "enum"},
	} {
		if v := c.Where(tool, []byte(args)); v.Pointer != want[0] || v.Keyword != want[1] || strings.Join(v.Near, " ") != want[2] {
			t.Errorf("%s: %+v, want %q", args, v, want)
		}
	}
}
