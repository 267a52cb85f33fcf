// Package toolschema validates arguments and outputs against a tool's JSON Schema
// (2020-12), and applies defaults. A schema may refer to nothing outside itself. An
// object schema that does not mention other members allows none: unknown fields are
// denied.
package toolschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Checker compiles schemas once per digest of the tool document and side. The
// zero value is ready.
type Checker struct{ compiled sync.Map }

// Rules are the schema rules of a release. Recorded decisions are taken again by the
// rules of their time.
type Rules int

const (
	// Closed: an object schema that does not mention other members allows none, and
	// formats are checked. Since release 0.2.
	Closed Rules = iota
	// Open: members that a schema does not mention are allowed. Release 0.1.
	Open
)

// Input returns "" where args fit the tool's input schema, else a reason code.
func (c *Checker) Input(digest string, t *contract.Tool, args []byte) string {
	return c.InputBy(Closed, digest, t, args)
}

// InputBy is Input by the rules of a release.
func (c *Checker) InputBy(r Rules, digest string, t *contract.Tool, args []byte) string {
	if r == Open {
		return c.open(digest, t, args)
	}
	s, err := c.compile(digest+" in", t.InputSchema, Closed)
	if err != nil {
		return contract.ReasonToolSchemaInvalid
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return contract.ReasonSchemaViolation
	}
	err = s.Validate(doc)
	if err == nil {
		return ""
	}
	var v *jsonschema.ValidationError
	if errors.As(err, &v) && unknownField(v) {
		return contract.ReasonArgsUnknownField
	}
	return contract.ReasonSchemaViolation
}

// Where returns the JSON pointer of the first member of args that breaks the
// tool's input schema, and the keyword it breaks; both are empty where args fit
// or the schema cannot be used. A member that is missing or unknown is named
// itself.
func (c *Checker) Where(t *contract.Tool, args []byte) (pointer, keyword string) {
	s, err := c.compile(contract.Digest(t)+" in", t.InputSchema, Closed)
	if err != nil {
		return "", ""
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return "", ""
	}
	var v *jsonschema.ValidationError
	if !errors.As(s.Validate(doc), &v) {
		return "", ""
	}
	for len(v.Causes) > 0 {
		v = v.Causes[0]
	}
	at := slices.Clone(v.InstanceLocation)
	switch k := v.ErrorKind.(type) {
	case *kind.Required:
		at = append(at, k.Missing[0])
	case *kind.AdditionalProperties:
		at = append(at, k.Properties[0])
	}
	for _, part := range at {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
	}
	if keyword = strings.Join(v.ErrorKind.KeywordPath(), "/"); keyword == "" { // a member that no keyword mentions
		keyword = "additionalProperties"
	}
	return pointer, keyword
}

// open is the check of release 0.1, with its reason codes: a violation with an
// unknown member anywhere in it counts as an unknown member.
func (c *Checker) open(digest string, t *contract.Tool, args []byte) string {
	const mismatch = "ARGS_SCHEMA_MISMATCH"
	s, err := c.compile(digest+" in 0.1", t.InputSchema, Open)
	if err != nil {
		return contract.ReasonToolSchemaInvalid
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return mismatch
	}
	if err = s.Validate(doc); err == nil {
		return ""
	}
	if text := err.Error(); strings.Contains(text, "additional properties") || strings.Contains(text, "unevaluated") {
		return contract.ReasonArgsUnknownField
	}
	return mismatch
}

// unknownField reports whether every violation is an unknown member.
func unknownField(v *jsonschema.ValidationError) bool {
	if len(v.Causes) == 0 {
		if _, ok := v.ErrorKind.(*kind.AdditionalProperties); ok {
			return true
		}
		return strings.HasSuffix(v.SchemaURL, "/unevaluatedProperties")
	}
	for _, c := range v.Causes {
		if !unknownField(c) {
			return false
		}
	}
	return true
}

// Output returns an error that names the place where an output violates the tool's
// output schema; the error quotes nothing of the output.
func (c *Checker) Output(digest string, t *contract.Tool, output []byte) error {
	if string(t.OutputSchema) == "{}" {
		return nil // there is no message beside the location
	}
	s, err := c.compile(digest+" out", t.OutputSchema, Closed)
	if err != nil {
		return err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(output))
	if err != nil {
		return fmt.Errorf("is not one JSON document")
	}
	if err := s.Validate(doc); err != nil {
		var v *jsonschema.ValidationError
		ok := errors.As(err, &v)
		for ok && len(v.Causes) > 0 {
			v = v.Causes[0]
		}
		if ok {
			return fmt.Errorf("breaks the output schema at /%s (%s)", strings.Join(v.InstanceLocation, "/"), strings.Join(v.ErrorKind.KeywordPath(), "/"))
		}
		return fmt.Errorf("breaks the output schema")
	}
	return nil
}

