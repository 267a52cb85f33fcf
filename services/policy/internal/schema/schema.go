// Package schema checks arguments against a tool's JSON Schema 2020-12.
package schema

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Reason codes.
const (
	UnknownField = "ARGS_UNKNOWN_FIELD"
	Mismatch     = "ARGS_SCHEMA_MISMATCH"
	BadSchema    = "TOOL_SCHEMA_INVALID"
	Unavailable  = "ARGS_UNAVAILABLE"
)

// Checker compiles schemas once per digest.
type Checker struct{ compiled sync.Map }

// Check returns "" where args fit, else a reason code.
func (c *Checker) Check(digest string, schemaDoc, args []byte) string {
	s, err := c.compile(digest, schemaDoc)
	if err != nil {
		return BadSchema
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return Mismatch
	}
	err = s.Validate(doc)
	if err == nil {
		return ""
	}
	if strings.Contains(err.Error(), "additional properties") || strings.Contains(err.Error(), "unevaluated") {
		return UnknownField
	}
	return Mismatch
}

// Valid reports whether a schema compiles.
func (c *Checker) Valid(digest string, schemaDoc []byte) error {
	_, err := c.compile(digest, schemaDoc)
	return err
}

func (c *Checker) compile(digest string, schemaDoc []byte) (*jsonschema.Schema, error) {
	if s, ok := c.compiled.Load(digest); ok {
		return s.(*jsonschema.Schema), nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaDoc))
	if err != nil {
		return nil, err
	}
	comp := jsonschema.NewCompiler()
	comp.DefaultDraft(jsonschema.Draft2020)
	comp.UseLoader(noLoader{})
	if err := comp.AddResource("tool.json", doc); err != nil {
		return nil, err
	}
	s, err := comp.Compile("tool.json")
	if err != nil {
		return nil, err
	}
	c.compiled.Store(digest, s)
	return s, nil
}

// noLoader refuses every reference outside the document: a schema must not
// make policy read files or the network.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s is not allowed", url)
}
