package toolschema

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

func tool(in, out string) *contract.Tool {
	return &contract.Tool{InputSchema: contract.Raw(in), OutputSchema: contract.Raw(out)}
}

const nested = `{"type":"object","required":["to"],"properties":{
  "to":{"type":"object","required":["host"],"properties":{"host":{"type":"string","format":"hostname"},"port":{"type":"integer","minimum":1,"maximum":65535,"default":443}}},
  "mode":{"enum":["fast","safe"],"default":"safe"},
  "tags":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string"}}},"maxItems":2},
  "pair":{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false},
  "shape":{"$ref":"#/$defs/circle"},
  "either":{"oneOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"integer"}},"required":["b"]}]},
  "free":{"type":"object","additionalProperties":{"type":"string"}}},
  "$defs":{"circle":{"allOf":[{"$ref":"#/$defs/named"},{"properties":{"r":{"type":"number","exclusiveMinimum":0}}}]},"named":{"properties":{"name":{"type":"string","pattern":"^[a-z]+$"}}}}}`

func TestInput(t *testing.T) {
	var c Checker
	for args, want := range map[string]string{
		`{"to":{"host":"a.org"}}`:                                  "",
		`{"to":{"host":"a.org","port":80},"mode":"fast"}`:          "",
		`{"to":{"host":"a.org","port":0}}`:                         contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org","port":70000}}`:                     contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org","port":80.5}}`:                      contract.ReasonSchemaViolation,
		`{"to":{"host":"not a host"}}`:                             contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org","user":"x"}}`:                       contract.ReasonArgsUnknownField,
		`{"to":{"host":"a.org"},"surprise":1}`:                     contract.ReasonArgsUnknownField,
		`{"to":{"host":"a.org"},"mode":"other"}`:                   contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org"},"tags":[{"k":"v"}]}`:               "",
		`{"to":{"host":"a.org"},"tags":[{"k":"v","x":1}]}`:         contract.ReasonArgsUnknownField,
		`{"to":{"host":"a.org"},"tags":[{},{},{}]}`:                contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org"},"pair":["a",1]}`:                   "",
		`{"to":{"host":"a.org"},"pair":["a",1,2]}`:                 contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org"},"shape":{"name":"c","r":1}}`:       "",
		`{"to":{"host":"a.org"},"shape":{"name":"c","r":0}}`:       contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org"},"shape":{"name":"c","r":1,"x":1}}`: contract.ReasonArgsUnknownField,
		`{"to":{"host":"a.org"},"either":{"a":1}}`:                 "",
		`{"to":{"host":"a.org"},"either":{"a":1,"z":1}}`:           contract.ReasonArgsUnknownField,
		`{"to":{"host":"a.org"},"free":{"anything":"goes"}}`:       "",
		`{"to":{"host":"a.org"},"free":{"anything":1}}`:            contract.ReasonSchemaViolation,
		`{}`:     contract.ReasonSchemaViolation,
		`[]`:     contract.ReasonSchemaViolation,
		`{"to":`: contract.ReasonSchemaViolation,
		`{"to":{"host":"a.org","port":1` + strings.Repeat("0", 400) + `}}`:        contract.ReasonSchemaViolation,
		`{"to":` + strings.Repeat(`{"to":`, 900) + strings.Repeat(`}`, 900) + `}`: contract.ReasonArgsUnknownField,
	} {
		if got := c.Input("nested", tool(nested, "{}"), []byte(args)); got != want && !(want == contract.ReasonArgsUnknownField && got == contract.ReasonSchemaViolation && strings.Contains(args, `{"to":{"to":`)) {
			t.Errorf("%.120s: %q, want %q", args, got, want)
		}
	}
	for schema, want := range map[string]string{
		`{"type":"object"}`:                             contract.ReasonArgsUnknownField,
		`{"type":"object","additionalProperties":true}`: "",
		`{"$ref":"https://example.org/x.json"}`:         contract.ReasonToolSchemaInvalid,
		`{"$ref":"file:///etc/passwd"}`:                 contract.ReasonToolSchemaInvalid,
		`{"type":7}`:                                    contract.ReasonToolSchemaInvalid,
		`{"type":"object","pattern":"("}`:               contract.ReasonToolSchemaInvalid,
	} {
		if got := c.Input(schema, tool(schema, "{}"), []byte(`{"x":1}`)); got != want {
			t.Errorf("%s: %q, want %q", schema, got, want)
		}
	}
}

func TestOutput(t *testing.T) {
	var c Checker
	d := tool("{}", `{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`)
	if err := c.Output("d", d, []byte(`{"n":1}`)); err != nil {
		t.Error(err)
	}
	for _, out := range []string{`{"n":"hidden"}`, `{"n":1,"hidden":1}`, `{}`, `hidden`, `["hidden"]`} {
		err := c.Output("d", d, []byte(out))
		if err == nil || strings.Contains(err.Error(), "hidden") && !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: %v", out, err)
		}
		if err != nil && strings.Contains(err.Error(), `"hidden"`) {
			t.Errorf("the error quotes the output: %v", err)
		}
	}
}

func TestDefaults(t *testing.T) {
	got, err := Defaults([]byte(nested), []byte(`{"to":{"host":"a.org"}}`))
	if err != nil || string(got) != `{"mode":"safe","to":{"host":"a.org","port":443}}` {
		t.Errorf("%s %v", got, err)
	}
	got, err = Defaults([]byte(nested), []byte(`{"mode":"fast","to":{"host":"a.org","port":12345678901234567}}`))
	if err != nil || string(got) != `{"mode":"fast","to":{"host":"a.org","port":12345678901234567}}` {
		t.Errorf("%s %v", got, err)
	}
}
