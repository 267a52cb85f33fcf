package config

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
)

// maxDepth is the maximum nesting depth of a document.
const maxDepth = 64

// readYAML reads one YAML document into the types that encoding/json would decode its
// JSON form to, and returns the line of each JSON pointer in it. It accepts only the
// JSON data model: member names are strings and unique, and anchors, aliases, tags of
// other types and further documents are errors; so is nesting deeper than maxDepth. JSON
// files are accepted, since JSON is YAML. An empty document or null is an empty object;
// any other value that is not an object is an error.
func readYAML(r io.Reader) (doc map[string]any, lines map[string]int, err error) {
	d := yaml.NewDecoder(r)
	var root yaml.Node
	if err := d.Decode(&root); errors.Is(err, io.EOF) {
		return map[string]any{}, map[string]int{}, nil
	} else if err != nil {
		return nil, nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("the file holds more than one document")
	}
	y := reader{lines: map[string]int{}}
	v, err := y.value(root.Content[0], "", 0)
	if err != nil {
		return nil, nil, err
	}
	switch v := v.(type) {
	case nil:
		return map[string]any{}, y.lines, nil
	case map[string]any:
		return v, y.lines, nil
	}
	return nil, nil, &Problem{Line: 1, Message: "want an object: members with their values"}
}

// reader converts YAML nodes to values and collects the line of each JSON pointer.
type reader struct{ lines map[string]int }

// value converts the node n, which is at the JSON pointer at and depth levels deep. Its
// errors are *Problem values with pointer and line, without the node's value.
func (y *reader) value(n *yaml.Node, at string, depth int) (any, error) {
	wrong := func(message string) error { return &Problem{Pointer: at, Line: n.Line, Message: message} }
	y.lines[at] = n.Line
	switch {
	case depth > maxDepth:
		return nil, wrong(fmt.Sprintf("is nested deeper than %d", maxDepth))
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return nil, wrong("anchors and aliases are not supported; write the value itself")
	case n.Kind == yaml.MappingNode:
		return y.object(n, at, depth)
	case n.Kind == yaml.SequenceNode:
		out := []any{}
		for i, item := range n.Content {
			v, err := y.value(item, fmt.Sprintf("%s/%d", at, i), depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	}
	switch n.Tag {
	case "!!null":
		return nil, nil
	case "!!str", "!!timestamp":
		return n.Value, nil
	case "!!bool":
		var v bool
		if n.Decode(&v) != nil { // the decoder's error contains the value, which may be a secret
			return nil, wrong("is neither true nor false")
		}
		return v, nil
	case "!!int", "!!float":
		var v float64
		if err := n.Decode(&v); err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
			return nil, wrong("is not a number that JSON can express")
		}
		return v, nil
	}
	return nil, wrong("tag " + n.Tag + " is not supported")
}

// object converts a mapping node. It rejects a name that occurs twice, because decoders
// differ in which of the two values they use. The line of a member is that of its name,
// not of its value.
func (y *reader) object(n *yaml.Node, at string, depth int) (any, error) {
	out := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode || k.Tag != "!!str" {
			return nil, &Problem{Pointer: at, Line: k.Line, Message: "names of members must be strings"}
		}
		pointer := at + "/" + strictjson.Token(k.Value)
		if _, twice := out[k.Value]; twice {
			return nil, &Problem{Pointer: pointer, Line: k.Line, Message: "occurs twice"}
		}
		v, err := y.value(n.Content[i+1], pointer, depth+1)
		if err != nil {
			return nil, err
		}
		y.lines[pointer] = k.Line
		out[k.Value] = v
	}
	return out, nil
}
