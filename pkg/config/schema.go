package config

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
)

// SchemaID is the $id of the published JSON Schema of the document.
const SchemaID = "urn:binnacle:config:v1"

// Schema returns the JSON Schema (draft 2020-12) of the document, generated from
// Settings. The schema and Check differ in details only: the schema sets no maximum for
// ports, numbers and sizes, for example, and rejects the duration ".5s".
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

// object returns the schema of an object with no other members than properties. It
// permits null, because a section without members is null in YAML.
func object(properties map[string]any) map[string]any {
	return map[string]any{"type": []any{"object", "null"}, "additionalProperties": false, "properties": properties}
}

// orNull changes a schema so that it permits null, which is the same as an absent
// member, and returns it.
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

// describe returns the member's description for the schema. If a running program applies
// a change of the member, the description includes a sentence about that.
func (s *Setting) describe() string {
	text := strings.ToUpper(s.About[:1]) + s.About[1:] + "."
	if strings.HasPrefix(s.About, "[") {
		text = s.About + "."
	}
	if s.Reload {
		text += " Can change while the program runs."
	}
	return text
}