// Valid reports whether both schemas of a tool compile.
func (c *Checker) Valid(t *contract.Tool) error {
	digest := contract.Digest(t)
	if _, err := c.compile(digest+" in", t.InputSchema, Closed); err != nil {
		return fmt.Errorf("input_schema: %w", err)
	}
	if _, err := c.compile(digest+" out", t.OutputSchema, Closed); err != nil {
		return fmt.Errorf("output_schema: %w", err)
	}
	return nil
}

func (c *Checker) compile(key string, schema []byte, r Rules) (*jsonschema.Schema, error) {
	if s, ok := c.compiled.Load(key); ok {
		return s.(*jsonschema.Schema), nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	comp := jsonschema.NewCompiler()
	comp.DefaultDraft(jsonschema.Draft2020)
	if r == Closed {
		shut(doc, true)
		comp.AssertFormat()
	}
	comp.UseLoader(noLoader{})
	if err := comp.AddResource("tool.json", doc); err != nil {
		return nil, err
	}
	s, err := comp.Compile("tool.json")
	if err != nil {
		return nil, err
	}
	c.compiled.Store(key, s)
	return s, nil
}

// shut forbids other members in every object schema that lists members and does not
// mention others. Branches (allOf and the like) and definitions see their own members
// only, so the schema that uses them is closed instead.
func shut(node any, place bool) {
	m, ok := node.(map[string]any)
	if !ok {
		return
	}
	_, said := m["additionalProperties"]
	if _, also := m["unevaluatedProperties"]; place && !said && !also && describesObject(m) {
		m["unevaluatedProperties"] = false
	}
	for _, k := range subschemas {
		switch sub := m[k.name].(type) {
		case map[string]any:
			if !k.named {
				shut(sub, k.place)
				continue
			}
			for _, v := range sub {
				shut(v, k.place)
			}
		case []any:
			if !k.listed {
				continue
			}
			for _, v := range sub {
				shut(v, k.place)
			}
		}
	}
}

// subschemas are the keywords that hold schemas, and whether these describe a place of
// the instance or say more of the place that uses them. A keyword holds one schema,
// several by name, or a list.
var subschemas = []struct {
	name                 string
	named, listed, place bool
}{
	{name: "properties", named: true, place: true}, {name: "patternProperties", named: true, place: true}, {name: "dependentSchemas", named: true},
	{name: "items", place: true}, {name: "additionalProperties", place: true}, {name: "unevaluatedProperties", place: true},
	{name: "contains", place: true}, {name: "unevaluatedItems", place: true},
	{name: "prefixItems", listed: true, place: true},
	{name: "allOf", listed: true}, {name: "anyOf", listed: true}, {name: "oneOf", listed: true},
	{name: "if"}, {name: "then"}, {name: "else"}, {name: "not"},
	{name: "$defs", named: true}, {name: "definitions", named: true},
}

func describesObject(m map[string]any) bool {
	for _, k := range []string{"properties", "patternProperties", "required", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"} {
		if _, ok := m[k]; ok {
			return true
		}
	}
	switch t := m["type"].(type) {
	case string:
		return t == "object"
	case []any:
		for _, v := range t {
			if v == "object" {
				return true
			}
		}
	}
	return false
}

// noLoader refuses every reference outside the document: a schema must not
// make policy read files or the network.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s is not allowed", url)
}

// Defaults adds the schema's defaults for members that args leave out, at every level of
// nested objects. The result is for the executor; the args digest is of the caller's
// args.
func Defaults(schema, args []byte) ([]byte, error) {
	if !bytes.Contains(schema, []byte(`"default"`)) {
		return args, nil
	}
	var s, a any
	if err := decode(schema, &s); err != nil {
		return nil, err
	}
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	fill(s, a)
	return json.Marshal(a)
}

func decode(b []byte, v *any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}

func fill(schema, value any) {
	s, _ := schema.(map[string]any)
	switch v := value.(type) {
	case map[string]any:
		props, _ := s["properties"].(map[string]any)
		for name, p := range props {
			sub, _ := p.(map[string]any)
			if def, ok := sub["default"]; ok {
				if _, given := v[name]; !given {
					v[name] = def
				}
			}
			fill(p, v[name])
		}
	case []any:
		for _, x := range v {
			fill(s["items"], x)
		}
	}
}
