package config

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
)

// SchemaID is the $id of the published JSON Schema of the document.
const SchemaID = "urn:binnacle:config:v1"

// Schema is the JSON Schema (2020-12) of the document, made of Settings. It refuses
// what Check refuses, except for what a schema cannot say: that a port is a number
// below 65536, and that a file exists.
func Schema() ([]byte, error) {
	root := object(map[string]any{})
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = SchemaID
	root["title"] = "Binnacle configuration"
	root["description"] = "The configuration file of a mesh. Flags and environment variables override it; docs/reference/configuration.md explains each member."
	for i := range Settings {
		x := &Settings[i]
		v := maps.Clone(x.Kind.schema)
		v["description"] = x.describe()
		if d, err := parse(x, x.Default, ""); err == nil && d.Value != nil {
			v["default"] = d.Value
		}
		at, names := root, strings.Split(x.Pointer, "/")[1:]
		for _, n := range names[:len(names)-1] {
			properties := at["properties"].(map[string]any)
			if properties[n] == nil {
				properties[n] = object(map[string]any{})
			}
			at = properties[n].(map[string]any)
		}
		at["properties"].(map[string]any)[names[len(names)-1]] = orNull(v)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(root)
	return b.Bytes(), err
}

// object is the schema of a closed object. A section without members is null in YAML.
func object(properties map[string]any) map[string]any {
	return map[string]any{"type": []any{"object", "null"}, "additionalProperties": false, "properties": properties}
}

// orNull lets a value be null, which is the same as leaving its member out.
func orNull(schema map[string]any) map[string]any {
	switch t := schema["type"].(type) {
	case string:
		schema["type"] = []any{t, "null"}
	case []any:
		schema["type"] = append(append([]any{}, t...), "null")
	}
	if e, ok := schema["enum"].([]any); ok {
		schema["enum"] = append(append([]any{}, e...), nil)
	}
	return schema
}

// describe is what the member is, with what overrides it and what a change does.
func (s *Setting) describe() string {
	text := strings.ToUpper(s.About[:1]) + s.About[1:] + "."
	if strings.HasPrefix(s.About, "[") {
		text = s.About + "."
	}
	if s.Reload {
		text += " A running program takes up a change."
	}
	return text
}
