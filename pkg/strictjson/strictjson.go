// Package strictjson decodes JSON documents that people write. An Error names the
// invalid member by its JSON pointer (RFC 6901), and quotes no value, since a value may
// be secret.
package strictjson

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Error reports a member that the document must not have, or a value of the wrong type.
type Error struct {
	Pointer string // JSON pointer of the member; "" for the whole document
	Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Pointer + ": " + e.Message }

// Decode decodes a JSON object into the struct that v points to. The names of members
// are those in the json tags of the fields. It returns an *Error for a member that the
// struct does not have, even if its name differs from a field's only by case, and for a
// value of the wrong type. null counts as absent. If doc is not JSON, the error is that
// of encoding/json.
func Decode(doc []byte, v any) error {
	if !json.Valid(doc) {
		return json.Unmarshal(doc, v)
	}
	if e := misfit(doc, reflect.TypeOf(v), ""); e != nil {
		return e
	}
	return json.Unmarshal(doc, v)
}

// Token returns a member's name escaped as a token of a JSON pointer.
func Token(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// misfit returns an error for a value in doc that cannot be decoded into t, or for a
// member that t does not have, and nil if there is neither. at is the pointer of doc.
func misfit(doc []byte, t reflect.Type, at string) *Error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[json.RawMessage]() || string(doc) == "null" {
		return nil
	}
	if !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		switch t.Kind() {
		case reflect.Struct:
			return object(doc, t, at)
		case reflect.Map:
			return members(doc, at, func(string) (reflect.Type, string) { return t.Elem(), "" })
		case reflect.Slice:
			return list(doc, t.Elem(), at)
		}
	}
	if json.Unmarshal(doc, reflect.New(t).Interface()) != nil {
		return &Error{at, "want " + wanted(t.Kind())}
	}
	return nil
}

func list(doc []byte, of reflect.Type, at string) *Error {
	var items []json.RawMessage
	if json.Unmarshal(doc, &items) != nil {
		return &Error{at, "want a list"}
	}
	for i, v := range items {
		if e := misfit(v, of, at+"/"+strconv.Itoa(i)); e != nil {
			return e
		}
	}
	return nil
}

func object(doc []byte, t reflect.Type, at string) *Error {
	known, names := map[string]reflect.Type{}, []string{}
	for _, f := range reflect.VisibleFields(t) { // includes the fields of embedded structs
		name := nameOf(f)
		if f.Anonymous && name == "" || !f.IsExported() || inNamed(t, f.Index) {
			continue
		}
		known[name], names = f.Type, append(names, name)
	}
	return members(doc, at, func(name string) (reflect.Type, string) {
		if t, ok := known[name]; ok {
			return t, ""
		}
		return nil, "unknown member; known are " + strings.Join(names, ", ")
	})
}

func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// inNamed reports whether the field of t with an index is in an embedded struct that has
// a name of its own. Such a field is a member of that struct's object, and not of the
// object of t.
func inNamed(t reflect.Type, index []int) bool {
	for i := 1; i < len(index); i++ {
		if nameOf(t.FieldByIndex(index[:i])) != "" {
			return true
		}
	}
	return false
}

// members checks each member of an object against the type that typeOf returns for its
// name. If the type is nil, the member is an error with the message why.
func members(doc []byte, at string, typeOf func(name string) (t reflect.Type, why string)) *Error {
	var given map[string]json.RawMessage
	if json.Unmarshal(doc, &given) != nil {
		return &Error{at, "want a JSON object"}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		field := at + "/" + Token(name)
		t, why := typeOf(name)
		if t == nil {
			return &Error{field, why}
		}
		if e := misfit(given[name], t, field); e != nil {
			return e
		}
	}
	return nil
}

func wanted(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	}
	return "another value"
}
