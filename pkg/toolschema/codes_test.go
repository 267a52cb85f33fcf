package toolschema

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestOpen checks the reason codes of release 0.1, whose schemas stay open.
func TestOpen(t *testing.T) {
	const mismatch = "ARGS_SCHEMA_MISMATCH"
	object := `{"properties":{"n":{"type":"integer"},"at":{"type":"string","format":"date"}},"type":"object"}`
	closed := `{"additionalProperties":false,"properties":{"n":{"type":"integer"}},"type":"object"}`
	for _, c := range []struct{ schema, args, want string }{
		{object, `{"n":1}`, ""},
		{object, `{"n":1,"z":1}`, ""},
		{object, `{"at":"no date"}`, ""},
		{object, `{"n":"x"}`, mismatch},
		{object, `{"n":`, mismatch},
		{closed, `{"n":1,"z":1}`, contract.ReasonArgsUnknownField},
		{closed, `{"n":"x","z":1}`, contract.ReasonArgsUnknownField},
		{closed, `{"n":"x"}`, mismatch},
		{`{"type":7}`, `{}`, contract.ReasonToolSchemaInvalid},
		{`{"type":`, `{}`, contract.ReasonToolSchemaInvalid},
	} {
		var checker Checker
		if got := checker.InputBy(Open, "d", tool(c.schema, "{}"), []byte(c.args)); got != c.want {
			t.Errorf("%s against %s: %q, want %q", c.args, c.schema, got, c.want)
		}
	}
}

// TestClosedTypes checks which schemas without members are closed: those whose type is,
// or includes, object.
func TestClosedTypes(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":["object","null"]}`: contract.ReasonArgsUnknownField,
		`{"type":["null","object"]}`: contract.ReasonArgsUnknownField,
		`{"type":["object"]}`:        contract.ReasonArgsUnknownField,
		`{"type":["string","null"]}`: contract.ReasonSchemaViolation,
		`{}`:                         "",
	} {
		var c Checker
		if got := c.Input("d", tool(schema, "{}"), []byte(`{"x":1}`)); got != want {
			t.Errorf("%s: %q, want %q", schema, got, want)
		}
	}
}

// TestOutputPlace checks that the error of Output names the innermost place that
// violates the schema.
func TestOutputPlace(t *testing.T) {
	d := tool("{}", `{"type":"object","properties":{"a":{"type":"object","properties":{"n":{"type":"integer"}}}}}`)
	var c Checker
	err := c.Output("d", d, []byte(`{"a":{"n":"x"}}`))
	if err == nil || err.Error() != "breaks the output schema at /a/n (type)" {
		t.Error(err)
	}
}

// TestValid checks that Valid names the schema that does not compile.
func TestValid(t *testing.T) {
	for _, c := range []struct{ in, out, want string }{
		{`{}`, `{"type":"object"}`, ""},
		{`{"type":7}`, `{}`, "input_schema: "},
		{`{}`, `{"type":7}`, "output_schema: "},
	} {
		var checker Checker
		err := checker.Valid(tool(c.in, c.out))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s, %s: %v, want %q", c.in, c.out, err, c.want)
		}
	}
}
