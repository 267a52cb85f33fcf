package ir

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Members is a JSON object from which a dialect takes the members that it decodes. The
// others remain.
type Members map[string]json.RawMessage

// Split decodes a JSON object into its members, which are copies of the bytes in doc. It
// returns nil for null, and an error for any other doc that is not an object.
func Split(doc []byte) (Members, error) {
	var m Members
	if err := json.Unmarshal(doc, &m); err != nil {
		return nil, err
	}
	return m, nil
}

// Take decodes a member into v and removes it, even if it cannot be decoded; the error
// is then that of Misfit. It leaves v unchanged if the member is absent or null.
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

// Misfit returns the error for a member that could not be decoded because of err. For
// JSON of the wrong type, its text names the JSON type instead of Go types.
func Misfit(name string, err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		value, _, _ := strings.Cut(wrong.Value, " ")
		return fmt.Errorf("%s: %s does not belong here", name, article(value))
	}
	return fmt.Errorf("%s: %w", name, err)
}

// article returns the name of a JSON type with its article.
func article(value string) string {
	switch value {
	case "array", "object":
		return "an " + value
	case "bool":
		return "a boolean"
	}
	return "a " + value
}

// TakeAll calls Take for each pair of a name and a destination, and returns the first error. It
// ignores a name at the end that has no destination.
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

// Put sets a member, unless v represents an absent one (see unsaid).
func (o Obj) Put(name string, v any) {
	if !unsaid(v) {
		o[name] = v
	}
}

// unsaid reports whether v represents an absent member: nil, a nil pointer to a number or
// a bool, the int64 0, or an empty string, list of strings, map of strings or
// json.RawMessage.
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

// Bytes returns the document as JSON with its members sorted by name, so that equal
// requests have equal bytes.
func (o Obj) Bytes() ([]byte, error) { return json.Marshal(o) }
