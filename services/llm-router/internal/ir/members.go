package ir

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Members is an object whose members are taken one by one; what is left is
// what the reader does not know.
type Members map[string]json.RawMessage

// Split reads a JSON object into its members. Their bytes are copies: the document
// may change afterwards. Anything but an object is an error.
func Split(doc []byte) (Members, error) {
	var m Members
	if err := json.Unmarshal(doc, &m); err != nil {
		return nil, err
	}
	return m, nil
}

// Take reads a member into v, if it is there and not null, and removes it.
func (m Members) Take(name string, v any) error {
	raw, ok := m[name]
	if !ok {
		return nil
	}
	delete(m, name)
	if string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return Misfit(name, err)
	}
	return nil
}

// Misfit is the error of a member whose JSON does not fit, without Go's types.
func Misfit(name string, err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		value, _, _ := strings.Cut(wrong.Value, " ")
		return fmt.Errorf("%s: %s does not belong here", name, article(value))
	}
	return fmt.Errorf("%s: %w", name, err)
}

func article(value string) string {
	switch value {
	case "array", "object":
		return "an " + value
	case "bool":
		return "a boolean"
	}
	return "a " + value
}

// TakeAll takes members by pairs of name and destination, in order, and stops at
// the first that does not fit. An odd argument at the end is ignored.
func (m Members) TakeAll(pairs ...any) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if err := m.Take(pairs[i].(string), pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// Obj is a JSON object under construction.
type Obj map[string]any

// Put sets a member unless v is the zero value of its type, which means that the
// request does not say: such a member stays out. Other types than those that
// requests hold are always set.
func (o Obj) Put(name string, v any) {
	if !unsaid(v) {
		o[name] = v
	}
}

func unsaid(v any) bool {
	switch t := v.(type) {
	case nil:
		return true
	case string:
		return t == ""
	case int64:
		return t == 0
	case *float64:
		return t == nil
	case *int64:
		return t == nil
	case *bool:
		return t == nil
	case []string:
		return len(t) == 0
	case map[string]string:
		return len(t) == 0
	case json.RawMessage:
		return len(t) == 0
	}
	return false
}

// Bytes is the document's JSON, its members sorted by name, so that one request is
// always written in the same bytes.
func (o Obj) Bytes() ([]byte, error) { return json.Marshal(o) }
