package ir

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Content decodes the content of a message: a text, or a list of parts, each of which is
// converted by the function read. It returns nil if the content is absent or null.
// Errors begin with the path of the invalid member.
func Content[T any](raw json.RawMessage, read func(*T) (Part, error)) ([]Part, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []Part{{Type: Text, Text: text}}, nil
	}
	var list []T
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, Misfit("content", err)
	}
	var out []Part
	for i := range list {
		p, err := read(&list[i])
		if err != nil {
			return nil, fmt.Errorf("content[%d].%w", i, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// ErrUnknownType is wrapped by the error for a part of a type that the dialect does not support, if
// Output is to omit such parts.
var ErrUnknownType = errors.New("is unknown")

// Output is Content for the content of a response. It omits the parts for which the
// error of read wraps ErrUnknownType: such a part, of a provider's own tool for example,
// has no equivalent in other APIs, and a caller of the same API receives it as it is.
func Output[T any](raw json.RawMessage, read func(*T) (Part, error)) ([]Part, error) {
	var out []Part
	parts, err := Content(raw, func(x *T) (Part, error) {
		p, err := read(x)
		if errors.Is(err, ErrUnknownType) {
			return Part{}, nil // without a type
		}
		return p, err
	})
	for i := range parts {
		if parts[i].Type != "" {
			out = append(out, parts[i])
		}
	}
	return out, err
}

// AppendEvent appends a server-sent event to b. The event's name is also the member type
// of its document, as in the APIs responses and messages. It modifies o. If o cannot be
// encoded, it returns b unchanged.
func AppendEvent(b []byte, name string, o Obj) []byte {
	o["type"] = name
	doc, err := json.Marshal(o)
	if err != nil {
		return b
	}
	b = append(append(append(b, "event: "...), name...), "\ndata: "...)
	return append(append(b, doc...), "\n\n"...)
}

// CustomSchema is the input schema of a custom tool, which takes text, for APIs that
// support functions only.
var CustomSchema = json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}`)
