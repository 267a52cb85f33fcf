// Package toolschema validates arguments and outputs against a tool's JSON Schema
// (2020-12), and applies defaults. A schema must not refer to other documents. Since
// release 0.2 (Closed), an object schema that does not mention additional members allows
// none, so unknown members are denied.
package toolschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	neturl "net/url"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/suggest"
)

// Checker validates arguments and outputs against the schemas of tools. It caches the
// compiled schemas by the digest of the tool document, and is safe for concurrent use.
// The zero value is ready to use.
type Checker struct{ compiled sync.Map }

// Rules selects the schema rules of a release. Replay repeats a recorded decision by the
// rules of the release that made it.
type Rules int

const (
	// Closed applies since release 0.2: an object schema that does not mention
	// additional members allows none, and formats are checked.
	Closed Rules = iota
	// Open applies to release 0.1: members that a schema does not mention are allowed,
	// and formats are not checked.
	Open
)

// Input returns "" if args match the tool's input schema, else a reason code:
// contract.ReasonToolSchemaInvalid if the schema does not compile,
// ReasonArgsUnknownField if all violations are unknown members, or ReasonSchemaViolation
// in all other cases. digest is the digest of the tool document.
func (c *Checker) Input(digest string, t *contract.Tool, args []byte) string {
	return c.InputBy(Closed, digest, t, args)
}

// InputBy is like Input, but applies the given schema rules and returns the reason codes
// of their release.
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

// A Violation is a place where arguments violate a schema.
type Violation struct {
	Pointer string   // JSON pointer of the member, even if it is missing or unknown
	Keyword string   // the keyword that it violates, additionalProperties for an unknown member
	Near    []string // names of members, or values of an enum, that are similar to a wrong one
}

// Where returns one violation of the tool's input schema by args. If a required member is
// missing and an unknown member has a similar name, Where returns the violation by the
// unknown member. It returns the zero Violation if args match or are not JSON, or if the
// schema cannot be compiled.
func (c *Checker) Where(t *contract.Tool, args []byte) Violation {
	s, err := c.compile(contract.Digest(t)+" in", t.InputSchema, Closed)
	if err != nil {
		return Violation{}
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return Violation{}
	}
	var v *jsonschema.ValidationError
	if !errors.As(s.Validate(doc), &v) {
		return Violation{}
	}
	for len(v.Causes) > 0 {
		v = v.Causes[0]
	}
	at, out := slices.Clone(v.InstanceLocation), Violation{Keyword: strings.Join(v.ErrorKind.KeywordPath(), "/")}
	switch k := v.ErrorKind.(type) {
	case *kind.Required:
		if wrong := misspelt(doc, at, k.Missing[0], names(t.InputSchema, v.SchemaURL)); wrong != "" {
			at, out.Keyword, out.Near = append(at, wrong), "additionalProperties", k.Missing[:1]
			break
		}
		at = append(at, k.Missing[0])
	case *kind.AdditionalProperties:
		at = append(at, k.Properties[0])
		out.Near = suggest.Near(k.Properties[0], names(t.InputSchema, v.SchemaURL))
	case *kind.FalseSchema: // of the members that Closed does not allow
		if parent, ok := strings.CutSuffix(v.SchemaURL, "/unevaluatedProperties"); ok && len(at) > 0 {
			out.Near = suggest.Near(at[len(at)-1], names(t.InputSchema, parent))
		}
	case *kind.Enum:
		out.Near = similar(k)
	}
	for _, part := range at {
		out.Pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
	}
	if out.Keyword == "" { // an unknown member
		out.Keyword = "additionalProperties"
	}
	return out
}

// names returns the sorted names of the properties of the schema to which the fragment of
// a URL points in doc. It returns nil if there are none, or if the fragment leads through
// an array.
func names(doc []byte, url string) []string {
	_, fragment, _ := strings.Cut(url, "#")
	if decoded, err := neturl.PathUnescape(fragment); err == nil {
		fragment = decoded
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(fragment, "/"), "/") {
		if part == "" {
			continue
		}
		var of map[string]json.RawMessage
		if json.Unmarshal(doc, &of) != nil {
			return nil // a schema in an array
		}
		doc = of[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
	}
	var node struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(doc, &node) != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(node.Properties))
}

// misspelt returns the name of a member of the object at a place in doc. The name is not
// one of known, and is the one most similar to missing. misspelt returns "" if there is
// no similar name.
func misspelt(doc any, at []string, missing string, known []string) string {
	for _, part := range at {
		of, ok := doc.(map[string]any)
		if !ok {
			return "" // in an array
		}
		doc = of[part]
	}
	of, ok := doc.(map[string]any)
	if !ok {
		return ""
	}
	var unknown []string
	for name := range of {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	if found := suggest.Near(missing, unknown); len(found) > 0 {
		return found[0]
	}
	return ""
}

// similar returns the strings of an enum that are similar to a wrong value.
func similar(k *kind.Enum) []string {
	got, ok := k.Got.(string)
	if !ok {
		return nil
	}
	var of []string
	for _, w := range k.Want {
		if s, ok := w.(string); ok {
			of = append(of, s)
		}
	}
	return suggest.Near(got, of)
}

// open is the check of release 0.1, with its reason codes: if any violation is an
// unknown member, the result is the reason code for unknown members.
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

// unknownField reports whether all violations are unknown members.
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
// output schema; the error quotes no value of the output. It also returns an error if
// the output is not one JSON document or the schema does not compile. If the schema is
// {}, Output does not read the output and returns nil.
func (c *Checker) Output(digest string, t *contract.Tool, output []byte) error {
	if string(t.OutputSchema) == "{}" {
		return nil // an empty schema matches every output
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
		for ok && len(v.Causes) > 0 { // whose order differs between runs
			v = slices.MinFunc(v.Causes, func(a, b *jsonschema.ValidationError) int {
				return slices.Compare(a.InstanceLocation, b.InstanceLocation)
			})
		}
		if ok {
			why := strings.Join(v.ErrorKind.KeywordPath(), "/")
			if _, no := v.ErrorKind.(*kind.FalseSchema); no && why == "" {
				why = "no such member"
			}
			return fmt.Errorf("breaks the output schema at /%s (%s)", strings.Join(v.InstanceLocation, "/"), why)
		}
		return fmt.Errorf("breaks the output schema")
	}
	return nil
}

// Valid returns an error that names the schema if a schema of the tool does not compile.
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

// compile returns the compiled schema for a key, which it caches. key identifies the
// schema and the rules.
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

// shut forbids unknown members in every schema that may describe an object and does not
// mention additional members. A subschema in allOf or a similar keyword, or in $defs,
// lists only a part of the members, so the schema that uses it is closed instead: place
// is false for such a subschema.
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

// subschemas are the keywords that contain schemas: one schema, several by name (named),
// or a list (listed). place is set if the schemas apply to members or items of a value,
// and not to the value itself.
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

// describesObject reports whether a schema may describe the members of an object.
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

// noLoader refuses every reference to another document, so that a schema cannot make
// policy read files or use the network.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s is not allowed", url)
}

// Defaults returns args with the schema's defaults for absent members, at every level
// that the keywords properties and items describe. Without a default in the schema, it
// returns args itself; otherwise it returns an error if schema or args are not JSON. The
// result is for the executor; the digest of the args is that of the caller's args.
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

// decode decodes JSON and keeps numbers as text, so that large ones are not rounded.
func decode(b []byte, v *any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}

// fill adds defaults to value in place, at every level that the keywords properties and
// items of schema describe.
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
